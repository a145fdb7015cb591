#include "algorithms/collective.h"

namespace treering {
namespace {

bool every(const PartOf&) { return true; }
bool root_only(const PartOf& p) { return p.rank == p.root; }
bool own_part(const PartOf& p) { return p.part == p.rank; }
bool from_here(const PartOf& p) { return p.part / p.ranks == p.rank; }
bool to_here(const PartOf& p) { return p.part % p.ranks == p.rank; }

uint32_t alone(const PartOf&) { return 0; }
uint32_t by_part(const PartOf& p) { return p.part; }
uint32_t by_source(const PartOf& p) { return p.part / p.ranks; }
uint32_t by_destination(const PartOf& p) { return p.part % p.ranks; }

constexpr CollectiveInfo kRows[] = {
    {Collective::kAllReduce, "allreduce", Parts::kOne, false, true, every, every, alone, alone},
    {Collective::kReduce, "reduce", Parts::kOne, true, true, every, root_only, alone, alone},
    {Collective::kBroadcast, "broadcast", Parts::kOne, true, false, root_only, every, alone, alone},
    {Collective::kAllGather, "allgather", Parts::kRanks, false, false, own_part, every, alone, by_part},
    {Collective::kReduceScatter, "reduce-scatter", Parts::kRanks, false, true, every, own_part, by_part, alone},
    {Collective::kAllToAll, "alltoall", Parts::kPairs, false, false, from_here, to_here, by_destination, by_source},
    {Collective::kGather, "gather", Parts::kRanks, true, false, own_part, root_only, alone, by_part},
    {Collective::kScatter, "scatter", Parts::kRanks, true, false, root_only, own_part, by_part, alone},
    {Collective::kBarrier, "barrier", Parts::kOne, false, true, every, every, alone, alone},
};
static_assert(std::size(kRows) == kCollectiveCount);

}  // namespace

std::span<const CollectiveInfo> collectives() { return kRows; }

const CollectiveInfo* find_collective(std::string_view name) {
  for (const CollectiveInfo& row : kRows)
    if (name == row.name) return &row;
  return nullptr;
}

}  // namespace treering
