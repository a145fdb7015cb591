// SPDX-License-Identifier: Apache-2.0
// PeerStates: what a rank knows of the others: who they are, what they show of themselves, and which have ended, left or
// fallen silent, as far as it can see or was told.
//
// Memory and pids tell among the ranks of a machine, the job does between hosts. Any thread may call all but end_of(),
// check_death() and check_deaths(), which note that a process has ended: these are for the thread that uses the
// communicator.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/membership.h"
#include "core/clock.h"
#include "core/status.h"
#include "executor/execution.h"
#include "executor/rank_status.h"

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

class PeerStates {
 public:
  struct Loss {
    std::string reason;
    Clock::time_point when;
    bool left = false;  // in good order: what it sent before is still to be used
    Status cause;       // why it left
  };

  // What is given outlives it. The ranks of a process share `peers`. `job` where not all ranks share memory and pids.
  // `timeout`: the communicator's, 0: it has none.
  PeerStates(const ExecutorContext* context, const StatusReader* statuses,
             std::shared_ptr<const std::vector<PeerIdentity>> peers, Membership* job, std::chrono::milliseconds timeout)
      : context_(context), statuses_(statuses), peers_(std::move(peers)), job_(job), timeout_(timeout) {}

  uint32_t own_rank() const { return context_->rank; }
  uint32_t ranks() const { return context_->ranks; }
  // "rank 3 (pid 17 on b)".
  std::string describe(uint32_t peer) const;
  bool same_host(uint32_t peer) const { return identity(peer).host == identity(context_->rank).host; }
  // ", stopped by a signal or a debugger" and the like; empty when nothing is remarkable, or not known.
  std::string state_of(uint32_t peer) const;
  // By a signal, a debugger or the kernel, as far as is known.
  bool is_stopped(uint32_t peer) const { return !state_of(peer).empty(); }

  // A copy of a rank's status; false when the peer is gone.
  bool read(uint32_t peer, RankStatusSnapshot* snapshot) const;
  const RankStatus* mapped(uint32_t peer) const { return statuses_->mapped_status(peer); }
  bool knows_by_reading(uint32_t peer) const;
  // The failure that a rank shows, or ok.
  static Status failure_of(const RankStatusSnapshot& shown);

  // Whether answers come by the job; ask() needs one.
  bool asks() const { return job_ != nullptr; }
  void ask(uint32_t peer) const { job_->request_status(peer); }
  // When its latest answer came.
  std::optional<Clock::time_point> answered_at(uint32_t peer) const;
  // Also where it need not be asked.
  bool has_answered(uint32_t peer, Clock::time_point since) const;
  // A silent process through which answers of other ranks come.
  std::optional<SilentRanks> silent_relay() const { return job_ != nullptr ? job_->silent_relay() : std::nullopt; }
  // Who does not answer, in words; empty when all do. `among`: these ranks alone.
  std::string silence(const std::vector<uint32_t>* among = nullptr) const;
  // Its process does not answer, as the job tells.
  bool is_silent(uint32_t peer) const;

  // What the job tells; from another thread. `cause`: of one that left because of a failure.
  void note_lost(const std::vector<uint32_t>& ranks, const std::string& reason);
  void note_left(uint32_t rank, const Status& cause);
  std::map<uint32_t, Loss> losses() const;
  std::optional<Loss> loss_of(uint32_t peer) const;
  // Whether the job has told that one of `peers` was lost; costs no look at any.
  bool has_lost_any(const std::vector<uint32_t>& peers) const;
  // What is known of a peer that is lost or has left, as a verdict; ok when nothing is. `during` is for the message.
  Status find_lost(uint32_t peer, const std::string& during) const;
  // The verdict on a peer that has left.
  Status left(uint32_t peer, const std::string& during, const Status& cause) const;
  // Whether it has destroyed its communicator; and not because of a failure.
  bool has_left(uint32_t peer) const;
  bool has_left_in_order(uint32_t peer) const;

  // Whether its process has ended, as far as its pid tells.
  bool is_dead(uint32_t peer) const;
  // A peer of this machine whose process has ended before it destroyed its communicator.
  bool find_dead(uint32_t* peer) const;
  // The verdict on a peer whose process has ended; ok while the job may still tell that it left in order. `more` follows.
  Status end_of(uint32_t peer, const std::string& during, const std::string& more) const;
  Clock::duration time_for_end() const;  // until the job tells how a process ended
  // Ok, or that `peer` has ended without leaving. Asks no other process: it may be called for many ranks, again and
  // again.
  Status check_death(uint32_t peer, const char* during) const;
  // check_death() for several ranks; the error names every rank that has died. A rank that saw a death and ended because
  // of it may be noticed before the death that it saw.
  Status check_deaths(const std::vector<uint32_t>& peers, const char* during) const;
  // Those that have ended, have left, or do not answer, as far as this rank knows; ascending.
  std::vector<uint32_t> lost_ranks() const;

  // Whether a peer has given its GPU a collective that this rank has not; true where that cannot be read.
  bool is_awaited_by_gpus() const;
  // Who has not given its GPU the collective that this rank's is in, else who does not answer, in words; empty when
  // there is none. Ranks of other hosts are asked, so it is called by Watch::time_for_answers() before, too.
  std::string late_gpus(uint64_t collective) const;

 private:
  const PeerIdentity& identity(uint32_t peer) const { return (*peers_)[peer]; }

  const ExecutorContext* context_;
  const StatusReader* statuses_;
  std::shared_ptr<const std::vector<PeerIdentity>> peers_;
  Membership* job_;
  std::chrono::milliseconds timeout_;
  // Processes whose end this rank has seen, before news of how they ended.
  mutable std::map<uint32_t, Clock::time_point> ended_;
  mutable std::mutex lost_mutex_;
  std::map<uint32_t, Loss> lost_;
};

}  // namespace treering
