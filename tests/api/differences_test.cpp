// SPDX-License-Identifier: Apache-2.0
// Ranks whose calls differ: all return an error that names the calls.
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/attempts.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/texts.h"
#include "support/waiting.h"

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
    for (int each : {0, 1}) {
      const std::string name = "rank " + std::to_string(each);
      EXPECT_NE(result.output.find(name + " (pid " + std::to_string(processes.pid(each))), std::string::npos)
          << result.output;
      EXPECT_NE(without_pids(result.output).find(name + " called"), std::string::npos) << result.output;
    }
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
        EXPECT_NE(without_pids(result.output).find(call), std::string::npos) << result.output;
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
      {"called trCommGrow",
       [](trComm_t comm) {
         trComm_t larger = nullptr;
         return trCommGrow(comm, 3, nullptr, &larger, nullptr);
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

// A collective on rank 0 and a receive on rank 1. The collective goes by mailboxes, so no message meets the receive. The
// rank of the parameter waits already when the other begins, so that its deadline comes first, but on a machine that is
// too busy to run it then: the text says whose it was, and must be that rank's. tests/failure/watch_test forces each.
class CollectiveAgainstReceive : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(BegunBy, CollectiveAgainstReceive, ::testing::Values(0, 1));

TEST_P_IN_THREE_ATTEMPTS(CollectiveAgainstReceive, IsToldAtTheDeadline) {
  Gate other_waits;
  RankProcesses processes(2, [&](int rank, const trUniqueId& id) {
    other_waits.inherit();
    trComm_t comm = nullptr;
    trConfig_t config = config_with_timeout(3000);
    config.transports = "shared-memory";
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    std::jthread teller;
    if (rank == GetParam())
      teller = when_in_a_call(comm, reached);
    else
      other_waits.wait();
    float values[2] = {1, 1};
    const trResult_t result = rank == 0 ? trAllReduce(values, values, 2, trFloat32, trSum, comm, nullptr)
                                        : trRecv(values, 2, trFloat32, 0, comm, nullptr);
    say(trGetLastError(comm));
    return 10 + result;
  });
  EXPECT_TRUE(processes.wait_until_reached(GetParam()));
  other_waits.open();
  const std::string receiver = "rank 1 (pid " + std::to_string(processes.pid(1)) + ")";
  const std::string of_collective = "no progress within 3 s in operation 1 (allreduce of 2 x float, sum): " + receiver +
                                    " has not entered it (its last is operation 0; it waits in a send or receive for "
                                    "rank 0). Rank 0 waited for rank 1";
  const std::string of_receive = "no progress within 3 s in a send or receive: " + receiver +
                                 " waits for rank 0 in a send or receive, which waits for it in operation 1 (allreduce "
                                 "of 2 x float, sum): their calls do not match, or what they sent has not arrived. "
                                 "Rank 1 waited for rank 0 (pid " +
                                 std::to_string(processes.pid(0)) + ")";
  std::string texts[2];
  for (int rank : {0, 1}) {
    const RankResult result = processes.wait(rank, std::chrono::seconds(20));
    EXPECT_EQ(result.exit_code, 10 + trTimeout) << result.output;
    texts[rank] = result.output;
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_TRUE(texts[0] == of_collective || texts[0] == of_receive) << texts[0];
}

// Where the message of the collective meets the receive, both hear it at once.
TEST(CollectiveAgainstReceiveOfItsMessage, IsToldAtOnce) {
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    trConfig_t config = config_with_timeout(30'000);
    config.transports = "shared-memory";
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    std::vector<float> values(100'000, 1);
    const trResult_t result =
        rank == 0 ? trAllReduce(values.data(), values.data(), values.size(), trFloat32, trSum, comm, nullptr)
                  : trRecv(values.data(), values.size(), trFloat32, 0, comm, nullptr);
    say(trGetLastError(comm));
    return 10 + result;
  });
  for (int rank : {0, 1}) {
    const RankResult result = processes.wait(rank, std::chrono::seconds(20));
    EXPECT_EQ(result.exit_code, 10 + trInvalidUsage) << result.output;
    EXPECT_NE(without_pids(result.output).find("rank 1 receives from rank 0 400000 bytes that rank 0 does not send"),
              std::string::npos)
        << result.output;
  }
}

// The message of a send meets the collective, and tells what it is.
TEST(CollectiveAgainstSend, IsToldAtOnce) {
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    trConfig_t config = config_with_timeout(30'000);
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    std::vector<float> values(20'000'000, 1);  // more than sockets take
    TR_CHECK(trBarrier(comm, nullptr));
    const trResult_t result =
        rank == 0 ? trAllReduce(values.data(), values.data(), values.size(), trFloat32, trSum, comm, nullptr)
                  : trSend(values.data(), values.size(), trFloat32, 0, comm, nullptr);
    say(trGetLastError(comm));
    return 10 + result;
  });
  for (int rank : {0, 1}) {
    const RankResult result = processes.wait(rank, std::chrono::seconds(20));
    EXPECT_EQ(result.exit_code, 10 + trInvalidUsage) << result.output;
    EXPECT_EQ(
        without_pids(result.output),
        "the ranks' calls differ at operation 2: rank 0 called allreduce of 20000000 x float, sum; rank 1 sends it "
        "80000000 bytes, which it has not received before. Collectives must stand between the same sends and "
        "receives on all ranks");
  }
}

// A small one has ended when the collective meets its message, and its rank is in no call.
TEST(CollectiveAgainstSend, IsToldThoughTheSendHasEnded) {
  Gate told;
  RankProcesses processes(2, [&](int rank, const trUniqueId& id) {
    told.inherit();
    trComm_t comm = nullptr;
    trConfig_t config = config_with_timeout(30'000);
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    std::vector<float> values(100'000, 1);
    TR_CHECK(trBarrier(comm, nullptr));
    if (rank == 1) {
      TR_CHECK(trSend(values.data(), 1, trFloat32, 0, comm, nullptr));
      told.wait();
      return 0;
    }
    const trResult_t result = trAllReduce(values.data(), values.data(), values.size(), trFloat32, trSum, comm, nullptr);
    say(trGetLastError(comm));
    return 10 + result;
  });
  const RankResult result = processes.wait(0, std::chrono::seconds(20));
  told.open();
  EXPECT_EQ(result.exit_code, 10 + trInvalidUsage) << result.output;
  EXPECT_NE(without_pids(result.output).find("rank 1 sends it 4 bytes, which it has not received before"),
            std::string::npos)
      << result.output;
  EXPECT_EQ(processes.wait(1).exit_code, 0);
}

// Neither gets what it waits for. No message meets a call, so that both are told at the deadline.
TEST_IN_THREE_ATTEMPTS(TwoReceives, AreToldAtTheDeadline) {
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    trConfig_t config = config_with_timeout(3'000);
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    float value = 0;
    const trResult_t result = trRecv(&value, 1, trFloat32, 1 - rank, comm, nullptr);
    say(trGetLastError(comm));
    return 10 + result;
  });
  for (int rank : {0, 1}) {
    const RankResult result = processes.wait(rank, std::chrono::seconds(20));
    EXPECT_EQ(result.exit_code, 10 + trTimeout) << result.output;
    EXPECT_NE(
        result.output.find("in a send or receive, which waits for it in a send or receive: their calls do not match"),
        std::string::npos)
        << result.output;
  }
}

// A rank that had to wait in its last operation, and makes no call now, waits nowhere. Rank 0 is through with the reduce at
// once and sees rank 1 wait there for rank 2.
TEST(AnIdleRank, IsNotSaidToWait) {
  int done[2];
  ASSERT_EQ(pipe(done), 0);
  RankProcesses processes(3, [&](int rank, const trUniqueId& id) {
    close(done[rank == 0 ? 0 : 1]);
    trComm_t comm = nullptr;
    trConfig_t config = config_with_timeout(30'000);
    config.transports = "shared-memory";
    TR_CHECK(trCommInitRankConfig(&comm, 3, id, rank, &config));
    config.timeout_ms = 900;  // below a second, for which a rank counts as alive after it has waited
    TR_CHECK(trCommSplit(std::exchange(comm, nullptr), 0, rank, &comm, &config));
    float value = 1;
    if (rank == 2) usleep(200'000);
    TR_CHECK(trReduce(&value, &value, 1, trFloat32, trSum, 1, comm, nullptr));
    char byte = 0;
    if (rank != 0) return static_cast<int>(read(done[0], &byte, 1));  // until rank 0 has its error
    const trResult_t result = trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr);
    say(trGetLastError(comm));
    close(done[1]);
    return 10 + result;
  });
  for (int end : done) close(end);
  const RankResult result = processes.wait(0, std::chrono::seconds(20));
  EXPECT_EQ(result.exit_code, 10 + trTimeout) << result.output;
  for (const char* words : {"rank 1 (pid ", "rank 2 (pid ", ") has not entered it (its last is operation 1)"})
    EXPECT_NE(result.output.find(words), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("send or receive"), std::string::npos) << result.output;
  for (int rank : {1, 2}) EXPECT_EQ(processes.wait(rank, std::chrono::seconds(20)).exit_code, 0);
}

}  // namespace
}  // namespace treering::testing
