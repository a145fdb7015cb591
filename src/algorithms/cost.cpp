// SPDX-License-Identifier: Apache-2.0
#include "algorithms/cost.h"

#include <algorithm>
#include <cmath>

namespace treering {
namespace {

uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// 4 MiB by 2 hosts of 2 ranks on 2 Gbit/s: 0.94 to 0.96 of the link with one slice a channel, 1.00 with four; 4 hosts
// of 4 ranks 0.91 and 0.98 with two. Messages of 32 KiB instead of 128 cost 64 MiB by 4 hosts of 4 ranks 4 % (netlab,
// 2026-11-22).
constexpr uint64_t kPhaseSlices = 4, kMinPhaseMessage = 32 << 10;

// Microseconds for `bytes` at `gbps` (1 GB/s is 1000 bytes per microsecond).
double at_rate(double bytes, double gbps) { return bytes / (1e3 * gbps); }

struct Network {
  double bytes = 0;     // sent by the busiest host to others
  double rounds = 0;    // that wait for a message between hosts
  double messages = 0;  // of a rank, between hosts, besides those rounds
};

// Where an algorithm says nothing of its own, a rank sends to all others alike: of a host's g ranks' traffic the part
// (n - g) / (n - 1) leaves the host, and every round waits for some message between hosts.
Network network_of(const Machine& machine, uint32_t ranks, const Work& work) {
  if (machine.hosts <= 1) return {};
  const double g = machine.host_ranks, n = ranks;
  Network network;
  network.bytes = work.network_bytes >= 0 ? work.network_bytes : g * work.sent_bytes * (n - g) / (n - 1);
  network.rounds = work.network_rounds >= 0 ? std::min(work.network_rounds, work.rounds) : work.rounds;
  const double messages = work.network_messages >= 0 ? work.network_messages : work.messages * (n - g) / (n - 1);
  network.messages = std::max(0.0, messages - 2 * network.rounds);
  return network;
}

}  // namespace

bool is_fetched(const Algorithm& algorithm, uint64_t streaming_bytes, uint32_t ranks, uint64_t bytes) {
  const uint64_t block = bytes / ranks;
  if (algorithm.fetch_bytes == 0 || block < algorithm.fetch_bytes) return false;
  if (algorithm.fetch_most != 0 && block > algorithm.fetch_most) return false;
  return bytes < streaming_bytes || info_of(algorithm.collective).rooted;
}

uint64_t largest_message(const Algorithm& algorithm, uint64_t bytes, uint64_t chunks) {
  constexpr uint64_t kUnit = 4096;  // so that alignment does not add a slice
  if (!algorithm.has_phases) return 0;
  const uint64_t slices = std::min(bytes / (std::max<uint64_t>(chunks, 1) * kMinPhaseMessage), kPhaseSlices);
  return slices < 2 ? 0 : divide_up(divide_up(bytes, chunks * slices), kUnit) * kUnit;
}

void predict(const Machine& machine, uint32_t ranks, uint64_t bytes, Candidate& candidate) {
  const Algorithm& algorithm = *candidate.algorithm;
  const bool direct = candidate.protocol == Protocol::kDirect;
  const uint32_t host_ranks = machine.host_ranks == 0 ? ranks : machine.host_ranks;
  CostInput input = {.ranks = ranks,
                     .hosts = machine.hosts,
                     .host_ranks = host_ranks,
                     .bytes = static_cast<double>(bytes),
                     .pipeline_chunks = candidate.pipeline_chunks,
                     .direct = direct};
  Work work = algorithm.work(input);
  // Each rank has its own row and column of the pairs' chunks.
  const bool pairs = info_of(algorithm.collective).parts == Parts::kPairs;
  const uint64_t chunks = uint64_t{pairs ? ranks : work.chunks} * candidate.channels;

  // Partial sums travel through slots even where the user's buffers are reachable.
  const bool slots = candidate.protocol == Protocol::kStaged || (direct && algorithm.forwards_partial_sums);
  uint64_t message = machine.slot_bytes;
  if (const uint64_t limit = largest_message(algorithm, bytes, chunks); limit != 0) message = std::min(message, limit);
  const uint64_t largest = std::max<uint64_t>(message / work.max_span, 1) * chunks;
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
  const double share = std::min(1.0, cores / host_ranks);  // of a core, for each rank
  const double alpha = machine.alpha_us + (std::ceil(host_ranks / cores) - 1) * machine.switch_us;
  const auto slices = static_cast<double>(candidate.slices);
  double cpu = at_rate(work.reduce_bytes, machine.reduce_gbps * share);
  const Network network = network_of(machine, ranks, work);
  // Slices of different channels wait at the same time.
  const double turns = std::max(1.0, slices / candidate.channels);
  const double network_alpha = machine.network_us + machine.network_message_us / 2;
  candidate.latency_us = slices * (work.rounds - network.rounds) * alpha + turns * network.rounds * network_alpha;
  if (candidate.protocol == Protocol::kMailbox) {
    candidate.executor_us = work.messages * machine.line_us / share;
  } else {
    const double per_message = machine.per_step_us + (input.fetched ? machine.fetch_us / 2 : 0);  // of two ends, one
    candidate.executor_us = slices * work.messages * per_message / share;
  }
  candidate.executor_us += slices * network.messages * machine.network_message_us / share;
  cpu += at_rate(work.exchanged_bytes, machine.exchange_gbps * share);
  // Input and output of every rank; a copy moves each of its bytes over the bus twice.
  const bool resident = 2.0 * host_ranks * static_cast<double>(bytes) <= static_cast<double>(machine.llc_bytes);
  const double bus = at_rate(work.memory_bytes * host_ranks / 2, machine.copy_gbps_memory);
  candidate.data_us = resident ? cpu : std::max(cpu, bus);
  if (machine.hosts > 1) {
    const bool meet = work.network_sources > 1 && network.bytes > static_cast<double>(machine.shared_link_bytes);
    candidate.data_us = std::max(candidate.data_us,
                                 at_rate(network.bytes, machine.network_gbps * (meet ? machine.shared_link_share : 1)));
  }
  candidate.predicted_us = candidate.latency_us + candidate.executor_us + candidate.data_us;
}

}  // namespace treering
