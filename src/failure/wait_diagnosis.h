// SPDX-License-Identifier: Apache-2.0
// WaitDiagnosis: who holds up the operation that this rank waits in, in words: a rank that has not entered it, is
// stopped, does not answer, or is waited for in turn. From what the ranks show, and when that changed last.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "failure/call_text.h"
#include "failure/peer_states.h"

namespace treering {

class WaitDiagnosis {
 public:
  // What is given outlives it. `all_at_once`: a rank looks at all others each time, and not at some in turn.
  WaitDiagnosis(const RankStatus* status, const PeerStates* peers, const OwnCall* call, size_t ranks, bool all_at_once)
      : status_(status), peers_(peers), call_(call), seen_(ranks), all_at_once_(all_at_once) {}

  // A wait begins.
  void begin(Clock::time_point now);
  // Looks at what `peer` shows.
  void look(uint32_t peer);
  // `peer` has left, or its process has ended, though its part was missing. Whether that was seen before in this wait.
  bool note_gone(uint32_t peer) { return std::exchange(seen_[peer].gone, true); }

  // `code` becomes that of an error: a rank without file descriptors makes it trSystemError.
  std::string who_holds_up(uint32_t waiting_for, trResult_t* code);
  // Follows who waits for whom. `all_answer`: every rank has just shown that it lives.
  std::string chain_of_waits(uint32_t waiting_for, bool all_answer = false) const;
  // "Rank 0 waited for rank 1": what ends an error, after `who`.
  std::string who_waited_for(uint32_t peer, const std::string& who) const;

  // Whether this rank is the one that warns.
  bool speaks_for_others();
  // Asks those for what they do that have not answered since.
  void ask_others(Clock::time_point since) const;
  // Those that have not answered since, in words.
  std::string unanswered(Clock::time_point asked) const;

 private:
  // What was last seen of a peer in this wait, and when it changed.
  struct Seen {
    uint64_t heartbeat = 0;
    uint64_t operation = 0;
    Clock::time_point changed;  // at first: the begin of the wait
    bool known = false;
    bool moved = false;  // it has changed since it was first seen
    bool gone = false;
  };
  struct Shown {
    uint32_t rank;
    RankStatusSnapshot status;
  };
  double silence_of(uint32_t peer) const;
  bool shows_life(uint32_t peer) const;
  std::string without_descriptors() const;
  std::string absent(uint32_t waiting_for) const;
  bool follows_silence(uint32_t peer, uint32_t waited_for) const;
  std::string lifeless_rank() const;
  std::string wait_of_two(const Shown& one, const Shown& other) const;

  const RankStatus* status_;
  const PeerStates* peers_;
  const OwnCall* call_;
  std::vector<Seen> seen_;
  bool all_at_once_;
};

}  // namespace treering
