// SPDX-License-Identifier: Apache-2.0
// The model of the time on devices: choices that follow from the protocols and from what was measured.
#include <gtest/gtest.h>

#include "device/choose.h"

namespace treering::cuda {
namespace {

DeviceSelectionInput input_of(size_t bytes, const LinkFigures& link = {}) {
  DeviceSelectionInput made{Collective::kAllReduce, 4, bytes, 4, 128 << 10, 8};
  made.link = link;
  return made;
}

TEST(ChooseForDevice, SmallMessagesTakeLowLatencyAndLargeOnesFullBandwidth) {
  EXPECT_EQ(choose_for_device(input_of(8)).protocol, DeviceProtocol::kLl);
  const DeviceSelection large = choose_for_device(input_of(256 << 20));
  EXPECT_EQ(large.protocol, DeviceProtocol::kSimple);
  EXPECT_EQ(large.channels, 8u);
}

TEST(ChooseForDevice, AllChannelsThereAreMayBeUsed) {
  for (uint32_t most : {1u, 6u, 12u, 32u}) {
    DeviceSelectionInput asked = input_of(256 << 20);
    asked.most_channels = most;
    EXPECT_EQ(choose_for_device(asked).channels, most);
  }
}

TEST(ChooseForDevice, ChannelsFillTheLinkBothWays) {
  EXPECT_EQ(channels_to_fill({true, 1, 0.1}), 8u);
  EXPECT_EQ(channels_to_fill({true, 1, 25}), 8u);
  EXPECT_EQ(channels_to_fill({true, 1, 145}), 15u) << "blocks of 20 GB/s";
  EXPECT_EQ(channels_to_fill({true, 1, 450}), kMaxDeviceChannels);
  EXPECT_EQ(channels_to_fill({}), kMaxDeviceChannels) << "a link that blocks do not fill is assumed";
}

TEST(ChooseForDevice, MeasuredLinksReplaceTheAssumedOne) {
  const LinkFigures slow{true, 20, 1}, fast{true, 0.3, 1e6};
  for (size_t bytes : {size_t{8}, size_t{64} << 20}) {
    const double assumed = choose_for_device(input_of(bytes)).predicted_us;
    EXPECT_DOUBLE_EQ(choose_for_device(input_of(bytes, fast)).predicted_us, assumed);
    EXPECT_GT(choose_for_device(input_of(bytes, slow)).predicted_us, 5 * assumed);
  }
  // 64 MiB at 1 GB/s: not less than what the link needs one way.
  EXPECT_GT(choose_for_device(input_of(64 << 20, slow)).predicted_us, 1.5 * 64 * 1048.576 / 2);
}

TEST(ChooseForDevice, ProtocolsMayBeLeftOut) {
  for (uint32_t bit : {0u, 1u, 2u}) {
    DeviceSelectionInput asked = input_of(8);
    asked.protocols = 1u << bit;
    EXPECT_EQ(choose_for_device(asked).protocol, static_cast<DeviceProtocol>(bit));
  }
  DeviceSelectionInput asked = input_of(8);
  asked.keeps_lines = false;
  asked.protocols = 1u << static_cast<uint32_t>(DeviceProtocol::kLl128);
  EXPECT_EQ(choose_for_device(asked).algorithm, nullptr);
}

TEST(ChooseForDevice, TheHostIsBetterOnlyByFarAndWhereMeasured) {
  const double staged = staged_us({64 << 20, 4 << 20, 20, 5000});
  EXPECT_GT(staged, 5000);
  EXPECT_LT(staged, 5000 + 2 * 64 * 1048.576 / 20) << "the steps of pieces overlap";
  EXPECT_FALSE(is_staged_better({}, 1e6, staged));
  EXPECT_FALSE(is_staged_better({true, 1, 1}, staged * 2.5, staged));
  EXPECT_TRUE(is_staged_better({true, 1, 1}, staged * 3.5, staged));
}

TEST(ChooseForDevice, TransfersTakeTheLinksTime) {
  EXPECT_NEAR(transfer_us({true, 2, 10}, 100 << 20, 8), 3.4 + 4 + (100 << 20) / 1e4, 1);
}

}  // namespace
}  // namespace treering::cuda
