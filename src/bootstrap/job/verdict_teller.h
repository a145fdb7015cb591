// SPDX-License-Identifier: Apache-2.0
// VerdictTeller: tells the verdict to processes that do not answer, by connections of their own, each with all that is
// known, as a new neighbour is told: a network that is back takes some seconds until the tree is one again, and this
// process may end before. It also says whether the process must stay for others who would not hear of the verdict, or
// that this process has left.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "bootstrap/job/failure_detector.h"
#include "bootstrap/job/job_context.h"
#include "bootstrap/job/notice_log.h"
#include "bootstrap/job/parent_search.h"

namespace treering {

class VerdictTeller {
 public:
  // `changed`: the process may not have to stay any more.
  VerdictTeller(const JobContext& job, const ProcessTree& tree, FailureDetector& detector, const ParentSearch& search,
                const NoticeLog& notices, std::function<void()> changed)
      : job_(job), tree_(tree), detector_(detector), search_(search), notices_(notices), changed_(std::move(changed)) {}

  void tell();
  // Whether others seek a place in the tree, or do not answer while there is a verdict, who would not hear what this
  // process knows.
  bool must_stay() const;
  // Tells, and calls `changed` in a moment.
  void stay();
  void close();

 private:
  const JobContext& job_;
  const ProcessTree& tree_;
  FailureDetector& detector_;
  const ParentSearch& search_;
  const NoticeLog& notices_;
  const std::function<void()> changed_;
  std::map<uint32_t, std::shared_ptr<Dial>> dials_;
  JobTimer look_again_{job_};
};

}  // namespace treering
