// SPDX-License-Identifier: Apache-2.0
// NCCL's interface on GPUs of several processes, apart from other tests: it forks before it has threads. The devices
// are the stand-ins of support/cpu_device.h.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "shim/helpers.h"
#include "support/cpu_device.h"

namespace treering::testing {
namespace {

constexpr int kRanks = 3;

cudaStream_t as_cuda(DeviceStream stream) { return static_cast<cudaStream_t>(stream); }

// Ranks are processes, memory is opened by handles; then one of them is killed while the others' kernels wait for it.
TEST(ShimOnDevicesOfProcesses, ExchangeAndNoticeADeath) {
  constexpr size_t kMany = 300'000;
  RankProcesses ranks(kRanks, [](int rank, const trUniqueId& id) -> int {
    set_cpu_device(rank);
    setenv("TREERING_DEVICE_PROTOCOL", "ll,ll128,simple", 1);  // kernels, though a busy machine's links seem slow
    ncclComm_t comm = nullptr;
    NCCL_CHECK(ncclCommInitRank(&comm, kRanks, as_nccl(id), rank));
    DeviceStream stream = create_stream_of(rank);
    void* memory = nullptr;
    NCCL_CHECK(ncclMemAlloc(&memory, kMany * sizeof(int)));
    auto* data = static_cast<int*>(memory);
    for (size_t i = 0; i < kMany; ++i) data[i] = rank + static_cast<int>(i);
    const uint64_t launched = cpu_launches();
    NCCL_CHECK(ncclAllReduce(data, data, kMany, ncclInt32, ncclSum, comm, as_cuda(stream)));
    synchronize_stream(stream);
    RANK_EXPECT(cpu_launches() == launched + 1);
    for (size_t i = 0; i < kMany; ++i) RANK_EXPECT(data[i] == 3 + 3 * static_cast<int>(i));
    reached();
    if (rank == 2) pause();
    // Given while the death is not known yet, or refused because it is.
    const ncclResult_t given = ncclAllReduce(data, data, kMany, ncclInt32, ncclSum, comm, as_cuda(stream));
    RANK_EXPECT(given == ncclSuccess || given == ncclRemoteError);
    synchronize_stream(stream);
    ncclResult_t state = ncclSuccess;
    NCCL_CHECK(ncclCommGetAsyncError(comm, &state));
    RANK_EXPECT(state == ncclRemoteError);
    RANK_EXPECT(std::string(ncclGetLastError(comm)).find("rank 2") != std::string::npos);
    NCCL_CHECK(ncclCommAbort(comm));
    return 0;
  });
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(ranks.wait_until_reached(rank));
  ASSERT_EQ(kill(ranks.pid(2), SIGKILL), 0);
  for (int rank : {0, 1}) {
    const RankResult result = ranks.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
  }
}

// Where handles of memory do not work, as in containers: it is shared by descriptors, and kernels run as before.
TEST(ShimOnDevicesOfProcesses, ShareByDescriptors) {
  RankProcesses ranks(kRanks, [](int rank, const trUniqueId& id) -> int {
    set_cpu_link({.without_handles = true});
    set_cpu_device(rank);
    setenv("TREERING_DEVICE_BLOCKS", "12", 1);  // more than what the proofs use has memory of its own
    ncclComm_t comm = nullptr;
    NCCL_CHECK(ncclCommInitRank(&comm, kRanks, as_nccl(id), rank));
    RANK_EXPECT(cpu_shareable_allocations() == 2);
    DeviceStream stream = create_stream_of(rank);
    void* memory = nullptr;
    NCCL_CHECK(ncclMemAlloc(&memory, 1000 * sizeof(int)));
    auto* data = static_cast<int*>(memory);
    for (int i = 0; i < 1000; ++i) data[i] = rank + i;
    NCCL_CHECK(ncclAllReduce(data, data, 1000, ncclInt32, ncclSum, comm, as_cuda(stream)));
    synchronize_stream(stream);
    RANK_EXPECT(cpu_launches() == 1);
    for (int i = 0; i < 1000; ++i) RANK_EXPECT(data[i] == 3 + 3 * i);
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankResult result = ranks.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
  }
}

// NCCL_PROTO restricts what kernels use, and the report says so.
TEST(ShimOnDevicesOfProcesses, ProtocolsAreRestrictedAndReported) {
  const std::string file = ::testing::TempDir() + "treering-report-" + std::to_string(getpid());
  RankProcesses ranks(2, [&](int rank, const trUniqueId& id) -> int {
    if (rank == 0) setenv("NCCL_DEBUG_FILE", file.c_str(), 1);
    setenv("NCCL_DEBUG", "INFO", 1);
    setenv("NCCL_PROTO", "allreduce:Simple;broadcast:^LL,LL128", 1);
    set_cpu_device(rank);
    ncclComm_t comm = nullptr;
    NCCL_CHECK(ncclCommInitRank(&comm, 2, as_nccl(id), rank));
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
  });
  for (int rank = 0; rank < 2; ++rank) {
    const RankResult result = ranks.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
  }
  std::ifstream log(file);
  const std::string text((std::istreambuf_iterator<char>(log)), std::istreambuf_iterator<char>());
  std::remove(file.c_str());
  const auto line = [&](const std::string& name) {
    const size_t at = text.find("INFO " + name + ":");
    return at == std::string::npos ? "no line of " + name : text.substr(at, text.find('\n', at) - at);
  };
  for (const char* name : {"AllReduce", "Broadcast"}) {
    EXPECT_NE(line(name).find("/simple x"), std::string::npos) << text;
    EXPECT_EQ(line(name).find("/ll"), std::string::npos) << line(name);
  }
  EXPECT_NE(line("AllGather").find("/ll x"), std::string::npos) << line("AllGather");
}

}  // namespace
}  // namespace treering::testing
