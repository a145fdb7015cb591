// SPDX-License-Identifier: Apache-2.0
// Areas of the FIFOs between GPUs: parts that do not overlap, within the memory that they may take.
#include "gpu/memory/fifo_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace treering {
namespace {

struct Part {
  size_t begin, bytes;
};

TEST(FifoLayout, PartsDoNotOverlapAndFillTheArea) {
  for (const FifoLayout layout : {FifoLayout{2, 1}, FifoLayout{3, 8}, FifoLayout{8, 15}}) {
    std::vector<Part> parts{{0, DeviceAreas::kNonceBytes}};
    for (uint32_t peer = 0; peer < layout.ranks; ++peer) parts.push_back({FifoLayout::word(peer), 8});
    for (uint32_t channel = 0; channel < layout.channels; ++channel)
      for (uint32_t peer = 0; peer < layout.ranks; ++peer) {
        parts.push_back({layout.flags(channel, peer), FifoLayout::kDepth * 8});
        parts.push_back({layout.consumed(channel, peer), 8});
        parts.push_back({layout.ll(channel, peer), FifoLayout::kDepth * cuda::ll_bytes(cuda::kLlSlotBytes)});
        parts.push_back({layout.ll128(channel, peer), FifoLayout::kDepth * cuda::ll128_bytes(cuda::kLl128SlotBytes)});
        parts.push_back({layout.slots(channel, peer), FifoLayout::kDepth * FifoLayout::kSlotBytes});
        EXPECT_EQ(layout.ll128(channel, peer) % 128, 0u);
        EXPECT_EQ(layout.slots(channel, peer) % 16, 0u);
      }
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < parts.size(); ++i) EXPECT_LE(parts[i - 1].begin + parts[i - 1].bytes, parts[i].begin) << i;
    EXPECT_EQ(parts.back().begin + parts.back().bytes, layout.bytes());
  }
}

TEST(FifoLayout, MoreRanksHaveFewerChannels) {
  EXPECT_EQ(FifoLayout::limit_by_memory(8, 32), 32u);
  EXPECT_EQ(FifoLayout::limit_by_memory(8, 5), 5u);
  uint32_t before = 32;
  for (uint32_t ranks = 2; ranks <= cuda::kMaxDeviceRanks; ++ranks) {
    const uint32_t channels = FifoLayout::limit_by_memory(ranks, 32);
    EXPECT_LE(channels, before);
    EXPECT_LE((FifoLayout{ranks, channels}.bytes()), FifoLayout::kMaxBytes) << ranks << " ranks";
    if (channels < 32) {
      EXPECT_GT((FifoLayout{ranks, channels + 1}.bytes()), FifoLayout::kMaxBytes);
    }
    before = channels;
  }
  EXPECT_GE(before, 4u);
}

}  // namespace
}  // namespace treering
