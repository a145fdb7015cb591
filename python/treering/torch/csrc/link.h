// SPDX-License-Identifier: Apache-2.0
// A group's communicator: how its ranks meet, and how calls are given to it.
//
// A synchronous call runs in the thread that calls. An asynchronous one is given to the link's stream, which the
// library's thread advances. The library keeps the order of both, and takes one call at a time, which a mutex sees to.
// The ranks meet by an id, which rank 0 puts into the group's store.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include "treering/treering.h"
#include "work.h"

namespace treering::pytorch {

// Who meets, and by what.
struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;
  std::string key;   // of the id
  std::string name;  // of the communicator, in messages
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};  // of every wait
};

// A rank of a new communicator; raises. Its name is that in messages.
trComm_t join(const std::string& name, int size, const trUniqueId& id, int rank, std::chrono::milliseconds timeout);

class Link {
 public:
  // A call of the library: with a null stream it waits.
  using Issue = std::function<trResult_t(trComm_t, trStream_t)>;

  // Returns when all ranks are there.
  explicit Link(const Meeting& meeting);
  ~Link() { close("the group was destroyed"); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Sets the timeout of later calls that have none of their own. With 0 or less they have the library's deadline alone.
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ms_ = timeout.count(); }
  std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(timeout_ms_.load()); }
  // Raises what fails at once, and where the call is synchronous each failure.
  c10::intrusive_ptr<CollectiveWork> run(Call call, const Issue& issue);
  // Ends what is under way, on all ranks. May be called during a call of another thread.
  void revoke();
  // As revoke(), and no call is taken from here on.
  void close(const char* why);
  // The first failure, in the library's words; empty where there is none.
  std::string failure_text();

 private:
  struct Pending;
  static void on_end(trResult_t result, void* context);
  void run_here(CollectiveWork* work, const Issue& issue);
  void run_on_stream(const c10::intrusive_ptr<CollectiveWork>& work, const Issue& issue);
  void wait_with_timeout(CollectiveWork* work);
  std::string reason(trResult_t result, trComm_t comm) const;

  int rank_;
  std::atomic<int64_t> timeout_ms_{-1};
  std::mutex mutex_;  // of calls
  trComm_t comm_ = nullptr;
  trStream_t stream_ = nullptr;
  // For threads that do not have the mutex, which a call has as long as it waits.
  std::atomic<trComm_t> revocable_{nullptr};
  std::atomic<const char*> closed_{nullptr};  // why
};

}  // namespace treering::pytorch
