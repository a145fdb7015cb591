// Communicators with GPUs, each rank in a process of its own: on the stand-in (support/cpu_device.h), and as
// gpu_communicator_processes on GPUs. Apart from other tests, because it forks before the process has used a GPU.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <thread>

#include "support/device_rank_checks.h"
#include "support/processes.h"

namespace treering::testing {
namespace {

int gpus() {
  static const int count = [] {
    std::string why_not;
    return count_gpus_elsewhere(&why_not);
  }();
  return count;
}

// Processes that share a GPU take turns on it, so that kernels which wait for one another would not end: buffers are staged.
// With a GPU each they exchange by kernels.
const std::vector<Place> kPlaces = {{"two_on_one", {0, 0}}, {"four_on_one", {0, 0, 0, 0}},
                                    {"mixed", {0, -1}},     {"two_of_three", {0, 0, -1}},
                                    {"own", {0, 1}},        {"four_own", {0, 1, 2, 3}}};

class Processes : public ::testing::TestWithParam<Place> {
 protected:
  // Each rank makes the check; all processes live until the last has done so, because one that ends while kernels of others run
  // is taken for dead.
  static void run(const std::function<void(DeviceRanks& ranks)>& check, trConfig_t config = TR_CONFIG_INITIALIZER) {
    const std::vector<int> devices = GetParam().devices;
    int end[2];
    ASSERT_EQ(pipe(end), 0);
    RankProcesses processes(static_cast<int>(devices.size()), [&](int rank, const trUniqueId& id) -> int {
      close(end[1]);
      {
        DeviceRanks ranks(devices, id, rank, config);
        check(ranks);
      }
      reached();
      char nothing = 0;
      return read(end[0], &nothing, 1) != 0 || ::testing::Test::HasFailure() ? 1 : 0;
    });
    for (size_t rank = 0; rank < devices.size(); ++rank)
      EXPECT_TRUE(processes.wait_until_reached(static_cast<int>(rank), std::chrono::seconds(200))) << "rank " << rank;
    close(end[0]);
    close(end[1]);
    for (const RankResult& result : processes.wait_all())
      EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal << ", " << result.output << "; errors are above";
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
  const std::vector<int> devices = GetParam().devices;
  const bool kernels = std::set<int>(devices.begin(), devices.end()).size() == devices.size() &&
                       std::count(devices.begin(), devices.end(), -1) == 0;
  run([=](DeviceRanks& ranks) {
    ASSERT_NO_FATAL_FAILURE(check_order(ranks, 5000));
    ASSERT_NO_FATAL_FAILURE(check_graphs(ranks, 30'000));
    ASSERT_NO_FATAL_FAILURE(check_graphs_of_transfers(ranks, 30'000));
    ASSERT_NO_FATAL_FAILURE(
        check_graphs_beside_calls(ranks, 30'000, kernels ? Ordered::kByCommunicator : Ordered::kByProgram));
    ASSERT_NO_FATAL_FAILURE(check_two_communicators(ranks, 30'000));
  });
}

TEST_P(Processes, AbortFreesTheStreams) {
  run([](DeviceRanks& ranks) { check_abort(ranks, 100'000); });
}

// The last rank is killed while the streams of the others wait for it.
TEST_P(Processes, DeathIsNoticed) {
  const std::vector<int> devices = GetParam().devices;
  const int n = static_cast<int>(devices.size()), last = n - 1;
  RankProcesses ranks(n, [&](int rank, const trUniqueId& id) -> int {
    DeviceRanks own(devices, id, rank);
    constexpr size_t kMany = 200'000;
    auto data = own.buffers(kMany);
    const auto reduce = [&](int r, trComm_t comm, trStream_t stream) {
      return trAllReduce(data[r].data(), data[r].data(), kMany, trInt32, trSum, comm, stream);
    };
    own.run(false, reduce);
    if (::testing::Test::HasFailure()) return 1;
    reached();
    if (rank == last) std::this_thread::sleep_for(std::chrono::seconds(100));
    // Given while the death is not known yet, or refused because it is.
    const trResult_t given = reduce(rank, own.comm(rank), own.stream(rank));
    EXPECT_TRUE(given == trSuccess || given == trRemoteError);
    const trResult_t passed = trStreamSynchronize(own.stream(rank));
    EXPECT_TRUE(passed == trSuccess || devices[static_cast<size_t>(rank)] < 0);
    trResult_t state = trSuccess;
    EXPECT_EQ(trCommGetAsyncError(own.comm(rank), &state), trSuccess);
    EXPECT_EQ(state, trRemoteError);
    const std::string text = trGetLastError(own.comm(rank));
    EXPECT_NE(text.find("rank " + std::to_string(last)), std::string::npos) << text;
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

}  // namespace
}  // namespace treering::testing
