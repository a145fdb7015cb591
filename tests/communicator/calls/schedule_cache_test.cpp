// SPDX-License-Identifier: Apache-2.0
// Bands, constraints, programs and lanes: decided once, kept, and the same for all threads.
#include "communicator/calls/schedule_cache.h"

#include <gtest/gtest.h>

#include <thread>

namespace treering {
namespace {

constexpr uint32_t kRanks = 4;

ScheduleCache cache_of(const std::string& forced = "", uint32_t channels = 0) {
  Machine machine;
  machine.cores = kRanks;
  return {flat_plan(kRanks), 1, machine, forced, channels};
}

TEST(Bands, EndAtPowersOfTwo) {
  ScheduleCache cache = cache_of();
  const auto choice = [&](size_t bytes) { return &cache.choose(Collective::kAllReduce, bytes, 0); };
  EXPECT_EQ(choice(0), choice(1));
  EXPECT_NE(choice(1), choice(2));
  EXPECT_EQ(choice(1025), choice(2048));
  EXPECT_NE(choice(1024), choice(1025));
  EXPECT_NE(choice(2048), choice(2049));
  EXPECT_EQ(choice(1500), choice(1025)) << "decided once";
  EXPECT_EQ(choice(SIZE_MAX), choice(SIZE_MAX / 2 + 2)) << "the last band";
  EXPECT_NE(choice(SIZE_MAX / 2 + 1), choice(SIZE_MAX / 2 + 2));
}

TEST(Bands, AreApartForEachCollectiveAndSetOfConstraints) {
  ScheduleCache cache = cache_of();
  const Choice& free = cache.choose(Collective::kAllReduce, 1 << 20, 0);
  const Choice& ordered = cache.choose(Collective::kAllReduce, 1 << 20, kRankOrdered);
  const Choice& once = cache.choose(Collective::kAllReduce, 1 << 20, kComputedOnce);
  const Choice& unequal = cache.choose(Collective::kAllGather, 1 << 20, kUnequalParts);
  EXPECT_NE(&free, &ordered);
  EXPECT_NE(&free, &once);
  EXPECT_NE(&unequal, &cache.choose(Collective::kAllGather, 1 << 20, 0));
  EXPECT_TRUE(ordered.candidate.algorithm->rank_ordered);
  EXPECT_TRUE(once.candidate.algorithm->computed_once);
  EXPECT_FALSE(unequal.candidate.algorithm->equal_parts_only);
}

TEST(Choices, TinyOnesGoByTheMailbox) {
  ScheduleCache cache = cache_of();
  EXPECT_TRUE(cache.choose(Collective::kAllReduce, 8, 0).mailbox);
  EXPECT_FALSE(cache.choose(Collective::kAllReduce, 64 << 20, 0).mailbox);
}

TEST(Forced, RankZeroWarnsOnceWhereAnAlgorithmCannotBeTaken) {
  struct Case {
    uint32_t rank;
    bool warns;
  };
  for (const auto& [rank, warns] : {Case{1, false}, Case{0, true}, Case{0, false}}) {
    ScheduleCache cache(flat_plan(kRanks), rank, Machine(), "ring", 0);
    ::testing::internal::CaptureStderr();
    (void)cache.choose(Collective::kAllReduce, 8, 0);
    for (size_t bytes : {size_t{8}, size_t{1} << 20}) (void)cache.choose(Collective::kAllReduce, bytes, kRankOrdered);
    const std::string said = ::testing::internal::GetCapturedStderr();
    const std::string warning =
        "TREERING_ALGO is not followed in allreduce: ring: does not combine in the order of the ranks";
    const size_t at = said.find(warning);
    EXPECT_EQ(at != said.npos, warns) << said;
    EXPECT_TRUE(at == said.npos || said.find(warning, at + 1) == said.npos) << said;
  }
}

TEST(Forced, RankZeroWarnsOnceWhereOneIsOfNoUseOnASingleHost) {
  for (const auto& [rank, warns] : {std::pair{1u, false}, std::pair{0u, true}, std::pair{0u, false}}) {
    ScheduleCache cache(flat_plan(kRanks), rank, Machine(), "hierarchical", 0);
    ::testing::internal::CaptureStderr();
    for (size_t bytes : {size_t{8}, size_t{1} << 20})
      EXPECT_STREQ(cache.choose(Collective::kAllReduce, bytes, 0).candidate.algorithm->name, "hierarchical");
    const std::string said = ::testing::internal::GetCapturedStderr();
    const std::string warning =
        "TREERING_ALGO forces hierarchical in allreduce, which is for ranks on 2 hosts or more, these are on 1; it is "
        "used all the same";
    const size_t at = said.find(warning);
    EXPECT_EQ(at != said.npos, warns) << said;
    EXPECT_TRUE(at == said.npos || said.find(warning, at + 1) == said.npos) << said;
  }
}

TEST(Forced, AlgorithmsAndChannelsAreTaken) {
  ScheduleCache cache = cache_of("ring", 2);
  ASSERT_TRUE(cache.check().ok()) << cache.check().message();
  for (size_t bytes : {size_t{8}, size_t{1} << 24}) {
    const Choice& choice = cache.choose(Collective::kAllReduce, bytes, 0);
    EXPECT_STREQ(choice.candidate.algorithm->name, "ring");
    EXPECT_EQ(cache.program(choice, 0).channels.size(), choice.candidate.channels);
  }
  EXPECT_EQ(cache.choose(Collective::kAllReduce, 1 << 24, 0).candidate.channels, 2u);
}

TEST(Forced, WhatDoesNotExistIsAnErrorOfTheCheck) {
  ScheduleCache cache = cache_of("no-such-one");
  const Status status = cache.check();
  EXPECT_EQ(status.code(), trInvalidArgument);
  EXPECT_NE(status.message().find("no-such-one"), std::string::npos) << status.message();
  std::string text;
  EXPECT_FALSE(cache.explain(Collective::kAllReduce, 8, 0, &text).ok());
}

TEST(Programs, ExistOnceForEachRoot) {
  ScheduleCache cache = cache_of();
  const Choice& broadcast = cache.choose(Collective::kBroadcast, 1 << 20, 0);
  ASSERT_EQ(broadcast.by_root.size(), kRanks);
  const Program& from_0 = cache.program(broadcast, 0);
  const Program& from_3 = cache.program(broadcast, 3);
  EXPECT_NE(&from_0, &from_3);
  EXPECT_EQ(&from_0, &cache.program(broadcast, 0));
  EXPECT_EQ(&from_3, &cache.program(broadcast, 3));
  EXPECT_EQ(from_0.algorithm, broadcast.candidate.algorithm);
  EXPECT_EQ(from_0.channels.size(), broadcast.candidate.channels);
  const Choice& sum = cache.choose(Collective::kAllReduce, 1 << 20, 0);
  ASSERT_EQ(sum.by_root.size(), 1u);
  EXPECT_EQ(&cache.program(sum, 0), &cache.program(sum, 3)) << "it has no root";
}

TEST(Programs, AreSharedByBandsThatChooseAlike) {
  ScheduleCache cache = cache_of("ring", 1);
  const Choice& one = cache.choose(Collective::kAllReduce, 1 << 22, 0);
  const Choice& other = cache.choose(Collective::kAllReduce, 1 << 23, 0);
  ASSERT_NE(&one, &other);
  ASSERT_EQ(one.candidate.pipeline_chunks, other.candidate.pipeline_chunks);
  EXPECT_EQ(&cache.program(one, 0), &cache.program(other, 0));
}

TEST(Lanes, ExistOnceForEachPeerAndDirection) {
  ScheduleCache cache = cache_of();
  EXPECT_EQ(cache.send_lane(2), cache.send_lane(2));
  EXPECT_NE(cache.send_lane(2), cache.send_lane(3));
  EXPECT_NE(cache.send_lane(2), cache.receive_lane(2));
  EXPECT_EQ(cache.receive_lane(0), cache.receive_lane(0));
  EXPECT_EQ(cache.copy_lane(), cache.copy_lane());
  EXPECT_NE(cache.copy_lane(), cache.send_lane(1));
}

TEST(Threads, GetTheSame) {
  ScheduleCache cache = cache_of();
  constexpr size_t kThreads = 4;
  constexpr size_t kLooks = 40;
  std::vector<std::vector<const Program*>> found(kThreads);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < kLooks; ++i) {
        const Choice& choice = cache.choose(Collective::kReduce, size_t{1} << i, 0);
        found[t].push_back(&cache.program(choice, static_cast<uint32_t>(i % kRanks)));
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 1; t < kThreads; ++t) EXPECT_EQ(found[t], found[0]) << "thread " << t;
}

TEST(Explain, ShowsTheChoiceAndTheRangesOfSizes) {
  ScheduleCache cache = cache_of();
  std::string text;
  ASSERT_TRUE(cache.explain(Collective::kAllReduce, 1 << 20, 0, &text).ok());
  EXPECT_NE(text.find(cache.choose(Collective::kAllReduce, 1 << 20, 0).candidate.algorithm->name), std::string::npos);
  EXPECT_NE(text.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace treering
