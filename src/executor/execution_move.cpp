// SPDX-License-Identifier: Apache-2.0
// The data of one step: all operands combined into all destinations, in one pass over memory.
#include <algorithm>

#include "core/types.h"
#include "executor/execution.h"

namespace treering {
namespace {

// Payloads that must be fetched are reduced in parts of this many elements, which stay in the first-level cache.
constexpr size_t kFetchElements = 4096;
constexpr size_t kLargestElement = 16;  // bytes

}  // namespace

// Walks the extents, and in each the runs that are contiguous in every buffer.
bool Execution::move_data(const StepState& state) {
  if (state.count == 0 || destinations_.empty()) return true;
  if (call_.is_coded()) return move_coded(state);
  const Step& step = *state.step;
  const bool result = (step.flags & kFinal) != 0 && (step.flags & kReduce) != 0;
  ReduceCall call;
  call.type = call_.type;
  call.op = call_.op;
  call.user = call_.user;
  call.user_context = call_.user_context;
  call.divisor = result && call_.op == trAvg ? context_->ranks : 1;
  // A float32 result that others get narrow is rounded here as well: all ranks have the same.
  call.round_wide = result && call_.wide_memory;
  for (const Extent& extent : extents_)
    for (size_t done = 0; done < extent.count;) {
      size_t count = run_length(state, extent, done);
      if (!move_run(state, &call, extent, done, count)) return false;
      done += count;
    }
  if (call.streaming != 0) streaming_fence();
  return true;
}

// How many elements from extent.begin + done on are contiguous in the buffers that the step uses.
size_t Execution::run_length(const StepState& state, const Extent& extent, size_t done) const {
  size_t count = extent.count - done;
  if (state.needs_fetch && !is_fetched_straight(state)) count = std::min(count, kFetchElements);
  uint16_t flags = state.step->flags;
  if ((flags & kInput) != 0) count = input_run(state, extent, done, count).count;
  if ((flags & (kOutput | kStore)) != 0) count = output_run(state, extent, done, count).count;
  return count;
}

// A payload that is stored as it is, in one place, needs no memory in between.
bool Execution::is_fetched_straight(const StepState& state) const {
  return state.needs_fetch && sources_.size() == 1 && destinations_.size() == 1 && call_.is_plain() &&
         sources_[0].wide == destinations_[0].wide;
}

View::Run Execution::input_run(const StepState& state, const Extent& extent, size_t done, size_t count) const {
  if (state.item != nullptr) return state.item->input.run(extent.begin + done, count, call_.type_size);
  return call_.input.run(call_.layout.input_offset(extent.part) + extent.begin + done, count, call_.memory_size());
}

View::Run Execution::output_run(const StepState& state, const Extent& extent, size_t done, size_t count) const {
  if (state.item != nullptr) return state.item->output.run(extent.begin + done, count, call_.type_size);
  return call_.output.run(call_.layout.output_offset(extent.part) + extent.begin + done, count, call_.memory_size());
}

const void* Execution::address_of(const StepState& state, const Operand& operand, const Extent& extent,
                                  size_t done) const {
  size_t element = operand.wide ? sizeof(float) : call_.type_size;
  switch (operand.place) {
    case Place::kMessage:
      return operand.base + (extent.packed + done) * element;
    case Place::kScratch:
      return operand.base + (extent.scratch + done) * element;
    case Place::kInput:
      return input_run(state, extent, done, 1).data;
    case Place::kOutput:
      return output_run(state, extent, done, 1).data;
  }
  return nullptr;
}

uint8_t Execution::flags_of(const Operand& operand) const {
  const bool input = operand.place == Place::kInput;
  return static_cast<uint8_t>((operand.wide ? kWideSource : 0) | (input && call_.scale != nullptr ? kScaledSource : 0) |
                              (input && call_.rounds_input && call_.wide_memory ? kRoundedSource : 0));
}

bool Execution::move_run(const StepState& state, ReduceCall* call, const Extent& extent, size_t done, size_t count) {
  call->count = count;
  call->source_count = sources_.size();
  call->wide_destinations = call->streaming = 0;
  uint8_t all_flags = 0;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Operand& source = sources_[i];
    if (source.place != Place::kMessage || source.base != nullptr)
      source_addresses_[i] = address_of(state, source, extent, done);
    all_flags |= source_flags_[i] = flags_of(source);
  }
  call->source_flags = all_flags == 0 ? nullptr : source_flags_.data();
  call->scale = (all_flags & kScaledSource) == 0 ? nullptr : call_.scale;
  if (is_fetched_straight(state)) {
    Connection* connection = context_->connection(state.link, state.at->receive_peer(0));
    const size_t element = sources_[0].wide ? sizeof(float) : call_.type_size;
    auto* address = const_cast<void*>(address_of(state, destinations_[0], extent, done));
    Status status = connection->fetch(*connection->front(), (extent.packed + done) * element, address, count * element);
    if (!status.ok()) fail(status, state.at->receive_peer(0));
    return status.ok();
  }
  if (state.needs_fetch && !fetch_payloads(state, extent, done, count)) return false;
  const bool copies = sources_.size() == 1 && (all_flags & (kScaledSource | kRoundedSource)) == 0 &&
                      (context_->ranks > 1 || !gives_truth(call_.type, call_.op));  // one rank's result is 0 or 1 too
  const bool plain = copies && call->divisor == 1 && !call->round_wide;
  size_t destinations = 0;
  for (const Operand& destination : destinations_) {
    auto* address = const_cast<void*>(address_of(state, destination, extent, done));
    // In place, an operand that is only stored is there already.
    if (plain && address == source_addresses_[0] && destination.wide == sources_[0].wide) continue;
    if (destinations < 64) {
      if (destination.wide) call->wide_destinations |= uint64_t{1} << destinations;
      if (destination.streaming) call->streaming |= uint64_t{1} << destinations;
    }
    destination_addresses_[destinations++] = address;
  }
  if (destinations == 0) return true;
  call->sources = source_addresses_.data();
  call->destinations = destination_addresses_.data();
  call->destination_count = destinations;
  if (plain && destinations == 1 && sources_[0].wide == (call->wide_destinations != 0))
    copy(destination_addresses_[0], source_addresses_[0], count * (sources_[0].wide ? sizeof(float) : call_.type_size),
         call->streaming != 0);
  else
    reduce(*call);
  return true;
}

// Brings the run's part of the payloads that only their connection reaches into `bounce_`.
bool Execution::fetch_payloads(const StepState& state, const Extent& extent, size_t done, size_t count) {
  const Step& step = *state.step;
  constexpr size_t kBytes = kFetchElements * kLargestElement;
  if (bounce_.size() < step.receive_count * kBytes) bounce_.resize(step.receive_count * kBytes);
  uint32_t received = 0;
  for (size_t s = 0; s < sources_.size(); ++s) {
    const bool local = (step.flags & (kInput | kOutput | kScratch)) != 0 &&
                       s == std::min<size_t>(step.local_position, step.receive_count);
    if (local) continue;
    uint32_t peer = state.at->receive_peer(received);
    std::byte* target = bounce_.data() + received++ * kBytes;
    if (sources_[s].place != Place::kMessage || sources_[s].base != nullptr) continue;
    Connection* connection = context_->connection(state.link, peer);
    size_t element = sources_[s].wide ? sizeof(float) : call_.type_size;
    Status status = connection->fetch(*connection->front(), (extent.packed + done) * element, target, count * element);
    if (!status.ok()) {
      fail(status, peer);
      return false;
    }
    source_addresses_[s] = target;
  }
  return true;
}

}  // namespace treering
