// SPDX-License-Identifier: Apache-2.0
// NCCL's interface on GPUs: the devices are the stand-ins of support/cpu_device.h.
#include <algorithm>
#include <atomic>
#include <utility>

#include "shim/helpers.h"
#include "support/cpu_device.h"

namespace treering::testing {
namespace {

constexpr int kRanks = 3;

cudaStream_t as_cuda(DeviceStream stream) { return static_cast<cudaStream_t>(stream); }

// One communicator over devices 0 to 2, a stream and two buffers of 1000 int32 on each.
class ShimOnDevices : public ::testing::Test {
 protected:
  static constexpr size_t kCount = 1000;
  ShimOnDevices() {
    const int devices[kRanks] = {2, 0, 1};
    EXPECT_NCCL(ncclCommInitAll(comms_, kRanks, devices));
    for (int r = 0; r < kRanks; ++r) {
      set_cpu_device(devices[r]);
      streams_[r] = create_stream_of(devices[r]);
      for (int** buffer : {&in_[r], &out_[r]}) {
        void* memory = nullptr;
        EXPECT_NCCL(ncclMemAlloc(&memory, kCount * kRanks * sizeof(int)));
        *buffer = static_cast<int*>(memory);
      }
      for (size_t i = 0; i < kCount * kRanks; ++i) in_[r][i] = r + 1;
    }
  }
  ~ShimOnDevices() override {
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_TRUE(comms_[r] == nullptr || ncclCommDestroy(comms_[r]) == ncclSuccess);
      destroy_stream(streams_[r]);
      EXPECT_NCCL(ncclMemFree(in_[r]));
      EXPECT_NCCL(ncclMemFree(out_[r]));
    }
  }
  cudaStream_t stream(int r) const { return as_cuda(streams_[r]); }
  void synchronize() {
    for (DeviceStream stream : streams_) synchronize_stream(stream);
  }
  void expect(int r, size_t count, const std::function<int(size_t)>& value) const {
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(out_[r][i], value(i)) << "rank " << r << " element " << i;
  }

  ncclComm_t comms_[kRanks] = {};
  DeviceStream streams_[kRanks] = {};
  int *in_[kRanks] = {}, *out_[kRanks] = {};
};

TEST_F(ShimOnDevices, TellsTheDevice) {
  for (int r = 0; r < kRanks; ++r) {
    int device = -1;
    ASSERT_NCCL(ncclCommCuDevice(comms_[r], &device));
    EXPECT_EQ(device, (r + 2) % kRanks);
  }
}

TEST_F(ShimOnDevices, GrowsByARankOfTheCurrentDevice) {
  constexpr int kNew = kRanks, kDevice = 1;
  ncclUniqueId id;
  ncclComm_t grown[kRanks + 1];
  ASSERT_NCCL(ncclCommGetUniqueId(comms_[1], &id));
  set_cpu_device(kDevice);
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r)
    EXPECT_NCCL(ncclCommGrow(comms_[r], kRanks + 1, r == 1 ? &id : nullptr, -1, &grown[r], nullptr));
  EXPECT_NCCL(ncclCommGrow(nullptr, kRanks + 1, &id, kNew, &grown[kNew], nullptr));
  ASSERT_NCCL(ncclGroupEnd());
  for (int r = 0; r <= kRanks; ++r) {
    int device = -1;
    EXPECT_NCCL(ncclCommCuDevice(grown[r], &device));
    EXPECT_EQ(device, r == kNew ? kDevice : (r + 2) % kRanks);
  }
  const DeviceStream added = create_stream_of(kDevice);
  void* memory = nullptr;
  ASSERT_NCCL(ncclMemAlloc(&memory, kCount * sizeof(int)));
  std::fill_n(static_cast<int*>(memory), kCount, 100);
  for (int r = 0; r < kRanks; ++r)
    EXPECT_NCCL(ncclAllReduce(in_[r], out_[r], kCount, ncclInt32, ncclSum, grown[r], stream(r)));
  EXPECT_NCCL(ncclAllReduce(memory, memory, kCount, ncclInt32, ncclSum, grown[kNew], as_cuda(added)));
  synchronize();
  synchronize_stream(added);
  for (int r = 0; r < kRanks; ++r) expect(r, kCount, [](size_t) { return 106; });
  for (ncclComm_t comm : grown) EXPECT_NCCL(ncclCommDestroy(comm));
  destroy_stream(added);
  EXPECT_NCCL(ncclMemFree(memory));
}

// What kernels have taken is not known, and 0 would be wrong.
TEST_F(ShimOnDevices, MemoryIsNotCounted) {
  uint64_t value = 9;
  EXPECT_NCCL(ncclCommMemStats(comms_[0], ncclStatGpuMemSuspend, &value));
  EXPECT_EQ(value, 0u);
  EXPECT_EQ(ncclCommMemStats(comms_[0], ncclStatGpuMemPersist, &value), ncclInvalidUsage);
  EXPECT_EQ(ncclCommMemStats(comms_[0], ncclStatGpuMemTotal, &value), ncclInvalidUsage);
}

// Without a group, in one thread: a call returns before its peers have called.
TEST_F(ShimOnDevices, CallsReturnAtOnceAndRunInStreamOrder) {
  const auto add_one = [](void* argument) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (size_t i = 0; i < kCount; ++i) ++static_cast<int*>(argument)[i];
  };
  const uint64_t launched = cpu_launches();
  for (int r = 0; r < kRanks; ++r) {
    run_in_cpu_stream(streams_[r], add_one, in_[r]);
    ASSERT_NCCL(ncclAllReduce(in_[r], out_[r], kCount, ncclInt32, ncclSum, comms_[r], stream(r)));
    ASSERT_NCCL(ncclAllReduce(out_[r], out_[r], kCount, ncclInt32, ncclMax, comms_[r], stream(r)));
  }
  synchronize();
  for (int r = 0; r < kRanks; ++r) expect(r, kCount, [](size_t) { return 9; });
  EXPECT_EQ(cpu_launches() - launched, 2u * kRanks) << "by kernels";
}

// The communicators are made in the background, their calls by the caller: success, as NCCL gives it.
TEST_F(ShimOnDevices, CallsOfNonBlockingCommunicatorsSucceedAtOnce) {
  ncclComm_t comms[kRanks];
  ncclConfig_t config = non_blocking();
  EXPECT_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r) EXPECT_NCCL(ncclCommSplit(comms_[r], 0, r, &comms[r], &config));
  EXPECT_NCCL(ncclGroupEnd());
  for (ncclComm_t comm : comms) ASSERT_EQ(wait_until_ready(comm), ncclSuccess);
  for (int r = 0; r < kRanks; ++r)
    EXPECT_NCCL(ncclAllReduce(in_[r], out_[r], kCount, ncclInt32, ncclSum, comms[r], stream(r)));
  EXPECT_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r)
    EXPECT_NCCL(ncclAllReduce(out_[r], out_[r], kCount, ncclInt32, ncclSum, comms[r], stream(r)));
  EXPECT_NCCL(ncclGroupEnd());
  synchronize();
  for (int r = 0; r < kRanks; ++r) expect(r, kCount, [](size_t) { return 18; });
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST_F(ShimOnDevices, Collectives) {
  const auto all = [&](const std::function<ncclResult_t(int, ncclComm_t, cudaStream_t)>& call) {
    for (int r = 0; r < kRanks; ++r) ASSERT_NCCL(call(r, comms_[r], stream(r)));
    synchronize();
  };
  all([&](int r, ncclComm_t c, cudaStream_t s) { return ncclAllGather(in_[r], out_[r], kCount, ncclInt32, c, s); });
  for (int r = 0; r < kRanks; ++r)
    expect(r, kCount * kRanks, [](size_t i) { return static_cast<int>(i / kCount) + 1; });
  all([&](int r, ncclComm_t c, cudaStream_t s) {
    return ncclReduceScatter(in_[r], out_[r], kCount, ncclInt32, ncclSum, c, s);
  });
  for (int r = 0; r < kRanks; ++r) expect(r, kCount, [](size_t) { return 6; });
  all([&](int r, ncclComm_t c, cudaStream_t s) { return ncclBroadcast(in_[r], out_[r], kCount, ncclInt32, 1, c, s); });
  for (int r = 0; r < kRanks; ++r) expect(r, kCount, [](size_t) { return 2; });
  all([&](int r, ncclComm_t c, cudaStream_t s) {
    return ncclReduce(in_[r], out_[r], kCount, ncclInt32, ncclProd, 2, c, s);
  });
  expect(2, kCount, [](size_t) { return 6; });
  all([&](int r, ncclComm_t c, cudaStream_t s) { return ncclAlltoAll(in_[r], out_[r], kCount, ncclInt32, c, s); });
  for (int r = 0; r < kRanks; ++r)
    expect(r, kCount * kRanks, [](size_t i) { return static_cast<int>(i / kCount) + 1; });
  all([&](int r, ncclComm_t c, cudaStream_t s) { return ncclGather(in_[r], out_[r], kCount, ncclInt32, 0, c, s); });
  expect(0, kCount * kRanks, [](size_t i) { return static_cast<int>(i / kCount) + 1; });
  all([&](int r, ncclComm_t c, cudaStream_t s) { return ncclScatter(in_[r], out_[r], kCount, ncclInt32, 1, c, s); });
  for (int r = 0; r < kRanks; ++r) expect(r, kCount, [](size_t) { return 2; });
}

TEST_F(ShimOnDevices, GroupsOfSendsAndReceives) {
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r)
    for (int peer = 0; peer < kRanks; ++peer) {
      ASSERT_NCCL(ncclSend(in_[r], kCount, ncclInt32, peer, comms_[r], stream(r)));
      ASSERT_NCCL(
          ncclRecv(out_[r] + static_cast<size_t>(peer) * kCount, kCount, ncclInt32, peer, comms_[r], stream(r)));
    }
  ASSERT_NCCL(ncclGroupEnd());
  synchronize();
  for (int r = 0; r < kRanks; ++r)
    expect(r, kCount * kRanks, [](size_t i) { return static_cast<int>(i / kCount) + 1; });
}

// The scalar lies on the device and is written by the stream before the call.
TEST_F(ShimOnDevices, PreMultipliedSumReadsItsScalarInStreamOrder) {
  ncclRedOp_t ops[kRanks];
  for (int r = 0; r < kRanks; ++r) {
    run_in_cpu_stream(
        streams_[r],
        [](void* scalar) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          *static_cast<int*>(scalar) = 10;
        },
        out_[r]);
    ASSERT_NCCL(ncclRedOpCreatePreMulSum(&ops[r], out_[r], ncclInt32, ncclScalarDevice, comms_[r]));
    ASSERT_NCCL(ncclAllReduce(in_[r], out_[r] + 1, kCount, ncclInt32, ops[r], comms_[r], stream(r)));
    ASSERT_NCCL(ncclRedOpDestroy(ops[r], comms_[r]));
  }
  synchronize();
  for (int r = 0; r < kRanks; ++r) expect(r, kCount, [](size_t i) { return i == 0 ? 10 : 60; });
}

// One thread drives all ranks: each scalar is written behind a collective whose other ranks are yet to call.
TEST_F(ShimOnDevices, PreMultipliedSumWaitsForNothing) {
  ncclRedOp_t ops[kRanks];
  int* const scalars[kRanks] = {in_[0] + kCount, in_[1] + kCount, in_[2] + kCount};
  const auto add_nine = [](void* scalar) { *static_cast<int*>(scalar) += 9; };
  for (int r = 0; r < kRanks; ++r) {
    *scalars[r] = 1;
    ASSERT_NCCL(ncclRedOpCreatePreMulSum(&ops[r], scalars[r], ncclInt32, ncclScalarDevice, comms_[r]));
    ASSERT_NCCL(ncclAllReduce(in_[r], out_[r], kCount, ncclInt32, ncclMax, comms_[r], stream(r)));
    run_in_cpu_stream(streams_[r], add_nine, scalars[r]);
    ASSERT_NCCL(ncclAllReduce(out_[r], out_[r], kCount, ncclInt32, ops[r], comms_[r], stream(r)));
  }
  synchronize();
  for (int r = 0; r < kRanks; ++r) expect(r, kCount, [](size_t) { return 3 * 3 * 10; });
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r) {
    run_in_cpu_stream(streams_[r], add_nine, scalars[r]);
    ASSERT_NCCL(ncclAllReduce(in_[r], out_[r], kCount, ncclInt32, ops[r], comms_[r], stream(r)));
    ASSERT_NCCL(ncclRedOpDestroy(ops[r], comms_[r]));
  }
  ASSERT_NCCL(ncclGroupEnd());
  synchronize();
  for (int r = 0; r < kRanks; ++r) expect(r, kCount, [](size_t) { return (1 + 2 + 3) * 19; });
}

TEST_F(ShimOnDevices, PreMultipliedSumInAGraphReadsItsScalarAnew) {
  ncclRedOp_t ops[kRanks];
  ProgramGraph* graphs[kRanks];
  for (int r = 0; r < kRanks; ++r) {
    ASSERT_NCCL(ncclRedOpCreatePreMulSum(&ops[r], in_[r] + kCount, ncclInt32, ncclScalarDevice, comms_[r]));
    begin_capture(streams_[r]);
    EXPECT_NCCL(ncclAllReduce(in_[r], in_[r], kCount, ncclInt32, ops[r], comms_[r], stream(r)));
    graphs[r] = end_capture(streams_[r]);
    std::fill_n(in_[r], kCount, 1);
    in_[r][kCount] = 0;
  }
  for (int turn = 1; turn <= 3; ++turn)
    for (int r = 0; r < kRanks; ++r) {
      run_in_cpu_stream(
          streams_[r], [](void* scalar) { ++*static_cast<int*>(scalar); }, in_[r] + kCount);
      launch_graph(graphs[r], streams_[r]);
    }
  synchronize();
  for (int r = 0; r < kRanks; ++r) {
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(in_[r][i], 3 * 6 * 9) << "rank " << r << " element " << i;
    destroy_graph(graphs[r]);
    EXPECT_NCCL(ncclRedOpDestroy(ops[r], comms_[r]));
  }
}

TEST_F(ShimOnDevices, AbortEndsAKernelThatWaits) {
  ASSERT_NCCL(ncclAllReduce(in_[0], out_[0], kCount, ncclInt32, ncclSum, comms_[0], stream(0)));
  ASSERT_NCCL(ncclCommAbort(comms_[0]));
  comms_[0] = nullptr;
  synchronize_stream(streams_[0]);
  ncclResult_t state = ncclSuccess;
  ASSERT_NCCL(ncclCommGetAsyncError(comms_[1], &state));
  EXPECT_EQ(state, ncclRemoteError);
}

TEST_F(ShimOnDevices, AbortOfARankThatIsDoneLeavesTheOthersAlone) {
  const auto broadcast = [&](int r) {
    ASSERT_NCCL(ncclBroadcast(in_[r], out_[r], kCount, ncclInt32, 0, comms_[r], stream(r)));
  };
  broadcast(0);
  synchronize_stream(streams_[0]);
  ASSERT_NCCL(ncclCommAbort(std::exchange(comms_[0], nullptr)));
  for (int r : {1, 2}) {
    ncclResult_t state = ncclInternalError;
    ASSERT_NCCL(ncclCommGetAsyncError(comms_[r], &state));
    EXPECT_EQ(state, ncclSuccess);
    broadcast(r);
  }
  synchronize();
  for (int r : {1, 2}) expect(r, kCount, [](size_t) { return 1; });
}

// Here the one that aborts has nothing under way itself.
TEST_F(ShimOnDevices, AbortEndsKernelsThatWaitForTheRank) {
  for (int r : {1, 2}) ASSERT_NCCL(ncclAllReduce(in_[r], out_[r], kCount, ncclInt32, ncclSum, comms_[r], stream(r)));
  ASSERT_NCCL(ncclCommAbort(std::exchange(comms_[0], nullptr)));
  synchronize();
  for (int r : {1, 2}) {
    ncclResult_t state = ncclSuccess;
    ASSERT_NCCL(ncclCommGetAsyncError(comms_[r], &state));
    EXPECT_EQ(state, ncclRemoteError);
  }
}

// Kernels of both communicators wait for a rank that does not come; to free memory, a driver may wait for all of them.
void abort_two(ncclComm_t* first, ncclComm_t* second, int count, bool in_group) {
  if (in_group) {
    ASSERT_NCCL(ncclGroupStart());
  }
  for (ncclComm_t* comms : {first, second})
    for (int r = 0; r < count; ++r) ASSERT_NCCL(ncclCommAbort(std::exchange(comms[r], nullptr)));
  if (in_group) {
    ASSERT_NCCL(ncclGroupEnd());
  }
}

// Two communicators of two ranks on device 0.
void make_two(ncclComm_t (*pairs)[2]) {
  ncclUniqueId ids[2];
  for (ncclUniqueId& id : ids) ASSERT_NCCL(ncclGetUniqueId(&id));
  set_cpu_device(0);
  ASSERT_NCCL(ncclGroupStart());
  for (int pair : {0, 1})
    for (int r : {0, 1}) ASSERT_NCCL(ncclCommInitRank(&pairs[pair][r], 2, ids[pair], r));
  ASSERT_NCCL(ncclGroupEnd());
}

TEST_F(ShimOnDevices, AbortsOfTwoCommunicatorsOfOneThreadGiveTheirMemoryBack) {
  const size_t own = cpu_pinned_bytes();
  for (bool in_group : {false, true}) {
    ncclComm_t pairs[2][2] = {};
    make_two(pairs);
    EXPECT_GT(cpu_pinned_bytes(), own);
    const DeviceStream streams[2] = {create_stream_of(0), create_stream_of(0)};
    for (int pair : {0, 1})
      ASSERT_NCCL(
          ncclAllReduce(in_[pair], out_[pair], kCount, ncclInt32, ncclSum, pairs[pair][0], as_cuda(streams[pair])));
    abort_two(pairs[0], pairs[1], 2, in_group);
    for (DeviceStream stream : streams) {
      synchronize_stream(stream);
      destroy_stream(stream);
    }
    EXPECT_EQ(cpu_pinned_bytes(), own) << (in_group ? "in a group" : "one by one");
  }
}

// What the first has under way lies behind that of the second in one stream: it ends when both are told to.
TEST_F(ShimOnDevices, AbortsInAGroupTellAllBeforeTheyWait) {
  const size_t own = cpu_pinned_bytes();
  ncclComm_t pairs[2][2] = {};
  make_two(pairs);
  const DeviceStream one = create_stream_of(0);
  for (int pair : {1, 0})
    ASSERT_NCCL(ncclAllReduce(in_[pair], out_[pair], kCount, ncclInt32, ncclSum, pairs[pair][0], as_cuda(one)));
  const auto begun = std::chrono::steady_clock::now();
  abort_two(pairs[0], pairs[1], 2, true);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(8)) << "the first waited for the second";
  destroy_stream(one);
  EXPECT_EQ(cpu_pinned_bytes(), own);
}

TEST_F(ShimOnDevices, SplitsKeepTheDevice) {
  ncclComm_t halves[kRanks] = {};
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r) ASSERT_NCCL(ncclCommSplit(comms_[r], r == 0 ? 0 : 1, r, &halves[r], nullptr));
  ASSERT_NCCL(ncclGroupEnd());
  for (int r = 0; r < kRanks; ++r)
    ASSERT_NCCL(ncclAllReduce(in_[r], out_[r], kCount, ncclInt32, ncclSum, halves[r], stream(r)));
  synchronize();
  expect(0, kCount, [](size_t) { return 1; });
  for (int r : {1, 2}) expect(r, kCount, [](size_t) { return 5; });
  for (ncclComm_t half : halves) EXPECT_NCCL(ncclCommDestroy(half));
}

}  // namespace
}  // namespace treering::testing
