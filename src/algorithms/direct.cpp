// SPDX-License-Identifier: Apache-2.0
// Direct exchange: a rank that has a part sends it straight to all that store it; they combine all contributions in the
// order of the ranks, in one pass.
//
//   allgather       r --own block--> all                     one fused step stores it and sends it
//   reduce-scatter  r --block j--> j     block j = 0+1+...    the first half of two-shot
//   alltoall        r --block j--> j                         all sends, then all receives
//   broadcast, scatter: root --> all       reduce, gather: all --> root
//
// One round, n-1 messages. Where ranks read one another's memory this is also the least traffic: each value is written
// once and read once. Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice, and
// experience", CCPE 19(13), 2007, section 3 (the minimum-spanning-tree algorithms with one level of n-1 children).
#include <string_view>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/builder.h"

namespace treering {
namespace {

std::vector<uint32_t> others_ascending(uint32_t rank, uint32_t n) {
  std::vector<uint32_t> result;
  for (uint32_t i = 0; i < n; ++i)
    if (i != rank) result.push_back(i);
  return result;
}
// Starting behind the rank itself: not everyone sends to rank 0 first.
std::vector<uint32_t> others_rotated(uint32_t rank, uint32_t n) {
  std::vector<uint32_t> result;
  for (uint32_t i = 1; i < n; ++i) result.push_back((rank + i) % n);
  return result;
}

Schedule build_allgather(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  const std::vector<uint32_t> others = others_rotated(rank, n);
  const uint32_t before[] = {(rank + n - 1) % n};
  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/1, /*parts=*/n);
  builder.once({.flags = kInput | kStore | kSend | kFinal, .chunk = rank, .send_to = others});
  builder.repeat(n - 1, -1, -1, {{.flags = kReceive | kStore | kFinal, .chunk = before[0], .receive_from = before}});
  return builder.take();
}

Schedule build_reduce_scatter(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  const std::vector<uint32_t> others = others_ascending(rank, n);
  const uint32_t after[] = {(rank + 1) % n};
  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/1, /*parts=*/n);
  builder.repeat(n - 1, 1, 1, {{.flags = kInput | kSend, .chunk = after[0], .send_to = after}});
  builder.once({.flags = kReceive | kReduce | kInput | kStore | kFinal,
                .chunk = rank,
                .receive_from = others,
                .local_position = rank});
  return builder.take();
}

// Part s * n + d: sends run through a row, receives through a column. In place, the block that a receive overwrites was
// sent before.
Schedule build_alltoall(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  ScheduleBuilder builder(rank, n, n * n, /*fifo_depth=*/1, /*parts=*/n * n);
  const uint32_t after[] = {(rank + 1) % n}, first[] = {0};
  const uint32_t before[] = {(rank + n - 1) % n}, last[] = {n - 1};
  builder.repeat(n - 1 - rank, 1, 1,
                 {{.flags = kInput | kSend | kFinal, .chunk = rank * n + rank + 1, .send_to = after}});
  builder.repeat(rank, 1, 1, {{.flags = kInput | kSend | kFinal, .chunk = rank * n, .send_to = first}});
  builder.once({.flags = kInput | kStore | kFinal, .chunk = rank * n + rank});
  const auto stride = -static_cast<int32_t>(n);
  builder.repeat(rank, stride, -1,
                 {{.flags = kReceive | kStore | kFinal, .chunk = before[0] * n + rank, .receive_from = before}});
  builder.repeat(n - 1 - rank, stride, -1,
                 {{.flags = kReceive | kStore | kFinal, .chunk = (n - 1) * n + rank, .receive_from = last}});
  return builder.take();
}

// In round d a and b = d - a (modulo n) exchange blocks: the same partner both ways, so that in place what a receive
// overwrites was sent just before.
Schedule build_pairwise(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  ScheduleBuilder builder(rank, n, n * n, /*fifo_depth=*/1, /*parts=*/n * n);
  for (uint32_t round = 0; round < n; ++round) {
    const uint32_t partner[] = {(round + n - rank) % n};
    if (partner[0] == rank) {
      builder.once({.flags = kInput | kStore | kFinal, .chunk = rank * n + rank});
      continue;
    }
    builder.once({.flags = kInput | kSend | kFinal, .chunk = rank * n + partner[0], .send_to = partner});
    builder.once({.flags = kReceive | kStore | kFinal, .chunk = partner[0] * n + rank, .receive_from = partner});
  }
  return builder.take();
}

Schedule build_broadcast(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  ScheduleBuilder builder(rank, n, 1);
  const std::vector<uint32_t> others = others_rotated(rank, n);
  const uint32_t root[] = {shape.root};
  if (rank == shape.root)
    builder.once({.flags = kInput | kStore | kSend | kFinal, .send_to = others});
  else
    builder.once({.flags = kReceive | kStore | kFinal, .receive_from = root});
  return builder.take();
}

Schedule build_reduce(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  ScheduleBuilder builder(rank, n, 1);
  const std::vector<uint32_t> others = others_ascending(rank, n);
  const uint32_t root[] = {shape.root};
  if (rank != shape.root)
    builder.once({.flags = kInput | kSend, .send_to = root});
  else
    builder.once(
        {.flags = kReceive | kReduce | kInput | kStore | kFinal, .receive_from = others, .local_position = rank});
  return builder.take();
}

Schedule build_gather(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/1, /*parts=*/n);
  const uint32_t root[] = {shape.root}, after[] = {(rank + 1) % n};
  if (rank != shape.root) {
    builder.once({.flags = kInput | kSend | kFinal, .chunk = rank, .send_to = root});
    return builder.take();
  }
  builder.once({.flags = kInput | kStore | kFinal, .chunk = rank});
  builder.repeat(n - 1, 1, 1, {{.flags = kReceive | kStore | kFinal, .chunk = after[0], .receive_from = after}});
  return builder.take();
}

Schedule build_scatter(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/1, /*parts=*/n);
  const uint32_t root[] = {shape.root}, after[] = {(rank + 1) % n};
  if (rank != shape.root) {
    builder.once({.flags = kReceive | kStore | kFinal, .chunk = rank, .receive_from = root});
    return builder.take();
  }
  builder.repeat(n - 1, 1, 1, {{.flags = kInput | kSend | kFinal, .chunk = after[0], .send_to = after}});
  builder.once({.flags = kInput | kStore | kFinal, .chunk = rank});
  return builder.take();
}

// In what follows B are the bytes of the larger buffer, of n blocks or one. Staged, a value costs the copy into a slot
// and the reading of it; direct, one of the two.

// T = a + B / n (into own output and a slot) + (n-1)/n B (out of the others' slots)
Work allgather_work(const CostInput& in) {
  const double n = in.ranks, block = in.bytes / n;
  Work w;
  w.rounds = 1;
  w.messages = 2 * (n - 1);
  w.exchanged_bytes = (in.direct ? n - 1 : n) * block;
  w.memory_bytes = in.bytes + block;
  w.chunks = in.ranks;
  w.sent_bytes = (n - 1) * block;
  return w;
}

// T = a + (n-1)/n B (copies) + B (operands of the reduction)
Work reduce_scatter_work(const CostInput& in) {
  const double n = in.ranks, block = in.bytes / n;
  Work w;
  w.rounds = 1;
  w.messages = 2 * (n - 1);
  w.exchanged_bytes = (in.direct ? 1 : 2) * (n - 1) * block;
  w.reduce_bytes = in.bytes;
  w.memory_bytes = in.bytes + block;
  w.sent_bytes = (n - 1) * block;
  w.chunks = in.ranks;
  return w;
}

// T = a + 2 (n-1)/n B (into slots and out)
Work alltoall_work(const CostInput& in) {
  const double n = in.ranks;
  Work w;
  w.rounds = 1;
  w.messages = 2 * (n - 1);
  w.exchanged_bytes = in.copies() * (n - 1) / n * in.bytes;
  w.memory_bytes = 2 * in.bytes;
  w.chunks = in.ranks * in.ranks;
  w.sent_bytes = (n - 1) / n * in.bytes;
  return w;
}

// T = n a + 2 (n-1)/n B: one message each way at a time
Work pairwise_work(const CostInput& in) {
  Work w = alltoall_work(in);
  w.rounds = in.ranks;
  return w;
}

// What crosses the link of the root's host when it alone exchanges `bytes` with all others.
double from_root(const CostInput& in, double bytes) {
  return in.ranks == 1 ? 0 : bytes * (in.ranks - in.largest_host()) / (in.ranks - 1);
}

// T = a + B: the root fills one slot that all read.
Work broadcast_work(const CostInput& in) {
  Work w;
  w.rounds = 1;
  w.messages = in.ranks - 1;
  w.exchanged_bytes = (in.direct ? 1 : 2) * in.bytes;
  w.memory_bytes = in.bytes;
  w.sent_bytes = (in.ranks - 1) * in.bytes;
  w.network_bytes = from_root(in, w.sent_bytes);
  return w;
}

// T = a + n B (operands of the root)
Work reduce_work(const CostInput& in) {
  const double n = in.ranks;
  Work w;
  w.rounds = 1;
  w.messages = n - 1;
  w.exchanged_bytes = (n - 1 + (in.direct ? 0 : 1)) * in.bytes;
  w.reduce_bytes = n * in.bytes;
  w.memory_bytes = in.bytes;
  w.sent_bytes = in.bytes;
  w.network_bytes = from_root(in, (n - 1) * in.bytes);  // that the root's host receives
  return w;
}

// T = a + (n-1)/n B at the root
Work rooted_blocks_work(const CostInput& in) {
  const double n = in.ranks;
  Work w;
  w.rounds = 1;
  w.messages = n - 1;
  w.exchanged_bytes = (n - 1) / n * in.bytes;
  w.memory_bytes = in.bytes;
  w.chunks = in.ranks;
  w.sent_bytes = (n - 1) / n * in.bytes;
  w.network_bytes = from_root(in, w.sent_bytes);
  return w;
}

// From which size on blocks are fetched; 0: never.
constexpr uint64_t min_fetched(Collective collective) {
  switch (collective) {
    case Collective::kAllToAll:
      return kMinFetchedBytes;
    case Collective::kScatter:
      return kMinFetchedFromOne;
    case Collective::kGather:
      return kMinFetchedToOne;
    default:
      return 0;
  }
}

constexpr Algorithm row(Collective collective, const char* name, const char* description, const char* rounding,
                        bool input_used_once, Schedule (*build)(const Plan&, uint32_t, const Shape&),
                        Work (*work)(const CostInput&)) {
  Algorithm row{};
  row.collective = collective;
  row.name = name;
  row.description = description;
  row.source = "Chan, Heimlich, Purkayastha and van de Geijn, CCPE 2007";
  row.rounding = rounding;
  row.input_used_once = input_used_once;
  row.rank_ordered = true;
  row.computed_once = true;
  row.fetch_bytes = min_fetched(collective);
  row.fetch_most = collective == Collective::kGather ? kMaxFetchedToOne : 0;
  row.all_peers = collective != Collective::kAllToAll;
  row.mailbox = std::string_view(name) == "direct";
  row.min_ranks = 1;
  row.max_ranks = 1024;
  row.channels = 1;
  row.build = build;
  row.work = work;
  return row;
}

}  // namespace

const Algorithm kAllGatherDirect = row(Collective::kAllGather, "direct", "each rank sends its block to all", "never",
                                       true, build_allgather, allgather_work);
const Algorithm kReduceScatterDirect =
    row(Collective::kReduceScatter, "direct", "each rank reduces its block straight from all", "once", true,
        build_reduce_scatter, reduce_scatter_work);
const Algorithm kAllToAllDirect =
    row(Collective::kAllToAll, "direct", "all sends, then all receives", "never", true, build_alltoall, alltoall_work);
const Algorithm kAllToAllPairwise = row(Collective::kAllToAll, "pairwise", "one partner each way in every round",
                                        "never", false, build_pairwise, pairwise_work);
const Algorithm kBroadcastDirect = row(Collective::kBroadcast, "direct", "the root sends to all at once", "never", true,
                                       build_broadcast, broadcast_work);
const Algorithm kReduceDirect =
    row(Collective::kReduce, "direct", "the root reduces straight from all", "once", true, build_reduce, reduce_work);
const Algorithm kGatherDirect =
    row(Collective::kGather, "direct", "all send to the root", "never", true, build_gather, rooted_blocks_work);
const Algorithm kScatterDirect =
    row(Collective::kScatter, "direct", "the root sends to all", "never", true, build_scatter, rooted_blocks_work);

}  // namespace treering
