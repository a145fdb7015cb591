// SPDX-License-Identifier: Apache-2.0
// What the top of the tree does with the ranks' parts of an exchange.
#include "bootstrap/job/exchange.h"

#include <gtest/gtest.h>

namespace treering {
namespace {

using std::chrono::seconds;

constexpr Clock::time_point kStart{seconds(100)};

RosterMessage roster_of(uint32_t ranks) {
  RosterMessage roster;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    Place place;
    place.process = rank;
    place.pid = 1000 + rank;
    place.host_name = std::string("h").append(std::to_string(rank));
    roster.places.push_back(place);
    roster.process_of_rank.push_back(rank);
  }
  return roster;
}

TEST(Exchange, GivesAllPartsInTheOrderOfTheRanks) {
  Exchange exchange;
  EXPECT_TRUE(exchange.take({2, 1, "c"}, 3, kStart));
  EXPECT_TRUE(exchange.take({0, 1, "a"}, 3, kStart));
  EXPECT_FALSE(exchange.complete(3));
  EXPECT_TRUE(exchange.take({1, 1, "b"}, 3, kStart));
  ASSERT_TRUE(exchange.complete(3));
  const BlobsMessage all = exchange.finish();
  EXPECT_EQ(all.round, 1u);
  EXPECT_EQ(all.blobs, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(exchange.end(all, "encoded"));
  EXPECT_EQ(exchange.round(), 1u);
  EXPECT_EQ(exchange.last(), "encoded");
  EXPECT_FALSE(exchange.end(all, "again, from another parent"));
  EXPECT_EQ(exchange.last(), "encoded");
}

TEST(Exchange, RefusesPartsOfOtherRoundsAndRanks) {
  Exchange exchange;
  EXPECT_FALSE(exchange.take({0, 2, "of a later round"}, 3, kStart));
  EXPECT_FALSE(exchange.take({3, 1, "of a rank that there is not"}, 3, kStart));
  EXPECT_FALSE(exchange.is_open());
  ASSERT_TRUE(exchange.end({1, {"a", "b", "c"}}, "first round"));
  EXPECT_FALSE(exchange.take({0, 1, "of an earlier round"}, 3, kStart));
  EXPECT_TRUE(exchange.take({0, 2, "a"}, 3, kStart));
}

TEST(Exchange, TheSamePartAgainCountsOnce) {
  Exchange exchange;
  EXPECT_TRUE(exchange.take({0, 1, "a"}, 2, kStart));
  EXPECT_TRUE(exchange.take({0, 1, "a"}, 2, kStart));
  EXPECT_FALSE(exchange.complete(2));
}

// The wait of the ranks goes on where the top of the tree changes: its deadline is not later for that.
TEST(Exchange, BeginsWhenARankOfThisProcessOrBelowItGivesThePart) {
  Exchange exchange;
  exchange.given(kStart);
  EXPECT_TRUE(exchange.take({0, 1, "a"}, 2, kStart + seconds(3)));
  EXPECT_EQ(exchange.began(), kStart);
  const std::vector<BlobMessage> given = exchange.hand_over();
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given[0].rank, 0u);
  EXPECT_EQ(given[0].round, 1u);
  EXPECT_EQ(given[0].bytes, "a");
  EXPECT_FALSE(exchange.is_open());
  EXPECT_TRUE(exchange.take({0, 1, "a"}, 2, kStart + seconds(5)));
  EXPECT_EQ(exchange.began(), kStart);
  ASSERT_TRUE(exchange.end({1, {"a", "b"}}, ""));
  EXPECT_TRUE(exchange.take({1, 2, "b"}, 2, kStart + seconds(7)));
  EXPECT_EQ(exchange.began(), kStart + seconds(7));
}

TEST(Exchange, NamesTheRanksWhosePartIsMissing) {
  Exchange exchange;
  ASSERT_TRUE(exchange.take({1, 1, "b"}, 3, kStart));
  EXPECT_EQ(exchange.missing(roster_of(3)), "rank 0 (pid 1000 on h0), rank 2 (pid 1002 on h2) of 3 ranks");
  const std::string many = exchange.missing(roster_of(100));
  EXPECT_LT(many.size(), 400u);
  EXPECT_TRUE(many.ends_with(", ... of 100 ranks")) << many;
}

}  // namespace
}  // namespace treering
