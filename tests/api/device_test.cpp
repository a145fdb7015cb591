// SPDX-License-Identifier: Apache-2.0
// Communicators with GPUs, all ranks in this process, through the C API: on the stand-in (support/cpu_device.h), and as
// gpu_communicator on GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "support/device_rank_checks.h"
#include "support/sanitized.h"
#include "support/seed.h"

namespace treering::testing {
namespace {

std::vector<Place> possible_here(const std::vector<Place>& places) {
  int gpus = 0;
  EXPECT_EQ(trDeviceCount(&gpus), trSuccess);
  return possible(places, gpus);
}
// Ranks that share the processors of a test machine take a sanitizer minutes: fewer of them, and of each kind one.
const std::vector<Place> kKernels =
    kSanitized ? std::vector<Place>{{"three_on_one", {0, 0, 0}}, {"pairs", {0, 0, 1, 1}}, {"own", {0, 1, 2}}}
               : std::vector<Place>{{"two_on_one", {0, 0}},
                                    {"eight_on_one", {0, 0, 0, 0, 0, 0, 0, 0}},
                                    {"four_on_one", {0, 0, 0, 0}},
                                    {"pairs", {0, 0, 1, 1}},
                                    {"own", {0, 1, 2}}};
const std::vector<Place> kStaged =
    kSanitized ? std::vector<Place>{{"host_first", {-1, -1, 0, 0}}, {"mixed_own", {1, -1, 0}}}
               : std::vector<Place>{{"mixed", {0, -1}}, {"host_first", {-1, -1, 0, 0}}, {"mixed_own", {1, -1, 0}}};
const std::vector<Place> kAlone = {{"one_rank", {0}}};

// All ranks have GPUs: kernels exchange.
class Kernels : public ::testing::TestWithParam<Place> {};
// Some have none: buffers go through memory of the host, large ones in pieces.
class Staged : public ::testing::TestWithParam<Place> {};
class Alone : public ::testing::TestWithParam<Place> {};
const auto kPlaceName = [](const auto& info) { return name_of(info.param); };
INSTANTIATE_TEST_SUITE_P(Device, Kernels, ::testing::ValuesIn(possible_here(kKernels)), kPlaceName);
INSTANTIATE_TEST_SUITE_P(Device, Staged, ::testing::ValuesIn(possible_here(kStaged)), kPlaceName);
INSTANTIATE_TEST_SUITE_P(Device, Alone, ::testing::ValuesIn(possible_here(kAlone)), kPlaceName);

// Exactly a piece and one more; several.
const std::vector<size_t> kPieceCounts = {kSmallPiece / 4, kSmallPiece / 4 + 1, 60'000, 200'009};

size_t largest_size() { return gpus_are_slow() ? size_t{5} << 20 : size_t{1} << 30; }

void check_calls(DeviceRanks& ranks, const std::vector<size_t>& counts) {
  ASSERT_NO_FATAL_FAILURE(check_collectives(ranks, counts));
  ASSERT_NO_FATAL_FAILURE(check_in_place(ranks, counts.back()));
  ASSERT_NO_FATAL_FAILURE(check_transfers(ranks, {counts.front(), counts.back()}));
  ASSERT_NO_FATAL_FAILURE(check_variable_counts(ranks, 13));
  ASSERT_NO_FATAL_FAILURE(check_variable_counts(ranks, 5003));
  ASSERT_NO_FATAL_FAILURE(check_groups(ranks));
  ASSERT_NO_FATAL_FAILURE(check_host_buffers(ranks, 1000));
}

TEST_P(Alone, Calls) {
  DeviceRanks ranks(GetParam().devices);
  check_calls(ranks, {0, 1, 30'007});
}
TEST_P(Alone, Graphs) {
  DeviceRanks ranks(GetParam().devices);
  check_graphs(ranks, 3000);
}
TEST_P(Alone, Sizes) {
  DeviceRanks ranks(GetParam().devices);
  check_sizes(ranks, largest_size());
}

TEST_P(Kernels, Calls) {
  DeviceRanks ranks(GetParam().devices);
  check_calls(ranks, {0, 1, 1001, 70'007});
}
TEST_P(Kernels, Sizes) {
  DeviceRanks ranks(GetParam().devices);
  check_sizes(ranks, largest_size());
}
TEST_P(Kernels, Streams) {
  DeviceRanks ranks(GetParam().devices);
  ASSERT_NO_FATAL_FAILURE(check_order(ranks, 5000));
  ASSERT_NO_FATAL_FAILURE(check_two_communicators(ranks, 50'000));
  for (size_t count : {100, 1 << 20})  // more than a FIFO has room for
    ASSERT_NO_FATAL_FAILURE(check_transfers_on_two_streams(ranks, count));
  check_end(ranks, 1'000'000);
}
// What graphs keep is given back with the communicator, without a wait.
TEST_P(Kernels, Graphs) {
  auto ranks = std::make_unique<DeviceRanks>(GetParam().devices);
  for (size_t count : {3, 50'000}) {
    ASSERT_NO_FATAL_FAILURE(check_graphs(*ranks, count));
    ASSERT_NO_FATAL_FAILURE(check_graphs_beside_calls(*ranks, count));
    ASSERT_NO_FATAL_FAILURE(check_graphs_of_transfers(*ranks, count));
  }
  ASSERT_NO_FATAL_FAILURE(check_graphs_on_two_streams(*ranks, 1 << 20));
  const auto begun = std::chrono::steady_clock::now();
  ranks.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(8)) << "the end waited for memory";
}
TEST_P(Kernels, AbortFreesTheStreams) {
  for (size_t count : {100, 300'000}) {
    DeviceRanks ranks(GetParam().devices);
    check_abort(ranks, count);
  }
}
TEST_P(Kernels, AbortBesideGraphs) {
  DeviceRanks ranks(GetParam().devices);
  check_abort_beside_graphs(ranks, 1000);
}
TEST_P(Kernels, AbortsOfTwoCommunicators) {
  DeviceRanks ranks(GetParam().devices);
  check_aborts_of_two_communicators(ranks, 300'000);
}
TEST_P(Kernels, ADeadlineEndsTheWait) {
  DeviceRanks ranks(GetParam().devices, 5000);  // creating them has the same, of which a sanitized build takes a part
  check_deadline(ranks);
}
// Found by a kernel, which ends: the next call that asks tells the failure, and so do later ones.
TEST_P(Kernels, CallsThatDifferAreAnErrorOnAllRanks) {
  for (size_t count : {100, 100'000}) {
    DeviceRanks ranks(GetParam().devices);
    auto data = ranks.buffers(count);
    ranks.enqueue([&](int r, trComm_t comm, trStream_t stream) {
      return trAllReduce(data[r].data(), data[r].data(), count, trInt32, r == 0 ? trSum : trMax, comm, stream);
    });
    for (int r : ranks.local()) ASSERT_EQ(trStreamSynchronize(ranks.stream(r)), trSuccess);
    for (int r : ranks.local()) {
      trResult_t result = trSuccess;
      ASSERT_EQ(trCommGetAsyncError(ranks.comm(r), &result), trSuccess);
      EXPECT_EQ(result, trInvalidUsage) << "count " << count << " rank " << r;
      EXPECT_NE(std::string(trGetLastError(ranks.comm(r))).find("differs from that of rank"), std::string::npos);
      EXPECT_EQ(trAllReduce(data[r].data(), data[r].data(), count, trInt32, trSum, ranks.comm(r), ranks.stream(r)),
                trInvalidUsage);
    }
  }
}

TEST_P(Staged, Calls) {
  DeviceRanks ranks(GetParam().devices);
  check_calls(ranks, {0, 1, 1001, 70'007});
}
TEST_P(Staged, CallsInPieces) {
  DeviceRanks ranks(GetParam().devices, 60'000, with_small_pieces());
  check_calls(ranks, kPieceCounts);
}
TEST_P(Staged, Sizes) {
  DeviceRanks ranks(GetParam().devices);
  check_sizes(ranks, std::min(largest_size(), size_t{256} << 20));
}
TEST_P(Staged, Streams) {
  for (const trConfig_t& config : {trConfig_t(TR_CONFIG_INITIALIZER), with_small_pieces()}) {
    DeviceRanks ranks(GetParam().devices, 60'000, config);
    ASSERT_NO_FATAL_FAILURE(check_order(ranks, 150'000));
    ASSERT_NO_FATAL_FAILURE(check_two_communicators(ranks, 50'000));
    ASSERT_NO_FATAL_FAILURE(check_transfers_on_two_streams(ranks, 1 << 20));
    check_end(ranks, 1'000'000);
  }
}
TEST_P(Staged, Graphs) {
  for (const trConfig_t& config : {trConfig_t(TR_CONFIG_INITIALIZER), with_small_pieces()}) {
    DeviceRanks ranks(GetParam().devices, 60'000, config);
    ASSERT_NO_FATAL_FAILURE(check_graphs(ranks, 150'001));
    ASSERT_NO_FATAL_FAILURE(check_graphs_beside_calls(ranks, 50'000));
    ASSERT_NO_FATAL_FAILURE(check_graphs_of_transfers(ranks, 50'000));
  }
}
TEST_P(Staged, AbortFreesTheStreams) {
  for (const trConfig_t& config : {trConfig_t(TR_CONFIG_INITIALIZER), with_small_pieces()}) {
    DeviceRanks ranks(GetParam().devices, 60'000, config);
    check_abort(ranks, 300'000);
  }
}

TEST_P(Staged, AbortsOfTwoCommunicators) {
  for (const trConfig_t& config : {trConfig_t(TR_CONFIG_INITIALIZER), with_small_pieces()}) {
    DeviceRanks ranks(GetParam().devices, 60'000, config);
    check_aborts_of_two_communicators(ranks, 300'000);
  }
}

// With a fixed order a result depends on nothing else: in pieces it is, bit for bit, the one of a single piece.
TEST(Pieces, HaveTheResultsOfTheWhole) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr size_t kCount = 200'001;
  std::vector<std::vector<float>> inputs(3, std::vector<float>(kCount)), results;
  std::mt19937 random(seed);
  for (auto& input : inputs)
    for (float& x : input) x = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 60) - 30);
  for (int piece : {1 << 30, kSmallPiece, 3 * kSmallPiece + 4}) {
    DeviceRanks ranks({0, -1, 0}, 60'000, with_small_pieces(piece, true));
    auto in = ranks.buffers(kCount), out = ranks.buffers(kCount);
    for (size_t r = 0; r < 3; ++r) in[r].write(0, kCount, inputs[r].data());
    ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
      return trAllReduce(in[r].data(), out[r].data(), kCount, trFloat32, trSum, comm, stream);
    });
    for (const Buffer& b : out) b.read(0, kCount, results.emplace_back(kCount).data());
  }
  for (const auto& result : results)
    EXPECT_EQ(std::memcmp(result.data(), results[0].data(), kCount * sizeof(float)), 0);
}

}  // namespace
}  // namespace treering::testing
