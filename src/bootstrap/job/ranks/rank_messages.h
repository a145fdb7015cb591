// SPDX-License-Identifier: Apache-2.0
// RankMessages: what ranks tell each other through the tree: questions for the status, answers, introductions without
// a socket. Each goes towards the process of its rank; one for a rank of this process is handed to it.
#pragma once

#include <string>

#include "bootstrap/job/job_context.h"
#include "bootstrap/job/process_tree.h"
#include "bootstrap/job/ranks/members.h"
#include "bootstrap/job/tree_connections.h"

namespace treering {

class RankMessages {
 public:
  RankMessages(const JobContext& job, const ProcessTree& tree, TreeConnections& connections, const Members& members)
      : job_(job), tree_(tree), connections_(connections), members_(members) {}

  // `asking`: a rank of this process. `when`: as its pace has it; the answer says it.
  void ask(uint32_t asking, uint32_t rank, Clock::time_point when);
  void take_question(const std::string& bytes, uint32_t from);
  void take_answer(const std::string& bytes, uint32_t from);
  void take_introduction(const std::string& bytes, uint32_t from);

 private:
  const JobContext& job_;
  const ProcessTree& tree_;
  TreeConnections& connections_;
  const Members& members_;
};

}  // namespace treering
