// SPDX-License-Identifier: Apache-2.0
// The data of one step whose messages are block-scaled float8: decoded, combined and encoded in units that stay in the
// first-level cache.
#include <algorithm>
#include <cstring>

#include "executor/execution.h"
#include "executor/reduce/block_float8.h"

namespace treering {
namespace {

constexpr size_t kUnit = 16 * kFloat8Block;
static_assert(kUnit % kFloat8Block == 0);

// Where the scales and bytes of element `at` of a message of `count` elements lie in it.
size_t scales_at(size_t at) { return at / kFloat8Block * sizeof(float); }
size_t bytes_at(size_t at, size_t count) { return encoded_bytes(count) - count + at; }

}  // namespace

// Walks the runs of a local buffer that hold elements [done, done + count) of the extent.
template <typename Visit>
void Execution::visit_runs(const StepState& state, const Operand& operand, const Extent& extent, size_t done,
                           size_t count, Visit visit) const {
  for (size_t at = 0; at < count;) {
    View::Run run{nullptr, count - at};
    if (operand.place == Place::kInput)
      run = input_run(state, extent, done + at, count - at);
    else if (operand.place == Place::kOutput)
      run = output_run(state, extent, done + at, count - at);
    else
      run.data = operand.base + (extent.scratch + done + at) * sizeof(float);
    visit(reinterpret_cast<float*>(run.data), at, run.count);
    at += run.count;
  }
}

bool Execution::load_coded(const StepState& state, size_t source, uint32_t received, size_t done, size_t count,
                           float* values) {
  const Operand& operand = sources_[source];
  const Extent& extent = extents_[0];
  alignas(64) std::byte fetched[kUnit];
  alignas(64) float scales[kUnit / kFloat8Block];
  if (operand.place != Place::kMessage) {
    visit_runs(state, operand, extent, done, count,
               [&](float* data, size_t at, size_t length) { std::memcpy(values + at, data, length * sizeof(float)); });
    if (call_.rounds_input && operand.place == Place::kInput) {
      encode_blocks(call_.coded, values, count, scales, fetched);
      decode_blocks(call_.coded, scales, fetched, count, values);
    }
    return true;
  }
  const size_t scale_bytes = (count + kFloat8Block - 1) / kFloat8Block * sizeof(float);
  if (operand.base != nullptr) {
    std::memcpy(scales, operand.base + scales_at(done), scale_bytes);  // they may be misaligned in the message
    decode_blocks(call_.coded, scales, operand.base + bytes_at(done, state.count), count, values);
    return true;
  }
  const uint32_t peer = state.at->receive_peer(received);
  Connection* connection = context_->connection(state.link, peer);
  const Message& message = *connection->front();
  Status status = connection->fetch(message, scales_at(done), scales, scale_bytes);
  if (status.ok()) status = connection->fetch(message, bytes_at(done, state.count), fetched, count);
  if (!status.ok()) {
    fail(status, peer);
    return false;
  }
  decode_blocks(call_.coded, scales, fetched, count, values);
  return true;
}

bool Execution::move_coded(const StepState& state) {
  const Step& step = *state.step;
  const bool result = (step.flags & kFinal) != 0 && (step.flags & kReduce) != 0;
  alignas(64) float value[kUnit], next[kUnit], scales[kUnit / kFloat8Block];
  alignas(64) std::byte bytes[kUnit];
  for (size_t done = 0; done < state.count; done += kUnit) {
    const size_t count = std::min(kUnit, state.count - done);
    uint32_t received = 0;
    for (size_t s = 0; s < sources_.size(); ++s) {
      const bool local = (step.flags & (kInput | kOutput | kScratch)) != 0 &&
                         s == std::min<size_t>(step.local_position, step.receive_count);
      if (!load_coded(state, s, local ? 0 : received++, done, count, s == 0 ? value : next)) return false;
      if (s > 0)
        for (size_t i = 0; i < count; ++i) value[i] += next[i];
    }
    if (result && call_.op == trAvg)
      for (size_t i = 0; i < count; ++i) value[i] /= static_cast<float>(context_->ranks);
    const bool sends = step.send_count > 0;
    if (sends || result) encode_blocks(call_.coded, value, count, scales, bytes);
    // A result that others get rounded is rounded here as well: all ranks have the same.
    if (result) decode_blocks(call_.coded, scales, bytes, count, value);
    for (const Operand& destination : destinations_) {
      if (destination.place == Place::kMessage) {
        std::memcpy(destination.base + scales_at(done), scales,
                    (count + kFloat8Block - 1) / kFloat8Block * sizeof(float));
        std::memcpy(destination.base + bytes_at(done, state.count), bytes, count);
        continue;
      }
      visit_runs(state, destination, extents_[0], done, count,
                 [&](float* data, size_t at, size_t length) { std::memcpy(data, value + at, length * sizeof(float)); });
    }
  }
  return true;
}

}  // namespace treering
