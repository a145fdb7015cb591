// SPDX-License-Identifier: Apache-2.0
// Shrunk communicators: after deaths, in groups, and where ranks give different sets.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "support/processes.h"
#include "support/ranks.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

class ShrinkAfterADeath : public ::testing::TestWithParam<std::pair<int, const char*>> {};

TEST_P(ShrinkAfterADeath, SurvivorsGoOn) {
  const auto [victim, transports] = GetParam();
  const int lost = victim;
  RankProcesses processes(4, [lost, transports = transports](int rank, const trUniqueId& id) {
    trConfig_t config = TR_CONFIG_INITIALIZER;
    config.transports = transports;
    trComm_t comm, rest;
    TR_CHECK(trCommInitRankConfig(&comm, 4, id, rank, &config));
    int sum = 0;
    for (int i = 0; count_by_sum(comm, &sum) == trSuccess; ++i)
      if (i == 20) reached();
    TR_CHECK(trCommShrink(comm, &lost, 1, &rest, nullptr, rank % 2 == 0 ? TR_SHRINK_ABORT : 0));
    TR_CHECK(trCommDestroy(comm));
    TR_CHECK(count_by_sum(rest, &sum));
    TR_CHECK(trCommDestroy(rest));
    return sum;
  });
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  kill(processes.pid(lost), SIGKILL);
  for (int rank = 0; rank < 4; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, rank == lost ? -1 : 3) << "rank " << rank << ": " << result.output;
  }
}

INSTANTIATE_TEST_SUITE_P(VictimsAndTransports, ShrinkAfterADeath,
                         ::testing::Values(std::pair{0, "shared-memory"}, std::pair{2, "shared-memory"},
                                           std::pair{0, "cma"}, std::pair{3, "cma"}));

TEST(Shrink, InAGroupAndAlone) {
  RankGroup ranks(3);
  const int lost[2] = {0, 1};
  trComm_t pair[2], alone = nullptr;
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(trCommShrink(ranks.comm(i + 1), lost, 1, &pair[i], nullptr, 0), trSuccess);
  ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  int own = -1;
  EXPECT_EQ(trCommRank(pair[1], &own), trSuccess);
  EXPECT_EQ(own, 1);
  ASSERT_EQ(trCommShrink(ranks.comm(2), lost, 2, &alone, nullptr, 0), trSuccess);
  EXPECT_EQ(trCommCount(alone, &own), trSuccess);
  EXPECT_EQ(own, 1);
  for (trComm_t comm : {pair[0], pair[1], alone}) EXPECT_EQ(trCommDestroy(comm), trSuccess);
}

TEST(Shrink, WrongArguments) {
  RankGroup ranks(2);
  trComm_t made = ranks.comm(0);
  const int outside = 2, self = 0, other = 1;
  EXPECT_EQ(trCommShrink(ranks.comm(0), &outside, 1, &made, nullptr, 0), trInvalidArgument);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(trCommShrink(ranks.comm(0), &self, 1, &made, nullptr, 0), trInvalidArgument);
  EXPECT_EQ(trCommShrink(ranks.comm(0), &other, 1, &made, nullptr, 2), trInvalidArgument);
  EXPECT_EQ(trCommShrink(ranks.comm(0), &other, -1, &made, nullptr, 0), trInvalidArgument);
  EXPECT_EQ(trCommShrink(ranks.comm(0), nullptr, 1, &made, nullptr, 0), trInvalidArgument);
  EXPECT_EQ(trCommShrink(ranks.comm(0), &other, 1, nullptr, nullptr, 0), trInvalidArgument);
  EXPECT_EQ(trCommShrink(nullptr, &other, 1, &made, nullptr, 0), trInvalidArgument);
}

// Ranks that each give a set of their own.
struct Sets {
  const char* name;
  std::vector<std::vector<int>> excluded;  // by rank; a rank without a list does not call
  std::vector<std::string> texts;          // in the message of each rank, by rank; empty: it succeeds or fails
};
class ShrinkWithOtherSets : public ::testing::TestWithParam<Sets> {};

// The deadline is so far off that only what ranks see of one another can end the calls.
TEST_P(ShrinkWithOtherSets, IsAnErrorOfAll) {
  const Sets& sets = GetParam();
  const auto n = sets.excluded.size();
  RankGroup ranks(static_cast<int>(n), config_with_timeout(300'000));
  std::vector<trResult_t> results(n, trSuccess);
  std::vector<std::string> errors(n);
  std::vector<std::thread> threads;
  const auto begin = std::chrono::steady_clock::now();
  for (size_t rank = 0; rank < n; ++rank) {
    if (sets.excluded[rank].empty()) continue;
    threads.emplace_back([&, rank] {
      const std::vector<int>& excluded = sets.excluded[rank];
      trComm_t made = nullptr;
      results[rank] = trCommShrink(ranks.comm(static_cast<int>(rank)), excluded.data(),
                                   static_cast<int>(excluded.size()), &made, nullptr, 0);
      if (results[rank] != trSuccess) errors[rank] = trGetLastError(nullptr);
      EXPECT_EQ(made == nullptr, results[rank] != trSuccess);
      if (made != nullptr) {
        EXPECT_EQ(trCommDestroy(made), trSuccess);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  for (size_t rank = 0; rank < n; ++rank) {
    if (sets.texts[rank].empty()) continue;
    EXPECT_EQ(results[rank], trInvalidUsage) << "rank " << rank << ": " << errors[rank];
    EXPECT_NE(errors[rank].find(sets.texts[rank]), std::string::npos) << "rank " << rank << ": " << errors[rank];
  }
  // The communicator has not failed, and the ranks agree on what comes next.
  const int last = static_cast<int>(n) - 1;
  trComm_t rest[3] = {};
  if (n < 4) return;
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (int rank = 0; rank < last; ++rank)
    EXPECT_EQ(trCommShrink(ranks.comm(rank), &last, 1, &rest[rank], nullptr, 0), trSuccess);
  ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  for (trComm_t comm : rest) EXPECT_EQ(trCommDestroy(comm), trSuccess);
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, ShrinkWithOtherSets,
    ::testing::Values(Sets{"OneExcludesAMember",
                           {{3}, {2, 3}, {3}, {}},
                           {"rank 1 excludes 2, rank 0 does not", "rank 1 excludes 2, rank",
                            "rank 1 excludes 2, rank 2 does not", ""}},
                      Sets{"EachAnother",
                           {{2, 3}, {3}, {1, 3}, {}},
                           {"rank 0 excludes 2, rank", "rank 1 does not", "rank 2 excludes 1, rank", ""}},
                      Sets{"OneIsAlone", {{1, 2, 3}, {3}, {3}, {}}, {"", "rank 0 excludes", "rank 0 excludes", ""}}),
    [](const auto& info) { return std::string(info.param.name); });

// Each half excludes the other: no rank waits for a rank that gives another set, and they would both succeed.
TEST(Shrink, TwoHalvesAreNotBothRight) {
  for (int round = 0; round < 10; ++round) {
    RankGroup ranks(4, config_with_timeout(300'000));
    const int excluded[2][2] = {{2, 3}, {0, 1}};
    std::atomic<int> waiting{4};
    trResult_t results[4];
    std::string errors[4];
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank)
      threads.emplace_back([&, rank] {
        waiting.fetch_sub(1);
        while (waiting.load() != 0) std::this_thread::yield();
        trComm_t made = nullptr;
        results[rank] = trCommShrink(ranks.comm(rank), excluded[rank / 2], 2, &made, nullptr, 0);
        if (results[rank] != trSuccess) errors[rank] = trGetLastError(nullptr);
        if (made != nullptr) {
          EXPECT_EQ(trCommDestroy(made), trSuccess);
        }
      });
    for (std::thread& thread : threads) thread.join();
    int failed = 0;
    for (int half = 0; half < 2; ++half) {
      EXPECT_EQ(results[2 * half], results[2 * half + 1]) << "those who agree get the same";
      failed += results[2 * half] == trInvalidUsage;
    }
    EXPECT_GE(failed, 1);
    for (int rank = 0; rank < 4; ++rank)
      if (results[rank] != trSuccess) {
        EXPECT_EQ(results[rank], trInvalidUsage);
        EXPECT_NE(errors[rank].find(rank < 2 ? "excludes 2, 3, rank" : "excludes 0, 1, rank"), std::string::npos)
            << errors[rank];
      }
  }
}

// Rank 1 gives another set, ends its call, and calls again. Rank 0, which has rank 2 among its members, stays until that has
// come: its next call would overwrite what it shows. It gives up after 2 s, which a busy machine may let pass.
TEST(Shrink, AMemberThatComesLateHearsWhichSetsDiffered) {
  using std::chrono::steady_clock, std::chrono::milliseconds;
  bool gave_up = true;
  for (int round = 0; round < 5 && gave_up; ++round) {
    RankGroup ranks(4, config_with_timeout(300'000));
    const int wrong[2] = {2, 3}, right = 3;
    std::atomic<int> ended{0};
    std::string errors[3];
    steady_clock::duration took[3];
    const auto shrink_twice = [&](int rank) {
      trComm_t made = nullptr;
      const bool is_wrong = rank == 1;
      const auto begin = steady_clock::now();
      EXPECT_EQ(trCommShrink(ranks.comm(rank), is_wrong ? wrong : &right, is_wrong ? 2 : 1, &made, nullptr, 0),
                trInvalidUsage);
      errors[rank] = trGetLastError(nullptr);
      took[rank] = steady_clock::now() - begin;
      ++ended;
      EXPECT_EQ(trCommShrink(ranks.comm(rank), &right, 1, &made, nullptr, 0), trSuccess) << trGetLastError(nullptr);
      EXPECT_EQ(trCommDestroy(made), trSuccess);
    };
    std::thread threads[3];
    for (const int rank : {0, 1}) threads[rank] = std::thread(shrink_twice, rank);
    EXPECT_TRUE(soon([&] { return ended > 0; }));
    (void)soon([&] { return ended > 1; }, milliseconds(100));  // a rank 0 that does not stay ends now
    threads[2] = std::thread(shrink_twice, 2);
    for (std::thread& thread : threads) thread.join();
    gave_up = took[0] >= milliseconds(2000);
    for (const int rank : {0, 1, 2}) {
      if (gave_up) break;
      EXPECT_NE(errors[rank].find("rank 1 excludes 2, rank"), std::string::npos) << rank << ": " << errors[rank];
    }
  }
  EXPECT_FALSE(gave_up) << "in five rounds";
}

// What a rank had called before it died is no other set.
TEST(Shrink, DeadRanksHaveNoSet) {
  int gate[2];
  ASSERT_EQ(pipe(gate), 0);
  RankProcesses processes(4, [&gate](int rank, const trUniqueId& id) {
    trConfig_t config = config_with_timeout(8000);
    trComm_t comm, rest;
    TR_CHECK(trCommInitRankConfig(&comm, 4, id, rank, &config));
    reached();
    const int lost[2] = {3, 2};
    if (rank == 2 && trCommShrink(comm, lost, 1, &rest, nullptr, 0) == trTimeout) kill(getpid(), SIGKILL);
    char byte;
    if (read(gate[0], &byte, 1) != 1) return 101;
    TR_CHECK(trCommShrink(comm, lost, 2, &rest, nullptr, 0));
    int sum = 0;
    TR_CHECK(count_by_sum(rest, &sum));
    TR_CHECK(trCommDestroy(rest));
    return sum;
  });
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  kill(processes.pid(3), SIGKILL);
  EXPECT_EQ(processes.wait(2).signal, SIGKILL) << "after the deadline, for the others have not called";
  ASSERT_EQ(write(gate[1], "..", 2), 2);
  for (int rank = 0; rank < 2; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 2) << "rank " << rank << ": " << result.output;
  }
  for (int end : gate) close(end);
}

TEST(Shrink, WaitsNoLongerThanTheDeadline) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.timeout_ms = 2000;  // creating them has the same
  RankGroup ranks(3, config);
  trComm_t made = nullptr;
  const int lost = 2;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(trCommShrink(ranks.comm(0), &lost, 1, &made, nullptr, 0), trTimeout);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
  EXPECT_NE(std::string(trGetLastError(nullptr)).find(") has not called it within"), std::string::npos);
}

}  // namespace
}  // namespace treering::testing
