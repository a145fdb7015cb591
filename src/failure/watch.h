// SPDX-License-Identifier: Apache-2.0
// Watch: what a waiting rank looks at besides the message that it waits for: the communicator's failure, the deadline,
// peers whose call differs, peers that have left or died.
//
//   check() finds a reason to fail --> proposes it (failure_agreement.h) --> poll() tells when it is decided
//   a link fails, a call differs --> suspicion --> poll() looks for what says it better (a death, a failure that explains
//                                                   it) and proposes it, or what is known when the time for that is over
//
// Nothing here waits, but await_failure() and settled_verdict(). Nothing is touched while messages arrive in time;
// check() is called only by a rank that has found nothing to do for a while. Among many ranks it looks at some of them
// each time, in turn, and always at the one that it waits for: the cost of waiting does not grow with n.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/membership.h"
#include "core/clock.h"
#include "core/status.h"
#include "executor/execution.h"
#include "failure/failure_agreement.h"
#include "failure/wait_time.h"
#include "failure/wait_warning.h"

namespace treering {

// Who a rank is, for messages and for the proof that it lives.
struct PeerIdentity {
  uint32_t pid = 0;
  uint64_t pid_namespace = 0;
  uint64_t host = 0;
  std::string host_name;
};

// What peers show of themselves.
class StatusReader {
 public:
  // Where it can be read in place, else nullptr.
  virtual const RankStatus* mapped_status(uint32_t peer) const = 0;
  // A copy; false when it cannot be read (the peer is gone, or has not answered yet).
  virtual bool read_status(uint32_t peer, RankStatusSnapshot* snapshot) const = 0;
  // True when it reads the peer's memory; else it asks, and answers take time.
  virtual bool reads_status(uint32_t peer) const = 0;

 protected:
  ~StatusReader() = default;
};

struct WaitTimes {
  int timeout_ms = 0;  // 0: there is no deadline
  int warn_ms = 0;     // until a wait in a collective is logged; 0: never
};

class Watch {
 public:
  // `job` where not all ranks share memory and pids: it carries verdicts and tells of lost ranks.
  // `one_failure`: all ranks share `failure`.  The ranks of a process share `peers`.
  Watch(ExecutorContext* context, const StatusReader* statuses, FailureRecord* failure,
        std::shared_ptr<const std::vector<PeerIdentity>> peers, WaitTimes times, std::string communicator_name,
        Membership* job, bool one_failure);

  // The deadline of a call that consists of several waits, besides that of each; max(): there is none.
  void set_call_deadline(Clock::time_point deadline) { call_deadline_ = deadline; }
  Clock::time_point call_deadline() const { return call_deadline_; }
  // The error of a call of `members` that has come to its deadline: it names those that do not answer, else says what
  // `otherwise` finds, which may take a moment.
  Status late(const char* function, const std::vector<uint32_t>& members,
              const std::function<std::string()>& otherwise) const;
  // Starts the clock of one operation.
  void start(const Call* call);
  // The operation has ended: its deadline counts no more.
  void stop() { wait_ends_.store(Clock::time_point::max(), std::memory_order_relaxed); }
  // Ok, or the communicator's failure. `waiting_for` is the rank whose message is missing (or the own rank).
  Status check(uint32_t waiting_for, uint64_t steps);
  // The failure, once it is decided. To be called again and again while in_doubt().
  Status poll();
  // Whether the operation cannot go on, although it is not decided yet why.
  bool in_doubt() const { return suspicion_.kind != Suspicion::Kind::kNone || agreement_.proposed(); }
  // poll() until it is decided; while in_doubt() alone, and not in a thread that has other communicators to move.
  // `serve`: what others may wait for meanwhile.
  using Serve = std::function<void()>;
  Status await_failure(const Serve& serve);
  // A reason to fail; any thread. `deadline`: of a wait that it ends besides that of this rank's operation.
  void propose(const Status& status, std::optional<Clock::time_point> deadline = {});
  // A peer of this machine whose process has ended before it destroyed its communicator.
  bool find_dead(uint32_t* peer) const;
  // Whether it has destroyed its communicator.
  bool has_left(uint32_t peer) const;
  // Whether a peer has given its GPU a collective that this rank has not; true where that cannot be read.
  bool is_awaited_by_gpus() const;
  // Who has not given its GPU the collective that this rank's is in, else who does not answer, in words; empty when
  // there is none. Any thread; ranks of other hosts are asked, so it is called by time_for_answers() before, too.
  std::string late_gpus(uint64_t collective) const;
  // What the job tells; from another thread. `cause`: of one that left because of a failure.
  void take_verdict(trResult_t code, const std::string& text) { agreement_.take(code, text); }
  void note_lost(const std::vector<uint32_t>& ranks, const std::string& reason);
  void note_left(uint32_t rank, const Status& cause);
  // The failure that all ranks share, or ok; any thread.
  Status verdict(Clock::time_point now = Clock::now()) { return agreement_.poll(now); }
  // The same for a user who asks behind an operation of which another thread is telling the failure now.
  Status settled_verdict();
  // The same, or what this rank has proposed.
  Status known_failure() const { return agreement_.known(); }
  // The same while the communicator is created, which needs every rank: that one was lost is a failure, too.
  Status creation_verdict();
  // Ok, or that `peer` has ended or left; `during` is for the message. Proposes nothing. Also ok while it is not known
  // whether it left or died.
  Status check_peer(uint32_t peer, const char* during);
  // Ok, or that `peer` has ended without leaving. Asks no other process: it may be called for many ranks, again and
  // again.
  Status check_death(uint32_t peer, const char* during);
  // check_death() for several ranks; the error names every rank that has died. A rank that saw a death and ended because
  // of it may be noticed before the death that it saw.
  Status check_deaths(const std::vector<uint32_t>& peers, const char* during);
  // Whether the job has told that one of `peers` was lost; costs no look at any.
  bool has_lost_any(const std::vector<uint32_t>& peers) const;
  // Those that have ended, have left, or do not answer, as far as this rank knows; ascending. Any thread.
  std::vector<uint32_t> lost_ranks() const;
  // The link to `peer` has failed with `status`.
  void suspect_link(uint32_t peer, const Status& status);
  // no_progress() takes up to so long for answers, so it is called by so much before the deadline; less of a short one.
  static Clock::duration time_for_answers(Clock::duration deadline);
  // The deadline passes while this rank waits for `peer` and no operation is under way. Names those of `ranks` that do
  // not answer. If all answer, it follows who waits for whom, from `peer` on. Waits a moment for answers.
  Status no_progress(uint32_t peer, const std::vector<uint32_t>& ranks, const Serve& serve);
  // The header of a call differed from that of `peer`; `sizes` of a transfer from it.
  void suspect_calls(uint32_t peer, const std::optional<TransferSizes>& sizes = {});
  // "rank 3 (pid 17 on b)".
  std::string describe(uint32_t peer) const;
  // Its process does not answer, as the job tells.
  bool is_silent(uint32_t peer) const;
  // By a signal, a debugger or the kernel, as far as is known.
  bool is_stopped(uint32_t peer) const { return !state_of(peer).empty(); }
  // A copy of a rank's status; false when the peer is gone.
  bool read(uint32_t peer, RankStatusSnapshot* snapshot) const;

 private:
  // Proposes what this rank has found, or what another one has; the failure if it is decided already.
  Status fail(const Status& status);
  Status pass_on(const Status& status);
  Clock::time_point agreement_limit(Clock::time_point now) const;
  void note_wait(uint32_t waiting_for);
  Clock::time_point deadline_of_wait(Clock::time_point begin) const;
  Status peer_verdict();
  std::string own_pause() const;
  void judge_suspicion(Clock::time_point now);
  void judge_link(Clock::time_point now);
  void judge_calls(Clock::time_point now);
  template <typename Look>
  Status look_at_some(uint32_t first, uint32_t* next, uint32_t waiting_for, const Look& look) const;
  Status check_calls(uint32_t waiting_for);
  Status check_call(uint32_t peer);
  static bool differ(uint64_t ours, uint64_t theirs);
  // The first operation that this rank and another called differently, of those that both keep.
  std::optional<uint64_t> first_difference(const RankStatusSnapshot& other) const;
  Status calls_differ(uint32_t peer, const RankStatusSnapshot& other);
  Status check_alive(uint32_t peer, uint32_t waiting_for);
  Status check_lost(uint32_t waiting_for);
  // What is known of a peer that is lost or has left, as a verdict; Ok when nothing is.
  Status find_lost(uint32_t peer, const std::string& during) const;
  static Status failure_of(const RankStatusSnapshot& shown);  // the communicator's, or ok
  Clock::duration time_for_end() const;                       // until the job tells how a process ended
  Status end_of(uint32_t peer, const std::string& during, const std::string& more);
  Status left(uint32_t peer, const std::string& during, const Status& cause) const;
  std::string silence(const std::vector<uint32_t>* among = nullptr) const;
  bool has_left_in_order(uint32_t peer) const;  // not because of a failure
  bool knows_by_reading(uint32_t peer) const;
  bool same_host(uint32_t peer) const { return identity(peer).host == identity(context_->rank).host; }
  const PeerIdentity& identity(uint32_t peer) const { return (*peers_)[peer]; }
  Status transfers_differ(uint32_t peer, const TransferSizes& sizes);
  Status meets_send(uint32_t peer, uint64_t bytes);
  Status deadline_verdict(uint32_t waiting_for);
  std::string who_holds_up(uint32_t waiting_for, trResult_t* code);
  std::string who_waited_for(uint32_t peer, const std::string& who) const;
  std::string without_descriptors() const;
  void consider_warning(uint32_t waiting_for, Clock::time_point now, Clock::duration late);
  bool speaks_for_others();
  void ask_others(Clock::time_point since);
  bool has_answered(uint32_t peer, Clock::time_point since) const;
  std::string unanswered(Clock::time_point asked) const;
  void warn_of_wait(uint32_t waiting_for, Clock::time_point now, Clock::time_point asked);
  std::string state_of(uint32_t peer) const;
  std::string absent(uint32_t waiting_for) const;
  double silence_of(uint32_t peer) const;
  bool shows_life(uint32_t peer) const;
  bool follows_silence(uint32_t peer, uint32_t waited_for) const;
  // `all_answer`: every rank has just shown that it lives.
  std::string chain_of_waits(uint32_t waiting_for, bool all_answer = false) const;
  struct Shown {
    uint32_t rank;
    RankStatusSnapshot status;
  };
  std::string wait_of_two(const Shown& one, const Shown& other) const;
  std::string lifeless_rank() const;
  bool is_dead(uint32_t peer) const;
  void note_progress(uint32_t peer);
  std::string operation_text() const;
  std::string own_call() const;

  // What was last seen of a peer in this wait, and when it changed.
  struct Seen {
    uint64_t heartbeat = 0;
    uint64_t operation = 0;
    Clock::time_point changed;  // at first: the begin of the wait
    bool known = false;
    bool moved = false;  // it has changed since it was first seen
    bool gone = false;   // it has left, or its process has ended, though its part was missing
  };
  // What this rank holds against a peer, while news may come that says it better.
  struct Suspicion {
    enum class Kind : uint8_t { kNone, kLink, kCalls };
    Kind kind = Kind::kNone;
    uint32_t peer = 0;
    Status status;
    Clock::time_point until;
  };
  struct Loss {
    std::string reason;
    Clock::time_point when;
    bool left = false;  // in good order: what it sent before is still to be used
    Status cause;       // why it left
  };

  ExecutorContext* context_;
  const StatusReader* statuses_;
  std::shared_ptr<const std::vector<PeerIdentity>> peers_;
  std::vector<Seen> seen_;
  int crowd_;  // looks at all of them
  std::chrono::milliseconds timeout_;
  Clock::time_point call_deadline_ = Clock::time_point::max();
  FailureAgreement agreement_;
  Suspicion suspicion_;
  const bool reads_failures_;  // of peers: where neither memory nor a job makes them known
  Membership* job_;
  std::map<uint32_t, Clock::time_point>
      ended_;  // processes whose end this rank has seen, before news of how they ended
  mutable std::mutex lost_mutex_;
  std::map<uint32_t, Loss> lost_;
  const Call* call_ = nullptr;
  WaitTime wait_time_{Clock::now()};  // of the creation until the first call
  WaitWarning warning_;
  Clock::time_point waits_since_ = Clock::now();  // by it, for the rank that was waited for at the last look
  std::atomic<Clock::time_point> wait_ends_{Clock::time_point::max()};  // the operation's; for other threads
  bool is_cut_off_ = false;  // ... to which there is no connection, though something else moved
  Clock::time_point next_calls_check_;
  Clock::duration lateness_{};  // of check() in this wait
  Clock::time_point next_alive_check_;
  uint32_t next_call_ = 0, next_alive_ = 0;  // the ranks whose turn it is
  bool clock_runs_ = false;
  bool counted_ = true;  // a collective, not sends and receives
};

}  // namespace treering
