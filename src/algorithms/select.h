// SPDX-License-Identifier: Apache-2.0
// Selection: which algorithm, protocol and shape a collective of a given size uses, and why.
//
// A pure function of its arguments, so every rank that holds the same Machine chooses the same. Candidates
// are all algorithms x the protocols that the buffers allow x (tree) the pipeline depths. The least predicted
// time wins; among those within 2 % of it the first in the order of the table, which puts few roundings
// first. Among many ranks, algorithms in which some rank has messages with all others stand back (kMaxAllPeers).
#pragma once

#include <string>
#include <vector>

#include "algorithms/cost.h"
#include "core/status.h"

namespace treering {

struct SelectionInput {
  Collective collective = Collective::kAllReduce;
  uint32_t ranks = 1;
  uint64_t bytes = 0;               // of the larger buffer
  bool unequal = false;             // blocks of different sizes
  bool rank_ordered_only = false;   // the fixed-order mode, operations that do not commute
  bool computed_once_only = false;  // compression: a result is rounded by one rank
  bool direct = false;              // the peers can reach the buffers (input and output)
  bool in_place = false;            // input and output are the same buffer
  uint32_t channels = 0;            // forced number of channels; 0: what the algorithm wants
  std::string forced;               // see forced_algorithm(); empty: free choice
};

struct Selection {
  Candidate best;
  std::vector<Candidate> candidates;  // in table order, the best among them
  std::vector<std::string> left_out;  // "one-shot direct: ..." with the reason
  std::string forced_left_out;        // the forced one's, where it is among them
  std::string forced_in_vain;         // why the forced one, which is used, is of no use here; or ""
};

// Fails for an unknown forced name (the message lists the known ones) and for one that cannot take so many
// ranks.
Status select(const Machine& machine, const SelectionInput& input, Selection* selection);

// A range of sizes with the same choice of algorithm, protocol and channels; last_bytes is inclusive.
struct SelectionRange {
  uint64_t first_bytes = 0;
  uint64_t last_bytes = 0;
  Candidate at_first;
};
// The choices for all sizes up to 4 GiB and beyond (the last range ends at UINT64_MAX). input.bytes is
// ignored.
Status selection_ranges(const Machine& machine, SelectionInput input, std::vector<SelectionRange>* ranges);

// A table of all candidates for one size with the chosen one marked, and the reason in words.
Status explain_text(const Machine& machine, const SelectionInput& input, std::string* text);
// A table of size ranges and what is chosen in each.
Status explain_ranges_text(const Machine& machine, const SelectionInput& input, std::string* text);

// "64 KiB"
std::string format_bytes(uint64_t bytes);

}  // namespace treering
