// Watch: what a waiting rank looks at besides the message that it waits for: the communicator's verdict, the deadline,
// peers whose call differs, peers that have left or died. And the verdict itself: the first failure of any rank, in
// the same words on every rank.
//
// Nothing of this is touched while messages arrive in time; check() is called only by a rank that has found nothing to
// do for a while. Among many ranks it looks at some of them each time, in turn, and always at the one that it waits for:
// the cost of waiting does not grow with n. Whoever waits for a rank that fails finds it at once, and the verdict is
// everybody's.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "communicator/local_socket.h"
#include "communicator/membership.h"
#include "core/status.h"
#include "executor/execution.h"

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

class Watch {
 public:
  // `job` where not all ranks share memory and pids: it carries verdicts and tells of lost ranks.
  // `one_verdict`: all ranks share `verdict`.  The ranks of a process share `peers`.
  Watch(ExecutorContext* context, const StatusReader* statuses, FailureRecord* verdict,
        std::shared_ptr<const std::vector<PeerIdentity>> peers, int timeout_ms, std::string communicator_name,
        Membership* job, bool one_verdict);

  // Starts the clock of one operation.
  void start(const Call* call);
  // Ok, or the communicator's verdict. `waiting_for` is the rank whose message is missing (or the own rank).
  Status check(uint32_t waiting_for, uint64_t steps);
  // Makes `status` the communicator's verdict unless there is one; returns the one that holds.
  Status fail(Status status);
  // A peer of this machine whose process has ended before it destroyed its communicator.
  bool find_dead(uint32_t* peer) const;
  // Whether it has destroyed its communicator.
  bool has_left(uint32_t peer) const;
  // Whether a peer has given its GPU a collective that this rank has not; true where that cannot be read.
  bool is_awaited_by_gpus() const;
  // What the job tells; from another thread.
  void take_verdict(trResult_t code, const std::string& text);
  void note_lost(const std::vector<uint32_t>& ranks, const std::string& reason);
  void note_left(uint32_t rank);
  // The verdict, if there is one, without looking at peers.
  Status verdict() const;
  // The same while the communicator is created, which needs every rank: that one was lost is a verdict, too.
  Status creation_verdict();
  // Whether `peer` lives and has not left; `during` is for the message. Makes no verdict.
  Status check_peer(uint32_t peer, const char* during) const;
  // The verdict when the link to `peer` failed with `status`.
  Status link_failed(uint32_t peer, const Status& status);
  // The verdict when the deadline passed while this rank waited for `peer` and no operation was under way. Of `ranks`
  // those are named that do not answer; if all do, `peer`.
  Status no_progress(uint32_t peer, const std::vector<uint32_t>& ranks);
  // The verdict of a call whose header differed from that of `peer`; `sizes` of a transfer from it.
  Status mismatch(uint32_t peer, const std::optional<TransferSizes>& sizes = {});
  // A copy of a rank's status; false when the peer is gone.
  bool read(uint32_t peer, RankStatusSnapshot* snapshot) const;

 private:
  Status peer_verdict();
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
  Status end_of(uint32_t peer, const std::string& during, const std::string& more) const;
  Status left(uint32_t peer, const std::string& during) const;
  std::string silence() const;
  bool knows_by_reading(uint32_t peer) const;
  bool same_host(uint32_t peer) const { return identity(peer).host == identity(context_->rank).host; }
  const PeerIdentity& identity(uint32_t peer) const { return (*peers_)[peer]; }
  Status transfers_differ(uint32_t peer, const TransferSizes& sizes);
  bool read_of_this_operation(uint32_t peer, RankStatusSnapshot* snapshot) const;
  Status deadline_verdict(uint32_t waiting_for);
  bool is_dead(uint32_t peer) const;
  void note_progress(uint32_t peer);
  std::string describe(uint32_t peer) const;
  std::string place() const;
  std::string own_call() const;

  // What was last seen of a peer in this wait, and when it changed.
  struct Seen {
    uint64_t heartbeat = 0;
    uint64_t operation = 0;
    Clock::time_point changed;  // at first: the begin of the wait
    bool known = false;
    bool moved = false;  // it has changed since it was first seen
    bool ended = false;  // its process, though its part was missing
  };

  ExecutorContext* context_;
  const StatusReader* statuses_;
  FailureRecord* verdict_;  // shared by the ranks of the host where they share memory, else this rank's own
  std::shared_ptr<const std::vector<PeerIdentity>> peers_;
  std::vector<Seen> seen_;
  int crowd_;  // looks at all of them
  std::chrono::milliseconds timeout_;
  std::string name_;
  Membership* job_;
  const bool one_verdict_;
  struct Loss {
    std::string reason;
    Clock::time_point when;
    bool left = false;  // in good order: what it sent before is still to be used
  };
  mutable std::mutex lost_mutex_;
  std::map<uint32_t, Loss> lost_;
  const Call* call_ = nullptr;
  Clock::time_point started_;  // of the wait
  uint64_t steps_ = 0;
  Clock::time_point next_calls_check_;
  Clock::time_point next_alive_check_;
  uint32_t next_call_ = 0, next_alive_ = 0;  // the ranks whose turn it is
  bool clock_runs_ = false;
  bool counted_ = true;  // a collective, not sends and receives
};

}  // namespace treering
