// SPDX-License-Identifier: Apache-2.0
// FailureDetector: which processes of a job count as lost, as silent or as cut off, at a time that it is told. No I/O,
// no clock.
//
//   a neighbour's connection ends    it is broken: examine(), probed() say what is done about it, until it is lost or back
//   a neighbour is not heard         listen(): silent, which all processes are told, until it is heard again
//   at the top                       cut_off():    those behind a process that is lost or silent
//                                    missing():    those below a process without ranks, whose end is not told, and those
//                                                  that hang elsewhere, and do not come
//                                    other_part(), next_unreached(): those that may have a top of their own
//
// A loss is for good. It counts when its notice comes back as that of another process does (take_loss()): all know the
// same.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/job/process_tree.h"
#include "bootstrap/membership.h"
#include "core/clock.h"

namespace treering {

// A neighbour in the tree that has not been heard for so long does not answer: each shows every second that it lives.
constexpr auto kSilence = std::chrono::milliseconds(2600);
// It may be cut off by then: more than a heartbeat, with its delay, is missing.
constexpr auto kOverdueAfter = std::chrono::milliseconds(1800);
constexpr auto kCutOffAfter = std::chrono::milliseconds(4500);   // of a loss or silence on the way
constexpr auto kProbeAfter = std::chrono::milliseconds(400);     // it may be about to attach
constexpr auto kReturnTimeout = std::chrono::milliseconds(400);  // with a neighbour whose connection broke
// While the ranks meet, one whose connection was reset at this side alone finds that out after a second.
constexpr auto kReturnAfterReset = std::chrono::milliseconds(2500);
constexpr auto kDeathPeriod = std::chrono::milliseconds(10);  // its sockets are closed before it counts as dead
constexpr auto kOrphansTimeout = std::chrono::seconds(3);     // until a lost process's children have a new parent
constexpr auto kUntoldTimeout = std::chrono::seconds(3);      // until those that do not answer are left to themselves
constexpr size_t kMaxUntold = 16;
constexpr auto kOverAfter = std::chrono::seconds(2);         // all have left
constexpr size_t kMaxMissing = 8;                            // that are probed at a time
constexpr auto kSeekRelayTimeout = std::chrono::minutes(5);  // for a relay that held ranks, while ranks are missing
constexpr auto kNoticesSilence = std::chrono::milliseconds(3100);  // a silent process's children have noticed it, too

class FailureDetector {
 public:
  explicit FailureDetector(const ProcessTree& tree) : tree_(tree) {}

  // What notices say. Each returns whether it changed what is known of the process; of a move: whether it was silent.
  bool take_loss(uint32_t process, Clock::time_point now);
  bool take_silence(const NoticeMessage& notice, Clock::time_point now);
  bool take_heard(uint32_t process) { return silent_.erase(process) != 0; }
  bool take_move(uint32_t process);

  bool is_lost(uint32_t process) const { return lost_.count(process) != 0; }
  bool is_silent(uint32_t process) const { return silent_.count(process) != 0; }
  bool has_ended(uint32_t process) const { return is_lost(process) || broken_.count(process) != 0; }  // or may have
  std::vector<SilentRanks> silent_ranks() const;
  std::set<uint32_t> silent_processes() const;
  // The parent, where it holds no rank and does not answer: nothing of the others comes through it.
  std::optional<SilentRanks> silent_relay() const;

  // A neighbour has been silent for so long.
  enum class Change { kNone, kFellSilent, kAnswersAgain };
  struct Hearing {
    Change change = Change::kNone;
    bool warn = false;    // the log tells
    bool spread = false;  // all processes are told
  };
  Hearing listen(uint32_t neighbour, Clock::duration silence);
  bool is_unheard(uint32_t neighbour) const { return unheard_.count(neighbour) != 0; }
  // Whether a child is heard: one that is not finds another parent when it can.
  bool hears_a_child() const;
  // Whether a parent that was last heard so long ago may be cut off, and has yet to be heard again or to count as silent.
  static bool is_overdue(Clock::duration silence) { return silence >= kOverdueAfter && silence < 2 * kSilence; }

  // A connection to a neighbour has ended: the neighbour may have, or not.
  struct Broken {
    std::string reason;
    Clock::time_point since;
    pid_t pid = 0;  // 0: says nothing here
    bool was_parent = false;
    bool was_reset = false;  // not closed by the process or its end
  };
  // What is to be done about a process.
  struct Step {
    enum class Next { kNothing, kExamineAgain, kProbe, kTellHeard, kTellSilent, kTellLost, kAttach };
    Next next = Next::kNothing;
    Clock::duration after{};  // kExamineAgain
    std::string text = {};    // kTellLost: how it is known
  };
  enum class Answer { kListens, kRefuses, kHasNoJob, kNone, kFailed };  // of a process that was dialled; kNone: in time

  void connected(uint32_t neighbour);
  void connection_ended(uint32_t neighbour, Broken broken) { broken_[neighbour] = std::move(broken); }
  // A process that left, or never held a rank, has refused or ended a connection: it seems to have ended.
  void relay_is_gone(uint32_t process, Clock::time_point now) { gone_.try_emplace(process, now); }
  pid_t pid_of_broken(uint32_t process) const;
  // `running`: all have met, so that its addresses are known here.
  Step examine(uint32_t process, bool pid_has_ended, bool running, Clock::time_point now) const;
  Step probed(uint32_t process, Answer answer, Clock::time_point now);
  // Ends the examination. Whether all are to be told that it is lost.
  bool conclude_loss(uint32_t process);
  std::vector<uint32_t> overdue(Clock::time_point now) const;  // broken, and not back

  // At the top.
  void become_top(Clock::time_point now);
  // Where the way from a process up to this one, the top, is cut: what has been gone, or silent, for a while; kNobody:
  // the way leads elsewhere; this process: nowhere.
  uint32_t cut_at(uint32_t process, Clock::time_point now) const;
  // Says of which processes nothing can be known, because those on the way to them are gone or silent.
  std::vector<NoticeMessage> cut_off(Clock::time_point now) const;
  // The end of a process that never held a rank is not told: those that hung from it and have not come back are probed.
  // Below one that had left, some processes may have left, too, without a trace: they are not probed. Those with higher
  // numbers that hang elsewhere for long are probed, too: another top looks for this one, but all may have ended while this
  // process did not run. Some at a time, in turn.
  std::vector<uint32_t> missing(Clock::time_point now);
  // The first process that may be in another part of the tree, below a top of its own: one that this top, or its top,
  // could not reach for a while. The top with the higher number attaches to the other's part.
  uint32_t other_part(Clock::time_point now) const;
  // A process with a lower number which may be in another part of the tree: it is silent, or a relay, while ranks are
  // missing; each in turn. Once it listens, this top attaches to it.
  std::optional<uint32_t> next_unreached(Clock::time_point now);
  // Whether children of a process that is gone, or does not answer, are on their way to a new parent, and have yet to
  // hear of the verdict, or who has left. A slow network takes its time for it; one that was lost as well never comes.
  // `unresponsive`: did not answer when this process sought a parent. `verdict_at`: the least time where there is none.
  bool awaits_orphans(const std::set<uint32_t>& unresponsive, Clock::time_point verdict_at,
                      Clock::time_point now) const;
  // Processes that do not answer and have not been told of the verdict, or that this process has left: no neighbour passes it
  // on to them. `since`: when that happened. A network that comes back just before the deadline lets some go on which wait for
  // ranks that have failed and leave. Some do answer: they seek a place in the tree, and count as cut off until then.
  std::vector<uint32_t> untold(Clock::time_point since, Clock::time_point now) const;
  void told(uint32_t process) { told_.insert(process); }

  // Whether all other processes have left or are lost, and have had the time to end: then no child needs this one. Several
  // parts of a tree that become one at the same time may hang from one another in a circle, where each has a child.
  bool is_over(Clock::time_point now);

  // There is nothing to watch.
  bool is_idle(bool running, Clock::time_point now) const;

 private:
  std::vector<uint32_t> below_gone_relays() const;
  bool hangs_elsewhere(uint32_t process) const;
  std::vector<uint32_t> elsewhere(Clock::time_point now) const;
  bool lacks_ranks(Clock::time_point now) const;
  bool is_sought(uint32_t process, bool is_lacking, Clock::time_point now) const;
  std::vector<uint32_t> unreached(Clock::time_point now) const;
  Clock::time_point gone_since(uint32_t process, const std::set<uint32_t>& unresponsive,
                               Clock::time_point verdict_at) const;

  const ProcessTree& tree_;
  std::map<uint32_t, Clock::time_point> lost_;
  std::map<uint32_t, SilentRanks> silent_;
  std::map<uint32_t, bool> unheard_;  // neighbours; whether the log was told
  std::map<uint32_t, Broken> broken_;
  // At the top: processes that are missing(), and since when.
  std::map<uint32_t, Clock::time_point> adrift_, elsewhere_;
  uint32_t last_missing_ = 0;
  std::optional<Clock::time_point> over_since_;
  std::optional<Clock::time_point> lacking_since_;  // at the top: some ranks do not hang from it
  uint32_t last_unreached_ = 0;
  std::map<uint32_t, Clock::time_point> gone_;  // relays, as it seems, and since when
  std::set<uint32_t> told_;                     // by a connection of their own; or there is none to tell
  Clock::time_point top_since_;
};

}  // namespace treering
