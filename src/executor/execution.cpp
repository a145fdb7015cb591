#include "executor/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/types.h"

namespace treering {
namespace {

// Smaller values are copied into a slot even where the peer could read them in place: a reference must be waited for
// at the end of the call, and the copy is cheaper than that.
constexpr size_t kMinReferencedBytes = 4096;
// Payloads that must be fetched are reduced in pieces of this size, which stay in the first-level cache.
constexpr size_t kFetchPieceBytes = 16 << 10;
// Chunks begin at multiples of this, so that no two ranks write one cache line.
constexpr size_t kChunkAlignment = 64;
// Calls below this are one slice: channels only pay when there is work for each.
constexpr size_t kMinSliceBytes = 64 << 10;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Execution::Execution(ExecutorContext* context) : context_(context) {
  scratch_.resize(kMaxChannels);
  size_t peers = context->ranks + 2;
  sources_.resize(peers);
  destinations_.resize(peers);
  modes_.resize(peers);
  reference_targets_.resize(kMaxChannels * context->ranks);
  referenced_.reserve(reference_targets_.size());
}

void Execution::bind(const Program& program, const Call& call) {
  call_ = call;
  status_ = {};
  steps_ = 0;
  for (uint32_t index : referenced_) reference_targets_[index] = 0;
  referenced_.clear();
  in_place_ = call.input == call.output;
  input_may_be_referenced_ = !in_place_ || program.input_used_once;
  may_deliver_ = program.input_used_once;
  streaming_ = call.count * call.type_size >= context_->streaming_bytes;

  const Schedule& first = program.channels[0];
  bool wide = context_->wide_partials && find_type(call.type)->narrow_float;
  scratch_element_bytes_ = wide ? sizeof(float) : call.type_size;
  size_t slot = context_->pools[0].slot_bytes();
  if (call.chunk_bytes != 0) slot = std::min(slot, call.chunk_bytes * scratch_element_bytes_ / call.type_size);
  // The longest message fits a slot: with many ranks and small slots by chunks of less than a cache line.
  size_t fit = context_->pools[0].slot_bytes() / scratch_element_bytes_ / first.max_span;
  size_t align = std::min(kChunkAlignment / call.type_size, std::max<size_t>(fit, 1));
  size_t largest = std::max(align, slot / scratch_element_bytes_ / first.max_span / align * align);
  channel_count_ = static_cast<uint32_t>(program.channels.size());
  slices_ = std::max<size_t>(1, (call.count + largest * first.chunks - 1) / (largest * first.chunks));
  if (slices_ > 1 || call.count * call.type_size >= channel_count_ * kMinSliceBytes)
    slices_ = round_up(slices_, channel_count_);
  chunk_elements_ = round_up((call.count + slices_ * first.chunks - 1) / (slices_ * first.chunks), align);
  slice_elements_ = chunk_elements_ * first.chunks;
  for (uint32_t c = 0; c < channel_count_; ++c) {
    const Schedule& schedule = program.channels[c];
    channels_[c] = {&schedule, Expansion(schedule), c, c >= slices_};
    if (schedule.uses_scratch) scratch_[c].resize(slice_elements_ * scratch_element_bytes_);
  }
}

Execution::Progress Execution::advance() {
  bool moved = false, all_done = true;
  for (uint32_t c = 0; c < channel_count_; ++c) {
    if (channels_[c].done) continue;
    Progress progress = advance_channel(c);
    if (progress == Progress::kFailed) return progress;
    moved |= progress == Progress::kMoved;
    all_done &= channels_[c].done;
  }
  if (!all_done) return moved ? Progress::kMoved : Progress::kBlocked;
  return references_consumed() ? Progress::kDone : moved ? Progress::kMoved : Progress::kBlocked;
}

// Executes steps of one channel until one is blocked, at most those of one slice.
Execution::Progress Execution::advance_channel(uint32_t index) {
  Channel& channel = channels_[index];
  bool moved = false;
  for (;;) {
    StepState state{};
    state.channel_index = index;
    state.step = &channel.at.step();
    state.at = &channel.at;
    state.slot = StagingPool::kNone;
    set_extent(&state, channel);
    if (!gather_operands(&state) || !plan_sends(&state) || !move_data(&state))
      return !status_.ok() ? Progress::kFailed : moved ? Progress::kMoved : Progress::kBlocked;
    post_sends(state);
    for (uint32_t i = 0; i < state.step->receive_count; ++i)
      context_->connection(index, channel.at.receive_peer(i))->pop();
    ++steps_;
    moved = true;
    channel.at.advance();
    if (!channel.at.done()) continue;
    channel.slice += channel_count_;
    channel.done = channel.slice >= slices_;
    if (!channel.done) channel.at = Expansion(*channel.schedule);
    return Progress::kMoved;
  }
}

void Execution::set_extent(StepState* state, const Channel& channel) const {
  size_t slice_begin = channel.slice * slice_elements_;
  size_t begin = slice_begin + channel.at.chunk() * chunk_elements_;
  size_t end = begin + state->step->span * chunk_elements_;
  state->begin = std::min(begin, call_.count);
  state->count = std::min(end, call_.count) - state->begin;
}

void Execution::add_source(StepState* state, const void* data, bool wide) {
  if (wide) state->wide_sources |= uint64_t{1} << state->source_count;
  sources_[state->source_count++] = data;
}

void Execution::add_destination(StepState* state, void* data, bool wide, bool streaming) {
  if (wide) state->wide_destinations |= uint64_t{1} << state->destination_count;
  if (streaming && state->destination_count < 64) {
    state->streaming |= uint64_t{1} << state->destination_count;
    state->streamed = true;
  }
  destinations_[state->destination_count++] = data;
}

// Collects the received messages and the local operand in their order; false when a message is missing or wrong.
bool Execution::gather_operands(StepState* state) {
  const Step& step = *state->step;
  for (uint32_t i = 0; i < step.receive_count; ++i) {
    uint32_t peer = state->at->receive_peer(i);
    if (context_->connection(state->channel_index, peer)->front() != nullptr) continue;
    waiting_for_ = peer;
    Status health = context_->connection(state->channel_index, peer)->health();
    if (!health.ok()) fail(health, peer);
    return false;
  }
  for (uint32_t i = 0; i < step.receive_count; ++i) {
    if (i == step.local_position && !add_local_operand(state)) return false;
    uint32_t peer = state->at->receive_peer(i);
    const Message& message = *context_->connection(state->channel_index, peer)->front();
    size_t expected = state->count * (message.wide ? sizeof(float) : call_.type_size);
    if (message.signature != call_.signature || message.bytes != expected) {
      fail({trInvalidUsage, "the ranks' calls differ"}, peer);
      return false;
    }
    state->delivered |= message.kind == PayloadKind::kDelivered;
    state->needs_fetch |= message.data == nullptr && message.kind != PayloadKind::kDelivered && message.bytes > 0;
    add_source(state, message.data, message.wide);
  }
  if (step.local_position >= step.receive_count && !add_local_operand(state)) return false;
  if (state->delivered) sources_[0] = call_.output + state->begin * call_.type_size;
  bool wide_mode = scratch_element_bytes_ != call_.type_size;
  state->wide_value = wide_mode && (step.flags & kFinal) == 0 && ((step.flags & kReduce) != 0 || state->wide_sources != 0);
  state->wire_bytes = state->count * (state->wide_value ? sizeof(float) : call_.type_size);
  return true;
}

bool Execution::add_local_operand(StepState* state) {
  uint16_t flags = state->step->flags;
  size_t offset = state->begin * call_.type_size;
  if ((flags & kInput) != 0) add_source(state, call_.input + offset, false);
  if ((flags & kOutput) != 0) add_source(state, call_.output + offset, false);
  if ((flags & kScratch) != 0)
    add_source(state, scratch(state->channel_index, state->at->chunk()), scratch_element_bytes_ != call_.type_size);
  return true;
}

std::byte* Execution::scratch(uint32_t channel, uint32_t chunk) {
  return scratch_[channel].data() + chunk * chunk_elements_ * scratch_element_bytes_;
}

void Execution::add_stores(StepState* state) {
  uint16_t flags = state->step->flags;
  std::byte* output = call_.output + state->begin * call_.type_size;
  if ((flags & kStoreScratch) != 0)
    add_destination(state, scratch(state->channel_index, state->at->chunk()),
                    scratch_element_bytes_ != call_.type_size, false);
  if ((flags & kStore) != 0 && !state->delivered) add_destination(state, output, false, streaming_);
  // Where the value lies in the user's memory once the step is done.
  if ((flags & kStore) != 0 && (flags & kFinal) != 0) {
    state->reference = output;
    state->reference_region = &call_.output_region;
  } else if (state->step->receive_count == 0 && (flags & kInput) != 0 && input_may_be_referenced_) {
    state->reference = const_cast<std::byte*>(call_.input) + state->begin * call_.type_size;
    state->reference_region = &call_.input_region;
  }
}

// Decides how the value reaches each peer; false when there is no room for it.
bool Execution::plan_sends(StepState* state) {
  add_stores(state);
  const Step& step = *state->step;
  bool staged = false;
  for (uint32_t i = 0; i < step.send_count; ++i) {
    uint32_t peer = state->at->send_peer(i);
    Connection* connection = context_->connection(state->channel_index, peer);
    if (!connection->can_post()) {
      waiting_for_ = peer;
      if (!connection->health().ok()) fail(connection->health(), peer);
      return false;
    }
    std::byte* delivered_to = nullptr;
    modes_[i] = choose_mode(*state, connection, &delivered_to);
    staged |= modes_[i] == Mode::kStaged;
    if (delivered_to != nullptr) add_destination(state, delivered_to, false, streaming_);
  }
  if (step.send_count > 0 && state->wire_bytes <= kInlineBytes)
    add_destination(state, inline_value_.data(), state->wide_value, false);
  if (!staged) return true;
  StagingPool& pool = context_->pools[state->channel_index];
  state->slot = pool.find_free();
  if (state->slot == StagingPool::kNone) {
    waiting_for_ = state->at->send_peer(0);
    return false;
  }
  add_destination(state, pool.slot(state->slot), state->wide_value, false);
  return true;
}

Execution::Mode Execution::choose_mode(const StepState& state, Connection* connection, std::byte** delivered_to) const {
  if (state.wire_bytes <= kInlineBytes) return Mode::kInline;
  const RankStatus* peer = connection->peer_status();
  if ((state.step->flags & kFinal) != 0 && may_deliver_ && peer != nullptr &&
      peer->operation.load(std::memory_order_acquire) == call_.operation) {
    size_t offset = state.begin * call_.type_size;
    UserAddress address{0, peer->output_address.load(std::memory_order_relaxed) + offset};
    if (!connection->reaches_plain_memory())
      address = {peer->output_region.load(std::memory_order_relaxed),
                 peer->output_offset.load(std::memory_order_relaxed) + offset};
    if (auto* mapped = connection->map_peer(address, state.wire_bytes); mapped != nullptr) {
      *delivered_to = static_cast<std::byte*>(mapped);
      return Mode::kDelivered;
    }
  }
  return may_reference(state, *connection) ? Mode::kReferenced : Mode::kStaged;
}

bool Execution::may_reference(const StepState& state, const Connection& connection) const {
  if (state.reference == nullptr || state.wire_bytes < kMinReferencedBytes) return false;
  if (connection.reaches_plain_memory()) return true;
  const Region& region = *state.reference_region;
  return region.id != 0 && connection.maps_regions() && state.reference >= region.base &&
         state.reference + state.wire_bytes <= region.base + region.bytes;
}

// Combines the operands into all destinations in one pass over memory.
bool Execution::move_data(StepState* state) {
  if (state->count == 0) return true;
  const Step& step = *state->step;
  ReduceCall call;
  call.type = call_.type;
  call.op = call_.op;
  call.divisor = (step.flags & kFinal) != 0 && (step.flags & kReduce) != 0 && call_.op == trAvg ? context_->ranks : 1;
  call.sources = sources_.data();
  call.source_count = state->source_count;
  call.wide_sources = state->wide_sources;
  call.destinations = destinations_.data();
  call.destination_count = state->destination_count;
  call.wide_destinations = state->wide_destinations;
  call.streaming = state->streaming;
  call.count = state->count;
  if (state->needs_fetch) return fetch_and_reduce(state, &call);
  // In place, an operand that is only stored is there already.
  if (call.destination_count == 0 ||
      (call.destination_count == 1 && call.source_count == 1 && sources_[0] == destinations_[0]))
    return true;
  bool plain_copy = call.source_count == 1 && call.destination_count == 1 && call.wide_sources == call.wide_destinations;
  if (plain_copy)
    copy(destinations_[0], sources_[0], state->count * (call.wide_sources ? sizeof(float) : call_.type_size), state->streamed);
  else
    reduce(call);
  if (state->streamed) streaming_fence();
  return true;
}

// As move_data(), for payloads that lie in memory which only the connection reaches: piece by piece through `bounce_`.
bool Execution::fetch_and_reduce(StepState* state, ReduceCall* call) {
  const Step& step = *state->step;
  size_t piece = kFetchPieceBytes / sizeof(float);
  if (step.receive_count > 1 || call->source_count > 1) bounce_.resize(step.receive_count * kFetchPieceBytes * 2);
  else bounce_.resize(kFetchPieceBytes * 2);
  std::vector<const void*> sources(sources_.begin(), sources_.begin() + static_cast<std::ptrdiff_t>(state->source_count));
  std::vector<void*> destinations(destinations_.begin(),
                                  destinations_.begin() + static_cast<std::ptrdiff_t>(state->destination_count));
  for (size_t done = 0; done < state->count; done += piece) {
    size_t now = std::min(piece, state->count - done);
    size_t local = std::min<size_t>(step.local_position, step.receive_count);
    bool has_local = state->source_count > step.receive_count;
    for (uint32_t i = 0; i < step.receive_count; ++i) {
      uint32_t peer = state->at->receive_peer(i);
      Connection* connection = context_->connection(state->channel_index, peer);
      const Message& message = *connection->front();
      if (message.data != nullptr) continue;
      size_t element = message.wide ? sizeof(float) : call_.type_size;
      std::byte* target = bounce_.data() + i * kFetchPieceBytes * 2;
      if (Status status = connection->fetch(message, done * element, target, now * element); !status.ok()) {
        fail(status, peer);
        return false;
      }
      size_t position = i + (has_local && i >= local ? 1 : 0);
      sources_[position] = target - done * element;
    }
    for (size_t s = 0; s < state->source_count; ++s)
      sources[s] = static_cast<const std::byte*>(sources_[s]) +
                   done * ((state->wide_sources >> s & 1) != 0 ? sizeof(float) : call_.type_size);
    for (size_t d = 0; d < state->destination_count; ++d)
      destinations[d] = static_cast<std::byte*>(destinations_[d]) +
                        done * ((state->wide_destinations >> d & 1) != 0 ? sizeof(float) : call_.type_size);
    call->sources = sources.data();
    call->destinations = destinations.data();
    call->count = now;
    reduce(*call);
  }
  if (state->streamed) streaming_fence();
  return true;
}

void Execution::post_sends(const StepState& state) {
  const Step& step = *state.step;
  if (step.send_count == 0) return;
  StagingPool& pool = context_->pools[state.channel_index];
  if (state.slot != StagingPool::kNone) pool.use(state.slot);
  for (uint32_t i = 0; i < step.send_count; ++i) {
    Connection* connection = context_->connection(state.channel_index, state.at->send_peer(i));
    Message message;
    message.signature = call_.signature;
    message.bytes = static_cast<uint32_t>(state.wire_bytes);
    message.wide = state.wide_value;
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
        if (connection->reaches_plain_memory())
          message.user = {0, reinterpret_cast<uint64_t>(state.reference)};
        else
          message.user = {state.reference_region->id, static_cast<uint64_t>(state.reference - state.reference_region->base)};
        break;
      case Mode::kDelivered: message.kind = PayloadKind::kDelivered; break;
    }
    connection->post(message);
    if (modes_[i] == Mode::kStaged) pool.add_reader(state.slot, connection);
    // What the peer fetches from this process must be there until it has: the call ends after that.
    bool fetched = modes_[i] == Mode::kStaged && connection->peer_status() == nullptr;
    if (fetched || modes_[i] == Mode::kReferenced) note_reference(state.channel_index, state.at->send_peer(i));
  }
}

void Execution::note_reference(uint32_t channel, uint32_t peer) {
  uint32_t index = channel * context_->ranks + peer;
  if (reference_targets_[index] == 0) referenced_.push_back(index);
  reference_targets_[index] = context_->connections[index]->posted();
}

// Whether the peers have read everything that lies in the user's buffers.
bool Execution::references_consumed() {
  while (!referenced_.empty()) {
    uint32_t index = referenced_.back();
    if (!context_->connections[index]->has_consumed(reference_targets_[index])) {
      waiting_for_ = index % context_->ranks;
      return false;
    }
    reference_targets_[index] = 0;
    referenced_.pop_back();
  }
  return true;
}

void Execution::fail(Status status, uint32_t peer) {
  status_ = std::move(status);
  waiting_for_ = peer;
}

}  // namespace treering
