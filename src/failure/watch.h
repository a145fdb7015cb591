// SPDX-License-Identifier: Apache-2.0
// Watch: what a waiting rank looks at besides the message that it waits for: the communicator's failure, the deadline,
// peers whose call differs, peers that have left or died. It decides when to look, and whether what it finds makes the
// operation fail. What is known of the peers, how calls differ and who holds up a wait are classes of their own.
//
//   check() finds a reason to fail --> proposes it (failure_agreement.h) --> poll() tells when it is decided
//   a link fails, a call differs --> suspicion --> poll() looks for what says it better (a death, a failure that explains
//                                                   it) and proposes it, or what is known when the time for that is over
//
// Nothing here waits, but await_failure(), settled_verdict(), late() and no_progress(). Nothing is touched while messages
// arrive in time; check() is called only by a rank that has found nothing to do for a while. It looks at some of many
// ranks each time, in turn, and always at the one that it waits for: the cost of waiting does not grow with n.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/membership.h"
#include "core/clock.h"
#include "core/status.h"
#include "executor/execution.h"
#include "failure/call_comparison.h"
#include "failure/call_text.h"
#include "failure/failure_agreement.h"
#include "failure/peer_states.h"
#include "failure/wait_diagnosis.h"
#include "failure/wait_time.h"
#include "failure/wait_warning.h"

namespace treering {

struct WaitTimes {
  int timeout_ms = 0;  // 0: there is no deadline
  int warn_ms = 0;     // until a wait in a collective is logged; 0: never
};

class Watch {
 public:
  // `job` where not all ranks share memory and pids: it carries verdicts and tells of lost ranks.
  // `one_failure`: all ranks share `failure`. The ranks of a process share `peers`.
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
  // What the job tells; from another thread. `cause`: of one that left because of a failure.
  void take_verdict(trResult_t code, const std::string& text) { agreement_.take(code, text); }
  void note_lost(const std::vector<uint32_t>& ranks, const std::string& reason) { peers_.note_lost(ranks, reason); }
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
  // The link to `peer` has failed with `status`.
  void suspect_link(uint32_t peer, const Status& status);
  // no_progress() takes up to so long for answers, so it is called by so much before the deadline; less of a short one.
  static Clock::duration time_for_answers(Clock::duration deadline);
  // The deadline passes while this rank waits for `peer` and no operation is under way. Names those of `ranks` that do
  // not answer. If all answer, it follows who waits for whom, from `peer` on. Waits a moment for answers.
  Status no_progress(uint32_t peer, const std::vector<uint32_t>& ranks, const Serve& serve);
  // The header of a call differed from that of `peer`; `sizes` of a transfer from it.
  void suspect_calls(uint32_t peer, const std::optional<TransferSizes>& sizes = {});
  // What is known of the other ranks.
  const PeerStates& peers() const { return peers_; }

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
  Status check_alive(uint32_t peer, uint32_t waiting_for);
  Status check_lost(uint32_t waiting_for);
  Status deadline_verdict(uint32_t waiting_for);
  void consider_warning(uint32_t waiting_for, Clock::time_point now, Clock::duration late);
  void warn_of_wait(uint32_t waiting_for, Clock::time_point now, Clock::time_point asked);

  // What this rank holds against a peer, while news may come that says it better.
  struct Suspicion {
    enum class Kind : uint8_t { kNone, kLink, kCalls };
    Kind kind = Kind::kNone;
    uint32_t peer = 0;
    Status status;
    Clock::time_point until;
  };
  ExecutorContext* context_;
  int looks_for_all_;  // so many looks at some ranks are one at all
  std::chrono::milliseconds timeout_;
  OwnCall call_;
  PeerStates peers_;
  CallComparison comparison_;
  WaitDiagnosis diagnosis_;
  Clock::time_point call_deadline_ = Clock::time_point::max();
  FailureAgreement agreement_;
  Suspicion suspicion_;
  const bool reads_failures_;  // of peers: where neither memory nor a job makes them known
  Membership* job_;
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
};

}  // namespace treering
