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
// A job has the connections, the timers and the clock. It tells what happens to classes without these, and does what
// they decide: RendezvousRoot, Exchange, NoticeLog, ProcessTree, FailureDetector, ParentSearch.
#pragma once

#include <map>
#include <memory>
#include <set>

#include "bootstrap/agent.h"
#include "bootstrap/dial.h"
#include "bootstrap/job/exchange.h"
#include "bootstrap/job/failure_detector.h"
#include "bootstrap/job/notice_log.h"
#include "bootstrap/job/parent_search.h"
#include "bootstrap/job/process_tree.h"
#include "bootstrap/rendezvous_root.h"
#include "bootstrap/member.h"

namespace treering {

class Job : public std::enable_shared_from_this<Job> {
 public:
  Job(Agent* agent, const UniqueId& id) : agent_(agent), id_(id) {}
  ~Job();

  bool is_root() const { return root_ != nullptr; }  // the ranks meet here
  const UniqueId& id() const { return id_; }
  // This process is the rendezvous root.
  void serve(const Place& own, const std::vector<std::string>& names);
  void add_member(const Place& own, std::shared_ptr<Member> member);
  // The first message of a connection that has proved itself.
  void greet(std::shared_ptr<Channel> channel, const std::string& bytes);

  // For the members:
  void leave(uint32_t rank, bool dissolved, const Status& cause);
  void give_blob(uint32_t rank, uint64_t round, std::string blob);
  void spread(uint32_t code, const std::string& text);
  // Who is missing, where this process knows it: the ranks meet in it, or its parent does not answer. Else ok.
  Status deadline_passed() const;
  // Who has not passed on what this process waits for; empty where it waits for no other.
  std::string heard_through() const;
  // A rank of this process ends its wait for the others, as `status` says.
  void give_up_rendezvous(const Status& status);
  // While the ranks meet: the rendezvous root cannot be reached.
  bool meets() const { return state_ == State::kRendezvous; }
  // This process cannot serve the others any more, which is no fault of theirs.
  void fail_at_own_limit(const Status& status);
  void ask(uint32_t asking, uint32_t rank);
  void introduce(uint32_t source, uint32_t peer, const Introduction& introduction);
  // Whether this process is between two places in the tree.
  bool seeks_parent() const { return state_ == State::kRunning && !closed_ && !tree_.is_top() && !tree_.has_parent(); }
  // Whether others seek one, or do not answer, who would not hear of the verdict without this process.
  bool awaits_orphans() const;

 private:
  enum class State { kRendezvous, kRunning, kFailed };

  // The rendezvous (job.cpp)
  void find_root();
  void root_reached(std::shared_ptr<Channel> channel);
  void placed(std::shared_ptr<Channel> channel, const std::string& bytes);
  void say_hello(const Member& member);
  void at_top(Kind kind, const std::string& bytes);
  void take_hello(const HelloMessage& hello);
  void take_process_table(ProcessTableMessage table, int segment);
  void take_blob(const BlobMessage& blob);
  void take_blobs(const std::string& bytes);
  void watch_deadline(Clock::time_point deadline);
  void tell_who_is_missing();
  void fail(const Status& status);
  void fail_members(const Status& status);
  void fail_exchange();
  void end_exchange();
  Status why_left(uint32_t rank) const;
  Clock::time_point creation_deadline() const;
  int host_segment(const ProcessTableMessage& table, int received) const;
  void after_sending(Clock::time_point limit, std::function<void()> task);
  void log_phases() const;

  // The search for a parent (job_search.cpp)
  void attach();
  void attach_to(const Place& place);
  void try_next_parent();
  void ask_to_attach(std::shared_ptr<Channel> channel, const Place& parent);
  Clock::duration timeout_for(const Place& parent) const;
  void stop_dialing();
  void stop_asking();
  bool is_dialing() const { return dial_ || asked_; }
  void no_parent();

  // The tree (job_tree.cpp)
  void up(Kind kind, std::string bytes);
  void down(const std::string& bytes);
  void attached(std::shared_ptr<Channel> channel, uint32_t parent);
  void part_from(std::shared_ptr<Channel> channel, uint32_t new_top);
  void keep_until_closed(std::shared_ptr<Channel> channel, Channel::Events events);
  void accept_child(std::shared_ptr<Channel> channel, const AttachMessage& attach);
  void send_process_table(uint32_t child);
  void listen_to(uint32_t neighbour);
  void on_message(uint32_t from, const std::string& bytes, int fd);
  void on_moving(uint32_t from, const MovingMessage& message);
  void follow(const MovingMessage& deserter, uint32_t from);
  void follow_deserters();
  void on_closed(uint32_t process, const std::string& reason);
  void end_link(uint32_t process);
  std::shared_ptr<Channel> take_link(uint32_t process);
  void send(uint32_t neighbour, const std::string& bytes) { links_.at(neighbour)->send(bytes); }
  void route(uint32_t process, const std::string& bytes, uint32_t from);
  void maybe_finish();
  void finish();

  // Notices and liveness (job_notices.cpp)
  void notify(NoticeMessage notice);
  void tell_parent(uint32_t parent);
  void tell_neighbours_of_end();
  void take_notice(const NoticeMessage& notice, uint32_t from);
  void apply(const NoticeMessage& notice);
  void apply_loss(const NoticeMessage& notice);
  void report_loss(uint32_t process, const std::string& what);
  void report_heard(uint32_t process);
  void start_ticking();
  void tick();
  void listen(uint32_t neighbour, Clock::duration silence);
  void look_at_the_tree(Clock::time_point now);
  void examine(uint32_t process);
  void take_step(uint32_t process, const FailureDetector::Step& step);
  void probe(uint32_t process);
  void tell_untold();
  void hear(std::shared_ptr<Channel> channel, const std::string& first);
  void publish_silence();

  // Questions and introductions (job_introductions.cpp)
  void take_question(const std::string& bytes, uint32_t from);
  void take_answer(const std::string& bytes, uint32_t from);
  void take_introduction(const std::string& bytes, uint32_t from);
  // One with a socket, under way.
  struct Connecting {
    IntroductionMessage message;
    uint32_t way = 0;
    bool again = false;
    Clock::time_point deadline;
    std::function<void(const Status& status, int fd)> report;
  };
  void dial(const std::shared_ptr<const Connecting>& connecting, uint32_t attempts);
  void await_accept(const std::shared_ptr<Channel>& channel, const std::shared_ptr<const Connecting>& connecting,
                    const std::function<void(const std::string& reason)>& dropped);
  void take_connection(const std::shared_ptr<Channel>& channel, const std::string& bytes);

  Agent* agent_;
  UniqueId id_;
  State state_ = State::kRendezvous;
  Status failure_;
  Place own_;
  bool finding_ = false;
  bool closed_ = false;
  std::unique_ptr<RendezvousRoot> root_;
  std::multimap<uint32_t, std::shared_ptr<Member>> members_;  // by rank; twice is an error that the root finds
  std::set<uint32_t> members_left_;

  ProcessTree tree_;
  std::map<uint32_t, std::shared_ptr<Channel>> links_;  // to the neighbours in the tree
  std::shared_ptr<Dial> dial_;
  std::shared_ptr<Channel> asked_;  // whether it will be the parent
  uint64_t asked_timer_ = 0;
  // Parents' connections, and those of processes that tell of the verdict, until these close them.
  std::set<std::shared_ptr<Channel>> former_;

  int segment_ = -1;  // to pass on, until all have met
  Exchange exchange_;
  uint64_t deadline_timer_ = 0;
  uint64_t missing_timer_ = 0;
  Clock::time_point join_deadline_;  // for reaching the root

  NoticeLog notices_;
  FailureDetector detector_{tree_};
  ParentSearch search_{tree_, detector_};
  std::map<uint32_t, std::shared_ptr<Dial>> probes_;
  std::map<uint32_t, std::shared_ptr<Dial>> tellings_;  // of the verdict
  uint64_t orphans_timer_ = 0;
  uint64_t tick_timer_ = 0;
  Clock::time_point last_tick_, last_heartbeat_;

  std::set<std::shared_ptr<Dial>> dials_;  // for introductions
  std::shared_ptr<Channel> joining_;       // to the root, which has not answered yet
  struct Opening {
    std::shared_ptr<Channel> channel;
    uint64_t timer;
  };
  std::vector<Opening> opening_;  // connections whose rank has not answered yet
  Clock::time_point began_ = Clock::now(), found_, placed_, attached_, first_hello_, met_;
};

}  // namespace treering
