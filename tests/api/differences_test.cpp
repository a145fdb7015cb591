// SPDX-License-Identifier: Apache-2.0
// Ranks whose calls differ: all return an error that names the calls.
#include <functional>
#include <utility>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"

namespace treering::testing {
namespace {

struct Difference {
  const char* name;
  size_t counts[2];
  trDataType_t types[2];
  trRedOp_t ops[2];
};

class CallsThatDiffer : public ::testing::TestWithParam<Difference> {};

TEST_P(CallsThatDiffer, AreAnErrorOnBothSides) {
  const Difference& difference = GetParam();
  RankProcesses processes(2, [&difference](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    trConfig_t config = config_with_timeout(30'000);
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    std::vector<double> input(100'000, 1.0), output(100'000, 77.0);
    trResult_t result = trAllReduce(input.data(), output.data(), difference.counts[rank], difference.types[rank],
                                    difference.ops[rank], comm, nullptr);
    say(trGetLastError(comm));
    return 10 + result;
  });
  for (int rank : {0, 1}) {
    RankResult result = processes.wait(rank, std::chrono::seconds(25));
    EXPECT_EQ(result.exit_code, 10 + trInvalidUsage) << result.output;
    EXPECT_NE(result.output.find("rank 0 called"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("rank 1 called"), std::string::npos) << result.output;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Headers, CallsThatDiffer,
    ::testing::Values(Difference{"SmallCounts", {4, 5}, {trFloat32, trFloat32}, {trSum, trSum}},
                      Difference{"SmallAndLargeCounts", {4, 90'000}, {trFloat32, trFloat32}, {trSum, trSum}},
                      Difference{"LargeCounts", {90'000, 91'000}, {trFloat32, trFloat32}, {trSum, trSum}},
                      Difference{"Types", {100, 100}, {trFloat32, trInt32}, {trSum, trSum}},
                      Difference{"Ops", {50'000, 50'000}, {trFloat64, trFloat64}, {trSum, trMax}}),
    [](const auto& row) { return row.param.name; });

// Both ranks send their few bytes and wait for nothing: only what comes after it can tell.
TEST(CallsThatDifferLater, InTheRootAloneAreFoundByTheNextCollective) {
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    trConfig_t config = config_with_timeout(30'000);
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    int value = rank;
    for (int i = 0; i < 3; ++i) TR_CHECK(trBroadcast(&value, &value, 1, trInt32, 1, comm, nullptr));
    trResult_t result = trBroadcast(&value, &value, 1, trInt32, rank, comm, nullptr);
    if (result == trSuccess) result = trBarrier(comm, nullptr);
    say(trGetLastError(comm));
    return 10 + result;
  });
  for (int rank : {0, 1}) {
    RankResult result = processes.wait(rank, std::chrono::seconds(25));
    EXPECT_EQ(result.exit_code, 10 + trInvalidUsage) << result.output;
    EXPECT_NE(result.output.find("the ranks' calls differ at"), std::string::npos) << result.output;
  }
}

// Some wait in the broadcast for ranks that are in the barrier already: all hear at once which calls differed, and how.
TEST(CallsThatDifferLater, AreNamedWhereverRanksWait) {
  for (size_t count : {size_t{1}, size_t{300'000}}) {
    SCOPED_TRACE(count);
    RankProcesses processes(4, [count](int rank, const trUniqueId& id) {
      trComm_t comm = nullptr;
      trConfig_t config = config_with_timeout(30'000);
      TR_CHECK(trCommInitRankConfig(&comm, 4, id, rank, &config));
      std::vector<int32_t> values(count, rank);
      trResult_t result = trSuccess;
      for (int i = 0; i < 5 && result == trSuccess; ++i)
        result = trBroadcast(values.data(), values.data(), count, trInt32, i == 3 && rank == 2 ? 1 : 0, comm, nullptr);
      if (result == trSuccess) result = trBarrier(comm, nullptr);
      say(trGetLastError(comm));
      return 10 + result;
    });
    for (int rank = 0; rank < 4; ++rank) {
      RankResult result = processes.wait(rank, std::chrono::seconds(20));
      EXPECT_EQ(result.exit_code, 10 + trInvalidUsage) << result.output;
      EXPECT_NE(result.output.find("the ranks' calls differ at operation 4: rank "), std::string::npos)
          << result.output;
      for (const char* call : {"x int32, root 0", "rank 2 called broadcast", "x int32, root 1"})
        EXPECT_NE(result.output.find(call), std::string::npos) << result.output;
    }
  }
}

// What the library exchanges for a call goes by the call's name.
TEST(CallsThatDifferLater, AreNamedAsTheUserKnowsThem) {
  const std::pair<const char*, std::function<trResult_t(trComm_t)>> calls[] = {
      {"called trCommSplit or trCommDup",
       [](trComm_t comm) {
         trComm_t copy = nullptr;
         return trCommDup(comm, &copy);
       }},
      {"called alltoallv of float",
       [](trComm_t comm) {
         const float in[2] = {1, 2};
         float out[2];
         const size_t counts[2] = {1, 1};
         return trAllToAllV(in, counts, nullptr, out, counts, nullptr, trFloat32, comm, nullptr);
       }},
      {"called allgatherv of float", [](trComm_t comm) {
         const float in = 1;
         float out[2];
         const size_t counts[2] = {1, 1};
         return trAllGatherV(&in, 1, out, counts, nullptr, trFloat32, comm, nullptr);
       }}};
  for (const auto& [text, call] : calls) {
    RankProcesses processes(2, [&call = call](int rank, const trUniqueId& id) {
      trComm_t comm = nullptr;
      trConfig_t config = config_with_timeout(30'000);
      TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
      float value = 1;
      const trResult_t result =
          rank == 0 ? call(comm) : trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr);
      say(trGetLastError(comm));
      return 10 + result;
    });
    for (int rank : {0, 1}) {
      const RankResult result = processes.wait(rank, std::chrono::seconds(20));
      EXPECT_EQ(result.exit_code, 10 + trInvalidUsage) << result.output;
      for (const char* part : {text, "called allreduce of 1 x float, sum"})
        EXPECT_NE(result.output.find(part), std::string::npos) << result.output;
    }
  }
}

// A collective on one rank and a receive on the other: whichever comes to its deadline first, the error says that one
// receives.
TEST(CollectiveAgainstReceive, IsTold) {
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    trConfig_t config = config_with_timeout(3000);
    config.transports = "shared-memory";
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    std::vector<float> values(1000, 1);
    const trResult_t result = rank == 0
                                  ? trAllReduce(values.data(), values.data(), 1000, trFloat32, trSum, comm, nullptr)
                                  : trRecv(values.data(), 1000, trFloat32, 0, comm, nullptr);
    say(trGetLastError(comm));
    return 10 + result;
  });
  for (int rank : {0, 1}) {
    const RankResult result = processes.wait(rank, std::chrono::seconds(20));
    EXPECT_TRUE(result.exit_code == 10 + trTimeout || result.exit_code == 10 + trInvalidUsage) << result.output;
    // By the deadline of either rank, or because the message of the collective came first.
    bool is_told = false;
    for (const char* words : {"it waits in a send or receive for rank 0", "their calls do not match",
                              "rank 1 receives from rank 0 4000 bytes that rank 0 does not send"})
      is_told |= result.output.find(words) != std::string::npos;
    EXPECT_TRUE(is_told) << result.output;
  }
}

}  // namespace
}  // namespace treering::testing
