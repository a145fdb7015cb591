// SPDX-License-Identifier: Apache-2.0
#include "topology/graph.h"

#include <algorithm>

namespace treering {
namespace {

struct GenerationRate {
  LinkKind kind;
  uint32_t generation;
  double gbps;
};

// docs/topology.md has the same table, and a test compares them.
constexpr GenerationRate kGenerationRates[] = {
    {LinkKind::kNvlink, 1, 20},  {LinkKind::kNvlink, 2, 25},  {LinkKind::kNvlink, 3, 25},  {LinkKind::kNvlink, 4, 25},
    {LinkKind::kNvlink, 5, 50},  {LinkKind::kPcie, 1, 0.25},  {LinkKind::kPcie, 2, 0.5},   {LinkKind::kPcie, 3, 0.985},
    {LinkKind::kPcie, 4, 1.969}, {LinkKind::kPcie, 5, 3.938}, {LinkKind::kPcie, 6, 7.563}, {LinkKind::kXgmi, 1, 46},
    {LinkKind::kXgmi, 2, 50},    {LinkKind::kXgmi, 3, 64},    {LinkKind::kXgmi, 4, 76.8},
};

}  // namespace

const char* name_of(LinkOrigin origin) {
  switch (origin) {
    case LinkOrigin::kReported:
      return "reported";
    case LinkOrigin::kTable:
      return "table";
    case LinkOrigin::kMeasured:
      return "measured";
    case LinkOrigin::kGiven:
      return "given";
  }
  return "unknown";
}

std::vector<uint32_t> LinkGraph::gpus() const {
  std::vector<uint32_t> result;
  for (uint32_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].kind == NodeKind::kGpu) result.push_back(i);
  std::sort(result.begin(), result.end(), [&](uint32_t a, uint32_t b) { return nodes[a].number < nodes[b].number; });
  return result;
}

std::optional<double> table_gbps(LinkKind kind, uint32_t generation) {
  for (const GenerationRate& row : kGenerationRates)
    if (row.kind == kind && row.generation == generation) return row.gbps;
  return std::nullopt;
}

}  // namespace treering
