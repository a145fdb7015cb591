// SPDX-License-Identifier: Apache-2.0
// Rails without devices: which ports they are, how payloads are divided over them, what arrives by them, and which
// introductions can be used.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "support/seed.h"
#include "transport/verbs/end_check.h"
#include "transport/verbs/incoming.h"
#include "transport/verbs/fragments.h"
#include "transport/verbs/devices/rail_choice.h"
#include "transport/verbs/sending.h"

namespace treering::verbs {
namespace {

constexpr BlockLayout kLayout{2, 4096};

PortCandidate port(const char* name, int distance, uint32_t gbps = 100, uint8_t link_layer = 2) {
  return {.name = name, .link_layer = link_layer, .mbps = gbps * 1000, .distance = distance, .why_not = {}};
}

TEST(VerbsRailChoice, TakesThePortsThatAreNearest) {
  std::vector<PortCandidate> ports{port("mlx5_0", 2), port("mlx5_1", 0), port("mlx5_2", 0),
                                   port("rxe0", kUnknownDistance)};
  ports.push_back(port("mlx5_4", 0));
  ports.back().why_not = "it is down";
  EXPECT_EQ(choose_rails(&ports), (std::vector<size_t>{1, 2}));
  EXPECT_EQ(ports[0].why_not, "mlx5_1 is nearer to the rank's cores");
  EXPECT_EQ(ports[3].why_not, "mlx5_1 is nearer to the rank's cores");
  EXPECT_EQ(ports[4].why_not, "it is down") << "the first reason stays";
}

TEST(VerbsRailChoice, WithoutKnownPlacesAllAreEquallyNear) {
  std::vector<PortCandidate> ports{port("rxe0", kUnknownDistance), port("rxe1", kUnknownDistance)};
  EXPECT_EQ(choose_rails(&ports).size(), 2u);
  ports.clear();
  EXPECT_TRUE(choose_rails(&ports).empty());
}

TEST(VerbsRailChoice, TakesOneLinkLayerNoSlowPortAndNotTooMany) {
  std::vector<PortCandidate> ports{port("eth", 0, 25), port("ib0", 0, 200, 1), port("slow", 0, 99, 1),
                                   port("half", 0, 100, 1)};
  EXPECT_EQ(choose_rails(&ports), (std::vector<size_t>{1, 3}));
  EXPECT_EQ(ports[0].why_not, "its link layer is not that of ib0");
  EXPECT_EQ(ports[2].why_not, "at 99 Gbit/s it is less than half as fast as ib0");
  std::vector<PortCandidate> many(kMaxRails + 2, port("mlx5", 1));
  EXPECT_EQ(choose_rails(&many).size(), kMaxRails);
  EXPECT_EQ(many.back().why_not, "a rank uses 4 ports at most");
}

TEST(VerbsFragments, AreDividedByTheRates) {
  Fragments fragments;
  const std::vector<uint32_t> even{100, 100}, uneven{100, 50, 50}, one{100};
  EXPECT_EQ(divide(1 << 20, one, 0, kMinDivided, &fragments), 1u);
  EXPECT_EQ(fragments[0].bytes, 1u << 20);
  EXPECT_EQ(divide(kMinDivided - 1, even, 0, kMinDivided, &fragments), 1u);
  ASSERT_EQ(divide(1 << 20, even, 1, kMinDivided, &fragments), 2u);
  EXPECT_EQ(fragments[0].bytes, 1u << 19);
  EXPECT_EQ(fragments[1].offset, 1u << 19);
  ASSERT_EQ(divide(1 << 20, uneven, 2, kMinDivided, &fragments), 3u) << "the first fragment is that of rail 2";
  EXPECT_EQ(fragments[0].bytes, 1u << 18);
  EXPECT_EQ(fragments[1].bytes, 1u << 19);
  EXPECT_EQ(fragments[2].bytes, 1u << 18);
}

TEST(VerbsFragments, CoverAnyPayloadOnceAndAreNeverEmpty) {
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 100'000; ++i) {
    std::vector<uint32_t> rates(1 + random() % kMaxRails);
    for (uint32_t& rate : rates) rate = static_cast<uint32_t>(random() >> (random() % 64));
    const auto bytes = static_cast<uint32_t>(1 + (random() >> (32 + random() % 32)) / 2);
    const auto first = static_cast<uint32_t>(random() % rates.size());
    Fragments fragments;
    const uint32_t count = divide(bytes, rates, first, static_cast<uint32_t>(random() % 1000), &fragments);
    ASSERT_TRUE(count == 1 || count == rates.size());
    uint64_t end = 0;
    for (uint32_t fragment = 0; fragment < count; ++fragment) {
      EXPECT_EQ(fragments[fragment].offset, end);
      EXPECT_GT(fragments[fragment].bytes, 0u);
      end += fragments[fragment].bytes;
    }
    ASSERT_EQ(end, bytes);
  }
}

// The header of message `number` of channel 1, of so many fragments.
Status take_header(Incoming* incoming, std::vector<std::byte>* block, uint32_t number, uint8_t fragments,
                   uint32_t rails) {
  auto* header = new (block->data() + kLayout.header(1, number)) Header;
  header->signature = number;
  header->bytes = 4096;
  header->kind = static_cast<uint8_t>(PayloadKind::kStaging);
  header->fragments = fragments;
  Header taken;
  return incoming->arrive(block->data(), kLayout, 1, number, rails, &taken);
}

// Headers come in order; fragments come when they like.
TEST(VerbsIncomingFragments, AMessageIsThereWithItsHeaderAndAllFragments) {
  std::mt19937_64 random(test_seed());
  std::vector<std::byte> block(kLayout.bytes());
  Incoming incoming;
  constexpr uint32_t kMessages = 70'000;  // over the wrap of 16 bits
  for (uint32_t first = 0; first < kMessages; first += kFifoDepth) {
    // Event 0 of a message is its header, the others are fragments.
    struct Event {
      uint32_t number, fragment;
    };
    std::vector<Event> events;
    std::vector<uint32_t> left(kFifoDepth), fragments(kFifoDepth);
    for (uint32_t i = 0; i < kFifoDepth; ++i) {
      left[i] = fragments[i] = static_cast<uint32_t>(1 + random() % kMaxRails);
      for (uint32_t fragment = 0; fragment < fragments[i]; ++fragment) events.push_back({i, fragment});
    }
    std::shuffle(events.begin(), events.end(), random);
    uint32_t headers = 0;
    for (const Event& event : events) {
      const uint32_t at = event.fragment == 0 ? headers++ : event.number;
      const Status taken =
          event.fragment == 0
              ? take_header(&incoming, &block, first + at, static_cast<uint8_t>(fragments[at]), kMaxRails)
              : incoming.arrive_fragment(kLayout, pack_fragment(event.fragment, first + at), kMaxRails);
      ASSERT_TRUE(taken.ok()) << taken.message();
      --left[at];
      ASSERT_EQ(incoming.front() != nullptr, left[0] == 0);
    }
    for (uint32_t i = 0; i < kFifoDepth; ++i) {
      ASSERT_NE(incoming.front(), nullptr);
      ASSERT_EQ(incoming.front()->signature, first + i);
      incoming.pop();
    }
  }
}

TEST(VerbsIncomingFragments, FragmentsThatCannotBeAreRefused) {
  std::vector<std::byte> block(kLayout.bytes());
  Incoming incoming;
  EXPECT_FALSE(incoming.arrive_fragment(kLayout, pack_fragment(0, 0), 4).ok()) << "fragment 0 comes with the header";
  EXPECT_FALSE(incoming.arrive_fragment(kLayout, pack_fragment(2, 0), 2).ok()) << "there are rails 0 and 1";
  EXPECT_FALSE(incoming.arrive_fragment(kLayout, pack_fragment(1, kFifoDepth), 2).ok()) << "it has no place";
  EXPECT_FALSE(incoming.arrive_fragment(kLayout, pack_fragment(15, 0), 4).ok());
  EXPECT_TRUE(incoming.arrive_fragment(kLayout, pack_fragment(1, 0), 4).ok());
  EXPECT_FALSE(incoming.arrive_fragment(kLayout, pack_fragment(1, 0), 4).ok()) << "twice";
  EXPECT_FALSE(take_header(&incoming, &block, 0, 1, 4).ok())
      << "fragment 1 has come, and the header says that there is none";
  Incoming other;
  EXPECT_FALSE(take_header(&other, &block, 0, 3, 2).ok()) << "more fragments than rails";
  ASSERT_TRUE(take_header(&other, &block, 0, 2, 4).ok());
  EXPECT_FALSE(other.arrive_fragment(kLayout, pack_fragment(2, 0), 4).ok()) << "it has two";
  EXPECT_TRUE(other.arrive_fragment(kLayout, pack_fragment(1, 0), 4).ok());
  EXPECT_FALSE(other.arrive_fragment(kLayout, pack_fragment(1, 0), 4).ok()) << "twice";
  EXPECT_NE(other.front(), nullptr);
}

// Anything that a peer may tell: no message goes beyond its place, and none is read before it was told.
TEST(VerbsIncomingFragments, AnyCountIsRefusedOrCounts) {
  std::mt19937_64 random(test_seed());
  std::vector<std::byte> block(kLayout.bytes());
  Incoming incoming;
  uint32_t headers = 0, taken = 0, refused = 0;
  for (int i = 0; i < 200'000; ++i) {
    const auto rails = static_cast<uint32_t>(1 + random() % kMaxRails);
    const bool is_header = random() % 3 == 0;
    const Status status =
        is_header
            ? take_header(&incoming, &block, headers & kCountMask, static_cast<uint8_t>(random() % 6), rails)
            : incoming.arrive_fragment(kLayout, pack_fragment(random() % 16, incoming.popped() + random() % 10), rails);
    headers += is_header && status.ok();
    ++(status.ok() ? taken : refused);
    if (incoming.front() != nullptr) incoming.pop();
    if (incoming.popped() + kFifoDepth == headers && incoming.front() == nullptr) incoming = {}, headers = 0;  // stuck
  }
  EXPECT_GT(taken, 1000u);
  EXPECT_GT(refused, 1000u);
}

TEST(VerbsSending, APayloadIsFreeOnceAllItsFragmentsAreWritten) {
  Sending sending;
  const auto send = [&](bool on_0, bool on_1) {
    if (on_0) sending.give(0, sending.sent);
    if (on_1) sending.give(1, sending.sent);
    ++sending.sent;
  };
  sending.posted = 5;
  sending.with_payload = 4;
  EXPECT_EQ(sending.released(), 0u) << "nothing is sent";
  send(true, true), send(true, false), send(false, false), send(true, true), send(false, false);
  EXPECT_EQ(sending.released(), 0u);
  sending.written[0] = 1;
  EXPECT_EQ(sending.released(), 0u) << "rail 1 has not written its fragment";
  sending.written[1] = 1;
  EXPECT_EQ(sending.released(), 1u);
  sending.written[0] = 4;
  EXPECT_EQ(sending.released(), 1u);
  sending.written[1] = 4;
  EXPECT_EQ(sending.released(), 5u);
  sending.posted = sending.with_payload = 6;
  EXPECT_EQ(sending.released(), 5u) << "what waits takes nothing back";
  send(false, true);
  EXPECT_EQ(sending.released(), 5u);
  sending.forget();
  EXPECT_EQ(sending.released(), 6u);
}

EndPoint good_end() {
  EndPoint end;
  for (uint32_t number = 0; number < 2; ++number) {
    RailEnd rail{number, 17 + number, 99, {}, 5};
    rail.rail = {"mlx5_0", 1, 2, 5, 0, 3, {}, 100'000};
    end.rails.push_back(rail);
  }
  end.block = 1 << 20;
  end.channels = 2;
  end.place_bytes = 4096;
  end.places = kFifoDepth;
  return end;
}

TEST(VerbsIntroductions, EachFieldIsChecked) {
  const EndPoint good = good_end();
  EXPECT_TRUE(check_end(good, good).ok());
  const auto error_of = [&](auto change) {
    EndPoint bad = good;
    change(&bad);
    return check_end(bad, good).message();
  };
  const auto expect_error = [&](auto change, const char* part) {
    const std::string error = error_of(change);
    EXPECT_NE(error.find(part), std::string::npos) << part << " is not in '" << error << "'";
  };
  expect_error([](EndPoint* end) { end->channels = 3; }, "it has 3 channels");
  expect_error([](EndPoint* end) { end->place_bytes = 1; }, "places of 1 bytes");
  expect_error([](EndPoint* end) { end->places = kMinPlaces - 1; }, "and 4 places");
  expect_error([](EndPoint* end) { end->places = kFifoDepth + 1; }, "and 9 places");
  expect_error([](EndPoint* end) { end->block = 0; }, "cannot be at 0x0");
  expect_error([](EndPoint* end) { end->block = UINT64_MAX - 5; }, "cannot be at 0xfffffffffffffffa");
  expect_error([](EndPoint* end) { end->rails.clear(); }, "it has 0 rails");
  expect_error([](EndPoint* end) { end->rails.resize(kMaxRails + 1); }, "it has 5 rails");
  expect_error([](EndPoint* end) { end->rails[1].number = 0; }, "its rail 1 cannot have the number 0");
  expect_error([](EndPoint* end) { end->rails[1].number = kMaxRails; }, "cannot have the number 4");
  expect_error([](EndPoint* end) { end->rails[1].queue_pair = 0; }, "queue pair 0x0");
  expect_error([](EndPoint* end) { end->rails[1].queue_pair = 1 << 24; }, "queue pair 0x1000000");
  expect_error([](EndPoint* end) { end->rails[0].first_packet = 1 << 24; }, "packet 0x1000000");
  expect_error([](EndPoint* end) { end->rails[0].rail.mtu = 0; }, "MTU 0");
  expect_error([](EndPoint* end) { end->rails[0].rail.mtu = 6; }, "MTU 6");
  expect_error([](EndPoint* end) { end->rails[0].rail.device.clear(); }, "0 letters");
  expect_error([](EndPoint* end) { end->rails[0].rail.device.resize(65); }, "65 letters");
  expect_error([](EndPoint* end) { end->rails[1].rail.link_layer = 1; }, "has the link layer 1");
}

// Both ends use the rails that both have.
TEST(VerbsIntroductions, ACommonRailIsEnough) {
  EndPoint own = good_end(), peer = good_end();
  peer.rails.pop_back();
  EXPECT_TRUE(check_end(peer, own).ok());
  EXPECT_TRUE(check_end(own, peer).ok());
  own.rails.erase(own.rails.begin());
  EXPECT_NE(check_end(peer, own).message().find("by none of the rails"), std::string::npos);
}

}  // namespace
}  // namespace treering::verbs
