// SPDX-License-Identifier: Apache-2.0
// Cost: the time that a model of the machine predicts for an algorithm.
//
//   T = S (R a + M s) + max(X / exchange + O / reduce, memory traffic)
//
//   a, s     one message between two ranks; the executor's work for one message
//   R, M     dependent rounds and messages of one slice; S slices
//   ranks on several hosts: T = ... + R2 a2 + M2 s2 + max(the data terms above, N / link), R2 and N those rounds and bytes
//   of the busiest host that cross between hosts, a2 and `link` the latency and rate of a host's network, M2 a rank's other
//   messages between hosts and s2 the kernel's work for one, half of which a2 has besides the latency
//   X        bytes exchanged through lines that other cores hold, at the rate at which one core moves those
//   O        bytes of operands reduced, at the rate of one core whose data is in cache
//
// which is the alpha-beta-gamma model (Thakur, Rabenseifner, Gropp 2005) with the memory bus as a second
// limit: when the buffers of all ranks together exceed the last-level cache, each rank's share of the bus
// bounds the data terms. With more ranks than cores every wait costs the other ranks' turns on the core, so
// few dependent rounds win. R, M, X and O come from the formula beside each algorithm.
#pragma once

#include <cstdint>

#include "algorithms/algorithm.h"

namespace treering {

// What was measured on the machine. All ranks hold the identical copy, so all of them choose alike.
struct Machine {
  double alpha_us = 0.15;               // a cache line from one rank's store to another rank's load
  double line_us = 0.02;                // the work for one mailbox line written or read
  double switch_us = 3.0;               // until a waiting rank gets its turn, for each further rank on its core
  double per_step_us = 0.15;            // the executor's work for one message sent or received
  double exchange_gbps = 7.0;           // one core writing lines that others have read, or reading what they wrote
  double copy_gbps_memory = 40.0;       // by all cores together, streaming through memory
  double reduce_gbps = 60.0;            // bytes of operands reduced per second by one core, in cache
  uint64_t llc_bytes = 32u << 20;       // last-level cache
  uint64_t streaming_bytes = 8u << 20;  // calls from this size on write results with non-temporal stores
  double fetch_us = 0;                  // the kernel's work for one copy between ranks; 0: it cannot
  uint32_t cores = 1;                   // cores of a host that its ranks may use
  uint32_t channels = 4;                // at most
  uint32_t hosts = 1;
  uint32_t host_ranks = 0;  // of the largest host; 0: all ranks
  double network_us = 30;   // a small message from a rank to a rank of another host
  double network_gbps = 1;  // of a host's links together, one way
  // The kernel's work for one message to another host, sent or received: each further peer of a one-shot of 8 bytes
  // among 4 hosts takes 5 us where it is 2.5, 14 us where it is 7. A round in which both send takes half of it more
  // than a message to a rank that waits: 11 instead of 8 us over bare sockets (veth, 2026-11-21 and 23).
  double network_message_us = 2.5;
  // What is left of that rate when several hosts send to one: their packets meet in a queue. Hybrid and two-shot
  // reached 0.87 to 0.99 of a ring's rate between 4 hosts on 1 and 2 Gbit/s (netlab, 2026-11-21).
  double shared_link_share = 0.9;
  // ... where a host sends more than this in a call: halving-doubling of 32 and 64 KiB takes 0.98 and 0.99 of a ring's
  // time, of 128 KiB 1.0 to 1.9 (4 hosts, 1 and 2 Gbit/s, netlab, 2026-11-22; other rates were not measured).
  uint64_t shared_link_bytes = 96u << 10;
  uint64_t mailbox_bytes = 2048;     // largest buffer that the mailbox protocol takes; 0: there is none
  uint64_t eager_bytes = 4096;       // largest block that goes as one eager message (eager.h); 0: not used
  uint64_t slot_bytes = 128u << 10;  // largest message of the staged protocol
};

// One way to run a collective, and its predicted time.
struct Candidate {
  const Algorithm* algorithm = nullptr;
  Protocol protocol = Protocol::kStaged;
  uint32_t channels = 1;
  uint32_t pipeline_chunks = 1;
  uint64_t slice_bytes = 0;  // bytes of the buffer (all channels) that one run of the schedules covers
  uint64_t chunk_bytes = 0;  // largest message
  uint64_t slices = 1;
  double rounds = 0;    // of one slice
  double messages = 0;  // of one slice
  double latency_us = 0;
  double executor_us = 0;
  double data_us = 0;
  double predicted_us = 0;  // the sum of the three
};

// Whether the messages of a call of `bytes` bytes are left to the kernel to copy, where it can. It writes into caches,
// so when all ranks receive what does not fit there it is slower than two copies of the library's.
bool is_fetched(const Algorithm& algorithm, uint64_t streaming_bytes, uint32_t ranks, uint64_t bytes);

// The largest message, in bytes, of a call whose buffers have so many bytes and whose schedules of all channels so many
// chunks; 0: as large as a slot. Where phases overlap only from slice to slice, a channel gets several slices as long
// as messages stay large.
uint64_t largest_message(const Algorithm& algorithm, uint64_t bytes, uint64_t chunks);

// Fills the sizes and times of a candidate whose algorithm, protocol, channels and pipeline_chunks are set.
void predict(const Machine& machine, uint32_t ranks, uint64_t bytes, Candidate& candidate);

}  // namespace treering
