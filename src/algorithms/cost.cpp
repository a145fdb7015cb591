#include "algorithms/cost.h"

#include <algorithm>
#include <cmath>

namespace treering {
namespace {

uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Microseconds for `bytes` at `gbps` (1 GB/s is 1000 bytes per microsecond).
double at_rate(double bytes, double gbps) { return bytes / (1e3 * gbps); }

}  // namespace

bool is_fetched(const Algorithm& algorithm, uint64_t streaming_bytes, uint32_t ranks, uint64_t bytes) {
  const uint64_t block = bytes / ranks;
  if (algorithm.fetch_bytes == 0 || block < algorithm.fetch_bytes) return false;
  if (algorithm.fetch_most != 0 && block > algorithm.fetch_most) return false;
  return bytes < streaming_bytes || info_of(algorithm.collective).rooted;
}

void predict(const Machine& machine, uint32_t ranks, uint64_t bytes, Candidate& candidate) {
  const Algorithm& algorithm = *candidate.algorithm;
  const bool direct = candidate.protocol == Protocol::kDirect;
  CostInput input = {.ranks = ranks,
                     .bytes = static_cast<double>(bytes),
                     .pipeline_chunks = candidate.pipeline_chunks,
                     .direct = direct};
  Work work = algorithm.work(input);
  // Of the pairs' chunks each rank has its own row and column.
  const bool pairs = info_of(algorithm.collective).parts == Parts::kPairs;
  const uint64_t chunks = uint64_t{pairs ? ranks : work.chunks} * candidate.channels;

  // Partial sums travel through slots even where the user's buffers are reachable.
  const bool slots = candidate.protocol == Protocol::kStaged || (direct && algorithm.forwards_partial_sums);
  const uint64_t largest = std::max<uint64_t>(machine.slot_bytes / work.max_span, 1) * chunks;
  candidate.slice_bytes = slots ? std::min(bytes, largest) : bytes;
  candidate.slices = bytes == 0 ? 1 : divide_up(bytes, candidate.slice_bytes);
  candidate.chunk_bytes = divide_up(candidate.slice_bytes, chunks) * work.max_span;
  if (candidate.protocol == Protocol::kStaged && machine.fetch_us > 0 &&
      is_fetched(algorithm, machine.streaming_bytes, ranks, bytes)) {
    input.fetched = true;
    work = algorithm.work(input);
  }
  candidate.rounds = work.rounds;
  candidate.messages = work.messages;

  const double cores = std::max(machine.cores, 1u);
  const double share = std::min(1.0, cores / ranks);  // of a core, for each rank
  const double alpha = machine.alpha_us + (std::ceil(ranks / cores) - 1) * machine.switch_us;
  const auto slices = static_cast<double>(candidate.slices);
  double cpu = at_rate(work.reduce_bytes, machine.reduce_gbps * share);
  candidate.latency_us = slices * work.rounds * alpha;
  if (candidate.protocol == Protocol::kMailbox) {
    candidate.executor_us = work.messages * machine.line_us / share;
  } else {
    const double per_message = machine.per_step_us + (input.fetched ? machine.fetch_us / 2 : 0);  // of two ends, one
    candidate.executor_us = slices * work.messages * per_message / share;
  }
  cpu += at_rate(work.exchanged_bytes, machine.exchange_gbps * share);
  // Input and output of every rank; a copy moves each of its bytes over the bus twice.
  const bool resident = 2.0 * ranks * static_cast<double>(bytes) <= static_cast<double>(machine.llc_bytes);
  const double bus = at_rate(work.memory_bytes * ranks / 2, machine.copy_gbps_memory);
  candidate.data_us = resident ? cpu : std::max(cpu, bus);
  candidate.predicted_us = candidate.latency_us + candidate.executor_us + candidate.data_us;
}

}  // namespace treering
