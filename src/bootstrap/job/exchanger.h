// SPDX-License-Identifier: Apache-2.0
// Exchanger: sends up the tree what must reach the top, again over each new parent, and runs the exchanges of blobs: at
// the top with a deadline, below as the Exchange says.
//
//   up()  --> the parent ... the top: hello, verdict (events), or the part of an exchange
//   blobs <-- of all ranks, to the members and the children
#pragma once

#include <functional>
#include <string>

#include "bootstrap/job/exchange.h"
#include "bootstrap/job/failure_detector.h"
#include "bootstrap/job/job_context.h"
#include "bootstrap/job/notice_log.h"
#include "bootstrap/job/process_tree.h"
#include "bootstrap/job/ranks/members.h"
#include "bootstrap/job/rendezvous.h"
#include "bootstrap/job/tree_connections.h"

namespace treering {

class Exchanger {
 public:
  struct Events {
    // At the top.
    std::function<void(const HelloMessage&)> hello;
    std::function<void(const SpreadMessage&)> verdict;  // the first one
    std::function<void(const Status&)> failed;
  };
  Exchanger(const JobContext& job, const ProcessTree& tree, const FailureDetector& detector,
            TreeConnections& connections, const Members& members, const NoticeLog& notices, Rendezvous& rendezvous,
            Events events)
      : job_(job),
        tree_(tree),
        detector_(detector),
        connections_(connections),
        members_(members),
        notices_(notices),
        rendezvous_(rendezvous),
        events_(std::move(events)) {}

  void up(Kind kind, std::string bytes);
  void give_blob(uint32_t rank, uint64_t round, std::string blob);
  // Takes the blobs of all ranks. They come from the parent, from this process as the top, or from a child that was the top.
  void take_blobs(const std::string& bytes, uint32_t from);
  uint64_t round() const { return exchange_.round(); }
  // A neighbour that has the blobs of `round` gets those of the last one. A parent lacks them if this process was the top,
  // and stopped before it had told the others: they wait for its part again.
  void bring_up_to_date(uint32_t neighbour, uint64_t round);

  // All ranks have met.
  void met() { exchange_.answered(Kind::kHello); }
  // This process is the top, and gets a parent.
  void hand_over();
  void attached(uint32_t parent);
  void become_top();

  // What notices say. take_loss() returns whether the loss has ended what the ranks of this process wait for.
  void take_verdict();
  void take_leaving(uint32_t rank);
  bool take_loss(const NoticeMessage& notice);

  // The failure that the deadline is at the top; ok: this process waits for no rank there.
  Status deadline_passed() const;
  void stop_deadline() { deadline_.cancel(); }

 private:
  void at_top(Kind kind, const std::string& bytes);
  void take_blob(const BlobMessage& blob);
  Status why_left(uint32_t rank) const;
  Clock::time_point deadline() const;

  const JobContext& job_;
  const ProcessTree& tree_;
  const FailureDetector& detector_;
  TreeConnections& connections_;
  const Members& members_;
  const NoticeLog& notices_;
  Rendezvous& rendezvous_;
  const Events events_;
  Exchange exchange_;
  JobTimer deadline_{job_};
};

}  // namespace treering
