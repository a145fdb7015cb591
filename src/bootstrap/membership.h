// SPDX-License-Identifier: Apache-2.0
// Membership: one rank's part in one job, from the rendezvous to its end. What the rest of the communicator uses of the
// rendezvous; behind it are the process's Agent and its Job (job/job.h).
//
//   join        blocks until all ranks are here; errors are the same on all ranks
//   allgather   blocks; any number of rounds, in the same order on all ranks
//   then        verdicts, losses, questions to other ranks, introductions: asynchronous
//
// Safe for several threads; allgather by one at a time.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/unique_id.h"
#include "core/clock.h"
#include "transport/introduction.h"

namespace treering {

// After a deadline a rank waits for so long for what another one has found, which may say better who is at fault. News
// takes longer on a busy machine and over a slow network: `lateness` is how late this thread woke up lately, `reach`
// how long this process took to get its place in the control tree (some round trips).
inline constexpr Clock::duration kMinNewsTime = std::chrono::milliseconds(300), kMaxNewsTime = std::chrono::seconds(1);
inline Clock::duration time_for_news(Clock::duration lateness, Clock::duration reach) {
  return std::min(kMaxNewsTime,
                  kMinNewsTime + 20 * std::min(lateness, kMaxNewsTime) + 2 * std::min(reach, kMaxNewsTime));
}

class Agent;
class Job;
struct Member;

// How long a process that has lost its place in the tree seeks another before it takes itself for the top.
// The last candidates of a search that has taken so long get less, each.
constexpr auto kSearchTimeout = std::chrono::milliseconds(4500);
constexpr auto kMuteHostTimeout = std::chrono::milliseconds(250);  // also where another process has just not answered
constexpr size_t kMaxParents = 24;                                 // that it tries
constexpr auto kLongestSearch = kSearchTimeout + kMaxParents * kMuteHostTimeout;

struct JoinRequest {
  uint32_t rank = 0, ranks = 0;
  int timeout_ms = 0;  // 0: none
  // Sizes of each host's shared segment and of a rank's staging memory, as this rank would have them. The least of all
  // ranks counts.
  uint64_t segment_bytes = 0, staging_bytes = 0;
  std::string settings;  // must be the same on all ranks; one name=value a line
  // The end of the whole creation. Without it `timeout_ms` counts for the ranks to arrive, and again for all that follows.
  Clock::time_point deadline = Clock::time_point::max();
};

// Under which terms a communicator is made from another one.
struct CreationTerms {
  // Asked during every wait; an error of it ends the wait and is what the others are told.
  using Guard = std::function<Status()>;
  Guard guard;
  Clock::time_point deadline = Clock::time_point::max();
  std::function<void()> serve;  // called in every wait: what others may wait for meanwhile
};

// Called on the agent's thread: must not block. None is called after the Membership's end.
struct MemberEvents {
  // The job's verdict, once; the first of all that were spread, the same on every rank (also on the one that spread
  // it).
  std::function<void(uint32_t code, const std::string& text)> on_verdict;
  // The process that held these ranks ended without leaving, or cannot be reached any more.
  std::function<void(const std::vector<uint32_t>& ranks, const std::string& reason)> on_lost;
  // The rank has left in good order.
  // `cause`: the failure because of which it left, if there was one.
  std::function<void(uint32_t rank, const Status& cause)> on_left;
  // Whether connections of others to this process wait, because no file descriptor is left for them.
  std::function<void(bool wait)> on_no_descriptor;
  // This rank's answer to request_status().
  std::function<std::string()> status;
  // Introductions (transport/introduction.h). The callee closes the sockets.
  std::function<void(uint32_t source, const std::string& bytes, int fd)> on_introduced;
  std::function<void(uint32_t peer, const std::string& bytes, const Status& status, int fd)> on_connected;
};

// Where a rank runs.
struct PeerPlace {
  uint32_t pid = 0;
  uint32_t process = 0;  // number; ranks of one process have the same
  uint32_t host = 0;     // number; ranks of one host have the same
  std::string host_name;
  uint32_t interfaces = 0;  // of this process in networks of that one
};

// Ranks of a process that does not answer, though its connection stands.
struct SilentRanks {
  std::vector<uint32_t> ranks;
  std::string reason;
  Clock::time_point since;
  bool timed = false;  // `since` was measured

  std::string text() const;
};

// The last time that this process did not run: it was stopped, or got no processor. What is shorter is none.
struct OwnPause {
  Clock::duration length{};
  Clock::time_point end;
};
constexpr auto kOwnPause = std::chrono::milliseconds(1500);

class Membership {
 public:
  // Makes an id; the ranks meet in this process, which must live until they have. `names`: how users know the ranks, in
  // their order; empty: by their numbers.
  static Status make_rendezvous_root(UniqueId* id, const std::vector<std::string>& names = {});
  // The id of the `number`-th job whose ranks meet at a known address without having met before: it follows from the
  // arguments alone; `host` must be the same text on all ranks, but may be another address. With `root` this process is
  // the one that listens there. `secret`: known to the job's ranks alone.
  static Status rendezvous_root_at(const std::string& host, uint16_t port, const std::string& secret, uint32_t number,
                                   bool root, UniqueId* id);
  // Ends the rendezvous of an id that this process made. Ranks that wait there, or come later, get `status`.
  static void end_rendezvous(const UniqueId& id, const Status& status);
  static Status join(const UniqueId& id, const JoinRequest& request, std::unique_ptr<Membership>* membership,
                     const CreationTerms& terms = {});
  // Leaves; waits for no other rank.
  ~Membership();
  // Whether the library's descriptors are still its own, so that links may use theirs; costs one system call.
  bool has_descriptors() const;
  static Status descriptors_closed();
  // Never releases it: what it would close may be other files by now.
  static void keep_for_ever(std::shared_ptr<void> owner_of_descriptors);
  // Every rank leaves now, as all of them know: none needs to be told.
  void dissolve() { dissolved_ = true; }
  // This rank leaves because of that, as the others are told.
  void leave_because(const Status& cause) {
    if (cause_.ok()) cause_ = cause;
  }
  // Called in every wait from now on: others may wait for what the links of this rank hold.
  void serve_links(std::function<void()> progress) { progress_ = std::move(progress); }
  // The communicator is there: nothing else ends its waits, and its links are served by its operations.
  void end_creation();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Gives this rank's blob and receives every rank's, in rank order; the ranks of a process share what they receive.
  using Blobs = std::shared_ptr<const std::vector<std::string>>;
  Status allgather(const std::string& blob, Blobs* all);
  // What all ranks have of JoinRequest::staging_bytes.
  uint64_t staging_bytes() const;
  // A descriptor of this host's segment, once; -1: there is none.
  int take_segment();
  // This process had no descriptor left to take, make or pass on that segment.
  bool lost_segment() const;
  const std::vector<PeerPlace>& peers() const;
  std::shared_ptr<const std::vector<PeerPlace>> share_peers() const;

  // When all waits of the creation end. Known once the ranks have met.
  Clock::time_point deadline() const { return deadline_; }

  // For waits of the creation that this class does not know: its failure, but for the deadline, of which such a wait says
  // more itself.
  Status creation_failure() const;
  // Why the ranks cannot meet, or an exchange cannot end; ok: nothing is known of that. For waits of a creation that this
  // class does not know.
  Status failure() const;
  // A failure of the creation, as the guard says it, if it does within a moment.
  Status in_words_of_guard(const Status& failure) const;
  void set_events(MemberEvents events);
  void spread(uint32_t code, const std::string& text);
  std::vector<SilentRanks> silent() const;
  // The process through which this one hears of the others, where it holds no rank and does not answer.
  std::optional<SilentRanks> silent_relay() const;
  OwnPause own_pause() const;
  // See time_for_news().
  Clock::duration reach() const;
  // Asks `rank`; the answer is there later, if it comes.
  void request_status(uint32_t rank);
  bool latest_status(uint32_t rank, std::string* bytes, Clock::time_point* when) const;
  // In words: which process has not passed on what this one waits for. Empty at the top of the tree.
  std::string heard_through() const;
  // To `peer`, whose on_introduced gets it; of one with a socket, on_connected says how it went.
  void introduce(uint32_t peer, Introduction introduction);

 private:
  Membership(Agent* agent, std::shared_ptr<Job> job, std::shared_ptr<Member> member);
  void start_deadline();
  Status deadline_passed(const char* what) const;
  std::string who_is_silent(const std::string& heard_through) const;
  Status wait_for(const std::function<bool()>& condition, const char* what);

  Agent* agent_;
  std::shared_ptr<Job> job_;
  std::shared_ptr<Member> member_;
  CreationTerms::Guard guard_;
  std::function<void()> progress_;
  Status cause_;
  Clock::time_point deadline_;  // of the waits
  uint64_t round_ = 0;
  bool dissolved_ = false;
};

}  // namespace treering
