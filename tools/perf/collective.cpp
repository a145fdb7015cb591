// SPDX-License-Identifier: Apache-2.0
#include "collective.h"

#include <algorithm>

#include "spelling.h"

namespace treering::perf {
namespace {

int previous(int rank, int ranks) { return (rank + ranks - 1) % ranks; }

constexpr Holds kNothing = Holds::kNothing, kBlock = Holds::kBlock, kAll = Holds::kAll,
                kBlockOfRoot = Holds::kBlockOfRoot, kAllOfRoot = Holds::kAllOfRoot;

constexpr CollectiveCase kCases[] = {
    {"allreduce", trCollAllReduce, false, true, false, kBlock, kBlock, 2,
     [](const Shape&, const CallArguments& a) {
       return trAllReduce(a.input, a.output, a.count, a.type, a.op, a.comm, a.stream);
     }},
    {"reduce", trCollReduce, true, true, false, kBlock, kBlockOfRoot, 0,
     [](const Shape&, const CallArguments& a) {
       return trReduce(a.input, a.output, a.count, a.type, a.op, a.root, a.comm, a.stream);
     }},
    {"broadcast", trCollBroadcast, true, false, false, kBlockOfRoot, kBlock, 0,
     [](const Shape&, const CallArguments& a) {
       return trBroadcast(a.input, a.output, a.count, a.type, a.root, a.comm, a.stream);
     }},
    {"allgather", trCollAllGather, false, false, false, kBlock, kAll, 1,
     [](const Shape&, const CallArguments& a) {
       return trAllGather(a.input, a.output, a.count, a.type, a.comm, a.stream);
     }},
    {"reduce-scatter", trCollReduceScatter, false, true, false, kAll, kBlock, 1,
     [](const Shape&, const CallArguments& a) {
       return trReduceScatter(a.input, a.output, a.count, a.type, a.op, a.comm, a.stream);
     }},
    {"alltoall", trCollAllToAll, false, false, false, kAll, kAll, 1,
     [](const Shape&, const CallArguments& a) {
       return trAllToAll(a.input, a.output, a.count, a.type, a.comm, a.stream);
     }},
    {"gather", trCollGather, true, false, false, kBlock, kAllOfRoot, 1,
     [](const Shape&, const CallArguments& a) {
       return trGather(a.input, a.output, a.count, a.type, a.root, a.comm, a.stream);
     }},
    {"scatter", trCollScatter, true, false, false, kAllOfRoot, kBlock, 1,
     [](const Shape&, const CallArguments& a) {
       return trScatter(a.input, a.output, a.count, a.type, a.root, a.comm, a.stream);
     }},
    {"barrier", trCollBarrier, false, false, false, kNothing, kNothing, 0,
     [](const Shape&, const CallArguments& a) { return trBarrier(a.comm, a.stream); }},
    {"sendrecv", trCollForceInt, false, false, false, kBlock, kBlock, 0,
     [](const Shape&, const CallArguments& a) {
       return trSendRecv(a.input, a.count, (a.rank + 1) % a.ranks, a.output, a.count, previous(a.rank, a.ranks), a.type,
                         a.comm, a.stream);
     },
     previous},
    {"allgatherv", trCollAllGather, false, false, true, kBlock, kAll, 1,
     [](const Shape& s, const CallArguments& a) {
       return trAllGatherV(a.input, s.input, a.output, s.counts.data(), nullptr, a.type, a.comm, a.stream);
     }},
    {"reduce-scatterv", trCollReduceScatter, false, true, true, kAll, kBlock, 1,
     [](const Shape& s, const CallArguments& a) {
       return trReduceScatterV(a.input, a.output, s.counts.data(), a.type, a.op, a.comm, a.stream);
     }},
    {"alltoallv", trCollAllToAll, false, false, true, kAll, kAll, 1,
     [](const Shape& s, const CallArguments& a) {
       return trAllToAllV(a.input, s.counts.data(), nullptr, a.output, s.receive_counts.data(), nullptr, a.type, a.comm,
                          a.stream);
     }},
    {"gatherv", trCollGather, true, false, true, kBlock, kAllOfRoot, 1,
     [](const Shape& s, const CallArguments& a) {
       return trGatherV(a.input, s.input, a.output, s.counts.data(), nullptr, a.type, a.root, a.comm, a.stream);
     }},
    {"scatterv", trCollScatter, true, false, true, kAllOfRoot, kBlock, 1,
     [](const Shape& s, const CallArguments& a) {
       return trScatterV(a.input, s.counts.data(), nullptr, a.output, s.output, a.type, a.root, a.comm, a.stream);
     }},
};

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// From 0 to twice the mean.
size_t random_count(size_t mean, int from, int to, uint64_t seed) {
  const auto pair = (static_cast<uint64_t>(from) << 32) + static_cast<uint64_t>(to) + 1;
  return mix(seed * 0x9e3779b97f4a7c15u + mix(pair)) % (2 * mean + 1);
}

void add_block(size_t count, std::vector<size_t>* counts, std::vector<size_t>* offsets) {
  offsets->push_back(counts->empty() ? 0 : offsets->back() + counts->back());
  counts->push_back(count);
}
size_t total(const std::vector<size_t>& counts, const std::vector<size_t>& offsets) {
  return counts.empty() ? 0 : counts.back() + offsets.back();
}

}  // namespace

std::span<const CollectiveCase> collective_cases() { return kCases; }

const CollectiveCase* find_case(const std::string& name) {
  for (const CollectiveCase& c : kCases)
    if (tools::letters_of(name) == tools::letters_of(c.name)) return &c;
  return nullptr;
}

std::string case_names() {
  std::string text;
  for (const CollectiveCase& c : kCases) text += (text.empty() ? "" : ", ") + std::string(c.name);
  return text;
}

double bus_factor(const CollectiveCase& c, int ranks) {
  return c.shares == 0 ? 1 : c.shares * static_cast<double>(ranks - 1) / ranks;
}

Shape shape_of(const CollectiveCase& c, int rank, int ranks, int root, size_t count, uint64_t seed) {
  Shape shape;
  const auto r = static_cast<size_t>(rank);
  if (c.variable && c.exchanges()) {
    for (int peer = 0; peer < ranks; ++peer) {
      add_block(random_count(count, rank, peer, seed), &shape.counts, &shape.offsets);
      add_block(random_count(count, peer, rank, seed), &shape.receive_counts, &shape.receive_offsets);
    }
    shape.input = total(shape.counts, shape.offsets);
    shape.output = total(shape.receive_counts, shape.receive_offsets);
    return shape;
  }
  for (int peer = 0; peer < ranks; ++peer)
    add_block(c.variable ? random_count(count, 0, peer, seed) : count, &shape.counts, &shape.offsets);
  const auto elements = [&](Holds holds) -> size_t {
    const bool of_root = holds == Holds::kBlockOfRoot || holds == Holds::kAllOfRoot;
    if (holds == Holds::kNothing || (of_root && rank != root)) return 0;
    return holds_all(holds) ? total(shape.counts, shape.offsets) : shape.counts[r];
  };
  shape.input = elements(c.input);
  shape.output = elements(c.output);
  if (c.many_blocks() && !c.exchanges()) shape.own = shape.offsets[r];
  return shape;
}

std::vector<ExpectedBlock> expected_blocks(const CollectiveCase& c, const Shape& shape, int rank, int ranks, int root,
                                           size_t count, uint64_t seed) {
  const auto r = static_cast<size_t>(rank);
  if (shape.output == 0) return {};
  if (!holds_all(c.output)) {
    int source = c.source != nullptr ? c.source(rank, ranks) : root;
    if (c.reduces) source = -1;
    return {{source, holds_all(c.input) ? shape.offsets[r] : 0, 0, shape.output}};
  }
  std::vector<ExpectedBlock> blocks;
  for (int s = 0; s < ranks; ++s) {
    const auto from = static_cast<size_t>(s);
    if (c.variable && c.exchanges()) {
      const Shape sender = shape_of(c, s, ranks, root, count, seed);
      blocks.push_back({s, sender.offsets[r], shape.receive_offsets[from], shape.receive_counts[from]});
    } else {
      blocks.push_back({s, c.exchanges() ? shape.offsets[r] : 0, shape.offsets[from], shape.counts[from]});
    }
  }
  return blocks;
}

}  // namespace treering::perf
