// SPDX-License-Identifier: Apache-2.0
// One step: its operands, where its value goes, and the messages that tell of it.
#include <algorithm>
#include <utility>

#include "executor/execution.h"
#include "executor/reduce/block_float8.h"

namespace treering {

uint32_t Execution::signature_of(const StepState& state) const {
  return state.item == nullptr ? call_.signature : lane_signature(call_.signature, state.item->count);
}

size_t Execution::wire_size(size_t count, bool wide) const {
  if (call_.is_coded()) return encoded_bytes(count);
  return count * (wide ? sizeof(float) : call_.type_size);
}

// Collects the received messages and the local operand in their order; false when a message is missing or wrong.
bool Execution::gather_operands(StepState* state) {
  const Step& step = *state->step;
  for (uint32_t i = 0; i < step.receive_count; ++i) {
    uint32_t peer = state->at->receive_peer(i);
    if (context_->connection(state->link, peer)->front() != nullptr) continue;
    waiting_for_ = peer;
    Status health = context_->connection(state->link, peer)->health();
    if (!health.ok()) fail(health, peer);
    return false;
  }
  sources_.clear();
  destinations_.clear();
  bool wide_source = false;
  const uint32_t signature = signature_of(*state);
  for (uint32_t i = 0; i < step.receive_count; ++i) {
    if (i == step.local_position) add_local_operand(*state);
    uint32_t peer = state->at->receive_peer(i);
    const Message& message = *context_->connection(state->link, peer)->front();
    size_t expected = wire_size(state->count, message.wide);
    if (message.signature != signature || message.bytes != expected) {
      const bool is_transfer = state->item != nullptr;
      sizes_ = sizes_of(message, call_.signature, is_transfer ? std::optional(state->item->count) : std::nullopt);
      fail({trInvalidUsage, "the ranks' calls differ"}, peer);
      return false;
    }
    if (message.kind == PayloadKind::kDelivered) {
      if ((step.flags & (kStore | kFinal | kReduce)) != (kStore | kFinal)) {
        fail({trInternalError, "it says that it stored a value which is no result of this rank"}, peer);
        return false;
      }
      state->delivered = true;
      sources_.push_back({nullptr, Place::kOutput, call_.wide_memory, false});
      continue;
    }
    state->needs_fetch |= message.data == nullptr && message.bytes > 0;
    wide_source |= message.wide;
    auto* data = static_cast<std::byte*>(const_cast<void*>(message.data));
    sources_.push_back({data, Place::kMessage, message.wide, false});
  }
  if (step.local_position >= step.receive_count) add_local_operand(*state);
  if (wide_messages_ && (step.flags & kScratch) != 0) wide_source = true;
  state->wide_value = wide_messages_ && (step.flags & kFinal) == 0 && ((step.flags & kReduce) != 0 || wide_source);
  state->wire_bytes = wire_size(state->count, state->wide_value);
  return true;
}

void Execution::add_local_operand(const StepState& state) {
  uint16_t flags = state.step->flags;
  if ((flags & kInput) != 0) sources_.push_back({nullptr, Place::kInput, call_.wide_memory, false});
  if ((flags & kOutput) != 0) sources_.push_back({nullptr, Place::kOutput, call_.wide_memory, false});
  if ((flags & kScratch) != 0) sources_.push_back({scratch_[state.link].data(), Place::kScratch, wide_scratch_, false});
}

void Execution::add_stores(StepState* state) {
  uint16_t flags = state->step->flags;
  if ((flags & kStoreScratch) != 0)
    destinations_.push_back({scratch_[state->link].data(), Place::kScratch, wide_scratch_, false});
  if ((flags & kStore) != 0 && !state->delivered)
    destinations_.push_back({nullptr, Place::kOutput, call_.wide_memory, streaming_});
  // Where the value lies in the user's memory, contiguous, once the step is done.
  if (extents_.size() != 1 || !call_.is_plain()) return;
  const Extent& extent = extents_[0];
  View::Run run{nullptr, 0};
  if ((flags & kStore) != 0 && (flags & kFinal) != 0) {
    run = output_run(*state, extent, 0, extent.count);
    state->reference_region = run.region != nullptr ? run.region : &call_.output_region;
  } else if (state->step->receive_count == 0 && (flags & kInput) != 0 && input_may_be_referenced_) {
    run = input_run(*state, extent, 0, extent.count);
    if (state->item != nullptr)
      state->reference_region = &state->item->region;
    else
      state->reference_region = run.region != nullptr ? run.region : &call_.input_region;
  }
  if (run.count == state->count) state->reference = run.data;
}

// Chooses how the value reaches each peer; false when there is no room for it.
bool Execution::plan_sends(StepState* state) {
  add_stores(state);
  const Step& step = *state->step;
  bool staged = false;
  for (uint32_t i = 0; i < step.send_count; ++i) {
    uint32_t peer = state->at->send_peer(i);
    Connection* connection = context_->connection(state->link, peer);
    if (!connection->can_post()) {
      waiting_for_ = peer;
      if (!connection->health().ok()) fail(connection->health(), peer);
      return false;
    }
    std::byte* delivered_to = nullptr;
    modes_[i] = choose_mode(*state, peer, connection, &delivered_to);
    staged |= modes_[i] == Mode::kStaged;
    // Two slots for each lane: one whose peer is late leaves those of the others.
    if (state->item != nullptr && modes_[i] == Mode::kStaged && !connection->has_released(state->channel->staged[0])) {
      waiting_for_ = peer;
      return false;
    }
    if (delivered_to != nullptr) destinations_.push_back({delivered_to, Place::kMessage, false, streaming_});
  }
  if (step.send_count > 0 && state->wire_bytes <= kInlineBytes)
    destinations_.push_back({inline_value_.data(), Place::kMessage, state->wide_value, false});
  if (!staged) return true;
  StagingPool& pool = context_->pools[state->link];
  state->slot = pool.find_free();
  if (state->slot == StagingPool::kNone) {
    waiting_for_ = pool.awaited_peer();  // which need not be one that this step sends to
    return false;
  }
  destinations_.push_back({pool.slot(state->slot), Place::kMessage, state->wide_value, false});
  return true;
}

Execution::Mode Execution::choose_mode(const StepState& state, uint32_t peer, Connection* connection,
                                       std::byte** delivered_to) const {
  if (state.wire_bytes <= kInlineBytes) return Mode::kInline;
  // What only moves is left to its readers, who work at the same time, while a writer would serve one after another;
  // but a gather has one reader and many writers, and only a writer's stores bypass the reader's cache.
  const CollectiveInfo& info = *call_.layout.collective;
  if (!info.reduces && !info.gathers() && (!streaming_ || info.rooted) && reference_for(state, *connection))
    return Mode::kReferenced;
  *delivered_to = output_of(state, connection);
  if (*delivered_to == nullptr) *delivered_to = operand_of(state, peer, connection);
  if (*delivered_to != nullptr) return Mode::kDelivered;
  return reference_for(state, *connection) ? Mode::kReferenced : Mode::kStaged;
}

// Where this step's result lies in the peers' outputs, in bytes; nothing: not contiguous, or not as it travels.
std::optional<size_t> Execution::output_offset(const StepState& state) const {
  if ((state.step->flags & kFinal) == 0 || state.item != nullptr || !call_.is_plain() || extents_.size() != 1 ||
      call_.layout.unequal != nullptr)
    return {};
  const Extent& extent = extents_[0];
  return (call_.layout.output_offset_on(extent.part) + extent.begin) * call_.type_size;
}

// ... as memory of this process; nullptr: the peer does not take it there.
std::byte* Execution::output_of(const StepState& state, Connection* connection) const {
  const std::optional<size_t> offset = output_offset(state);
  return offset ? connection->output_place(call_.operation, *offset, state.wire_bytes) : nullptr;
}

// Where the peer showed its operand of this step's result; nullptr: it did not, or it needs the operand. (A message of
// this call has come from it, so what it shows is of this call.)
std::byte* Execution::operand_of(const StepState& state, uint32_t peer, Connection* connection) const {
  constexpr uint16_t kSum = kFinal | kReduce;
  if ((state.step->flags & kSum) != kSum || state.item != nullptr || !call_.is_plain() || extents_.size() != 1)
    return nullptr;
  for (uint32_t i = 0; i < state.step->receive_count; ++i) {
    if (state.at->receive_peer(i) != peer) continue;
    const Message& message = *connection->front();
    return message.bytes == state.wire_bytes ? connection->operand_place(message) : nullptr;
  }
  return nullptr;
}

// The value's place in user memory as the peer reaches it; nothing when it must go through a slot.
std::optional<UserAddress> Execution::reference_for(const StepState& state, const Connection& connection) const {
  if (state.reference == nullptr || state.wire_bytes < kMinReferencedBytes) return {};
  const bool fetched = state.item != nullptr ? (state.item->count >= call_.fetch_range.least &&
                                                state.item->count <= call_.fetch_range.most)
                                             : fetches_;
  return connection.reference(
      {state.reference, state.wire_bytes, state.reference_region, fetched && state.wire_bytes >= kMinFetchedBytes});
}

void Execution::post_sends(const StepState& state) {
  const Step& step = *state.step;
  if (step.send_count == 0) return;
  StagingPool& pool = context_->pools[state.link];
  if (state.slot != StagingPool::kNone) pool.use(state.slot);
  for (uint32_t i = 0; i < step.send_count; ++i) {
    const uint32_t peer = state.at->send_peer(i);
    Connection* connection = context_->connection(state.link, peer);
    Message message;
    message.signature = signature_of(state);
    message.bytes = static_cast<uint32_t>(state.wire_bytes);
    message.wide = state.wide_value;
    if (state.item != nullptr) message.whole = state.item->count;  // of bytes
    // Where memory is shared, this rank has stored it there itself (output_of()). plan_sends() has made the connections,
    // and with them the queues of links.
    if (const auto offset = context_->queues.empty() ? std::nullopt : output_offset(state)) {
      message.output_operation = call_.operation;
      message.output_offset = *offset;
    }
    switch (modes_[i]) {
      case Mode::kInline:
        message.kind = PayloadKind::kInline;
        message.data = inline_value_.data();
        break;
      case Mode::kStaged:
        message.kind = PayloadKind::kStaging;
        message.user.offset = pool.slot_offset(state.slot);
        break;
      case Mode::kReferenced:
        message.kind = PayloadKind::kUser;
        message.user = *reference_for(state, *connection);
        break;
      case Mode::kDelivered:
        message.kind = PayloadKind::kDelivered;
        break;
    }
    connection->post(message);
    context_->count_sent(peer, message.bytes);
    if (modes_[i] == Mode::kStaged) {
      pool.add_reader(state.slot, peer, connection);
      state.channel->staged[0] = std::exchange(state.channel->staged[1], connection->posted());
    }
    // What the peer reads from this process must be there until it has: the call ends after that.
    const bool is_read = modes_[i] == Mode::kStaged && !connection->slots_outlive_sender();
    if (is_read || modes_[i] == Mode::kReferenced) note_reference(state.link, peer);
  }
}

}  // namespace treering
