// SPDX-License-Identifier: Apache-2.0
// What a peer tells is checked before it is used: immediates, headers, introductions, of any bytes.
#include "transport/verbs/incoming.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "support/seed.h"
#include "transport/verbs/devices/device_choice.h"
#include "transport/verbs/handshake.h"

namespace treering::verbs {
namespace {

constexpr BlockLayout kLayout{.channels = 2, .place_bytes = 4096, .places = 6};

TEST(VerbsWire, ImmediatesKeepTheirParts) {
  for (const ImmediateType type : {ImmediateType::kHeader, ImmediateType::kCredit})
    for (const uint32_t channel : {0u, 1u, 255u})
      for (const uint32_t count : {0u, 1u, kCountMask}) {
        const Immediate back = unpack_immediate(pack_immediate({type, channel, count}));
        EXPECT_EQ(back.type, type);
        EXPECT_EQ(back.channel, channel);
        EXPECT_EQ(back.count, count);
      }
}

TEST(VerbsWire, CountsAreKnownOverTheWrapOf20Bits) {
  for (uint64_t known = (uint64_t{1} << kCountBits) - 20; known < (uint64_t{1} << kCountBits) + 20; ++known)
    for (uint64_t ahead = 0; ahead <= kFifoDepth; ++ahead)
      EXPECT_EQ(full_count(known, static_cast<uint32_t>(known + ahead) & kCountMask), known + ahead);
}

TEST(VerbsWire, PlacesAndLinesOfABlockDoNotOverlap) {
  std::vector<std::pair<size_t, size_t>> ranges;
  for (uint32_t channel = 0; channel <= kLayout.shows(); ++channel) {
    const size_t payload = channel < kLayout.channels ? kLayout.place_bytes : kInlineBytes;
    for (uint64_t number = 0; number < kLayout.places; ++number) {
      EXPECT_EQ(kLayout.data(channel, number) % 64, 0u);
      EXPECT_EQ(kLayout.header(channel, number) + kHeaderBytes, kLayout.data(channel, number)) << "one write has both";
      EXPECT_LE(kLayout.data(channel, number) + payload, kLayout.bytes());
      ranges.emplace_back(kLayout.header(channel, number), kHeaderBytes + payload);
    }
    for (uint64_t number = 0; number < kFifoDepth; ++number) {
      EXPECT_GE(kLayout.own_header(channel, number), kLayout.bytes());
      ranges.emplace_back(kLayout.own_header(channel, number), sizeof(Header));
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 0; i < ranges.size(); ++i)
    EXPECT_LE(ranges[i].first + ranges[i].second, i + 1 < ranges.size() ? ranges[i + 1].first : kLayout.all_bytes());
}

Header* header_at(std::vector<std::byte>* block, uint64_t number) {
  return new (block->data() + kLayout.header(1, number)) Header;
}

TEST(VerbsIncoming, TakesMessagesInOrder) {
  std::vector<std::byte> block(kLayout.bytes());
  Incoming incoming;
  for (uint64_t number = 0; number < 100; ++number) {
    Header* header = header_at(&block, number);
    header->signature = static_cast<uint32_t>(number);
    header->bytes = 8;
    Header taken;
    ASSERT_TRUE(incoming.arrive(block.data(), kLayout, 1, static_cast<uint32_t>(number), 1, &taken).ok());
    header->bytes = 1 << 30;  // what the peer writes later changes nothing
    ASSERT_NE(incoming.front(), nullptr);
    EXPECT_EQ(incoming.front()->signature, number);
    EXPECT_EQ(incoming.front()->bytes, 8u);
    incoming.pop();
    EXPECT_EQ(incoming.front(), nullptr);
  }
}

TEST(VerbsIncoming, RefusesWhatIsNotTheNext) {
  std::vector<std::byte> block(kLayout.bytes());
  Incoming incoming;
  Header header;
  EXPECT_FALSE(incoming.arrive(block.data(), kLayout, 1, 1, 1, &header).ok());
  for (uint32_t number = 0; number < kLayout.places; ++number) {
    header_at(&block, number);
    EXPECT_TRUE(incoming.arrive(block.data(), kLayout, 1, number, 1, &header).ok());
  }
  EXPECT_FALSE(incoming.arrive(block.data(), kLayout, 1, kLayout.places, 1, &header).ok())
      << "more than there are places";
}

// Whatever a header says, its message lies in the block.
TEST(VerbsIncoming, AnyHeaderIsRefusedOrLiesInTheBlock) {
  std::mt19937_64 random(test_seed());
  std::vector<std::byte> block(kLayout.bytes());
  uint32_t refused = 0;
  Incoming incoming;
  uint32_t number = 0;
  for (int i = 0; i < 100'000; ++i) {
    Header* header = header_at(&block, number);
    header->signature = static_cast<uint32_t>(random());
    header->bytes = static_cast<uint32_t>(random() >> (random() % 64));
    header->kind = static_cast<uint8_t>(random() % 6);
    header->wide = static_cast<uint8_t>(random() % 3);
    header->fragments = static_cast<uint8_t>(random() % 3);
    Header taken;
    if (!incoming.arrive(block.data(), kLayout, 1, number, 1, &taken).ok()) {
      ++refused;
      continue;
    }
    ++number;
    const Message& message = *incoming.front();
    if (message.data != nullptr) {
      const auto* data = static_cast<const std::byte*>(message.data);
      EXPECT_GE(data, block.data());
      EXPECT_LE(data + message.bytes, block.data() + block.size());
    }
    incoming.pop();
  }
  EXPECT_GT(refused, 0u);
  EXPECT_GT(number, 0u);
}

TEST(VerbsIntroductions, AnyBytesAreReadWithinTheirBounds) {
  std::mt19937_64 random(test_seed());
  Writer writer;
  EndPoint end;
  end.rails.resize(1);
  end.rails[0].rail.device = "device";
  end.refusal = "a reason";
  writer(end);
  const std::string good = writer.take();
  writer(end.rails[0]);
  const size_t one = writer.take().size();
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes = good.substr(0, random() % (good.size() + 1));
    if (!bytes.empty()) bytes[random() % bytes.size()] = static_cast<char>(random());
    EndPoint read;
    Reader reader(bytes);
    reader(read);
    if (reader.complete()) {
      size_t size = good.size() - one + read.refusal.size() - 8;
      for (const RailEnd& rail : read.rails) size += one + rail.rail.device.size() - 6;
      EXPECT_EQ(bytes.size(), size);
    }
  }
}

TEST(VerbsDevices, AreNamedAsInterfacesAre) {
  const auto allows = [](const char* text, const char* device, unsigned port) {
    return DeviceChoice(text).allows(device, port);
  };
  EXPECT_TRUE(allows("", "mlx5_0", 1));
  EXPECT_TRUE(allows("mlx5", "mlx5_10", 2));
  EXPECT_TRUE(allows("rxe,mlx5_1:2", "mlx5_10", 2));
  EXPECT_FALSE(allows("rxe,mlx5_1:2", "mlx5_10", 1));
  EXPECT_TRUE(allows("=mlx5_1:2", "mlx5_1", 2));
  EXPECT_FALSE(allows("=mlx5_1", "mlx5_10", 1));
  EXPECT_FALSE(allows("^mlx5_1", "mlx5_1", 1));
  EXPECT_TRUE(allows("^mlx5_1:2", "mlx5_1", 1));
}

// Both ends, with every introduction lost that the bits of `lost` name: once they are repeated both may send, and
// neither does before the other is connected.
TEST(VerbsHandshake, EndsWhateverIntroductionsAreLost) {
  for (uint32_t lost = 0; lost < 256; ++lost) {
    Handshake ends[2];
    struct Introduction {
      int to;
      bool is_connected, may_send;
    };
    std::vector<Introduction> way;
    uint32_t made = 0;
    const auto introduce = [&](int from) {
      const bool is_lost = made < 8 && (lost >> made & 1) != 0;
      ++made;
      if (!is_lost) way.push_back({1 - from, ends[from].is_connected(), ends[from].may_send()});
    };
    for (int round = 0; round < 10; ++round) {
      if (round == 0 || !ends[0].may_send())
        if (ends[0].start().introduce) introduce(0);
      if (round > 0 && !ends[1].may_send() && ends[1].start().introduce) introduce(1);
      while (!way.empty()) {
        const Introduction next = way.front();
        way.erase(way.begin());
        if (ends[next.to].hear(next.is_connected, next.may_send).introduce) introduce(next.to);
        for (int end : {0, 1})
          if (ends[end].may_send()) {
            ASSERT_TRUE(ends[1 - end].is_connected()) << lost;
          }
      }
    }
    EXPECT_TRUE(ends[0].may_send() && ends[1].may_send()) << lost;
    EXPECT_LT(made, 30u);
  }
}

}  // namespace
}  // namespace treering::verbs
