// The table of algorithms. A new one is a file that ends in its row, and a line here.
#include <fmt/format.h>

#include <vector>

#include "algorithms/algorithm.h"

namespace treering {

std::span<const Algorithm* const> allreduce_algorithms() {
  static constexpr const Algorithm* kAll[] = {&kOneShot, &kTwoShot, &kRing, &kHalvingDoubling, &kTree};
  return kAll;
}

const char* protocol_name(Protocol protocol) {
  switch (protocol) {
    case Protocol::kMailbox:
      return "mailbox";
    case Protocol::kStaged:
      return "staged";
    case Protocol::kDirect:
      return "direct";
  }
  return "?";
}

Status find_algorithm(std::string_view name, const Algorithm** algorithm) {
  std::string known;
  for (const Algorithm* row : allreduce_algorithms()) {
    if (name == row->name) {
      *algorithm = row;
      return {};
    }
    known += known.empty() ? row->name : fmt::format(", {}", row->name);
  }
  return {trInvalidArgument, fmt::format("unknown algorithm '{}'; the known ones are: {}", name, known)};
}

Status check_build(const Algorithm& algorithm, const Plan& plan, uint32_t rank, const Shape& shape) {
  const auto bad = [](std::string message) { return Status(trInvalidArgument, std::move(message)); };
  if (plan.ranks < algorithm.min_ranks || plan.ranks > algorithm.max_ranks)
    return bad(fmt::format("algorithm '{}' takes {} to {} ranks, not {}", algorithm.name, algorithm.min_ranks,
                           algorithm.max_ranks, plan.ranks));
  if (rank >= plan.ranks)
    return bad(fmt::format("rank {} does not exist: ranks are 0 to {}", rank, plan.ranks - 1));
  if (plan.ring.size() != plan.ranks)
    return bad(fmt::format("the plan's ring names {} ranks, the plan has {}", plan.ring.size(), plan.ranks));
  std::vector<bool> seen(plan.ranks);
  for (uint32_t member : plan.ring) {
    if (member >= plan.ranks || seen[member])
      return bad(fmt::format("the plan's ring is no permutation of the ranks: rank {} {}", member,
                             member >= plan.ranks ? "does not exist" : "occurs twice"));
    seen[member] = true;
  }
  if (shape.channels == 0 || shape.channel >= shape.channels)
    return bad(
        fmt::format("channel {} does not exist: there are {} channels", shape.channel, shape.channels));
  if (shape.pipeline_chunks == 0 || shape.pipeline_chunks > 65535)
    return bad(fmt::format("{} pipeline chunks: must be 1 to 65535", shape.pipeline_chunks));
  return {};
}

}  // namespace treering
