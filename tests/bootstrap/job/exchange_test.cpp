// SPDX-License-Identifier: Apache-2.0
// What is kept until it is answered, and when a round is complete.
#include "bootstrap/job/exchange.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace treering {
namespace {

constexpr uint32_t kRanks = 3;
using Blobs = std::vector<std::string>;

BlobMessage part_of(uint32_t rank, uint64_t round, const std::string& bytes) { return {rank, round, bytes}; }

std::string blobs_of(uint64_t round, const Blobs& blobs) {
  BlobsMessage message;
  message.round = round;
  message.blobs = blobs;
  return encode(message);
}

TEST(Exchange, ARoundIsCompleteWithThePartOfEveryRank) {
  Exchange exchange;
  EXPECT_FALSE(exchange.is_under_way());
  EXPECT_TRUE(exchange.take_part(part_of(2, 1, "c"), kRanks));
  EXPECT_TRUE(exchange.is_under_way());
  EXPECT_TRUE(exchange.is_awaited());
  EXPECT_TRUE(exchange.take_part(part_of(0, 1, ""), kRanks));  // an empty one is a part, too
  EXPECT_EQ(exchange.complete(kRanks), "");
  EXPECT_TRUE(exchange.lacks(1));
  EXPECT_FALSE(exchange.lacks(0));
  EXPECT_TRUE(exchange.take_part(part_of(1, 1, "b"), kRanks));
  EXPECT_EQ(exchange.complete(kRanks), blobs_of(1, {"", "b", "c"}));
  EXPECT_FALSE(exchange.is_under_way());
}

TEST(Exchange, APartThatComesTwiceCountsOnce) {
  Exchange exchange;
  EXPECT_TRUE(exchange.take_part(part_of(0, 1, "a"), kRanks));
  EXPECT_TRUE(exchange.take_part(part_of(0, 1, "a"), kRanks));
  EXPECT_TRUE(exchange.take_part(part_of(1, 1, "b"), kRanks));
  EXPECT_EQ(exchange.complete(kRanks), "");
}

TEST(Exchange, PartsOfOtherRoundsAndOfNoRankAreDropped) {
  Exchange exchange;
  EXPECT_FALSE(exchange.take_part(part_of(0, 0, "a"), kRanks));
  EXPECT_FALSE(exchange.take_part(part_of(0, 2, "a"), kRanks));
  EXPECT_FALSE(exchange.take_part(part_of(kRanks, 1, "a"), kRanks));
  EXPECT_FALSE(exchange.is_under_way());
  EXPECT_FALSE(exchange.lacks(0));  // nothing is
  ASSERT_NE(exchange.finish_round(blobs_of(1, {"a", "b", "c"}), kRanks), nullptr);
  EXPECT_FALSE(exchange.take_part(part_of(0, 1, "a"), kRanks));  // late, from a child that had another parent
  EXPECT_TRUE(exchange.take_part(part_of(0, 2, "a"), kRanks));
}

TEST(Exchange, TheBlobsOfARoundAreTakenOnce) {
  Exchange exchange;
  const std::string bytes = blobs_of(1, {"a", "b", "c"});
  const auto blobs = exchange.finish_round(bytes, kRanks);
  ASSERT_NE(blobs, nullptr);
  EXPECT_EQ(*blobs, (Blobs{"a", "b", "c"}));
  EXPECT_EQ(exchange.round(), 1u);
  EXPECT_EQ(exchange.last_blobs(), bytes);
  EXPECT_EQ(exchange.finish_round(bytes, kRanks), nullptr);  // again, from another parent
  EXPECT_NE(exchange.finish_round(blobs_of(2, {"", "", ""}), kRanks), nullptr);
  EXPECT_EQ(exchange.round(), 2u);
}

TEST(Exchange, BlobsOfAnotherNumberOfRanksAreNone) {
  Exchange exchange;
  EXPECT_EQ(exchange.finish_round(blobs_of(1, {"a", "b"}), kRanks), nullptr);
  EXPECT_EQ(exchange.finish_round("?", kRanks), nullptr);
  EXPECT_EQ(exchange.finish_round("", kRanks), nullptr);
  EXPECT_EQ(exchange.round(), 0u);
}

ProcessTableMessage process_table_of(uint32_t ranks) {
  ProcessTableMessage table;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    Place place;
    place.process = rank;
    place.pid = 1000 + rank;
    place.host_name = std::string("h").append(std::to_string(rank));
    table.places.push_back(place);
    table.process_of_rank.push_back(rank);
  }
  return table;
}

TEST(Exchange, NamesTheRanksWhosePartIsMissing) {
  Exchange exchange;
  ASSERT_TRUE(exchange.take_part(part_of(1, 1, "b"), kRanks));
  ProcessTree tree;
  tree.set_own(1);
  tree.meet(process_table_of(3));
  EXPECT_EQ(exchange.missing(tree), "rank 0 (pid 1000 on h0), rank 2 (pid 1002 on h2) of 3 ranks");
  ProcessTree large;
  large.meet(process_table_of(100));
  const std::string many = exchange.missing(large);
  EXPECT_LT(many.size(), 400u);
  EXPECT_TRUE(many.ends_with(", ... of 100 ranks")) << many;
}

// A rank whose part would come through the process of a missing one is not missing itself.
TEST(Exchange, NamesThroughWhomAMissingRankIsHeard) {
  Exchange exchange;
  ASSERT_TRUE(exchange.take_part(part_of(1, 1, "b"), 4));
  ProcessTableMessage table = process_table_of(4);
  table.places[2].parent = 0;
  table.places[3].parent = 1;
  ProcessTree tree;
  tree.set_own(1);
  tree.meet(table);
  EXPECT_EQ(
      exchange.missing(tree),
      "rank 0 (pid 1000 on h0), rank 3 (pid 1003 on h3) of 4 ranks; rank 2 (pid 1002 on h2) is heard through rank "
      "0 (pid 1000 on h0) alone");
  // Numbers of ranks and of processes differ: the parent may have the higher one.
  tree.move(0, 2);
  tree.move(2, kNobody);
  EXPECT_EQ(
      exchange.missing(tree),
      "rank 2 (pid 1002 on h2), rank 3 (pid 1003 on h3) of 4 ranks; rank 0 (pid 1000 on h0) is heard through rank "
      "2 (pid 1002 on h2) alone");
  // A circle, for a moment: what is told of parents explains nothing.
  tree.move(2, 0);
  EXPECT_EQ(exchange.missing(tree),
            "rank 0 (pid 1000 on h0), rank 2 (pid 1002 on h2), rank 3 (pid 1003 on h3) of 4 ranks");
}

TEST(Exchange, WhatIsSentUpIsKeptUntilItsAnswer) {
  Exchange exchange;
  exchange.keep(Kind::kHello, "hello");
  exchange.keep(Kind::kBlob, "first");
  exchange.keep(Kind::kSpread, "verdict");
  exchange.keep(Kind::kBlob, "second");
  EXPECT_TRUE(exchange.is_awaited());
  exchange.answered(Kind::kHello);
  ASSERT_EQ(exchange.unanswered().size(), 3u);
  EXPECT_EQ(exchange.unanswered()[0].bytes, "first");
  ASSERT_NE(exchange.finish_round(blobs_of(1, {"a", "b", "c"}), kRanks), nullptr);
  EXPECT_FALSE(exchange.is_awaited());
  const auto rest = exchange.take_unanswered();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].kind, Kind::kSpread);
  EXPECT_EQ(rest[0].bytes, "verdict");
  EXPECT_TRUE(exchange.unanswered().empty());
}

TEST(Exchange, ATopThatGetsAParentHandsItsPartsOver) {
  Exchange exchange;
  ASSERT_NE(exchange.finish_round(blobs_of(1, {"a", "b", "c"}), kRanks), nullptr);
  EXPECT_TRUE(exchange.take_part(part_of(2, 2, "z"), kRanks));
  EXPECT_TRUE(exchange.take_part(part_of(0, 2, "x"), kRanks));
  exchange.hand_over();
  EXPECT_FALSE(exchange.is_under_way());
  EXPECT_TRUE(exchange.is_awaited());
  ASSERT_EQ(exchange.unanswered().size(), 2u);
  EXPECT_EQ(exchange.unanswered()[0].bytes, encode(part_of(0, 2, "x")));
  EXPECT_EQ(exchange.unanswered()[1].bytes, encode(part_of(2, 2, "z")));
}

// A top ends in the middle of a round; a child that had sent it two parts is the next one.
TEST(Exchange, TheNextTopCompletesARoundFromWhatItKept) {
  Exchange exchange;
  exchange.keep(Kind::kBlob, encode(part_of(1, 1, "b")));
  exchange.keep(Kind::kBlob, encode(part_of(2, 1, "c")));
  for (const auto& each : exchange.take_unanswered()) {
    BlobMessage part;
    ASSERT_TRUE(decode(each.bytes, &part));
    EXPECT_TRUE(exchange.take_part(part, kRanks));
  }
  EXPECT_TRUE(exchange.take_part(part_of(0, 1, "a"), kRanks));
  const auto blobs = exchange.finish_round(exchange.complete(kRanks), kRanks);
  ASSERT_NE(blobs, nullptr);
  EXPECT_EQ(*blobs, (Blobs{"a", "b", "c"}));
  EXPECT_FALSE(exchange.is_awaited());
}

TEST(Exchange, AllExchangesOfACreationHaveTheTimeoutTogether) {
  constexpr Clock::time_point kMet = Clock::time_point() + std::chrono::seconds(100);
  constexpr auto kNever = Clock::time_point::max();
  EXPECT_EQ(creation_deadline(0, kMet, kNever), kNever);
  EXPECT_EQ(creation_deadline(2000, kMet, kNever), kMet + std::chrono::seconds(2));
  EXPECT_EQ(creation_deadline(2000, kMet, kMet + std::chrono::seconds(1)), kMet + std::chrono::seconds(1));
  EXPECT_EQ(creation_deadline(0, kMet, kMet + std::chrono::seconds(1)), kMet + std::chrono::seconds(1));
}

}  // namespace
}  // namespace treering
