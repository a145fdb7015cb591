// SPDX-License-Identifier: Apache-2.0
// What the user asked for: the options of nccl-tests with their letters and defaults, and the launcher's own.
//
// Invariant: an Options that parse_options() returned is consistent and in range; nothing is checked again
// later.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective.h"
#include "datatypes.h"
#include "formulas.h"

namespace treering::perf {

inline constexpr int kMaxRanks = 1024;  // of the library

// Where the buffers lie: of GPUs each rank has one, and its calls go to a CUDA stream.
enum class MemoryKind { kHost, kGpu };
const char* memory_name(MemoryKind memory);

enum class Buffers { kMalloc = 0, kRegistered = 1, kMemAlloc = 2 };

// What follows each call (-z): nothing, a barrier, or (on a stream) only its completion.
enum class Blocking { kNone = 0, kBarrier = 1, kComplete = 2 };

// Processes on one host.
struct HostRanks {
  std::string host;
  int procs;
};

// What a row of the table is of, but for the operation and the root.
struct Point {
  size_t bytes;
  const DataType* type;
};

// What a row of the table is of.
struct RowPlan {
  Point point;
  const Operation* operation;
  int root;  // -1: it has none
};

struct Options {
  const CollectiveCase* collective = find_case("allreduce");
  size_t min_bytes = size_t{32} << 20;
  size_t max_bytes = size_t{32} << 20;
  size_t step_bytes = size_t{1} << 20;
  size_t step_factor = 1;
  int iterations = 20;
  int warm_up = 1;
  int aggregated = 1;
  int cycles = 1;  // 0: until interrupted
  int checks = 1;
  std::vector<const Operation*> operations;
  std::string unused_operation;  // given, and the collective combines nothing
  std::vector<const DataType*> types;
  int root = 0;
  Blocking blocking = Blocking::kNone;
  Averaging averaging = Averaging::kMean;
  int timeout_s = -1;  // below 0: the library's own
  MemoryKind memory = MemoryKind::kHost;
  int graph_launches = 0;  // of the graph into which the calls are captured; 0: none
  Buffers buffers = Buffers::kMalloc;
  size_t unalign = 0;  // elements by which the buffers are moved off their alignment
  bool per_iteration = false;
  std::string json_file;
  std::string csv_file;  // "-": standard output

  std::vector<HostRanks> hosts;  // empty: this machine
  std::string launcher = "ssh -o BatchMode=yes {host} {command}";
  bool launched = false;  // ranks come from what started this process
  int procs = 1;
  int threads = 1;
  int gpus = 1;  // ranks of each of these threads; a thread of its own for each
  bool allow_one_rank = false;
  bool stream = false;
  bool limit = false;
  bool explain = false;
  std::string baseline_file;
  double tolerance_percent = 20;
  uint64_t seed = 1;

  std::vector<std::string> arguments;  // as typed, for the JSON file

  int ranks() const { return procs * ranks_per_process(); }
  int ranks_per_process() const { return threads * gpus; }
  // Times that a rank takes in a row of -I: of its calls, or of the launches of a graph of them.
  int samples() const {
    if (!per_iteration) return 0;
    return graph_launches > 0 ? graph_launches : iterations;
  }
  // What a size becomes: whole elements, as many for each rank where a message is of blocks, one at least; 0
  // for a barrier.
  size_t usable_bytes(size_t bytes, const DataType& type) const;
  // The size of a rank's buffer: random counts are up to twice their mean.
  size_t buffer_bytes() const;
  // The roots to measure: one, or with -r -1 all.
  std::vector<int> roots() const {
    if (!collective->rooted) return {-1};
    if (root >= 0) return {root};
    std::vector<int> all;
    for (int rank = 0; rank < ranks(); ++rank) all.push_back(rank);
    return all;
  }
  // The sizes and types to measure, in their order. Sizes that become the same are one.
  std::vector<Point> points() const;
  // The rows of the table in their order; operations that a type does not have are left out.
  std::vector<RowPlan> rows() const;
};

// The program's name is treering-perf, whose first argument names a collective, or allreduce-perf.
// Fills `options`. Returns -1 to go on, else the exit status: 0 after --help or --version, 2 after an error,
// which has then been printed and names the option, its value and what it may be.
int parse_options(int argc, char** argv, Options* options);

// The versions of this program and of the library that it found: "0.2.0, library 0.2.0".
std::string versions();

// What is wrong with options that depend on the number of ranks, or "".
std::string check_known_ranks(const Options& options);
// What to do about a run of a single rank.
const char* one_rank_advice();

}  // namespace treering::perf
