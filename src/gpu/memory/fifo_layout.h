// SPDX-License-Identifier: Apache-2.0
// FifoLayout: where the parts of a rank's area lie (device_fifos.h), as offsets.
//
//   | nonce, words for the proof | flags | consumed | LL lines | LL128 lines | slots |
#pragma once

#include "device/work.h"
#include "gpu/device_areas.h"

namespace treering {

struct FifoLayout {
  static constexpr uint32_t kDepth = 4;
  static constexpr size_t kSlotBytes = 128 << 10;
  // A rank's FIFOs take no more of its GPU's memory: the more ranks, the fewer channels.
  static constexpr size_t kMaxBytes = size_t{256} << 20;

  uint32_t ranks, channels;

  // The word that a peer writes in the proof.
  static size_t word(uint32_t peer) { return DeviceAreas::kNonceBytes + peer * sizeof(uint64_t); }
  size_t flags(uint32_t channel, uint32_t peer) const {
    return round_up(word(ranks)) + entry(channel, peer) * kDepth * sizeof(uint64_t);
  }
  size_t consumed(uint32_t channel, uint32_t peer) const {
    return flags(channels, 0) + entry(channel, peer) * sizeof(uint64_t);
  }
  size_t ll(uint32_t channel, uint32_t peer) const {
    return round_up(consumed(channels, 0)) + entry(channel, peer) * kDepth * cuda::ll_bytes(cuda::kLlSlotBytes);
  }
  size_t ll128(uint32_t channel, uint32_t peer) const {
    return ll(channels, 0) + entry(channel, peer) * kDepth * cuda::ll128_bytes(cuda::kLl128SlotBytes);
  }
  size_t slots(uint32_t channel, uint32_t peer) const {
    return ll128(channels, 0) + entry(channel, peer) * kDepth * kSlotBytes;
  }
  size_t bytes() const { return slots(channels, 0); }

  static uint32_t limit_by_memory(uint32_t ranks, uint32_t channels) {
    while (channels > 1 && FifoLayout{ranks, channels}.bytes() > kMaxBytes) --channels;
    return channels;
  }

 private:
  size_t entry(uint32_t channel, uint32_t peer) const { return size_t{channel} * ranks + peer; }
  static constexpr size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }
};

}  // namespace treering
