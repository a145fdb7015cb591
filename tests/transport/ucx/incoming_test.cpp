// SPDX-License-Identifier: Apache-2.0
// What comes out of order is put into order; what cannot be is refused. No UCX.
#include "transport/ucx/incoming.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "support/seed.h"
#include "transport/ucx/sending.h"
#include "transport/ucx/wire.h"

namespace treering::ucx {
namespace {

Message numbered(uint64_t number) {
  Message message;
  message.signature = static_cast<uint32_t>(number);
  return message;
}

// Headers and payloads of a window come in any order.
TEST(UcxIncoming, AnyOrderWithinTheWindowIsPutRight) {
  std::mt19937_64 random(test_seed());
  Incoming incoming;
  for (int lap = 0; lap < 500; ++lap) {
    const uint64_t base = incoming.popped();
    std::vector<uint64_t> order(kFifoDepth);
    for (uint32_t i = 0; i < kFifoDepth; ++i) order[i] = base + i;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<uint64_t> landing;
    for (const uint64_t number : order) {
      uint64_t full = 0;
      ASSERT_TRUE(incoming.arrive(static_cast<uint32_t>(number), numbered(number), &full).ok());
      ASSERT_EQ(full, number);
      landing.push_back(full);
    }
    EXPECT_EQ(incoming.front(), nullptr) << "no payload is there yet";
    std::shuffle(landing.begin(), landing.end(), random);
    for (const uint64_t full : landing) incoming.complete(full, nullptr);
    for (uint64_t number = base; number < base + kFifoDepth; ++number) {
      ASSERT_NE(incoming.front(), nullptr);
      EXPECT_EQ(incoming.front()->signature, static_cast<uint32_t>(number));
      incoming.pop();
    }
    EXPECT_EQ(incoming.front(), nullptr);
  }
}

TEST(UcxIncoming, AMessageWaitsForThoseBeforeIt) {
  Incoming incoming;
  uint64_t full = 0;
  ASSERT_TRUE(incoming.arrive(1, numbered(1), &full).ok());
  incoming.complete(full, nullptr);
  EXPECT_EQ(incoming.front(), nullptr);
  ASSERT_TRUE(incoming.arrive(0, numbered(0), &full).ok());
  EXPECT_EQ(incoming.front(), nullptr);
  incoming.complete(full, &full);
  ASSERT_NE(incoming.front(), nullptr);
  EXPECT_EQ(incoming.front()->data, &full);
}

TEST(UcxIncoming, RefusesWhatIsNoMessageOfTheWindow) {
  Incoming incoming;
  uint64_t full = 0;
  EXPECT_FALSE(incoming.arrive(kFifoDepth, {}, &full).ok()) << "too far ahead";
  EXPECT_FALSE(incoming.arrive(UINT32_MAX, {}, &full).ok()) << "read before";
  ASSERT_TRUE(incoming.arrive(3, {}, &full).ok());
  EXPECT_NE(incoming.arrive(3, {}, &full).message().find("before"), std::string::npos);
}

TEST(UcxIncoming, OwesACreditForEveryGroupOfPops) {
  Incoming incoming;
  for (uint32_t number = 0; number < 3 * kTellEvery; ++number) {
    uint64_t full = 0;
    ASSERT_TRUE(incoming.arrive(number, {}, &full).ok());
    incoming.complete(full, nullptr);
    incoming.pop();
    EXPECT_EQ(incoming.owes_credit(), (number + 1) % kTellEvery == 0);
    if (incoming.owes_credit()) incoming.told();
  }
}

// UCX is done with sends in any order; memory is released in that of the posts.
TEST(UcxSending, ReleasesInOrder) {
  Sending sending;
  UnderWay all;
  std::vector<Note*> notes;
  for (uint32_t i = 0; i < kFifoDepth; ++i) {
    ASSERT_TRUE(sending.has_room());
    notes.push_back(&sending.post().note);
    notes.back()->begin(&all);
  }
  EXPECT_FALSE(sending.has_room());
  EXPECT_EQ(all.count, kFifoDepth);
  notes[1]->end(0);
  EXPECT_EQ(sending.taken(), 0u);
  notes[0]->end(0);
  EXPECT_EQ(sending.taken(), 2u);
  ASSERT_TRUE(sending.credit(5).ok());
  EXPECT_TRUE(sending.has_room());
  for (uint32_t i = 0; i < 2; ++i) notes.push_back(&sending.post().note);
  EXPECT_FALSE(sending.has_room()) << "popped, but UCX still reads its place";
}

TEST(UcxSending, CreditsMayOvertakeEachOther) {
  Sending sending;
  for (uint32_t i = 0; i < 6; ++i) (void)sending.post();
  ASSERT_TRUE(sending.credit(5).ok());
  ASSERT_TRUE(sending.credit(2).ok()) << "older news";
  EXPECT_FALSE(sending.all_freed());
  EXPECT_FALSE(sending.credit(7).ok()) << "more than were posted";
  ASSERT_TRUE(sending.credit(6).ok());
  EXPECT_TRUE(sending.all_freed());
}

TEST(UcxSending, RemembersTheFirstError) {
  UnderWay all;
  Note first, second;
  first.begin(&all);
  second.begin(&all);
  first.end(-3);
  second.end(-4);
  EXPECT_EQ(all.count, 0u);
  EXPECT_EQ(all.error, -3);
}

// Whatever a header says: what is taken fits its place.
TEST(UcxWire, AnyHeaderIsRefusedOrFits) {
  constexpr size_t kPlaceBytes = 4096;
  std::mt19937_64 random(test_seed());
  uint32_t taken = 0;
  for (int i = 0; i < 200'000; ++i) {
    Header header;
    header.bytes = static_cast<uint32_t>(random() >> (random() % 64));
    header.kind = static_cast<uint8_t>(random() % 6);
    header.wide = static_cast<uint8_t>(random() % 3);
    header.has_payload = static_cast<uint8_t>(random() % 3);
    const size_t other = random() % 2 == 0 ? 0 : random() % 5000;
    const size_t length = random() % 2 == 0 ? header.bytes : other;
    if (!check(header, length, kPlaceBytes).ok()) continue;
    ++taken;
    EXPECT_LE(header.kind, static_cast<uint8_t>(PayloadKind::kDelivered));
    EXPECT_LE(length, header.kind == static_cast<uint8_t>(PayloadKind::kInline) ? kInlineBytes : kPlaceBytes);
    EXPECT_EQ(length, header.has_payload != 0 ? header.bytes : 0);
  }
  EXPECT_GT(taken, 1000u);
}

}  // namespace
}  // namespace treering::ucx
