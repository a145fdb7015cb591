// SPDX-License-Identifier: Apache-2.0
// One rank's part of a run: makes the communicator and the buffers, then times and verifies row after row.
//
//   for each place (out-of-place, in-place):
//     warm-up -> barrier -> [timed calls] -> barrier -> combine over ranks
//     for each check: fresh input, poisoned output -> barrier -> one call -> compare     (never timed)
//
// Invariant: all ranks go through the same barriers; results are complete on every rank, and rank 0 prints
// them.
#pragma once

#include <memory>
#include <string>

#include "laps.h"
#include "memory.h"
#include "rank_group.h"
#include "results.h"

namespace treering::perf {

trConfig_t config_of(const Options& options);

// Where a rank runs; -1 for none.
struct Seat {
  int core = -1;
  int gpu = -1;
};

class RankRun {
 public:
  RankRun(const Options& options, RankGroup& group, Seat seat);
  ~RankRun();
  RankRun(const RankRun&) = delete;
  RankRun& operator=(const RankRun&) = delete;

  // Each returns false after printing what failed and on which rank.
  bool initialise();
  // `bytes` are usable_bytes() of the type.
  bool measure(size_t bytes, const DataType& type, const Operation& operation, int root, Row* row);
  bool explain(size_t bytes, const DataType& type, std::string* text);
  bool finish();

  RankGroup& group() { return group_; }
  int library_version() const { return library_version_; }

 private:
  // The buffers of one call: in place, input is the output.
  struct Call {
    const DataType* type;
    trRedOp_t op;
    size_t count;
    int root;
    bool in_place;
    Shape shape;
    void* input;
    void* output;
  };
  Call make_call(size_t count, const DataType& type, const Operation& operation, int root, bool in_place);
  trResult_t call_library(const Call& call);

  bool ok(const std::string& error) const;
  bool ok(trResult_t result, const char* call) const;
  bool select(const Call& call, Row* row);
  bool issue(const Call& call);
  bool wait();
  // Whether a call is over, and not just in a stream, where the next one begins.
  bool waits_for_each() const;
  bool time_calls(const Call& call, PlaceResult* place);
  template <typename Step>
  bool timed_loop(Step step, int turns, double calls, double* samples, Laps* laps);
  bool capture(const Call& call);
  bool capture_one(const Call& call);
  bool check(const Call& call, PlaceResult* place);
  bool fill(const Call& call, uint64_t seed);
  bool is_rounded(const Call& call) const;
  bool count_wrong_values(const Call& call, uint64_t seed, size_t* wrong);

  const Options& options_;
  RankGroup& group_;
  Seat seat_;
  trComm_t comm_ = nullptr;
  std::unique_ptr<Memory> memory_;
  uint64_t checks_done_ = 0;
  int library_version_ = 0;
};

}  // namespace treering::perf
