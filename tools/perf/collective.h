// SPDX-License-Identifier: Apache-2.0
// The collectives that the tool measures: what each rank's buffers hold, how it is called, what must come out.
//
//   input index i of rank r holds the value f(r, i) (data.h); an output is blocks, each the input of one rank from some
//   index on, or its combination over all ranks.
//
// Sizes are those of nccl-tests: of the larger buffer, all blocks.
#pragma once

#include <treering/treering.h>

#include <span>
#include <string>
#include <vector>

#include "datatypes.h"

namespace treering::perf {

struct Shape;
struct CallArguments;

// What a buffer of a rank holds.
enum class Holds {
  kNothing,
  kBlock,        // of the rank itself, or the whole where there are no blocks
  kAll,          // a block for each rank
  kBlockOfRoot,  // the same on the root alone
  kAllOfRoot,
};
inline bool holds_all(Holds holds) { return holds == Holds::kAll || holds == Holds::kAllOfRoot; }

// All that the tool knows of a collective. An output of one block is the combination of all inputs where the collective
// reduces, else from the root, or from `source`; one of all blocks has one from each rank.
struct CollectiveCase {
  const char* name;
  trCollective_t id;  // whose selection is shown; trCollForceInt: none, it is sends and receives
  bool rooted;
  bool reduces;
  bool variable;  // random counts, mean as of the others
  Holds input, output;
  int shares;  // the bus carries as many times (n-1)/n of the buffer, as nccl-tests defines it; 0: the buffer
  trResult_t (*call)(const Shape& shape, const CallArguments& a);
  int (*source)(int rank, int ranks) = nullptr;

  bool has_data() const { return input != Holds::kNothing; }
  bool many_blocks() const { return holds_all(input) || holds_all(output); }
  bool exchanges() const { return holds_all(input) && holds_all(output); }
  // Only the two ranks of a pair know their counts: the library runs sends and receives.
  bool is_pairs() const { return id == trCollForceInt || (variable && (rooted || exchanges())); }
  bool can_be_in_place() const { return id != trCollForceInt && !(variable && exchanges()); }
};

std::span<const CollectiveCase> collective_cases();
// Null when the name is unknown. Case, "-" and "_" do not count: ReduceScatter and reduce_scatter are reduce-scatter.
const CollectiveCase* find_case(const std::string& name);
std::string case_names();

// Bus bandwidth over algorithm bandwidth, as nccl-tests defines it.
double bus_factor(const CollectiveCase& c, int ranks);

// One call of one rank: counts in elements, and where they lie.
struct Shape {
  size_t input = 0, output = 0;         // elements; 0: not used on this rank
  size_t own = 0;                       // of this rank's block in the larger buffer, where it is in place
  std::vector<size_t> counts, offsets;  // variable: blocks of all ranks, or those sent
  std::vector<size_t> receive_counts, receive_offsets;  // variable alltoall
};
// `count`: of a block. The same seed gives all ranks the same counts.
Shape shape_of(const CollectiveCase& c, int rank, int ranks, int root, size_t count, uint64_t seed);

// A run of the output and what it must be equal to.
struct ExpectedBlock {
  int source;    // a rank, or -1: combined over all
  size_t first;  // index in its input
  size_t at;     // in the output
  size_t count;
};
std::vector<ExpectedBlock> expected_blocks(const CollectiveCase& c, const Shape& shape, int rank, int ranks, int root,
                                           size_t count, uint64_t seed);

struct CallArguments {
  const void* input;
  void* output;
  size_t count;
  trDataType_t type;
  trRedOp_t op;
  int root, rank, ranks;
  trComm_t comm;
  trStream_t stream;
};

}  // namespace treering::perf
