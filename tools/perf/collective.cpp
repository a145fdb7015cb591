// SPDX-License-Identifier: Apache-2.0
#include "collective.h"

#include <algorithm>
#include <cctype>

namespace treering::perf {
namespace {

constexpr CollectiveCase kCases[] = {
    {"allreduce", Kind::kAllReduce, trCollAllReduce, false, true, false, false},
    {"reduce", Kind::kReduce, trCollReduce, true, true, false, false},
    {"broadcast", Kind::kBroadcast, trCollBroadcast, true, false, false, false},
    {"allgather", Kind::kAllGather, trCollAllGather, false, false, false, true},
    {"reduce-scatter", Kind::kReduceScatter, trCollReduceScatter, false, true, false, true},
    {"alltoall", Kind::kAllToAll, trCollAllToAll, false, false, false, true},
    {"gather", Kind::kGather, trCollGather, true, false, false, true},
    {"scatter", Kind::kScatter, trCollScatter, true, false, false, true},
    {"barrier", Kind::kBarrier, trCollBarrier, false, false, false, false},
    {"sendrecv", Kind::kSendRecv, trCollForceInt, false, false, false, false},
    {"allgatherv", Kind::kAllGather, trCollAllGather, false, false, true, true},
    {"reduce-scatterv", Kind::kReduceScatter, trCollReduceScatter, false, true, true, true},
    {"alltoallv", Kind::kAllToAll, trCollAllToAll, false, false, true, true},
    {"gatherv", Kind::kGather, trCollGather, true, false, true, true},
    {"scatterv", Kind::kScatter, trCollScatter, true, false, true, true},
};

// What tells names apart.
std::string letters_of(const std::string& name) {
  std::string letters;
  for (const char c : name)
    if (c != '-' && c != '_') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

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
    if (letters_of(name) == letters_of(c.name)) return &c;
  return nullptr;
}

std::string case_names() {
  std::string text;
  for (const CollectiveCase& c : kCases) text += (text.empty() ? "" : ", ") + std::string(c.name);
  return text;
}

double bus_factor(Kind kind, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (kind) {
    case Kind::kAllReduce:
      return 2 * others;
    case Kind::kAllGather:
    case Kind::kReduceScatter:
    case Kind::kAllToAll:
    case Kind::kGather:
    case Kind::kScatter:
      return others;
    default:
      return 1;
  }
}

Shape shape_of(const CollectiveCase& c, int rank, int ranks, int root, size_t count, uint64_t seed) {
  Shape shape;
  const bool at_root = rank == root;
  const auto r = static_cast<size_t>(rank);
  if (c.variable && c.kind == Kind::kAllToAll) {
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
  const size_t all = total(shape.counts, shape.offsets), own = shape.counts[r];
  if (c.many_blocks && c.kind != Kind::kAllToAll) shape.own = shape.offsets[r];
  switch (c.kind) {
    case Kind::kAllReduce:
    case Kind::kSendRecv:
      shape.input = shape.output = count;
      break;
    case Kind::kReduce:
      shape.input = count, shape.output = at_root ? count : 0;
      break;
    case Kind::kBroadcast:
      shape.input = at_root ? count : 0, shape.output = count;
      break;
    case Kind::kAllGather:
      shape.input = own, shape.output = all;
      break;
    case Kind::kReduceScatter:
      shape.input = all, shape.output = own;
      break;
    case Kind::kAllToAll:
      shape.input = shape.output = all;
      break;
    case Kind::kGather:
      shape.input = own, shape.output = at_root ? all : 0;
      break;
    case Kind::kScatter:
      shape.input = at_root ? all : 0, shape.output = own;
      break;
    case Kind::kBarrier:
      break;
  }
  return shape;
}

std::vector<ExpectedBlock> expected_blocks(const CollectiveCase& c, const Shape& shape, int rank, int ranks, int root,
                                           size_t count, uint64_t seed) {
  const auto r = static_cast<size_t>(rank);
  std::vector<ExpectedBlock> blocks;
  if (shape.output == 0) return blocks;
  switch (c.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
      return {{-1, 0, 0, count}};
    case Kind::kBroadcast:
      return {{root, 0, 0, count}};
    case Kind::kSendRecv:
      return {{(rank + ranks - 1) % ranks, 0, 0, count}};
    case Kind::kReduceScatter:
      return {{-1, shape.offsets[r], 0, shape.counts[r]}};
    case Kind::kScatter:
      return {{root, shape.offsets[r], 0, shape.counts[r]}};
    case Kind::kAllGather:
    case Kind::kGather:
      for (int s = 0; s < ranks; ++s)
        blocks.push_back({s, 0, shape.offsets[static_cast<size_t>(s)], shape.counts[static_cast<size_t>(s)]});
      return blocks;
    case Kind::kAllToAll:
      for (int s = 0; s < ranks; ++s) {
        const auto from = static_cast<size_t>(s);
        if (!c.variable) {
          blocks.push_back({s, r * count, from * count, count});
          continue;
        }
        const Shape sender = shape_of(c, s, ranks, root, count, seed);
        blocks.push_back({s, sender.offsets[r], shape.receive_offsets[from], shape.receive_counts[from]});
      }
      return blocks;
    case Kind::kBarrier:
      break;
  }
  return blocks;
}

trResult_t call(const CollectiveCase& c, const Shape& s, const CallArguments& a) {
  const bool v = c.variable;
  switch (c.kind) {
    case Kind::kAllReduce:
      return trAllReduce(a.input, a.output, a.count, a.type, a.op, a.comm, a.stream);
    case Kind::kReduce:
      return trReduce(a.input, a.output, a.count, a.type, a.op, a.root, a.comm, a.stream);
    case Kind::kBroadcast:
      return trBroadcast(a.input, a.output, a.count, a.type, a.root, a.comm, a.stream);
    case Kind::kBarrier:
      return trBarrier(a.comm, a.stream);
    case Kind::kSendRecv:
      return trSendRecv(a.input, a.count, (a.rank + 1) % a.ranks, a.output, a.count, (a.rank + a.ranks - 1) % a.ranks,
                        a.type, a.comm, a.stream);
    case Kind::kAllGather:
      return v ? trAllGatherV(a.input, s.input, a.output, s.counts.data(), nullptr, a.type, a.comm, a.stream)
               : trAllGather(a.input, a.output, a.count, a.type, a.comm, a.stream);
    case Kind::kReduceScatter:
      return v ? trReduceScatterV(a.input, a.output, s.counts.data(), a.type, a.op, a.comm, a.stream)
               : trReduceScatter(a.input, a.output, a.count, a.type, a.op, a.comm, a.stream);
    case Kind::kAllToAll:
      return v ? trAllToAllV(a.input, s.counts.data(), nullptr, a.output, s.receive_counts.data(), nullptr, a.type,
                             a.comm, a.stream)
               : trAllToAll(a.input, a.output, a.count, a.type, a.comm, a.stream);
    case Kind::kGather:
      return v ? trGatherV(a.input, s.input, a.output, s.counts.data(), nullptr, a.type, a.root, a.comm, a.stream)
               : trGather(a.input, a.output, a.count, a.type, a.root, a.comm, a.stream);
    case Kind::kScatter:
      return v ? trScatterV(a.input, s.counts.data(), nullptr, a.output, s.output, a.type, a.root, a.comm, a.stream)
               : trScatter(a.input, a.output, a.count, a.type, a.root, a.comm, a.stream);
  }
  return trInternalError;
}

}  // namespace treering::perf
