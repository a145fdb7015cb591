// SPDX-License-Identifier: Apache-2.0
// NoticeTeller: tells processes that do not answer of the verdict, or that this process has left, by connections of
// their own, each with all that is known, as a new neighbour is told. A network that is back takes some seconds until the
// tree is one again, and this process may end before. It also says whether the process must stay for others who would not
// hear of it.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "bootstrap/job/failure_detector.h"
#include "bootstrap/job/job_context.h"
#include "bootstrap/job/notice_log.h"
#include "bootstrap/job/parent_search.h"

namespace treering {

class NoticeTeller {
 public:
  // `changed`: the process may not have to stay any more.
  NoticeTeller(const JobContext& job, const ProcessTree& tree, FailureDetector& detector, const ParentSearch& search,
               const NoticeLog& notices, std::function<void()> changed)
      : job_(job), tree_(tree), detector_(detector), search_(search), notices_(notices), changed_(std::move(changed)) {}

  void tell();
  // All ranks of this process have left, and it has a place in the tree: but for others it would end now.
  void leave(Clock::time_point now) {
    if (left_at_ == Clock::time_point()) left_at_ = now;
  }
  // Whether others seek a place in the tree, or do not answer, who would not hear of it without this process.
  bool must_stay() const;
  // Tells, and calls `changed` in a moment.
  void stay();
  void close();

 private:
  // Since when there is something to tell; the least time: there is not.
  Clock::time_point since() const { return notices_.has_verdict() ? notices_.verdict_at() : left_at_; }

  const JobContext& job_;
  const ProcessTree& tree_;
  FailureDetector& detector_;
  const ParentSearch& search_;
  const NoticeLog& notices_;
  const std::function<void()> changed_;
  std::map<uint32_t, std::shared_ptr<Dial>> dials_;
  JobTimer look_again_{job_};
  Clock::time_point left_at_;
};

}  // namespace treering
