// SPDX-License-Identifier: Apache-2.0
// Comm: what an ncclComm_t stands for: a communicator of the C API and what NCCL's interface adds to one: calls that go
// on in the background, a state between creation and destruction, operations made by the user.
//
//   handle: a number that is never used twice -> registry -> Comm -> trComm_t
//
// A handle that was released is therefore an error and not a crash. A Comm lives until the last call on it has ended.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/status.h"
#include "shim/include/nccl.h"

namespace treering::nccl {

// A pre-multiplied sum. Calls that use it share it, so that it may be destroyed while they are under way.
struct MadeOp {
  trComm_t comm = nullptr;
  trDataType_t type = trFloat32;
  trRedOp_t op = trSum;
  ~MadeOp();
};

// A buffer given to ncclCommWindowRegister().
struct Window {
  void* buffer = nullptr;
  void* registration = nullptr;  // NULL: the buffer is used as it is
};

class Comm {
 public:
  Comm(int rank, int ranks, int device, bool blocking, std::string name)
      : rank(rank), ranks(ranks), device(device), blocking(blocking), name(std::move(name)) {}
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank, ranks;  // of a split they are known when it is attached
  const int device;
  const bool blocking;
  const std::string name;
  ncclComm_t handle = nullptr;
  std::atomic<uint64_t> calls{0};  // given so far, for the log

  trComm_t get() const { return comm_.load(std::memory_order_acquire); }
  // The communicator that creation made. It is released at once when this Comm has been released meanwhile.
  void attach(trComm_t made);

  // A call on it, or its creation, goes on in the background.
  void begin_background();
  void end_background(const Status& status);
  bool in_background() const { return background_.load() > 0; }

  // Whether the next call may begin; `function` is for the message.
  Status expect_ready(const char* function) const;
  // ... one that ncclCommSuspend() forbids.
  Status expect_awake(const char* function) const;
  // ... one that moves data.
  Status expect_usable(const char* function) const;

  // ncclInProgress as trInProgress.
  Status async_state();
  Status finalize();
  Status revoke();
  // Calls are refused in between. No memory is released.
  void suspend() { suspended_ = true; }
  Status resume();
  bool suspended() const { return suspended_; }

  // The id of the next ncclCommGrow(): one at a time, for one grow.
  Status make_grow_id(ncclUniqueId* id);
  bool is_grow_id(const ncclUniqueId& id) const;
  void end_grow_id();

  // Ends what is under way on all ranks, and waits for nothing.
  Status begin_abort();
  // Releases the communicator. With `abort`, what is under way ends on all ranks.
  Status release(bool abort);

  ncclRedOp_t add_op(std::shared_ptr<const MadeOp> made);
  Status find_op(const char* function, ncclRedOp_t op, std::shared_ptr<const MadeOp>* made) const;
  Status remove_op(ncclRedOp_t op);

  ncclWindow_t add_window(const Window& window);
  Status find_window(const char* function, ncclWindow_t handle, Window* window) const;
  void remove_window(ncclWindow_t handle);

  void set_last_error(const std::string& text);
  std::string last_error() const;

 private:
  std::atomic<trComm_t> comm_{nullptr};
  std::atomic<int> background_{0};
  std::atomic<bool> finalized_{false};
  std::atomic<bool> revoked_{false};
  std::atomic<bool> suspended_{false};
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable ended_;
  bool released_ = false;
  Status failure_;  // of a background call
  std::string last_error_;
  std::map<int, std::shared_ptr<const MadeOp>> ops_;
  std::map<ncclWindow_t, Window> windows_;
  std::optional<trUniqueId> grow_id_;
};

using CommPtr = std::shared_ptr<Comm>;

ncclComm_t add_comm(CommPtr comm);
Status find_comm(const char* function, ncclComm_t handle, CommPtr* comm);
// Ends the handle.
Status remove_comm(const char* function, ncclComm_t handle, CommPtr* comm);

}  // namespace treering::nccl
