// SPDX-License-Identifier: Apache-2.0
// Group: the calls that a thread has collected between trGroupStart() and trGroupEnd(), or for a persistent operation.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "api/batch.h"

namespace treering {

class Group {
 public:
  // The calling thread's group.
  static Group& current();

  bool open() const { return depth_ > 0; }
  void start() {
    if (depth_ == 0) batch_ = std::make_unique<Batch>();
    ++depth_;
  }
  // Starts what was collected when this ends the outermost group, and waits for what has no stream.
  Status end();
  // Ends the outermost group by handing out its calls, prepared, instead of starting them.
  Status end_kept(std::unique_ptr<Batch>* batch);
  bool keeping() const { return keeping_; }
  const char* kind() const { return keeping_ ? "persistent operation" : "group"; }
  // The call that ends the outermost group.
  const char* closing_call() const { return keeping_ ? "trPersistentEnd" : "trGroupEnd"; }
  void start_kept() {
    start();
    keeping_ = true;
  }

  Batch& batch() { return *batch_; }
  // Changes of communicators run at the end, side by side; those that use the same communicator `parent`, if any, one
  // after another.
  void add_change(trComm_t parent, std::function<Status()> change) { changes_.push_back({parent, std::move(change)}); }
  // Refuses a call that would end an object of which this open group holds calls.
  Status refuse_held(const char* call, trComm_t comm) const;
  Status refuse_held(const char* call, trStream_t stream) const;
  // Refuses a call that waits for earlier ones: the calls held here would seem to be among them.
  template <typename Handle>
  Status refuse_to_overlook(const char* call, Handle handle) const {
    return keeping_ ? Status() : refuse_held(call, handle);
  }
  // A wrong call: the group will start nothing and return this.
  void add_failure(const Status& status) {
    if (failure_.ok()) failure_ = status;
  }

 private:
  struct Change {
    trComm_t parent;
    std::function<Status()> work;
  };
  Status refuse(const char* call, const char* what, const void* handle) const;
  static Status run_changes(std::vector<Change> changes);

  int depth_ = 0;
  bool keeping_ = false;
  std::unique_ptr<Batch> batch_;  // while it is open
  std::vector<Change> changes_;
  Status failure_;
};

}  // namespace treering
