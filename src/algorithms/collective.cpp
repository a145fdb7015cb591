// SPDX-License-Identifier: Apache-2.0
#include "algorithms/collective.h"

#include "core/names.h"

namespace treering {
namespace {

bool every(const PartOf&) { return true; }
bool root_only(const PartOf& p) { return p.rank == p.root; }
bool own_part(const PartOf& p) { return p.part == p.rank; }
bool from_here(const PartOf& p) { return p.part / p.ranks == p.rank; }
bool to_here(const PartOf& p) { return p.part % p.ranks == p.rank; }

constexpr BlockIndex kAlone = BlockIndex::kAlone;
constexpr BlockIndex kByPart = BlockIndex::kByPart;
constexpr BlockIndex kBySource = BlockIndex::kBySource;
constexpr BlockIndex kByDestination = BlockIndex::kByDestination;

constexpr CollectiveInfo kRows[] = {
    {Collective::kAllReduce, "allreduce", Parts::kOne, false, true, true, every, every, kAlone, kAlone},
    {Collective::kReduce, "reduce", Parts::kOne, true, true, true, every, root_only, kAlone, kAlone},
    {Collective::kBroadcast, "broadcast", Parts::kOne, true, false, true, root_only, every, kAlone, kAlone},
    {Collective::kAllGather, "allgather", Parts::kRanks, false, false, true, own_part, every, kAlone, kByPart},
    {Collective::kReduceScatter, "reduce-scatter", Parts::kRanks, false, true, true, every, own_part, kByPart, kAlone},
    {Collective::kAllToAll, "alltoall", Parts::kPairs, false, false, true, from_here, to_here, kByDestination,
     kBySource},
    {Collective::kGather, "gather", Parts::kRanks, true, false, true, own_part, root_only, kAlone, kByPart},
    {Collective::kScatter, "scatter", Parts::kRanks, true, false, true, root_only, own_part, kByPart, kAlone},
    {Collective::kBarrier, "barrier", Parts::kOne, false, true, false, every, every, kAlone, kAlone},
};
static_assert(std::size(kRows) == kCollectiveCount);

}  // namespace

std::span<const CollectiveInfo> collectives() { return kRows; }

const CollectiveInfo* find_collective(std::string_view name) {
  for (const CollectiveInfo& row : kRows)
    if (same_collective(name, row.name)) return &row;
  return nullptr;
}

}  // namespace treering
