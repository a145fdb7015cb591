// SPDX-License-Identifier: Apache-2.0
#include "communicator/calls/call_regions.h"

namespace treering {
namespace {

// The regions of an operation's last start.
void forget_regions(const Operation& operation) {
  if (operation.lanes != nullptr)
    for (auto& items : operation.lanes->items)
      for (LaneItem& item : items) item.region = {};
  if (operation.segments != nullptr)
    for (auto* segments : {&operation.segments->input, &operation.segments->output})
      for (BufferSegment& segment : *segments) segment.region = {};
}

}  // namespace

void CallRegions::find(const Operation& operation, Call* call) {
  WatchedBuffers* const watched = peers_->watched_buffers();
  if (RegionTable::instance().empty() && watched == nullptr) return forget_regions(operation);
  if (operation.lanes != nullptr) {
    for (auto& items : operation.lanes->items)
      for (LaneItem& item : items) item.region = publish(item.input.base(), item.count, watched);
    return;
  }
  if (!call->is_plain()) return;  // nothing travels as it lies there
  if (operation.segments != nullptr) return find_of_segments(operation, watched, call);
  const size_t input = buffer_bytes(operation, false, *call), output = buffer_bytes(operation, true, *call);
  // The output first: the input may be a part of it.
  call->output_region = publish(operation.output, output, watched);
  call->input_region = operation.input == operation.output && input == output
                           ? call->output_region
                           : publish(operation.input, input, watched);
}

// The region that a buffer lies in, once peers can look it up; none: they cannot.
Region CallRegions::publish(const void* buffer, size_t bytes, WatchedBuffers* watched) {
  if (buffer == nullptr || bytes == 0) return Region();
  Region region = RegionTable::instance().find(buffer, bytes);
  if (region.id == 0 && watched != nullptr) return watched->find(buffer, bytes);
  if (region.id == 0 || !exports_.publish(region)) return Region();
  if (bytes >= kMinReferencedBytes) peers_->register_region(region);
  return region;
}

// For fused tensors. Looking for small ones costs more than copying them.
void CallRegions::find_of_segments(const Operation& operation, WatchedBuffers* watched, Call* call) {
  constexpr size_t kMinBytes = 64 << 10;
  auto &inputs = operation.segments->input, &outputs = operation.segments->output;
  call->segments_in_place = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    BufferSegment &input = inputs[i], &output = outputs[i];
    const size_t end = i + 1 < inputs.size() ? inputs[i + 1].first : operation.count;
    const size_t bytes = (end - input.first) * call->type_size;
    input.region = output.region = {};
    if (bytes < kMinBytes) continue;
    input.region = publish(input.base, bytes, watched);
    output.region = output.base == input.base ? input.region : publish(output.base, bytes, watched);
    call->segments_in_place &= output.base == input.base;
  }
}

// Bytes of the input or the output, exactly: what lies behind may be anything. check_operation() has made one that is not
// used nullptr.
size_t CallRegions::buffer_bytes(const Operation& operation, bool output, const Call& call) const {
  if ((output ? operation.output : operation.input) == nullptr) return 0;
  const size_t elements = operation.blocks == nullptr
                              ? blocks_of(*call.layout.collective, context_->ranks, output) * operation.count
                              : buffer_elements(operation, context_->rank, context_->ranks, output);
  return elements * call.memory_size();
}

void CallRegions::show_output(const Operation& operation, const Program& program, const Call& call) const {
  constexpr size_t kMinBytes = 64 << 10;  // a smaller one is copied in less time than it is shown
  if (context_->queues.empty() || call.output_region.id == 0 || !output_is_open(program, call)) return;
  if (operation.blocks != nullptr) return;  // no peer would write there
  const size_t bytes = buffer_bytes(operation, true, call);
  if (bytes < kMinBytes) return;
  const UserMemory output{static_cast<const std::byte*>(operation.output), bytes, &call.output_region};
  for (const uint32_t peer : program.givers)
    if (Connection* connection = context_->connections[peer]; connection != nullptr)
      connection->show_output(call.operation, output);
}

}  // namespace treering
