// SPDX-License-Identifier: Apache-2.0
// Builder: the few lines that all algorithms share when they write down a schedule.
//
// Steps are appended to blocks; max_span and uses_scratch follow from the steps, so they cannot be forgotten.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <span>
#include <utility>

#include "algorithms/schedule.h"

namespace treering {

// One step as an algorithm thinks of it.
struct StepSpec {
  unsigned flags = 0;
  uint32_t chunk = 0;
  uint32_t span = 1;
  std::span<const uint32_t> receive_from = {};
  std::span<const uint32_t> send_to = {};
  uint32_t local_position = 0;
  std::span<const uint32_t> chunk_list = {};  // instead of `chunk` and `span`: these chunks, as one message
};

class ScheduleBuilder {
 public:
  ScheduleBuilder(uint32_t rank, uint32_t ranks, uint32_t chunks, uint32_t fifo_depth = 1, uint32_t parts = 1) {
    schedule_.parts = parts;
    schedule_.rank = rank;
    schedule_.ranks = ranks;
    schedule_.chunks = chunks;
    schedule_.fifo_depth = fifo_depth;
  }

  // Appends a block that repeats `steps` `count` times; nothing when there is nothing to do.
  void repeat(uint32_t count, int32_t chunk_stride, int32_t peer_stride, std::span<const StepSpec> steps) {
    if (count == 0 || steps.empty()) return;
    Block block;
    block.first = static_cast<uint32_t>(schedule_.steps.size());
    block.length = static_cast<uint32_t>(steps.size());
    block.count = count;
    block.chunk_stride = chunk_stride;
    block.peer_stride = peer_stride;
    schedule_.blocks.push_back(block);
    for (const StepSpec& spec : steps) append(spec);
  }
  void repeat(uint32_t count, int32_t chunk_stride, int32_t peer_stride, std::initializer_list<StepSpec> steps) {
    repeat(count, chunk_stride, peer_stride, std::span(steps.begin(), steps.size()));
  }

  void once(const StepSpec& step) { repeat(1, 0, 0, {step}); }

  const Schedule& schedule() const { return schedule_; }
  Schedule take() { return std::move(schedule_); }

 private:
  uint32_t append_peers(std::span<const uint32_t> list) {
    auto first = static_cast<uint32_t>(schedule_.peers.size());
    schedule_.peers.insert(schedule_.peers.end(), list.begin(), list.end());
    return first;
  }

  void append(const StepSpec& spec) {
    Step step;
    step.flags = static_cast<uint16_t>(spec.flags);
    const bool listed = !spec.chunk_list.empty();
    const auto span = listed ? static_cast<uint32_t>(spec.chunk_list.size()) : spec.span;
    step.span = static_cast<uint16_t>(span);
    step.chunk = listed ? static_cast<uint32_t>(schedule_.chunk_lists.size()) : spec.chunk;
    if (listed) {
      step.flags = static_cast<uint16_t>(step.flags | kChunkList);
      schedule_.chunk_lists.insert(schedule_.chunk_lists.end(), spec.chunk_list.begin(), spec.chunk_list.end());
    }
    step.receive_count = static_cast<uint16_t>(spec.receive_from.size());
    step.receive_first = append_peers(spec.receive_from);
    step.send_count = static_cast<uint16_t>(spec.send_to.size());
    step.send_first = append_peers(spec.send_to);
    step.local_position = static_cast<uint16_t>(spec.local_position);
    schedule_.max_span = std::max(schedule_.max_span, span);
    schedule_.uses_scratch |= (spec.flags & (kScratch | kStoreScratch)) != 0;
    schedule_.steps.push_back(step);
  }

  Schedule schedule_;
};

// The schedule of a communicator of one rank: the input is the result.
inline Schedule single_rank_schedule(uint32_t chunks = 1) {
  ScheduleBuilder builder(0, 1, chunks);
  builder.repeat(chunks, 1, 0, {{.flags = kInput | kStore | kFinal}});
  return builder.take();
}

}  // namespace treering
