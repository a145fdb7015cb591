// SPDX-License-Identifier: Apache-2.0
#include "executor/execution.h"

#include <algorithm>

#include "algorithms/cost.h"
#include "core/types.h"
#include "executor/reduce/block_float8.h"

namespace treering {
namespace {

// Chunks begin at multiples of this, so that no two ranks write one cache line.
constexpr size_t kChunkAlignment = 64;
// Calls below this are one slice: channels only pay when there is work for each.
constexpr size_t kMinSliceBytes = 64 << 10;

// Elements at whose multiples chunks begin. Blocks of float8 must be the same however often a value is passed on.
size_t alignment(const Call& call) {
  return call.is_coded() ? kFloat8Block : std::max<size_t>(kChunkAlignment / call.type_size, 1);
}
size_t divide_up(size_t value, size_t unit) { return (value + unit - 1) / unit; }

}  // namespace

void ExecutorContext::add_connection(uint32_t channel, uint32_t peer, Connection* connection) {
  const uint32_t index = channel * ranks + peer;
  if (index >= connections.size()) connections.resize(size_t{channel + 1} * ranks);
  connections[index] = connection;
}

bool ExecutorContext::flush_queues(uint32_t* peer) const {
  bool flushed = true;
  for (const auto& [of, queue] : queues) {
    if (queue->flush()) continue;
    *peer = of;
    flushed = false;
  }
  return flushed;
}

const SendQueue* ExecutorContext::find_queue(uint32_t peer) const {
  for (const auto& [of, queue] : queues)
    if (of == peer) return queue;
  return nullptr;
}

Execution::Execution(ExecutorContext* context) : context_(context) {
  scratch_.resize(kMaxChannels);
  size_t peers = context->ranks + 2;
  sources_.reserve(peers);
  destinations_.reserve(peers);
  source_addresses_.resize(peers);
  source_flags_.resize(peers);
  destination_addresses_.resize(peers);
  extents_.reserve(16);
  channels_.reserve(kMaxChannels);
  modes_.resize(peers);
  reference_targets_.resize(context->connections.size());
  referenced_.reserve(reference_targets_.size());
}

void Execution::start(const Call& call) {
  call_ = call;
  status_ = {};
  sizes_.reset();
  steps_ = 0;
  for (uint32_t index : referenced_) reference_targets_[index] = 0;
  referenced_.clear();
  channels_.clear();
  wide_messages_ = context_->wide_partials && find_type(call.type)->narrow_float && !call.wide_memory;
  wide_scratch_ = wide_messages_ || call.wide_memory;
}

// Elements of the largest chunk: the longest message fits a slot, with many ranks and small slots by chunks of less
// than a cache line.
size_t Execution::largest_chunk(uint32_t max_span) {
  const LargestChunk key{max_span, call_.type_size, call_.chunk_bytes, call_.is_coded(), wide_messages_, 0};
  if (key.same_as(largest_chunk_)) return largest_chunk_.elements;  // divisions cost more than a tiny message
  largest_chunk_ = key;
  return largest_chunk_.elements = compute_largest_chunk(max_span);
}

size_t Execution::compute_largest_chunk(uint32_t max_span) const {
  size_t element = wide_messages_ ? sizeof(float) : call_.type_size;
  size_t slot = context_->pools[0].slot_bytes();
  if (call_.chunk_bytes != 0) slot = std::min(slot, call_.chunk_bytes * element / call_.type_size);
  size_t fit = context_->pools[0].slot_bytes() / element / max_span;
  size_t align = std::min(alignment(call_), std::max<size_t>(fit, 1));
  return std::max(align, slot / element / max_span / align * align);
}

void Execution::bind(const Program& program, const Call& call) {
  start(call);
  const Layout& layout = call_.layout;
  const Schedule& first = program.channels[0];
  const bool pairs = layout.collective->parts == Parts::kPairs;
  input_may_be_referenced_ =
      call.scale == nullptr && call.is_plain() && (!call.in_place || (program.input_used_once && !pairs));
  elides_ = first.parts > 1;
  const size_t elements = layout.largest_part();
  const size_t blocks = layout.collective->parts == Parts::kOne ? 1 : layout.ranks;
  const size_t bytes = elements * call.memory_size() * blocks;
  streaming_ = bytes >= context_->streaming_bytes;
  fetches_ = is_fetched(*program.algorithm, context_->streaming_bytes, layout.ranks, bytes);

  const auto channels = static_cast<uint32_t>(program.channels.size());
  const size_t message =
      largest_message(*program.algorithm, elements * call.type_size, size_t{channels} * first.chunks);
  if (message != 0) call_.chunk_bytes = call.chunk_bytes == 0 ? message : std::min(call.chunk_bytes, message);
  const size_t largest = largest_chunk(program.max_span);
  const size_t align = std::min(alignment(call), largest);
  slicing_ = slice_data({elements, blocks, call.type_size, first.chunks, first.parts, channels}, largest, align,
                        kMinSliceBytes);
  for (uint32_t c = 0; c < channels; ++c) {
    const Schedule& schedule = program.channels[c];
    Channel& channel = channels_.emplace_back();
    channel.schedule = &schedule;
    channel.at = Expansion(schedule);
    channel.slice = channel.link = c;
    channel.slices = slicing_.slices;
    channel.stride = channels;
    channel.done = c >= slicing_.slices;
    size_t bytes = slicing_.chunk_elements * schedule.chunks * (wide_scratch_ ? sizeof(float) : call.type_size);
    if (schedule.uses_scratch && scratch_[c].size() < bytes) scratch_[c].resize(bytes);
  }
}

void Execution::bind(const Call& call) {
  start(call);
  input_may_be_referenced_ = true;
  elides_ = false;
  streaming_ = false;
  slicing_ = {largest_chunk(1), 1, 1};
  for (const Lane& lane : call.lanes) {
    Channel& channel = channels_.emplace_back();
    channel.schedule = lane.schedule;
    channel.at = Expansion(*lane.schedule);
    channel.lane = &lane;
    channel.slices = std::max<size_t>(1, divide_up(lane.items[0].count, slicing_.chunk_elements));
    channel.done = false;
  }
}

// Whatever the channels wait for, what they have posted leaves; the call ends when it has left.
Progress Execution::advance() {
  const Progress progress = advance_channels();
  if (context_->queues.empty() || !status_.ok()) return progress;
  if (progress == Progress::kDone) return is_flushed() ? progress : waits(false);
  context_->progress();
  return progress;
}

Progress Execution::advance_channels() {
  bool moved = false, all_done = true;
  for (Channel& channel : channels_) {
    if (channel.done) continue;
    Progress progress = advance_channel(&channel);
    if (!status_.ok()) return progress;
    moved |= progress == Progress::kMoved;
    all_done &= channel.done;
  }
  if (!all_done) return moved ? Progress::kMoved : Progress::kBlocked;
  if (references_released()) return Progress::kDone;
  return waits(moved);
}

// Executes steps of one channel until one is blocked, at most those of one slice.
Progress Execution::advance_channel(Channel* channel) {
  bool moved = false;
  for (;;) {
    StepState state{};
    state.channel = channel;
    state.link = channel->link;
    state.item = channel->lane == nullptr ? nullptr : &channel->lane->items[channel->item];
    state.step = &channel->at.step();
    state.at = &channel->at;
    state.slot = StagingPool::kNone;
    find_extents(&state);
    if (state.count > 0 || !elides_) {
      if (!gather_operands(&state) || !plan_sends(&state) || !move_data(state)) return waits(moved);
      post_sends(state);
      for (uint32_t i = 0; i < state.step->receive_count; ++i)
        context_->connection(state.link, channel->at.receive_peer(i))->pop();
      ++steps_;
    }
    moved = true;
    channel->at.advance();
    if (!channel->at.done()) continue;
    end_slice(channel);
    return Progress::kMoved;
  }
}

void Execution::end_slice(Channel* channel) {
  channel->slice += channel->stride;
  if (channel->slice >= channel->slices && channel->lane != nullptr && ++channel->item < channel->lane->items.size()) {
    channel->slice = 0;
    channel->slices =
        std::max<size_t>(1, divide_up(channel->lane->items[channel->item].count, slicing_.chunk_elements));
  }
  channel->done = channel->slice >= channel->slices;
  if (!channel->done) channel->at = Expansion(*channel->schedule);
}

void Execution::find_extents(StepState* state) {
  extents_.clear();
  const Channel& channel = *state->channel;
  const auto part_count = [&](uint32_t part) {
    return state->item != nullptr ? state->item->count : call_.layout.part_count(part);
  };
  ExtentWalk walk(slicing_, channel.slice, channel.at, part_count);
  for (Extent extent; walk.next(&extent);) extents_.push_back(extent);
  state->count = walk.packed();
}

void Execution::note_reference(uint32_t link, uint32_t peer) {
  uint32_t index = link * context_->ranks + peer;
  if (reference_targets_[index] == 0) referenced_.push_back(index);
  reference_targets_[index] = context_->connections[index]->posted();
}

// Whether the peers have read everything that lies in the user's buffers.
bool Execution::references_released() {
  while (!referenced_.empty()) {
    uint32_t index = referenced_.back();
    Connection* connection = context_->connections[index];
    if (!connection->has_released(reference_targets_[index])) {
      waiting_for_ = index % context_->ranks;
      if (Status health = connection->health(); !health.ok()) fail(std::move(health), waiting_for_);
      return false;
    }
    reference_targets_[index] = 0;
    referenced_.pop_back();
  }
  return true;
}

bool Execution::is_flushed() {
  uint32_t peer = 0;
  if (context_->flush(&peer)) return true;
  waiting_for_ = peer;
  for (const auto& [of, queue] : context_->queues)
    if (Status health = queue->health(); of == peer && !health.ok()) fail(std::move(health), peer);
  return false;
}

void Execution::fail(Status status, uint32_t peer) {
  status_ = std::move(status);
  waiting_for_ = peer;
}

}  // namespace treering
