// SPDX-License-Identifier: Apache-2.0
// Verifier: runs the schedules of all ranks of one channel against the collective's pre- and postcondition.
//
// Values are abstract: the set of ranks whose input they contain, as a 64-bit sum of one random number per
// rank (with the number of contributions in its low bits), or, for up to 64 ranks, exactly, as a bit mask. A
// second hash follows the order of the combinations, so that ranks that would round differently are told
// apart. FIFOs have the depth that the schedules name; since every program is in order and every FIFO point
// to point, the one order that is simulated settles deadlock for every order, every greater depth and every
// number of slices.
//
// It finds: a malformed step; an input that the rank does not have; wrong, missing or doubled contributions; results
// that differ between ranks; unread messages; deadlock; a message whose chunk or span the receiver does not expect;
// scratch or output read before it was written; scratch overwritten while needed or never used; outputs never stored or
// stored twice; kFinal set or missing wrongly; inputs read after the output of the same chunk was stored (in place
// they are the same memory), and peers that may still read an input in place when its result arrives although
// input_used_once promises otherwise.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "algorithms/collective.h"
#include "algorithms/schedule.h"
#include "core/status.h"

namespace treering {

struct VerifyOptions {
  Collective collective = Collective::kAllReduce;
  uint32_t root = 0;
  bool exact = false;       // bit masks instead of hashes; at most 64 ranks
  uint32_t fifo_depth = 0;  // 0: the largest that the schedules name
  uint64_t seed = 0x7265656e72696e67;
};

struct VerifyReport {
  std::string error;  // empty: everything holds; else the first defect, with rank, step and chunk
  uint64_t steps = 0;
  uint64_t messages = 0;
  bool rank_ordered = true;  // every result was combined one operand after another in ascending rank order
  bool ok() const { return error.empty(); }
};

// schedules[r] is the schedule of rank r; all of the same channel.
VerifyReport verify(std::span<const Schedule> schedules, const VerifyOptions& options = {});

// The part that one schedule shows by itself: lists in bounds, flags that make sense together, blocks that
// cover every step once, max_span and uses_scratch true.
Status check_structure(const Schedule& schedule);

}  // namespace treering
