// SPDX-License-Identifier: Apache-2.0
// Which buffers are registered: uses and measured times in, advice out.
#include "peers/reused_buffers.h"

#include <gtest/gtest.h>

#include <random>

#include "support/seed.h"

namespace treering {
namespace {

constexpr size_t kMiB = 1 << 20;
constexpr double kCopy = 1e-10;  // seconds of a byte
using Action = ReusedBuffers::Action;

ByteRange at(uintptr_t mib, size_t mibs = 1) { return {mib * kMiB, (mib + mibs) * kMiB}; }
double seconds(size_t mibs, double copies) { return static_cast<double>(mibs * kMiB) * kCopy * copies; }

Action use_in_call(ReusedBuffers* buffers, ByteRange bytes) {
  buffers->begin_call();
  return buffers->use(bytes).action;
}
// Calls until it is to be registered.
int copies(ReusedBuffers* buffers, ByteRange bytes) {
  for (int calls = 0; calls < 10'000; ++calls)
    if (use_in_call(buffers, bytes) == Action::kRegister) return calls;
  return -1;
}

TEST(ReusedBuffers, AreRegisteredOnceCopyingHasCostAsMuch) {
  ReusedBuffers buffers({.copy_seconds = kCopy});
  EXPECT_EQ(copies(&buffers, at(1)), 1) << "the first is expected to cost as much as a copy";
  buffers.added(at(1), 7, seconds(1, 3));
  const ReusedBuffers::Advice advice = buffers.use(at(1));
  EXPECT_EQ(advice.action, Action::kRefer);
  EXPECT_EQ(advice.buffer->id, 7u);
  EXPECT_NEAR(copies(&buffers, at(3)), 3, 1) << "what was measured counts from then on";
  buffers.added(at(3), 8, seconds(1, 10'000));
  EXPECT_NEAR(copies(&buffers, at(5)), 12, 1) << "but a longer time four times what was expected at most";
  buffers.added(at(5), 9, seconds(1, 5));
  EXPECT_NEAR(copies(&buffers, at(7)), 5, 1) << "a shorter time counts as it is";
  EXPECT_NEAR(copies(&buffers, at(10, 4)), 5, 1) << "for four times as many it takes four times as long";
  EXPECT_NEAR(copies(&buffers, {0, kMiB / 4}), 20, 1) << "for a quarter of them as long";
  buffers.added({0, kMiB / 4}, 10, seconds(1, 1) / 2);
  EXPECT_NEAR(copies(&buffers, {kMiB / 2, 3 * kMiB / 4}), 2, 1) << "until it was measured";
}

TEST(ReusedBuffers, PartsOfThemAreFound) {
  ReusedBuffers buffers({.copy_seconds = kCopy});
  copies(&buffers, at(1, 8));
  buffers.added(at(1, 8), 3, seconds(8, 10));
  EXPECT_EQ(use_in_call(&buffers, at(4)), Action::kRefer);
  EXPECT_EQ(use_in_call(&buffers, at(8, 2)), Action::kCopy) << "the end lies outside";
  buffers.begin_call();
  EXPECT_EQ(buffers.replaced_by(at(0, 10)), 3u) << "a larger one takes its place";
  buffers.ended(3);
  EXPECT_EQ(use_in_call(&buffers, at(4)), Action::kCopy);
}

TEST(ReusedBuffers, SmallOnesAndTooLargeOnesAreCopied) {
  ReusedBuffers buffers({.bytes = 4 * kMiB, .copy_seconds = kCopy});
  EXPECT_EQ(copies(&buffers, {0, kMinReused - 1}), -1);
  EXPECT_EQ(copies(&buffers, at(1, 5)), -1);
  EXPECT_EQ(copies(&buffers, {0, kMinReused}), 1);
}

TEST(ReusedBuffers, TheLeastRecentlyUsedGivesWayButNoneOfTheCall) {
  ReusedBuffers buffers({.buffers = 3, .bytes = 5 * kMiB, .copy_seconds = kCopy});
  for (uint32_t id = 1; id <= 3; ++id) buffers.begin_call(), buffers.added(at(10 * id), id, 0);
  use_in_call(&buffers, at(10));
  EXPECT_EQ(buffers.replaced_by(at(50)), 2u);
  buffers.use(at(20));
  EXPECT_EQ(buffers.replaced_by(at(50)), 3u);
  buffers.use(at(30));
  EXPECT_FALSE(buffers.replaced_by(at(50)));
  EXPECT_FALSE(buffers.has_room(at(50)));
  buffers.begin_call();
  buffers.ended(2);
  EXPECT_FALSE(buffers.replaced_by(at(50, 3)));
  EXPECT_TRUE(buffers.has_room(at(50, 3)));
  EXPECT_EQ(buffers.replaced_by(at(50, 4)), 1u) << "bytes count, too";
}

TEST(ReusedBuffers, WhatWasRefusedIsTriedEverLater) {
  ReusedBuffers buffers({.copy_seconds = kCopy});
  int before = 0;
  for (int time = 0; time < 8; ++time) {
    const int now = copies(&buffers, at(1));
    EXPECT_GE(now, before * 3 / 2);
    before = now;
    buffers.refused(at(1));
  }
  EXPECT_GE(before, 100);
}

TEST(ReusedBuffers, AnotherSizeAtTheAddressIsAnotherBuffer) {
  ReusedBuffers buffers({.copy_seconds = kCopy});
  for (int time = 0; time < 100; ++time) EXPECT_EQ(use_in_call(&buffers, at(1, 1 + time % 2)), Action::kCopy);
}

// Whatever is used, and however often registrations end: it takes at most twice as long as to copy everything, but for the
// registrations by which the time of two sizes is learnt, and the limits are kept.
TEST(ReusedBuffers, CostAtMostTwiceWhatCopiesCost) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 200; ++round) {
    const ReusedBuffers::Limits limits{.buffers = 1 + random() % 8, .bytes = 16 * kMiB, .copy_seconds = kCopy};
    ReusedBuffers buffers(limits);
    const double register_copies = static_cast<double>(1 + random() % 50);
    const uint64_t different = 1 + random() % 20;
    double spent = 0, copied = 0;
    uint32_t id = 0;
    for (int call = 0; call < 2000; ++call) {
      const ByteRange bytes = at(1 + 4 * (random() % different), 1 + random() % 2);
      buffers.begin_call();
      const Action action = buffers.use(bytes).action;
      if (action == Action::kCopy) spent += seconds(bytes.bytes() / kMiB, 1);
      if (action == Action::kRegister) {
        while (const auto replaced = buffers.replaced_by(bytes)) buffers.ended(*replaced);
        ASSERT_TRUE(buffers.has_room(bytes));
        const double cost = seconds(bytes.bytes() / kMiB, register_copies);
        buffers.added(bytes, ++id, cost);
        spent += cost;
      }
      ASSERT_LE(buffers.buffers().size(), limits.buffers);
      copied += seconds(bytes.bytes() / kMiB, 1);
      if (random() % 100 == 0 && !buffers.buffers().empty()) buffers.ended(buffers.buffers().front().id);
    }
    EXPECT_LE(spent, 2 * copied + 6 * seconds(2, register_copies)) << "round " << round;
  }
}

}  // namespace
}  // namespace treering
