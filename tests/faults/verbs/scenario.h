// SPDX-License-Identifier: Apache-2.0
// What is done to ranks over the stand-in for libibverbs, and what is expected of it. A scenario follows from (seed,
// index) alone.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

namespace faults::verbs {

enum class Kind {
  kQueuePair,
  kCompletion,
  kKey,
  kLockedMemory,
  kCall,
  kLate,
  kPortShort,
  kPortLong,
  kLeave,
  kDatagrams
};
constexpr int kKinds = 10;
enum class Phase { kInit, kSmall, kLarge, kAllToAll, kDestroy };
constexpr int kPhases = 5;

// What has to become of it: an error on every rank, none, or either.
enum class Outcome { kError, kSurvive, kEither };

// A card gives up after so many virtual nanoseconds: 7 times 4.096 us * 2^14 (PathOptions of the transport, for 4 s).
constexpr uint64_t kRetryTime = 7 * 4096ull * (1 << 14);

struct Scenario {
  uint64_t seed = 0, index = 0;
  Kind kind{};
  Phase phase{};
  int ranks = 2;
  int disorder = 2;
  bool has_tcp = false;        // as the next transport
  bool is_registered = false;  // the buffers, with trCommRegister
  uint64_t posts = 0;          // of all ranks, from when they are in the phase until the fault
  uint64_t draw = 0;           // which queue pair, key or rank is hit
  ibv_wc_status status = IBV_WC_SUCCESS;
  bool is_receive = false;  // of the receive queue
  const char* function = "";
  int error = 0, nth = 1;
  uint64_t held = 0;  // virtual nanoseconds
  size_t least = 8, most = 4096;
  uint64_t numbers = 0;  // of the stand-in's draws

  Outcome outcome() const;
  bool calls() const { return phase != Phase::kInit && phase != Phase::kDestroy; }
  std::string describe() const;
};

Scenario draw(uint64_t seed, uint64_t index);
const char* name_of(Kind kind);
const char* name_of(Phase phase);

}  // namespace faults::verbs
