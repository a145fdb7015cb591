// SPDX-License-Identifier: Apache-2.0
// NoticeFlood: brings notices to all processes of a job. What is news in its NoticeLog goes to all neighbours in the
// tree but the one that told, and is applied here; a new neighbour gets all that is known.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bootstrap/job/job_context.h"
#include "bootstrap/job/notice_log.h"
#include "bootstrap/job/process_tree.h"
#include "bootstrap/job/tree_connections.h"

namespace treering {

class NoticeFlood {
 public:
  NoticeFlood(const JobContext& job, const ProcessTree& tree, TreeConnections& connections,
              std::function<void(const NoticeMessage&)> apply)
      : job_(job), tree_(tree), connections_(connections), apply_(std::move(apply)) {}

  const NoticeLog& log() const { return log_; }
  // From this process.
  void notify(NoticeMessage notice);
  void take(const NoticeMessage& notice, uint32_t from);
  // Notices on a connection that is for these alone; `first` is the first one.
  void hear(std::shared_ptr<SecureConnection> connection, const std::string& first);
  void tell_all(uint32_t neighbour);
  // That this process leaves in good order, for those who will see its connections end.
  void tell_dissolved();

 private:
  const JobContext& job_;
  const ProcessTree& tree_;
  TreeConnections& connections_;
  const std::function<void(const NoticeMessage&)> apply_;
  NoticeLog log_;
};

}  // namespace treering
