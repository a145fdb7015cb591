// SPDX-License-Identifier: Apache-2.0
#include "algorithms/host_grid.h"

#include <algorithm>

namespace treering {

void append_block(ScheduleBuilder* builder, uint32_t count, int32_t chunk_stride, const GridSteps& steps) {
  std::vector<StepSpec> specs;
  for (const GridStep& step : steps)
    specs.push_back({.flags = step.flags, .chunk = step.chunk, .receive_from = step.from, .send_to = step.to});
  builder->repeat(count, chunk_stride, 0, std::span<const StepSpec>(specs));
}

HostGrid::HostGrid(const Plan& plan, uint32_t rank, LocalPhase local) : local_(local) {
  std::vector<uint32_t> row(plan.ranks, UINT32_MAX);  // of each host number: hosts stand in the order of the ring
  for (uint32_t member : plan.ring) {
    const uint32_t number = plan.host.empty() ? 0 : plan.host[member];
    if (row[number] == UINT32_MAX) {
      row[number] = static_cast<uint32_t>(hosts_.size());
      hosts_.emplace_back();
    }
    auto& members = hosts_[row[number]];
    if (member == rank) {
      host_ = row[number];
      index_ = static_cast<uint32_t>(members.size());
    }
    members.push_back(member);
  }
  size_t least = plan.ranks, most = 1;
  for (const auto& members : hosts_) {
    least = std::min(least, members.size());
    most = std::max(most, members.size());
  }
  shards_ = static_cast<uint32_t>(std::min(most, kMaxTurns * least));
  const uint32_t g = local_ranks();
  turns_ = (shards_ + g - 1) / g;
  most_turns_ = static_cast<uint32_t>((shards_ + least - 1) / least);
  if (g == 1) return;
  const auto& members = hosts_[host_];
  if (local_ == LocalPhase::kRing) {
    combined_ = {members[before(1)]};
    handed_ = {members[before(g - 1)]};
    return;
  }
  for (uint32_t i = 1; i < g; ++i) handed_.push_back(members[before(g - i)]);
  combined_ = handed_;
  std::sort(combined_.begin(), combined_.end());
}

void HostGrid::scatter(uint32_t turn, uint32_t first_chunk, GridSteps* steps) const {
  const uint32_t g = local_ranks();
  const auto& members = hosts_[host_];
  for (uint32_t i = 1; i < g; ++i) {
    // Directly: to each owner, not all starting with the same one. Ring: the shard that starts here, then those that
    // come from behind us; all but our own, which is the owner's step.
    const uint32_t index = local_ == LocalPhase::kDirect ? before(g - i) : before(i);
    if (!has(index, turn)) continue;
    GridStep step = {kInput | kSend, first_chunk + shard_of(index, turn), {}, {members[index]}};
    if (local_ == LocalPhase::kRing) {
      step.to = handed_;
      if (i > 1) {
        step.flags |= kReceive | kReduce;
        step.from = combined_;
      }
    }
    steps->push_back(std::move(step));
  }
}

void HostGrid::gather(uint32_t turn, uint32_t first_chunk, GridSteps* steps) const {
  const uint32_t g = local_ranks();
  const auto& members = hosts_[host_];
  for (uint32_t i = 1; i < g; ++i) {
    const uint32_t index = before(i);
    if (!has(index, turn)) continue;
    GridStep step = {kReceive | kStore | kFinal, first_chunk + shard_of(index, turn), {members[index]}, {}};
    if (local_ == LocalPhase::kRing) {
      step.from = combined_;
      if (i + 1 < g) {
        step.flags |= kSend;
        step.to = handed_;
      }
    }
    steps->push_back(std::move(step));
  }
}

}  // namespace treering
