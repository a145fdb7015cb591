// SPDX-License-Identifier: Apache-2.0
#include "gpu/bind.h"

#include <algorithm>
#include <cstring>

#include "device/choose.h"

namespace treering::cuda {
namespace {

// Chunks begin at multiples of this where they can: whole sectors of the GPU's caches.
constexpr size_t kChunkAlignment = 128;

// Where `bytes` more go in an image; every array begins at a multiple of 16.
size_t place(size_t* used, size_t bytes) {
  const size_t at = *used;
  *used += (bytes + 15) / 16 * 16;
  return at;
}

template <class T>
const T* put(std::vector<std::byte>* image, size_t* used, const std::vector<T>& array, uint64_t base) {
  const size_t bytes = array.size() * sizeof(T), at = place(used, bytes);
  image->resize(std::max(image->size(), *used));
  if (bytes > 0) std::memcpy(image->data() + at, array.data(), bytes);
  return reinterpret_cast<const T*>(static_cast<uintptr_t>(base + at));
}

}  // namespace

bool bind_device_call(const Program& program, const Layout& layout, size_t element_bytes, DeviceProtocol protocol,
                      size_t message_bytes, size_t min_slice_bytes, DeviceCall* call) {
  const size_t largest = largest_device_chunk(protocol, message_bytes, program.max_span, element_bytes);
  if (largest == 0) return false;
  const Schedule& first = program.channels[0];
  const CollectiveInfo& info = *layout.collective;
  size_t alignment = std::max<size_t>(kChunkAlignment / element_bytes, 1);
  while (alignment > largest) alignment /= 2;
  const auto channels = static_cast<uint32_t>(program.channels.size());
  const SlicedData data{layout.largest_part(), info.parts == Parts::kOne ? 1 : layout.ranks,
                        element_bytes,         first.chunks,
                        first.parts,           channels};
  call->slicing = slice_data(data, largest / alignment * alignment, alignment, min_slice_bytes);
  const UnequalParts* unequal = layout.unequal;
  call->layout = {info.input_index,
                  info.output_index,
                  layout.ranks,
                  layout.count,
                  unequal == nullptr ? nullptr : unequal->counts,
                  unequal == nullptr ? nullptr : unequal->offsets};
  call->rank = layout.rank;
  call->ranks = layout.ranks;
  call->channels = channels;
  call->elides = first.parts > 1;
  return true;
}

size_t device_scratch_bytes(const Program& program, const DeviceCall& call, size_t element_bytes) {
  size_t bytes = 0;
  for (const Schedule& schedule : program.channels)
    if (schedule.uses_scratch) bytes = std::max(bytes, call.slicing.chunk_elements * schedule.chunks * element_bytes);
  return (bytes + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
}

std::vector<std::byte> program_image(const Program& program, uint64_t base) {
  std::vector<std::byte> image;
  size_t used = 0;
  const size_t table = place(&used, program.channels.size() * sizeof(DeviceProgram));
  image.resize(used);
  for (size_t channel = 0; channel < program.channels.size(); ++channel) {
    const Schedule& schedule = program.channels[channel];
    DeviceProgram made{};
    made.steps = put(&image, &used, schedule.steps, base);
    made.blocks = put(&image, &used, schedule.blocks, base);
    made.peers = put(&image, &used, schedule.peers, base);
    made.chunk_lists = put(&image, &used, schedule.chunk_lists, base);
    made.step_count = static_cast<uint32_t>(schedule.steps.size());
    made.block_count = static_cast<uint32_t>(schedule.blocks.size());
    made.peer_count = static_cast<uint32_t>(schedule.peers.size());
    made.list_count = static_cast<uint32_t>(schedule.chunk_lists.size());
    made.chunks = schedule.chunks;
    std::memcpy(image.data() + table + channel * sizeof made, &made, sizeof made);
  }
  return image;
}

uint32_t most_peers(const Program& program) {
  uint32_t most = 0;
  for (const Schedule& schedule : program.channels)
    for (const Step& step : schedule.steps) most = std::max<uint32_t>({most, step.receive_count, step.send_count});
  return most;
}

}  // namespace treering::cuda
