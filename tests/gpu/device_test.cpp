// SPDX-License-Identifier: Apache-2.0
// The kernels on a GPU: every schedule, protocol, type and operation with 2, 4 and 8 ranks in one process on one GPU.
// All blocks are resident at once, because ranks x channels is less than the multiprocessors of every GPU that is
// supported.
#include "gpu/gpu_test.h"

namespace treering::cuda {
namespace {

std::vector<uint32_t> rank_counts() {
  if (is_short(gpu())) return {2, 4};
  return {2, 4, 8};
}

class EveryAlgorithmOnGpu : public ::testing::TestWithParam<const Algorithm*> {};

TEST_P(EveryAlgorithmOnGpu, MovesAndReducesWhatTheCollectiveSays) {
  check_algorithm(gpu(), *GetParam(), rank_counts());
}

INSTANTIATE_TEST_SUITE_P(Gpu, EveryAlgorithmOnGpu, ::testing::ValuesIn(all_algorithms()),
                         [](const auto& info) { return test_name(*info.param); });

TEST(GpuTypes, EveryTypeOperationAndProtocol) { check_types(gpu()); }

TEST(GpuLanes, SendsAndReceivesInAnyOrder) { check_lanes(gpu(), rank_counts()); }

TEST(GpuFailures, AnotherCallIsNamed) { check_other_call_is_named(gpu()); }

TEST(GpuFailures, AbortEndsKernelsThatSpin) { check_abort(gpu()); }

}  // namespace
}  // namespace treering::cuda
