// Group: the calls that a thread has collected between trGroupStart() and trGroupEnd().
#pragma once

#include <functional>
#include <vector>

#include "api/handles.h"
#include "communicator/engine.h"

namespace treering {

class Group {
 public:
  // The calling thread's group.
  static Group& current();

  bool open() const { return depth_ > 0; }
  void start() { ++depth_; }
  // Starts what was collected when this ends the outermost group, and waits for what has no stream.
  Status end();

  void add_operation(trComm_t comm, const AllReduceArguments& arguments, Engine::StreamId stream);
  // `job` runs in a thread of its own at the end.
  void add_job(std::function<Status()> job) { jobs_.push_back(std::move(job)); }
  // A wrong call: the group will start nothing and return this.
  void add_failure(const Status& status) {
    if (failure_.ok()) failure_ = status;
  }

 private:
  struct Operation {
    trComm_t comm;
    AllReduceArguments arguments;
    Engine::StreamId stream;  // 0 = none
  };
  Status run_jobs(std::vector<std::function<Status()>> jobs);
  Status run_operations(const std::vector<Operation>& operations);

  int depth_ = 0;
  std::vector<Operation> operations_;
  std::vector<std::function<Status()>> jobs_;
  Status failure_;
};

}  // namespace treering
