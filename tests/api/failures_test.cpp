// SPDX-License-Identifier: Apache-2.0
// Ranks that die, stop, leave or abort: every other rank returns an error in time that says who and where.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "support/attempts.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/sanitized.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

// One call on buffers with room for 3 x count floats.
using Call = trResult_t (*)(const float* input, float* output, size_t count, trComm_t comm);

trResult_t all_reduce(const float* input, float* output, size_t count, trComm_t comm) {
  return trAllReduce(input, output, count, trFloat32, trSum, comm, nullptr);
}

// Repeats the call until it fails; writes its text and returns its code + 10.
int run_until_failure(int rank, int ranks, const trUniqueId& id, Call call, size_t count, int timeout_ms) {
  trConfig_t config = config_with_timeout(timeout_ms);
  trComm_t comm = nullptr;
  TR_CHECK(trCommInitRankConfig(&comm, ranks, id, rank, &config));
  std::vector<float> input(3 * count, 1.0f), output(3 * count);
  for (int i = 0;; ++i) {
    trResult_t result = call(input.data(), output.data(), count, comm);
    if (i == 20) reached();
    if (result == trSuccess) continue;
    say(trGetLastError(comm));
    trCommDestroy(comm);
    return 10 + result;
  }
}

constexpr const char* kAfterOwnPause = "It found since: ";

// Whether ranks that come to the deadline in the same moment may each decide alone: the news take longer than a moment to
// the top of the control tree and back with a sanitizer on a busy machine, and where a rank gets no processor itself.
bool decides_alone(const std::string& text) { return kSanitized || text.find(kAfterOwnPause) != std::string::npos; }

// The verdict without that the rank did not run itself for a while, and without who waited.
std::string verdict_of(std::string text) {
  if (const size_t at = text.find(kAfterOwnPause); at != std::string::npos)
    text.erase(0, at + std::strlen(kAfterOwnPause));
  return text.substr(0, text.find(" has shown no sign of life"));
}

void expect_rank_that_ends_is_named(int signal_number, size_t elements) {
  int timeout_ms =
      signal_number == SIGSTOP ? 8000 : 60'000;  // the ranks of a busy machine come into the call in that time
  RankProcesses processes(3, [=](int rank, const trUniqueId& id) {
    return run_until_failure(rank, 3, id, all_reduce, elements, timeout_ms);
  });
  for (int rank = 0; rank < 3; ++rank)
    ASSERT_TRUE(processes.wait_until_reached(rank)) << processes.wait(rank, std::chrono::seconds(1)).output;
  kill(processes.pid(1), signal_number);
  auto begin = std::chrono::steady_clock::now();
  std::string texts[2];
  int expected = 10 + (signal_number == SIGSTOP ? trTimeout : trRemoteError);
  for (int rank : {0, 2}) {
    RankResult result = processes.wait(rank, std::chrono::seconds(30));
    EXPECT_EQ(result.exit_code, expected) << result.output;
    EXPECT_NE(result.output.find("rank 1 (pid " + std::to_string(processes.pid(1))), std::string::npos)
        << result.output;
    EXPECT_NE(result.output.find("operation "), std::string::npos) << result.output;
    texts[rank / 2] = result.output;
  }
  if (signal_number == SIGSTOP && (decides_alone(texts[0]) || decides_alone(texts[1])))
    for (std::string& text : texts) text = verdict_of(text);
  EXPECT_EQ(texts[0], texts[1]) << "one verdict, the same on every rank";
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

class RankThatEnds : public ::testing::TestWithParam<std::pair<int, size_t>> {};

TEST_P(RankThatEnds, IsNamedByAllOthers) {
  const auto [signal_number, elements] = GetParam();
  const auto body = std::bind_front(expect_rank_that_ends_is_named, signal_number, elements);
  // One that stands still is named at the deadline.
  if (signal_number == SIGSTOP)
    in_three_attempts(body);
  else
    body();
}

INSTANTIATE_TEST_SUITE_P(SignalsAndSizes, RankThatEnds,
                         ::testing::Values(std::pair{SIGKILL, size_t{2}}, std::pair{SIGKILL, size_t{20'000}},
                                           std::pair{SIGKILL, size_t{3'000'000}}, std::pair{SIGSTOP, size_t{2}},
                                           std::pair{SIGSTOP, size_t{20'000}}, std::pair{SIGSTOP, size_t{3'000'000}}));

// What a rank finds that was stopped for long may be a consequence, so it says how long it did not run.
TEST(StoppedRank, SaysThatItWasItselfOverTcp) {
  RankProcesses processes(3, [](int rank, const trUniqueId& id) {
    setenv("TREERING_TRANSPORTS", "tcp", 1);
    setenv("TREERING_HOSTID", ("host-" + std::to_string(rank)).c_str(), 1);
    return run_until_failure(rank, 3, id, all_reduce, 2, 4000);
  });
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  for (int rank : {1, 0, 2}) processes.stop(rank);  // neither of the others finds the other one dead
  for (int rank : {0, 2}) kill(processes.pid(rank), SIGKILL);
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));  // it says so of more than half of the deadline
  kill(processes.pid(1), SIGCONT);
  const RankResult result = processes.wait(1);
  EXPECT_GT(result.exit_code, 10) << result.output;
  const std::string own = "rank 1 (pid " + std::to_string(processes.pid(1));
  EXPECT_EQ(result.output.find(own), 0u) << result.output;
  EXPECT_NE(result.output.find("did not run for"), std::string::npos) << result.output;
}

struct NamedCall {
  const char* name;
  Call call;
};
constexpr NamedCall kCalls[] = {
    {"Reduce", [](const float* in, float* out, size_t n,
                  trComm_t comm) { return trReduce(in, out, n, trFloat32, trSum, 0, comm, nullptr); }},
    {"Broadcast", [](const float* in, float* out, size_t n,
                     trComm_t comm) { return trBroadcast(in, out, n, trFloat32, 2, comm, nullptr); }},
    {"AllGather", [](const float* in, float* out, size_t n,
                     trComm_t comm) { return trAllGather(in, out, n, trFloat32, comm, nullptr); }},
    {"ReduceScatter", [](const float* in, float* out, size_t n,
                         trComm_t comm) { return trReduceScatter(in, out, n, trFloat32, trSum, comm, nullptr); }},
    {"AllToAll", [](const float* in, float* out, size_t n,
                    trComm_t comm) { return trAllToAll(in, out, n, trFloat32, comm, nullptr); }},
    {"AllToAllV",
     [](const float* in, float* out, size_t n, trComm_t comm) {
       const size_t counts[] = {n, n, n};
       return trAllToAllV(in, counts, nullptr, out, counts, nullptr, trFloat32, comm, nullptr);
     }},
    {"Scatter", [](const float* in, float* out, size_t n,
                   trComm_t comm) { return trScatter(in, out, n, trFloat32, 0, comm, nullptr); }},
    {"Barrier", [](const float*, float*, size_t, trComm_t comm) { return trBarrier(comm, nullptr); }},
};

class RankThatDiesIn : public ::testing::TestWithParam<std::tuple<NamedCall, size_t>> {};

TEST_P(RankThatDiesIn, IsNamedByAllOthers) {
  auto [row, count] = GetParam();
  Call call = row.call;
  size_t elements = count;
  RankProcesses processes(
      3, [=](int rank, const trUniqueId& id) { return run_until_failure(rank, 3, id, call, elements, 60'000); });
  for (int rank = 0; rank < 3; ++rank)
    ASSERT_TRUE(processes.wait_until_reached(rank)) << processes.wait(rank, std::chrono::seconds(1)).output;
  kill(processes.pid(1), SIGKILL);
  for (int rank : {0, 2}) {
    RankResult result = processes.wait(rank, std::chrono::seconds(30));
    EXPECT_EQ(result.exit_code, 10 + trRemoteError) << result.output;
    EXPECT_NE(result.output.find("rank 1 (pid " + std::to_string(processes.pid(1))), std::string::npos)
        << result.output;
  }
}

// 400 KiB blocks are copied by the kernel where it can.
INSTANTIATE_TEST_SUITE_P(CollectivesAndSizes, RankThatDiesIn,
                         ::testing::Combine(::testing::ValuesIn(kCalls),
                                            ::testing::Values(size_t{10}, size_t{100'000})),
                         [](const auto& row) {
                           return std::get<0>(row.param).name +
                                  std::string(std::get<1>(row.param) > 10 ? "Large" : "Small");
                         });

// With shared memory it tells itself, in calls without an operation, too.
TEST(Left, InOrderIsNoDeathToAShrink) {
  Gate has_ended;
  RankProcesses processes(2, [&](int rank, const trUniqueId& id) {
    has_ended.inherit();
    trComm_t comm = nullptr, smaller = nullptr;
    trConfig_t config = config_with_timeout(20'000);
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    float value = 1;
    TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr));
    if (rank == 1) {
      TR_CHECK(trCommDestroy(comm));
      std::exit(0);
    }
    has_ended.wait();
    const trResult_t result = trCommShrink(comm, nullptr, 0, &smaller, nullptr, 0);
    say(trGetLastError(comm));
    return 10 + result;
  });
  EXPECT_EQ(processes.wait(1).exit_code, 0);
  has_ended.open();
  const RankResult result = processes.wait(0);
  EXPECT_EQ(result.exit_code, 10 + trRemoteError) << result.output;
  EXPECT_NE(result.output.find("destroyed its communicator"), std::string::npos) << result.output;
}

// Over TCP its answers may be older than its end, which the job tells: late, where rank 0 stands still meanwhile.
TEST(Left, InOrderIsNoDeathThoughTheNewsIsLate) {
  Gate others_wait, both_have_ended_their_calls;
  RankProcesses processes(3, [&](int rank, const trUniqueId& id) {
    for (Gate* gate : {&others_wait, &both_have_ended_their_calls}) gate->inherit();
    trComm_t comm = nullptr, smaller = nullptr;
    trConfig_t config = config_with_timeout(20'000);
    TR_CHECK(trCommInitRankConfig(&comm, 3, id, rank, &config));
    float value = 1;
    TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr));
    if (rank == 2) {
      others_wait.wait();
      TR_CHECK(trCommDestroy(comm));
      std::exit(0);
    }
    std::jthread watcher = when_in_a_call(comm, reached);
    const trResult_t result = trCommShrink(comm, nullptr, 0, &smaller, nullptr, 0);
    say(trGetLastError(comm));
    watcher.join();
    reached();
    both_have_ended_their_calls.wait();  // or the end of one would be another news
    return 10 + result;
  });
  for (int rank : {0, 1}) ASSERT_TRUE(processes.wait_until_reached(rank));
  usleep(100'000);  // they have asked rank 2
  processes.stop(0);
  others_wait.open();
  EXPECT_EQ(processes.wait(2).exit_code, 0);
  usleep(300'000);  // so late is the news
  kill(processes.pid(0), SIGCONT);
  for (int rank : {0, 1}) EXPECT_TRUE(processes.wait_until_reached(rank));
  both_have_ended_their_calls.open();
  for (int rank : {0, 1}) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 10 + trRemoteError) << result.output;
    EXPECT_NE(result.output.find("destroyed its communicator"), std::string::npos) << result.output;
  }
}

// The memory of a process goes with it, and with it what it said of itself: that it has left in order the job tells.
TEST(Left, InOrderIsNoDeath) {
  for (int i = 0; i < 3; ++i) {
    RankProcesses processes(2, [](int rank, const trUniqueId& id) {
      if (getenv("TREERING_TRANSPORTS") == nullptr) setenv("TREERING_TRANSPORTS", "^shared-memory", 1);
      trComm_t comm = nullptr;
      trConfig_t config = config_with_timeout(20'000);
      TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
      float value = 1;
      TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr));
      if (rank == 1) {
        TR_CHECK(trCommDestroy(comm));
        std::exit(0);  // as a program ends
      }
      const trResult_t result = trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr);
      say(trGetLastError(comm));
      return 10 + result;
    });
    const RankResult result = processes.wait(0);
    EXPECT_EQ(result.exit_code, 10 + trRemoteError) << result.output;
    EXPECT_NE(result.output.find("destroyed its communicator"), std::string::npos) << result.output;
    EXPECT_EQ(processes.wait(1).exit_code, 0);
  }
}

// In the middle of an operation, and with a deadline that is hardly longer than signs of life may take.
int run_with_rank_1_stopped(int rank, const trUniqueId& id) {
  trComm_t comm = nullptr;
  trConfig_t config = config_with_timeout(2000);
  TR_CHECK(trCommInitRankConfig(&comm, 3, id, rank, &config));
  std::vector<float> values(100'000, 1.0f);  // the first call opens what the second one needs
  TR_CHECK(trAllReduce(values.data(), values.data(), values.size(), trFloat32, trSum, comm, nullptr));
  int stops = rank == 1 ? 1 : 0;
  const auto add = [](const void* in, void* inout, size_t count, trDataType_t, void* context) {
    if (*static_cast<int*>(context) != 0) raise(SIGSTOP);
    for (size_t i = 0; i < count; ++i) static_cast<float*>(inout)[i] += static_cast<const float*>(in)[i];
  };
  trRedOp_t sum;
  TR_CHECK(trRedOpCreateUser(&sum, add, &stops, 1, comm));
  const trResult_t result = trAllReduce(values.data(), values.data(), values.size(), trFloat32, sum, comm, nullptr);
  say(trGetLastError(comm));
  return 10 + result;
}

TEST_IN_THREE_ATTEMPTS(Stopped, ARankIsNamedWithWhatItIs) {
  RankProcesses processes(3, run_with_rank_1_stopped);
  const std::string named = "rank 1 (pid " + std::to_string(processes.pid(1));
  for (int rank : {0, 2}) {
    const RankResult result = processes.wait(rank, std::chrono::seconds(20));
    EXPECT_EQ(result.exit_code, 10 + trTimeout) << result.output;
    EXPECT_NE(result.output.find(named), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("stopped by a signal or a debugger) has shown no sign of life for "),
              std::string::npos)
        << result.output;
  }
}

TEST(Abort, EndsTheWaitOfAnotherThreadAndOfOtherRanks) {
  Gate other_waits;
  RankProcesses processes(2, [&](int rank, const trUniqueId& id) {
    other_waits.inherit();
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, 2, id, rank));
    float value = 1;
    if (rank == 1) {  // it never joins the operation
      other_waits.wait();
      TR_CHECK(trCommAbort(comm));
      return 0;
    }
    std::jthread watcher = when_in_a_call(comm, reached);
    trResult_t result = trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr);
    say(trGetLastError(comm));
    watcher.join();
    return 10 + result;
  });
  EXPECT_TRUE(processes.wait_until_reached(0));
  other_waits.open();
  RankResult waiting = processes.wait(0, std::chrono::seconds(20));
  EXPECT_EQ(waiting.exit_code, 10 + trRemoteError) << waiting.output;
  EXPECT_NE(waiting.output.find("rank 1"), std::string::npos) << waiting.output;
  EXPECT_EQ(processes.wait(1).exit_code, 0);
}

TEST(Abort, FromASecondThreadOfTheSameRank) {
  Gate other_has_ended;
  RankProcesses processes(2, [&](int rank, const trUniqueId& id) {
    other_has_ended.inherit();
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, 2, id, rank));
    if (rank == 1) {
      other_has_ended.wait();
      return 0;
    }
    std::jthread aborter = when_in_a_call(comm, [comm] { trCommAbort(comm); });
    float value = 1;
    trResult_t result = trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr);
    aborter.join();
    return 10 + result;
  });
  EXPECT_EQ(processes.wait(0, std::chrono::seconds(20)).exit_code, 10 + trRemoteError);
  other_has_ended.open();
  EXPECT_EQ(processes.wait(1).exit_code, 0);
}

TEST(Abort, InTheMiddleOfACallEndsThoseOfAllRanks) {
  RankGroup ranks(3);
  std::vector<std::thread> calls;
  for (int rank : {0, 1})
    calls.emplace_back([comm = ranks.comm(rank)] {
      float value = 1;
      EXPECT_EQ(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr), trRemoteError);
    });
  EXPECT_TRUE(soon([&] { return is_in_a_call(ranks.comm(0)) && is_in_a_call(ranks.comm(1)); }));
  EXPECT_EQ(trCommAbort(ranks.take(0)), trSuccess);
  for (std::thread& call : calls) call.join();
  for (int rank : {1, 2}) {
    trResult_t state = trSuccess;
    EXPECT_TRUE(soon([&] {  // rank 2, which is in no call, hears of it when it asks
      EXPECT_EQ(trCommGetAsyncError(ranks.comm(rank), &state), trSuccess);
      return state != trSuccess;
    }));
    EXPECT_EQ(state, trRemoteError) << "rank " << rank;
    EXPECT_NE(std::string(trGetLastError(ranks.comm(rank))).find("aborted"), std::string::npos);
  }
}

TEST(Abort, OfARankThatIsDoneLeavesTheOthersAlone) {
  RankGroup ranks(2);
  float value = 3;
  ASSERT_EQ(trBroadcast(&value, &value, 1, trFloat32, 0, ranks.comm(0), nullptr), trSuccess);
  EXPECT_EQ(trCommAbort(ranks.take(0)), trSuccess);
  trResult_t state = trInternalError;
  EXPECT_EQ(trCommGetAsyncError(ranks.comm(1), &state), trSuccess);
  EXPECT_EQ(state, trSuccess);
  float received = 0;
  EXPECT_EQ(trBroadcast(&received, &received, 1, trFloat32, 0, ranks.comm(1), nullptr), trSuccess)
      << trGetLastError(ranks.comm(1));
  EXPECT_EQ(received, 3);
  EXPECT_EQ(trAllReduce(&value, &value, 1, trFloat32, trSum, ranks.comm(1), nullptr), trRemoteError);
  EXPECT_NE(std::string(trGetLastError(ranks.comm(1))).find("destroyed its communicator"), std::string::npos);
}

TEST(Destroy, OfAPeerBeforeTheOperationIsAnErrorNotAHang) {
  Gate other_has_ended;
  RankProcesses processes(2, [&](int rank, const trUniqueId& id) {
    other_has_ended.inherit();
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, 2, id, rank));
    if (rank == 1) {
      TR_CHECK(trCommDestroy(comm));
      other_has_ended.wait();
      return 0;
    }
    float value = 1;
    trResult_t result = trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr);
    say(trGetLastError(comm));
    return 10 + result;
  });
  RankResult result = processes.wait(0, std::chrono::seconds(20));
  other_has_ended.open();
  EXPECT_EQ(result.exit_code, 10 + trRemoteError) << result.output;
  EXPECT_NE(result.output.find("destroyed"), std::string::npos) << result.output;
}

// What the others know of it may be older than its part, and its process has ended by then.
TEST(Destroy, AndTheEndOfAProcessThatDidItsPartAreNoFailure) {
  RankProcesses processes(3, [](int rank, const trUniqueId& id) {
    const auto late = [rank] { std::this_thread::sleep_for(std::chrono::milliseconds(rank == 2 ? 400 : 0)); };
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, 3, id, rank));
    float value = 1;
    late();  // the others ask one another meanwhile
    TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr));
    late();
    TR_CHECK(trReduce(&value, &value, 1, trFloat32, trSum, 1, comm, nullptr));
    TR_CHECK(trCommDestroy(comm));
    return rank == 1 && value != 9 ? 30 : 0;
  });
  for (int rank : {0, 1, 2}) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
  }
}

TEST(LastError, OfACommunicatorTellsWhatFailedOnAStream) {
  Gate call_is_made;
  RankProcesses processes(2, [&](int rank, const trUniqueId& id) {
    call_is_made.inherit();
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, 2, id, rank));
    if (rank == 1) {
      call_is_made.wait();
      return 0;
    }
    trStream_t stream = nullptr;
    TR_CHECK(trStreamCreate(&stream));
    const std::string before = trGetLastError(comm);
    float value = 1;
    TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, stream));
    reached();
    const trResult_t result = trStreamSynchronize(stream);
    const char *of_thread = trGetLastError(nullptr), *of_communicator = trGetLastError(comm);
    say(of_communicator);
    return before.empty() && std::strstr(of_thread, of_communicator) != nullptr ? 10 + result : 30;
  });
  EXPECT_TRUE(processes.wait_until_reached(0));
  call_is_made.open();
  const RankResult result = processes.wait(0);
  EXPECT_EQ(result.exit_code, 10 + trRemoteError) << result.output;
  EXPECT_NE(result.output.find("rank 1 (pid"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace treering::testing
