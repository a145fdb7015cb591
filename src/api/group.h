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
  void start() { ++depth_; }
  // Starts what was collected when this ends the outermost group, and waits for what has no stream.
  Status end();
  // Ends the outermost group by handing out its calls, prepared, instead of starting them.
  Status end_kept(std::unique_ptr<Batch>* batch);
  bool keeping() const { return keeping_; }
  void start_kept() {
    keeping_ = true;
    start();
  }

  Batch& batch() { return *batch_; }
  // `job` runs in a thread of its own at the end.
  void add_job(std::function<Status()> job) { jobs_.push_back(std::move(job)); }
  // A wrong call: the group will start nothing and return this.
  void add_failure(const Status& status) {
    if (failure_.ok()) failure_ = status;
  }

 private:
  Status run_jobs(std::vector<std::function<Status()>> jobs);

  int depth_ = 0;
  bool keeping_ = false;
  std::unique_ptr<Batch> batch_ = std::make_unique<Batch>();
  std::vector<std::function<Status()>> jobs_;
  Status failure_;
};

}  // namespace treering
