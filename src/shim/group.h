// SPDX-License-Identifier: Apache-2.0
// Group: the calls that a thread has collected between ncclGroupStart() and ncclGroupEnd(). A call outside of a group
// is a batch of one.
//
//   changes (create, split, shrink, finalize)   side by side, first; those of one communicator in order
//   calls (collectives, sends, receives)     one group of the C API, then
//
// A batch on non-blocking communicators runs in a thread of its own, and the call that started it returns
// ncclInProgress.
#pragma once

#include <functional>
#include <vector>

#include "shim/comm.h"
#include "shim/stream.h"

namespace treering::nccl {

enum class Function {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAlltoAll,
  kGather,
  kScatter,
  kSend,
  kRecv
};

// A checked call that moves data.
struct Call {
  Function function = Function::kAllReduce;
  const char* name = "";  // ncclX
  CommPtr comm;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  trDataType_t type = trFloat32;
  trRedOp_t op = trSum;
  std::shared_ptr<const MadeOp> made;  // instead of `op`
  int root = 0;                        // or peer
  Stream stream;
};

// A call that makes or ends a communicator.
struct Change {
  // That are not ready meanwhile. The first, the parent if there is one, decides whether the call blocks.
  std::vector<CommPtr> comms;
  std::function<Status()> work;
  std::function<void()> undo;  // when it, or another change of the batch, failed before the call returned
};

struct Batch {
  std::vector<Change> changes;
  std::vector<Call> calls;
  std::vector<CommPtr> aborted;  // what they had under way has been told to end; released when the group ends

  // Whether it blocks; communicators that differ in that are an error.
  Status find_kind(bool* blocking) const;
  Status run();
};

class Group {
 public:
  // The calling thread's.
  static Group& current();

  bool open() const { return depth_ > 0; }
  void start() { ++depth_; }
  // For the outermost group it sets *batch, and *outermost to true. A wrong call in the group is the failure.
  Status end(const char* function, Batch* batch, bool* outermost);
  Batch& batch() { return batch_; }
  void add_failure(const Status& status) {
    if (open() && failure_.ok()) failure_ = status;
  }

 private:
  int depth_ = 0;
  Batch batch_;
  Status failure_;
};

// Runs the batch, in the background (trInProgress) for non-blocking communicators: its failure is their state.
Status launch(Batch batch);
// Adds to the open group, or launches.
Status submit(Call call);
Status submit(Change change);

// Ends the calling thread's group: the outermost one is launched, or undone when a call in it was wrong.
Status end_group(const char* function);
// Nothing of the batch is run: what it was to create does not come to be.
void undo(const Batch& batch);

// Microseconds that the calls of a batch would take.
Status predict(const Batch& batch, double* microseconds);

}  // namespace treering::nccl
