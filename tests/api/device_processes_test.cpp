// SPDX-License-Identifier: Apache-2.0
// Communicators with GPUs, each rank in a process of its own: on the stand-in (support/cpu_device.h), and as
// gpu_communicator_processes on GPUs. Apart from other tests, because it forks before the process has used a GPU.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "support/attempts.h"
#include "support/device_rank_checks.h"
#include "support/processes.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

int gpus() {
  static const int count = [] {
    std::string why_not;
    return count_gpus_elsewhere(&why_not);
  }();
  return count;
}

// Processes that share a GPU take turns on it, so that kernels which wait for one another would not end: buffers are
// staged. With a GPU each they exchange by kernels.
const std::vector<Place> kPlaces = {{"two_on_one", {0, 0}}, {"four_on_one", {0, 0, 0, 0}},
                                    {"mixed", {0, -1}},     {"two_of_three", {0, 0, -1}},
                                    {"own", {0, 1}},        {"four_own", {0, 1, 2, 3}}};

// All ranks' processes come together, and go on when the parent has seen each.
class Meeting {
 public:
  Meeting() { EXPECT_EQ(pipe(ends_), 0); }
  ~Meeting() {
    close(ends_[0]);
    if (ends_[1] >= 0) close(ends_[1]);
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // In a rank, at first; then when it comes.
  void leave_to_parent() { close(std::exchange(ends_[1], -1)); }
  void come() const {
    reached();
    char nothing = 0;
    EXPECT_EQ(read(ends_[0], &nothing, 1), 0);
  }
  // In the parent.
  void hold(RankProcesses* processes, const std::vector<int>& ranks) {
    for (int rank : ranks)
      EXPECT_TRUE(processes->wait_until_reached(rank, std::chrono::seconds(200))) << "rank " << rank;
    leave_to_parent();
  }

 private:
  int ends_[2];
};

class Processes : public ::testing::TestWithParam<Place> {
 protected:
  using Meet = std::function<void()>;
  // Each rank makes the check, which calls `meet` once if it `meets`.
  static void run(const std::function<void(DeviceRanks& ranks, const Meet& meet)>& check, bool meets,
                  trConfig_t config = TR_CONFIG_INITIALIZER) {
    const std::vector<int> devices = GetParam().devices;
    const int n = static_cast<int>(devices.size());
    Meeting within;
    RankProcesses processes(n, [&](int rank, const trUniqueId& id) -> int {
      within.leave_to_parent();
      {
        DeviceRanks ranks(devices, id, rank, config);
        check(ranks, [&] { within.come(); });
      }
      return ::testing::Test::HasFailure() ? 1 : 0;
    });
    std::vector<int> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    if (meets) within.hold(&processes, all);
    for (const RankResult& result : processes.wait_all())
      EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal << ", " << result.output << "; errors are above";
  }
  static void run(const std::function<void(DeviceRanks& ranks)>& check, trConfig_t config = TR_CONFIG_INITIALIZER) {
    run([&](DeviceRanks& ranks, const Meet&) { check(ranks); }, false, config);
  }
};
INSTANTIATE_TEST_SUITE_P(Device, Processes, ::testing::ValuesIn(possible(kPlaces, gpus())),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(Processes, Calls) {
  run([](DeviceRanks& ranks) {
    ASSERT_NO_FATAL_FAILURE(check_collectives(ranks, {0, 1, 1001, 70'007}));
    ASSERT_NO_FATAL_FAILURE(check_in_place(ranks, 30'011));
    ASSERT_NO_FATAL_FAILURE(check_transfers(ranks, {5, 50'003}));
    ASSERT_NO_FATAL_FAILURE(check_variable_counts(ranks, 5003));
    ASSERT_NO_FATAL_FAILURE(check_groups(ranks));
    ASSERT_NO_FATAL_FAILURE(check_host_buffers(ranks, 1000));
  });
}

TEST_P(Processes, CallsInPieces) {
  run([](DeviceRanks& ranks) { check_collectives(ranks, {kSmallPiece / 4 + 1, 100'003}); }, with_small_pieces());
}

TEST_P(Processes, Sizes) {
  run([](DeviceRanks& ranks) { check_sizes(ranks, gpus_are_slow() ? size_t{5} << 20 : size_t{256} << 20); });
}

TEST_P(Processes, StreamsAndGraphs) {
  run([](DeviceRanks& ranks) {
    ASSERT_NO_FATAL_FAILURE(check_order(ranks, 5000));
    ASSERT_NO_FATAL_FAILURE(check_graphs(ranks, 30'000));
    ASSERT_NO_FATAL_FAILURE(check_graphs_of_transfers(ranks, 30'000));
    ASSERT_NO_FATAL_FAILURE(check_graphs_beside_calls(ranks, 30'000));
    ASSERT_NO_FATAL_FAILURE(check_two_communicators(ranks, 30'000));
  });
}

TEST_P(Processes, AbortFreesTheStreams) {
  run([](DeviceRanks& ranks, const Meet& meet) { check_abort(ranks, 100'000, meet); }, true);
}

// A rank that has done its part ends, while kernels of others wait for one that is late.
TEST(ProcessesThatEnd, InGoodOrderAreNotDead) {
  if (gpus() < 3) GTEST_SKIP() << "needs 3 GPUs, there are " << gpus();
  const std::vector<int> devices = {0, 1, 2};
  Meeting late;
  RankProcesses ranks(3, [&](int rank, const trUniqueId& id) -> int {
    late.leave_to_parent();
    DeviceRanks own(devices, id, rank);
    auto data = own.buffers(10);
    if (rank == 1) late.come();
    own.run(false, [&](int r, trComm_t comm, trStream_t stream) {
      return trReduce(data[r].data(), data[r].data(), 10, trInt32, trSum, 2, comm, stream);
    });
    EXPECT_TRUE(rank != 2 || data[2].all_equal([](size_t) { return 6; }));
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  // It has nothing to wait for but that the others leave, for a while.
  EXPECT_EQ(ranks.wait(0, std::chrono::seconds(100)).exit_code, 0);
  late.hold(&ranks, {1});
  for (int rank : {1, 2}) {
    const RankResult result = ranks.wait(rank, std::chrono::seconds(100));
    EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal << ", " << result.output << "; errors are above";
  }
}

// The last rank is killed while the streams of the others wait for it.
TEST_P(Processes, DeathIsNoticed) {
  const std::vector<int> devices = GetParam().devices;
  const int n = static_cast<int>(devices.size()), last = n - 1;
  // Where all exchange by kernels, it is those that are ended.
  const bool kernels = std::set<int>(devices.begin(), devices.end()).size() == devices.size() && devices.back() >= 0;
  // They are forced, because a busy machine may measure slow links.
  const trConfig_t config = kernels ? by_kernels() : trConfig_t(TR_CONFIG_INITIALIZER);
  const SharedNumber pid_of_last;
  RankProcesses ranks(n, [&](int rank, const trUniqueId& id) -> int {
    if (rank == last) *pid_of_last = getpid();
    DeviceRanks own(devices, id, rank, config);
    constexpr size_t kMany = 200'000;
    auto data = own.buffers(kMany);
    const auto reduce = [&](int r, trComm_t comm, trStream_t stream) {
      return trAllReduce(data[r].data(), data[r].data(), kMany, trInt32, trSum, comm, stream);
    };
    own.run(false, reduce);
    if (::testing::Test::HasFailure()) return 1;
    reached();
    if (rank == last) pause();
    // Given while the death is not known yet, or refused because it is.
    const trResult_t given = reduce(rank, own.comm(rank), own.stream(rank));
    EXPECT_TRUE(given == trSuccess || given == trRemoteError);
    const trResult_t passed = trStreamSynchronize(own.stream(rank));
    EXPECT_TRUE(passed == trSuccess || devices[static_cast<size_t>(rank)] < 0);
    trResult_t state = trSuccess;
    EXPECT_EQ(trCommGetAsyncError(own.comm(rank), &state), trSuccess);
    EXPECT_EQ(state, trRemoteError);
    const std::string text = trGetLastError(own.comm(rank));
    const std::string name = "rank " + std::to_string(last) + " (pid " + std::to_string(*pid_of_last);
    EXPECT_NE(text.find(name), std::string::npos) << text;
    EXPECT_TRUE(!kernels || text.find(") has died; the GPU of rank ") != std::string::npos) << text;
    EXPECT_EQ(trCommAbort(std::exchange(own.comm(rank), nullptr)), trSuccess);
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  for (int rank = 0; rank < n; ++rank) ASSERT_TRUE(ranks.wait_until_reached(rank, std::chrono::seconds(100)));
  ASSERT_EQ(kill(ranks.pid(last), SIGKILL), 0);
  for (int rank = 0; rank < last; ++rank) {
    const RankResult result = ranks.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
  }
}

// The others' errors go through the process that does not answer, and it is not known what its rank has given its GPU.
TEST_IN_THREE_ATTEMPTS(ProcessesThatStand, AreNamedSoonAfterTheDeadline) {
  if (gpus() < 3) GTEST_SKIP() << "needs 3 GPUs, there are " << gpus();
  constexpr std::chrono::milliseconds kTimeout{4000};
  const std::vector<int> devices = {0, 1, 2};
  Meeting meeting;
  RankProcesses ranks(3, [&](int rank, const trUniqueId& id) -> int {
    meeting.leave_to_parent();
    EXPECT_EQ(setenv("TREERING_TRANSPORTS", "tcp", 1), 0);
    trConfig_t config = by_kernels();
    config.timeout_ms = static_cast<int>(kTimeout.count());
    DeviceRanks own(devices, id, rank, config);
    auto data = own.buffers(10);
    meeting.come();
    const auto begin = std::chrono::steady_clock::now();
    own.enqueue([&](int r, trComm_t comm, trStream_t stream) {
      return trAllReduce(data[r].data(), data[r].data(), 10, trInt32, trSum, comm, stream);
    });
    EXPECT_EQ(trStreamSynchronize(own.stream(rank)), trSuccess);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 2 * kTimeout) << trGetLastError(own.comm(rank));
    trResult_t state = trSuccess;
    EXPECT_EQ(trCommGetAsyncError(own.comm(rank), &state), trSuccess);
    EXPECT_EQ(state, trTimeout);
    const std::string text = trGetLastError(own.comm(rank));
    EXPECT_NE(text.find(": rank 0 (pid "), std::string::npos) << text;
    EXPECT_EQ(trCommAbort(std::exchange(own.comm(rank), nullptr)), trSuccess);
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  for (int rank : {0, 1, 2}) ASSERT_TRUE(ranks.wait_until_reached(rank, std::chrono::seconds(100)));
  ranks.stop(0);  // its process made the id: it is the top of the tree
  meeting.leave_to_parent();
  for (int rank : {1, 2}) {
    const RankResult result = ranks.wait(rank, std::chrono::seconds(100));
    EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal << ", " << result.output << "; errors are above";
  }
}

// Rank 5 dies, and its parent in the tree, rank 1, proposes a verdict. Rank 0, the top of the tree, is stopped and does not decide. One
// thread looks after both communicators of rank 1's process.
TEST_IN_THREE_ATTEMPTS(AFailureThatIsNotDecided, HoldsUpNoOtherCommunicator) {
  constexpr int kRanks = 6, kTop = 0, kParent = 1, kVictim = 5, kTimeoutMs = 2000;
  if (gpus() < kRanks) GTEST_SKIP() << "needs " << kRanks << " GPUs, there are " << gpus();
  Meeting meeting;
  RankProcesses ranks(kRanks, [&](int rank, const trUniqueId& id) -> int {
    meeting.leave_to_parent();
    EXPECT_EQ(setenv("TREERING_TRANSPORTS", "cma", 1), 0);
    DeviceRanks own({0, 1, 2, 3, 4, 5}, id, rank, by_kernels());
    auto data = own.buffers(10);
    if (rank != kParent) {
      reached();
      pause();
    }
    DeviceRanks others({2, 3}, kTimeoutMs, by_kernels());
    auto of_others = others.buffers(10);
    const auto reduce = [](const Buffer& buffer, trComm_t comm, trStream_t stream) {
      return trAllReduce(buffer.data(), buffer.data(), 10, trInt32, trSum, comm, stream);
    };
    const auto state_of = [](trComm_t comm) {
      trResult_t state = trSuccess;
      EXPECT_EQ(trCommGetAsyncError(comm, &state), trSuccess);
      return state;
    };
    const auto has_failed = [&](trComm_t comm) {
      return state_of(comm) != trSuccess && state_of(comm) != trInProgress;
    };
    EXPECT_EQ(reduce(data[kParent], own.comm(kParent), own.stream(kParent)), trSuccess);
    meeting.come();
    int lost[kRanks] = {}, count = 0;  // rank 0 is stopped, and comes first
    EXPECT_TRUE(soon([&] { return trCommGetLost(own.comm(kParent), lost, &count) == trSuccess && count == 2; }));
    EXPECT_EQ(lost[1], kVictim);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(reduce(of_others[0], others.comm(0), others.stream(0)), trSuccess);  // and rank 1 does not
    EXPECT_TRUE(soon([&] { return has_failed(others.comm(0)); }));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(2 * kTimeoutMs));
    EXPECT_EQ(state_of(others.comm(0)), trTimeout) << trGetLastError(others.comm(0));
    EXPECT_FALSE(has_failed(own.comm(kParent))) << "too soon to hold up others: " << trGetLastError(own.comm(kParent));
    EXPECT_TRUE(soon([&] { return has_failed(own.comm(kParent)); }));
    const std::string text = trGetLastError(own.comm(kParent));
    EXPECT_NE(text.find("rank " + std::to_string(kVictim) + " (pid "), std::string::npos) << text;
    for (trComm_t* comm : {&own.comm(kParent), &others.comm(0), &others.comm(1)})
      EXPECT_EQ(trCommAbort(std::exchange(*comm, nullptr)), trSuccess);
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(ranks.wait_until_reached(rank, std::chrono::seconds(100)));
  ranks.stop(kTop);
  ASSERT_EQ(kill(ranks.pid(kVictim), SIGKILL), 0);
  meeting.leave_to_parent();
  const RankResult result = ranks.wait(kParent, std::chrono::seconds(100));
  EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal << ", " << result.output << "; errors are above";
}

}  // namespace
}  // namespace treering::testing
