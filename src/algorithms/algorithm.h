// SPDX-License-Identifier: Apache-2.0
// Algorithms: pure functions from (plan, rank, shape) to a schedule, and the table that describes them.
//
// Every algorithm, or family of one shape, is one file that ends in its rows of the table; algorithms.cpp only lists
// them. All of them are bit-consistent: every rank ends with identical results, because each chunk's result is computed
// by one rank and forwarded, or because all ranks combine the same operands in the same order. The verifier
// checks it.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "algorithms/collective.h"
#include "algorithms/schedule.h"
#include "core/status.h"
#include "topology/plan.h"

namespace treering {

// What a schedule depends on besides the plan and the rank.
struct Shape {
  uint32_t channel = 0;          // which of the channels the schedule is for
  uint32_t channels = 1;         // independent pipelines; each works on its own part of the buffer
  uint32_t pipeline_chunks = 1;  // chunks that a pipelined algorithm (tree) cuts a slice into; others ignore it
  uint32_t root = 0;             // of a rooted collective
};

// How the bytes of a message travel; the schedule is the same.
enum class Protocol {
  kMailbox,  // data and flag in one cache line per reader; tiny messages alone
  kStaged,   // through slots of a FIFO: the sender copies in, the receiver reads
  kDirect,   // the peer's buffers are reachable: inputs are read in place, results are stored in place
};
const char* protocol_name(Protocol protocol);

// What a cost formula may depend on. Units: bytes of the whole buffer.
struct CostInput {
  uint32_t ranks = 1;
  uint32_t hosts = 1;
  uint32_t host_ranks = 0;  // of the largest host; 0: all ranks are on one
  double bytes = 0;
  uint32_t pipeline_chunks = 1;
  bool direct = false;   // buffers of the peers are reachable
  bool fetched = false;  // ... by the kernel, one copy for each message

  uint32_t largest_host() const { return host_ranks == 0 ? ranks : host_ranks; }
  // How often a payload is copied on its way to one reader.
  double copies() const { return direct || fetched ? 1 : 2; }
};

// Where the kernel can copy between ranks, large messages with one reader may be left in the sender's buffer: one copy
// by the kernel instead of one into a slot and one out of it. Below this the system call and the pages' look-up cost
// more.
inline constexpr uint64_t kMinFetchedBytes = 16 << 10;
// When all read from one buffer at once, they wait for the lock of a page table (2 MiB of addresses) unless their
// blocks lie under different ones.
inline constexpr uint64_t kMinFetchedFromOne = 1 << 20;
// A root that takes all blocks itself is as fast as senders that each fill a slot while the blocks stay in caches.
inline constexpr uint64_t kMinFetchedToOne = 64 << 10;
inline constexpr uint64_t kMaxFetchedToOne = 128 << 10;

// The work of the busiest rank for `bytes` bytes run as one slice; cost.h turns it into time.
struct Work {
  double rounds = 0;    // messages that depend on one another, first to last
  double messages = 0;  // sends + receives of the rank, over all channels
  // Bytes of lines that other ranks have in their caches: written where peers read before, read where peers
  // wrote. What a slot, a mailbox or a peer's buffer costs.
  double exchanged_bytes = 0;
  double reduce_bytes = 0;  // bytes of the operands of reductions
  double memory_bytes = 0;  // bytes of user buffers that cross the memory bus when nothing stays in cache
  uint32_t chunks = 1;      // Schedule::chunks
  uint32_t max_span = 1;    // Schedule::max_span
  double sent_bytes = 0;    // that the busiest rank sends, once for each receiver
  // Between hosts: bytes that the busiest host sends, those of the rounds that wait for a message of another host, and
  // messages of a rank. Negative: as follows from sent_bytes, rounds and messages when every rank sends to all others
  // alike.
  double network_bytes = -1;
  double network_rounds = -1;
  double network_messages = -1;
  double network_sources = 2;  // other hosts whose traffic a host receives at the same time; 1 is smoother than more
};

// Among more ranks, algorithms that give some rank messages with all others are chosen only where no other one fits: n
// connections to a rank, and n^2 messages, are what does not scale.
inline constexpr uint32_t kMaxAllPeers = 64;
// How many peers a rank has, at most, in what is selected without being forced; an alltoall has all of them.
inline uint32_t usual_peers(uint32_t ranks) {
  if (ranks <= kMaxAllPeers) return ranks - 1;
  return 2 * static_cast<uint32_t>(std::bit_width(ranks - 1));
}

struct Algorithm {
  Collective collective;
  const char* name;         // unique among those of the collective
  const char* description;  // one line
  const char* source;       // the paper
  const char* rounding;     // how often a 16-bit float is rounded, one line
  bool forwards_partial_sums;
  // Peers may work on the buffers of an in-place call. Where operands are reduced: see properties.h, for 2 or more
  // ranks; else a result that comes to lie on an input equals it.
  bool input_used_once;
  bool rank_ordered;      // operands are combined one after another in ascending rank order
  bool computed_once;     // each result is computed by one rank, and forwarded where others need it
  bool equal_parts_only;  // cannot run when parts differ in size
  uint64_t fetch_bytes;   // blocks from this size on are copied by the kernel where it can; 0: never, it does not pay
  uint64_t fetch_most;    // ... up to this size; 0: all
  bool all_peers;         // some rank has messages with all others, which other algorithms of the collective avoid
  bool all_local_peers;   // ... with all of its host
  bool mailbox;           // may run by the mailbox protocol: one-shot in mailboxes, direct in descriptors of FIFOs
  uint32_t min_ranks;
  uint32_t max_ranks;
  uint32_t min_hosts;  // 0: makes no difference between hosts
  uint32_t channels;   // channels it wants
  bool pipelined;      // uses Shape::pipeline_chunks
  bool has_phases;     // inside hosts and between them, which overlap only from slice to slice
  Schedule (*build)(const Plan& plan, uint32_t rank, const Shape& shape);
  Work (*work)(const CostInput& input);
};

// Every algorithm of a collective, in the order in which ties of the cost model are decided.
std::span<const Algorithm* const> algorithms_of(Collective collective);

// The row of a name, or an error that lists the known names.
Status find_algorithm(Collective collective, std::string_view name, const Algorithm** algorithm);

// A list of forced algorithms, comma separated, each `name` or `collective:name`: whether every word is known.
Status check_forced_algorithms(std::string_view forced);
// What the list forces for a collective, or nullptr.
const Algorithm* forced_algorithm(std::string_view forced, Collective collective);

// Checks the arguments of build(): plan of `ranks` ranks with a ring that is a permutation, rank, channel,
// pipeline and the algorithm's limits. build() itself takes them for granted.
Status check_build(const Algorithm& algorithm, const Plan& plan, uint32_t rank, const Shape& shape);

// Neighbours of a rank in one of the trees of kTree, ranks, -1 for none; for reports.
void tree_neighbours(const Plan& plan, uint32_t rank, bool second, int* parent, int children[2]);

extern const Algorithm kRing, kTwoShot, kOneShot, kRecursiveDoubling, kHalvingDoubling, kTree;
extern const Algorithm kHybrid, kHybridRing, kHierarchical, kRing2d;
extern const Algorithm kReduceDirect, kReduceScatterGather, kReduceTree;
extern const Algorithm kBroadcastDirect, kBroadcastScatterAllgather, kBroadcastChain, kBroadcastBinomial,
    kBroadcastTree;
extern const Algorithm kAllGatherDirect, kAllGatherRing, kAllGatherBruck;
extern const Algorithm kReduceScatterDirect, kReduceScatterRing, kReduceScatterHalving;
extern const Algorithm kAllToAllDirect, kAllToAllPairwise, kAllToAllBruck;
extern const Algorithm kGatherDirect, kGatherBinomial, kScatterDirect, kScatterBinomial;
extern const Algorithm kBarrierOneShot, kBarrierRecursiveDoubling, kBarrierTree;

}  // namespace treering
