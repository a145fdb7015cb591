// SPDX-License-Identifier: Apache-2.0
// What can be said about a schedule without running it.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "algorithms/verify.h"

namespace treering {
namespace {

template <typename... Args>
Status bad(const Schedule& schedule, fmt::format_string<Args...> format, Args&&... args) {
  return {trInternalError,
          fmt::format("schedule of rank {}: {}", schedule.rank, fmt::format(format, std::forward<Args>(args)...))};
}

Status check_list(const Schedule& schedule, uint32_t index, uint32_t first, uint32_t count, const char* name) {
  if (static_cast<uint64_t>(first) + count > schedule.peers.size())
    return bad(schedule, "step {}: its {} list lies outside of the {} peers", index, name, schedule.peers.size());
  const uint32_t* list = schedule.peers.data() + first;
  for (uint32_t i = 0; i < count; ++i)
    if (list[i] >= schedule.ranks)
      return bad(schedule, "step {}: its {} list names rank {} of {}", index, name, list[i], schedule.ranks);
  std::vector<uint32_t> sorted(list, list + count);
  std::sort(sorted.begin(), sorted.end());
  if (auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    return bad(schedule, "step {}: its {} list names rank {} twice", index, name, *twice);
  return {};
}

Status check_flags(const Schedule& schedule, uint32_t index, const Step& step) {
  const unsigned local = std::popcount(step.flags & unsigned{kInput | kOutput | kScratch});
  if (((step.flags & kReceive) != 0) != (step.receive_count > 0))
    return bad(schedule, "step {}: kReceive and a receive list of {} do not fit", index, step.receive_count);
  if (((step.flags & kSend) != 0) != (step.send_count > 0))
    return bad(schedule, "step {}: kSend and a send list of {} do not fit", index, step.send_count);
  if (local > 1) return bad(schedule, "step {}: more than one local operand", index);
  const unsigned operands = local + step.receive_count;
  if ((step.flags & kReduce) ? operands < 2 : operands != 1)
    return bad(schedule, "step {}: {} operands {} kReduce", index, operands,
               (step.flags & kReduce) ? "with" : "without");
  if (step.local_position > (local ? step.receive_count : 0))
    return bad(schedule, "step {}: local position {} of {} received operands", index, step.local_position,
               step.receive_count);
  if ((step.flags & (kStore | kStoreScratch | kSend)) == 0)
    return bad(schedule, "step {}: neither stores nor sends", index);
  if ((step.flags & kStore) && (step.flags & kFinal) == 0)
    return bad(schedule, "step {}: stores into the output what is not final", index);
  if ((step.flags & kStoreScratch) && (step.flags & kFinal))
    return bad(schedule, "step {}: stores a final value into the scratch", index);
  return {};
}

Status check_blocks(const Schedule& schedule) {
  uint64_t next = 0;
  for (const Block& block : schedule.blocks) {
    if (block.first != next || block.length == 0 || block.count == 0)
      return bad(schedule, "block of {} steps from {}, {} times: expected one from step {}", block.length, block.first,
                 block.count, next);
    next += block.length;
  }
  if (next != schedule.steps.size()) return bad(schedule, "blocks cover {} of {} steps", next, schedule.steps.size());
  return {};
}

}  // namespace

Status check_structure(const Schedule& schedule) {
  if (schedule.ranks == 0 || schedule.rank >= schedule.ranks || schedule.chunks == 0 || schedule.fifo_depth == 0)
    return bad(schedule, "{} ranks, {} chunks, FIFO depth {}", schedule.ranks, schedule.chunks, schedule.fifo_depth);
  if (schedule.parts == 0 || schedule.chunks % schedule.parts != 0)
    return bad(schedule, "{} chunks in {} parts", schedule.chunks, schedule.parts);
  for (uint32_t chunk : schedule.chunk_lists)
    if (chunk >= schedule.chunks) return bad(schedule, "a list of chunks names chunk {} of {}", chunk, schedule.chunks);
  TR_RETURN_IF_ERROR(check_blocks(schedule));
  uint32_t max_span = 1;
  unsigned all_flags = 0;
  for (uint32_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    TR_RETURN_IF_ERROR(check_flags(schedule, i, step));
    TR_RETURN_IF_ERROR(check_list(schedule, i, step.receive_first, step.receive_count, "receive"));
    TR_RETURN_IF_ERROR(check_list(schedule, i, step.send_first, step.send_count, "send"));
    const size_t limit = (step.flags & kChunkList) ? schedule.chunk_lists.size() : schedule.chunks;
    if (step.span == 0 || static_cast<uint64_t>(step.chunk) + step.span > limit)
      return bad(schedule, "step {}: chunks {} to {} of {}", i, step.chunk,
                 static_cast<int64_t>(step.chunk) + step.span - 1, limit);
    max_span = std::max<uint32_t>(max_span, step.span);
    all_flags |= step.flags;
  }
  if (max_span != schedule.max_span)
    return bad(schedule, "the largest span is {}, not {}", max_span, schedule.max_span);
  if (schedule.uses_scratch != ((all_flags & (kScratch | kStoreScratch)) != 0))
    return bad(schedule, "uses_scratch is {}", schedule.uses_scratch);
  return {};
}

}  // namespace treering
