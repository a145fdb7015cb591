// SPDX-License-Identifier: Apache-2.0
// A process's part in the rendezvous of a job's ranks. The root has the RendezvousRoot, its deadline and its warnings.
// Every process takes the process table, and keeps the memory of the host until all ranks have it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/job/job_context.h"
#include "bootstrap/job/process_tree.h"
#include "bootstrap/job/ranks/members.h"
#include "bootstrap/job/tree_connections.h"
#include "bootstrap/rendezvous_root.h"

namespace treering {

// When a rank gives up the search for the root.
Clock::time_point deadline_of(const JoinRequest& request, Clock::time_point now);
HelloMessage make_hello(const JoinRequest& request, const Place& own, uint64_t nonce, Clock::time_point now);

class Rendezvous {
 public:
  struct Events {
    std::function<void()> met;  // all ranks; those of this process know it
    std::function<void(const Status&)> failed;
  };
  Rendezvous(const JobContext& job, ProcessTree& tree, TreeConnections& connections, const Members& members,
             Events events)
      : job_(job), tree_(tree), connections_(connections), members_(members), events_(std::move(events)) {}
  ~Rendezvous() { drop_segment(); }
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // This process is the root. Returns its place.
  Place serve(const Place& own, const std::vector<std::string>& names);
  const RendezvousRoot* root() const { return root_.get(); }
  PlacedMessage place(const JoinMessage& join) { return root_->place(join); }
  // It has arrived at the top.
  void take_hello(const HelloMessage& hello);
  // `segment`: came along; -1: none did.
  void take_process_table(ProcessTableMessage table, int segment);
  void send_process_table(uint32_t child);
  // All have the process table.
  void drop_segment();
  Clock::time_point met_at() const { return met_; }
  void stop_deadline() { deadline_.cancel(); }
  void close();

 private:
  int host_segment(int received);
  int duplicate_segment();  // -1: there is none, or no descriptor is left
  void tell_members();
  void tell_who_is_missing();

  const JobContext& job_;
  ProcessTree& tree_;
  TreeConnections& connections_;
  const Members& members_;
  const Events events_;
  std::unique_ptr<RendezvousRoot> root_;
  JobTimer deadline_{job_}, missing_{job_};
  int segment_ = -1;           // to pass on, until all have met
  bool lost_segment_ = false;  // this process had no descriptor left for it
  Clock::time_point met_;
};

}  // namespace treering
