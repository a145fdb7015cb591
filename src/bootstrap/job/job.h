// SPDX-License-Identifier: Apache-2.0
// Job: a process's part in one job (communicator): its place in the tree of processes, and what flows there.
//
//   process 0 (made the id)
//    |-- 1, 2, 3, 4   first processes of other hosts, and others of its own host (rendezvous_root.h)
//         |-- ...
//
// While the ranks meet, hellos and blobs flow up, the process table and all blobs down. The tree stays for the job's
// life: notices flood it; each process knows every other's parent. A process whose parent is gone attaches to another
// one: its ancestors, then the processes in the order of their numbers; if none of them answers, it is the top. One
// that has left stays a relay while it has children and lives. On the agent's thread alone.
//
// A Job wires its parts together, hands each message to the part that it is for, and says when the job fails and ends.
// The parts have the connections and the timers. What they decide is in classes without these.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/job/exchanger.h"
#include "bootstrap/job/liveness.h"
#include "bootstrap/job/notice_flood.h"
#include "bootstrap/job/parent_seeker.h"
#include "bootstrap/job/ranks/connector.h"
#include "bootstrap/job/ranks/members.h"
#include "bootstrap/job/ranks/rank_messages.h"
#include "bootstrap/job/rendezvous.h"
#include "bootstrap/job/root_client.h"
#include "bootstrap/job/tree_connections.h"
#include "bootstrap/job/notice_teller.h"

namespace treering {

class Job : public std::enable_shared_from_this<Job> {
 public:
  Job(Agent* agent, const UniqueId& id);
  ~Job();
  Job(const Job&) = delete;  // its parts refer to each other
  Job& operator=(const Job&) = delete;

  bool is_root() const { return rendezvous_.root() != nullptr; }  // the ranks meet here
  const UniqueId& id() const { return context_.id; }
  // This process is the rendezvous root.
  void serve(const Place& own, const std::vector<std::string>& names);
  void add_member(const Place& own, const std::shared_ptr<Member>& member);
  // The first message of a connection that has proved itself.
  void greet(std::shared_ptr<SecureConnection> connection, const std::string& bytes);

  // For the members:
  void leave(uint32_t rank, bool dissolved, const Status& cause);
  void give_blob(uint32_t rank, uint64_t round, std::string blob) {
    exchanger_.give_blob(rank, round, std::move(blob));
  }
  void spread(uint32_t code, const std::string& text);
  // Who is missing, where this process knows it: the ranks meet in it, or its parent does not answer. Else ok.
  Status deadline_passed() const;
  // Who has not passed on what this process waits for; empty where it waits for no other.
  std::string heard_through() const { return context_.runs() ? tree_.heard_through() : ""; }
  // A rank of this process ends its wait for the others, as `status` says.
  void give_up_rendezvous(const Status& status);
  // While the ranks meet: the rendezvous root cannot be reached.
  bool meets() const { return context_.meets(); }
  // Whether a rank of this process waits for its communicator.
  bool creates() const { return context_.meets() || (context_.runs() && members_.any_creates()); }
  // Some ranks will not come: the rendezvous at this root fails with `status`.
  void end_rendezvous(const Status& status) {
    if (meets() && is_root()) fail(status);
  }
  // This process cannot serve the others any more, which is no fault of theirs.
  void fail_at_own_limit(const Status& status);
  // Connections to this process wait for a file descriptor, or do not any more.
  void tell_no_descriptor(bool wait) {
    members_.tell([wait](const MemberEvents& events) {
      if (events.on_no_descriptor) events.on_no_descriptor(wait);
    });
  }
  void ask(uint32_t asking, uint32_t rank, Clock::time_point when) { rank_messages_.ask(asking, rank, when); }
  void introduce(uint32_t source, uint32_t peer, const Introduction& introduction);
  // Whether this process is between two places in the tree, or tells another part of the tree what it knows before it leaves.
  bool seeks_parent() const { return seeker_.lacks_parent() || tells_another_part(); }
  // Whether there are others that would not hear without this process: of the verdict or who has left, because they seek a
  // parent or do not answer; or, as they have not come yet, of why the rendezvous failed a moment ago.
  bool must_stay() const;

 private:
  // Its place in the tree.
  void placed(PlacedMessage placed, std::shared_ptr<SecureConnection> connection);
  void attached(std::shared_ptr<SecureConnection> connection, uint32_t parent, uint64_t round);
  void become_top();
  void accept_child(std::shared_ptr<SecureConnection> connection, const AttachMessage& attach);
  void on_broken(uint32_t process, const FailureDetector::Broken& broken);
  void tell_parent(uint32_t parent);
  // What comes through it.
  void answer_join(const std::shared_ptr<SecureConnection>& connection, const JoinMessage& join);
  void on_message(uint32_t from, const std::string& bytes, int fd);
  void on_moving(uint32_t from, const MovingMessage& message);
  void apply(const NoticeMessage& notice);
  void apply_loss(const NoticeMessage& notice);
  // How far the job has come.
  void say_hello(const Member& member);
  void met();
  void log_phases() const;
  void fail(const Status& status);
  bool tells_another_part() const {
    return context_.runs() && !context_.closed && members_.all_have_left() && seeker_.is_dialing();
  }
  bool waits_for_parent() const;
  void maybe_finish();
  void finish();

  JobContext context_;
  Status failure_;
  Clock::time_point failed_at_;
  Clock::time_point attached_;  // first
  ProcessTree tree_;
  FailureDetector detector_{tree_};
  Members members_;

  TreeConnections connections_;
  NoticeFlood notices_;
  RootClient root_client_;
  Rendezvous rendezvous_;
  Exchanger exchanger_;
  ParentSeeker seeker_;
  NoticeTeller teller_;
  Liveness liveness_;
  RankMessages rank_messages_;
  Connector connector_;
};

}  // namespace treering
