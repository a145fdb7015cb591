// Buffers in the memory of devices, through the C API: the devices are the stand-ins of support/cpu_device.h.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "support/device_ranks.h"
#include "treering/treering.h"

namespace treering::testing {
namespace {

struct Place {
  const char* name;
  std::vector<int> devices;
};
// Every rank its own device; two on one device; ranks without.
const Place kPlaces[] = {{"own", {0, 1, 2}}, {"shared", {0, 0, 1, 1}}, {"mixed", {0, -1, 2}}, {"one_rank", {3}}};

class EveryPlace : public ::testing::TestWithParam<Place> {};

TEST_P(EveryPlace, Collectives) {
  DeviceRanks ranks(GetParam().devices);
  const int n = ranks.count();
  const auto un = static_cast<size_t>(n);
  const int total = n * (n + 1) / 2;
  for (size_t count : {size_t{0}, size_t{1}, size_t{1001}, size_t{300'007}})
    for (bool blocking : {false, true}) {
      SCOPED_TRACE("count " + std::to_string(count) + (blocking ? " blocking" : " on streams"));
      const int i_step = 3;
      auto in = ranks.buffers(count, i_step), out = ranks.buffers(count);
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trAllReduce(in[r].data(), out[r].data(), count, trInt32, trSum, comm, stream);
      });
      for (const Buffer& b : out)
        ASSERT_TRUE(b.all_equal([&](size_t i) { return total + n * i_step * static_cast<int>(i); }));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {  // in place
        return trAllReduce(in[r].data(), in[r].data(), count, trInt32, trMax, comm, stream);
      });
      for (const Buffer& b : in) ASSERT_TRUE(b.all_equal([&](size_t i) { return n + i_step * static_cast<int>(i); }));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trBroadcast(in[r].data(), out[r].data(), count, trInt32, n - 1, comm, stream);
      });
      for (const Buffer& b : out) ASSERT_TRUE(b.all_equal([&](size_t i) { return n + i_step * static_cast<int>(i); }));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trReduce(in[r].data(), out[r].data(), count, trInt32, trMin, 0, comm, stream);
      });
      ASSERT_TRUE(out[0].all_equal([&](size_t i) { return n + i_step * static_cast<int>(i); }));

      auto own = ranks.buffers(count), all = ranks.buffers(count * un);
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trAllGather(own[r].data(), all[r].data(), count, trInt32, comm, stream);
      });
      for (const Buffer& b : all)
        ASSERT_TRUE(b.all_equal([&](size_t i) { return static_cast<int>(i / std::max<size_t>(count, 1)) + 1; }));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trReduceScatter(all[r].data(), own[r].data(), count, trInt32, trSum, comm, stream);
      });
      for (int r = 0; r < n; ++r) ASSERT_TRUE(own[r].all_equal([&](size_t) { return n * (r + 1); }));
      auto other = ranks.buffers(count * un);
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trAllToAll(all[r].data(), other[r].data(), count, trInt32, comm, stream);
      });
      for (int r = 0; r < n; ++r) ASSERT_TRUE(other[r].all_equal([&](size_t) { return r + 1; }));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trGather(own[r].data(), all[r].data(), count, trInt32, 0, comm, stream);
      });
      ASSERT_TRUE(
          all[0].all_equal([&](size_t i) { return n * (static_cast<int>(i / std::max<size_t>(count, 1)) + 1); }));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trScatter(all[r].data(), own[r].data(), count, trInt32, 0, comm, stream);
      });
      for (int r = 0; r < n; ++r) ASSERT_TRUE(own[r].all_equal([&](size_t) { return n * (r + 1); }));
    }
}

TEST_P(EveryPlace, SendsReceivesAndVariableCounts) {
  DeviceRanks ranks(GetParam().devices);
  const int n = ranks.count();
  for (size_t count : {size_t{5}, size_t{200'003}})
    for (bool blocking : {false, true}) {
      auto in = ranks.buffers(count), out = ranks.buffers(count);
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trSendRecv(in[r].data(), count, (r + 1) % n, out[r].data(), count, (r + n - 1) % n, trInt32, comm,
                          stream);
      });
      for (int r = 0; r < n; ++r) ASSERT_TRUE(out[r].all_equal([&](size_t) { return (r + n - 1) % n + 1; }));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {  // collected by the group
        const int peer = r ^ 1;
        if (peer >= n) return trSuccess;
        const trResult_t sent = trSend(in[r].data(), count, trInt32, peer, comm, stream);
        return sent != trSuccess ? sent : trRecv(out[r].data(), count, trInt32, peer, comm, stream);
      });
      for (int r = 0; r < n; ++r) {
        ASSERT_TRUE((r ^ 1) >= n || out[r].all_equal([&](size_t) { return (r ^ 1) + 1; }));
      }
    }
}

TEST_P(EveryPlace, GapsBetweenBlocksStay) {
  DeviceRanks ranks(GetParam().devices);
  const int n = ranks.count();
  std::vector<size_t> counts, offsets;
  for (int r = 0; r < n; ++r) {
    counts.push_back(static_cast<size_t>(10 + r));
    offsets.push_back(static_cast<size_t>(r) * 20);
  }
  auto in = ranks.buffers(40), out = ranks.buffers(20 * static_cast<size_t>(n));
  ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllGatherV(in[r].data(), counts[r], out[r].data(), counts.data(), offsets.data(), trInt32, comm, stream);
  });
  for (int r = 0; r < n; ++r)
    ASSERT_TRUE(out[r].all_equal([&](size_t i) {
      const int source = static_cast<int>(i / 20);
      return i % 20 < counts[source] ? source + 1 : r + 1;  // the gap has what was there
    }));
}

INSTANTIATE_TEST_SUITE_P(Device, EveryPlace, ::testing::ValuesIn(kPlaces),
                         [](const auto& info) { return info.param.name; });

// A host buffer and a device buffer in one call, and host buffers alone, on a communicator with devices.
TEST(DeviceBuffers, MixWithHostBuffers) {
  DeviceRanks ranks({0, 1});
  constexpr size_t kCount = 1000;
  auto device = ranks.buffers(kCount), host = ranks.buffers(kCount, 0, true);
  ranks.run(true, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllReduce(r == 0 ? host[r].data() : device[r].data(), r == 0 ? device[r].data() : host[r].data(), kCount,
                       trInt32, trSum, comm, stream);
  });
  ASSERT_TRUE(device[0].all_equal([](size_t) { return 3; }));
  ASSERT_TRUE(host[1].all_equal([](size_t) { return 3; }));
  ranks.run(true, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllReduce(host[r].data(), host[r].data(), kCount, trInt32, trSum, comm, stream);
  });
  ASSERT_TRUE(host[0].all_equal([](size_t) { return 4; }));
}

// By kernels where all ranks have devices; otherwise, and for what a kernel does not do, staged.
TEST(DevicePaths, AreChosenForAllRanks) {
  std::vector<trRedOp_t> ops(3, trSum);
  const auto launched = [&ops](DeviceRanks& ranks) {
    const uint64_t before = cpu_launches();
    auto data = ranks.buffers(100);
    ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
      return trAllReduce(data[r].data(), data[r].data(), 100, trInt32, ops[r], comm, stream);
    });
    return cpu_launches() - before;
  };
  DeviceRanks own({0, 1, 2}), shared({0, 0, 0}), mixed({0, -1, 2});
  EXPECT_EQ(launched(own), 3u);
  EXPECT_EQ(launched(shared), 3u);
  EXPECT_EQ(launched(mixed), 0u);
  const auto add = [](const void* in, void* inout, size_t count, trDataType_t, void*) {
    for (size_t i = 0; i < count; ++i) static_cast<int*>(inout)[i] += static_cast<const int*>(in)[i];
  };
  for (int r = 0; r < 3; ++r) ASSERT_EQ(trRedOpCreateUser(&ops[r], add, nullptr, 1, own.comm(r)), trSuccess);
  EXPECT_EQ(launched(own), 0u) << "a function of the user runs on the host";
}

// The call is ordered in the stream: behind what writes its input, before what reads its output.
TEST(DeviceStreams, OrderOperationsAndKernels) {
  DeviceRanks ranks({0, 1});
  constexpr size_t kCount = 5000;
  auto data = ranks.buffers(kCount);
  const auto add_one = [](void* argument) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    auto* values = static_cast<int*>(argument);
    for (size_t i = 0; i < kCount; ++i) ++values[i];
  };
  int expected[2] = {1, 2};
  for (int step = 0; step < 10; ++step) {
    for (int r : {0, 1}) {
      run_in_cpu_stream(ranks.cuda(r), add_one, data[r].data());
      ASSERT_EQ(trAllReduce(data[r].data(), data[r].data(), kCount, trInt32, trSum, ranks.comm(r), ranks.stream(r)),
                trSuccess);
    }
    expected[0] = expected[1] = expected[0] + expected[1] + 2;
  }
  ranks.synchronize();
  for (int r : {0, 1}) ASSERT_TRUE(data[r].all_equal([&](size_t) { return expected[r]; }));
}

TEST(DeviceStreams, GraphsAreReplayed) {
  DeviceRanks ranks({0, 1});
  constexpr size_t kCount = 3000;
  auto data = ranks.buffers(kCount);
  CpuGraph* graphs[2];
  for (int r : {0, 1}) {
    begin_cpu_capture(ranks.cuda(r));
    ASSERT_EQ(trAllReduce(data[r].data(), data[r].data(), kCount, trInt32, trSum, ranks.comm(r), ranks.stream(r)),
              trSuccess);
    graphs[r] = end_cpu_capture(ranks.cuda(r));
  }
  ASSERT_TRUE(data[0].all_equal([](size_t) { return 1; })) << "captured, not run";
  for (int turn = 0; turn < 5; ++turn)
    for (int r : {0, 1}) launch_cpu_graph(graphs[r], ranks.cuda(r));
  ranks.synchronize();
  for (int r : {0, 1}) ASSERT_TRUE(data[r].all_equal([](size_t) { return 3 * 16; }));
  for (CpuGraph* graph : graphs) destroy_cpu_graph(graph);
}

// Launches of a graph and calls on another stream, which nothing but the communicator brings in order.
TEST(DeviceStreams, GraphsAndCallsOnOtherStreamsAreInOrder) {
  DeviceRanks ranks({0, 1});
  constexpr size_t kCount = 50'000;
  auto first = ranks.buffers(kCount), second = ranks.buffers(kCount), out = ranks.buffers(kCount),
       other = ranks.buffers(kCount, 1);
  CpuGraph* graphs[2];
  DeviceStream cuda[2];
  trStream_t streams[2];
  for (int r : {0, 1}) {
    cuda[r] = create_cpu_stream(r);
    ASSERT_EQ(trStreamFromCuda(&streams[r], r, cuda[r]), trSuccess);
    begin_cpu_capture(ranks.cuda(r));
    for (const auto* data : {&first, &second})
      ASSERT_EQ(trAllReduce((*data)[r].data(), out[r].data(), kCount, trInt32, trSum, ranks.comm(r), ranks.stream(r)),
                trSuccess);
    graphs[r] = end_cpu_capture(ranks.cuda(r));
  }
  for (int turn = 0; turn < 20; ++turn) {
    for (int r : {0, 1}) {
      launch_cpu_graph(graphs[r], ranks.cuda(r));
      ASSERT_EQ(trAllReduce(other[r].data(), other[r].data(), kCount, trInt32, trMax, ranks.comm(r), streams[r]),
                trSuccess);
    }
    ranks.synchronize();
    for (int r : {0, 1}) {
      ASSERT_EQ(trStreamSynchronize(streams[r]), trSuccess);
      ASSERT_TRUE(out[r].all_equal([](size_t) { return 3; })) << "turn " << turn;
      ASSERT_TRUE(other[r].all_equal([](size_t i) { return 2 + static_cast<int>(i); })) << "turn " << turn;
      std::fill_n(out[r].data(), kCount, 0);
    }
  }
  for (int r : {0, 1}) {
    destroy_cpu_graph(graphs[r]);
    ASSERT_EQ(trStreamDestroy(streams[r]), trSuccess);
    destroy_cpu_stream(cuda[r]);
  }
}

// What a graph keeps of sends and receives is given back with the communicator, without a wait.
TEST(DeviceStreams, GraphsOfSendsAndReceivesAreReplayed) {
  const auto begun = std::chrono::steady_clock::now();
  {
    DeviceRanks ranks({0, 1});
    constexpr size_t kCount = 50'000;
    auto in = ranks.buffers(kCount), out = ranks.buffers(kCount);
    CpuGraph* graphs[2];
    for (int r : {0, 1}) {
      begin_cpu_capture(ranks.cuda(r));
      ASSERT_EQ(trSendRecv(in[r].data(), kCount, 1 - r, out[r].data(), kCount, 1 - r, trInt32, ranks.comm(r),
                           ranks.stream(r)),
                trSuccess);
      graphs[r] = end_cpu_capture(ranks.cuda(r));
    }
    for (int turn = 0; turn < 3; ++turn) {
      for (int r : {0, 1}) launch_cpu_graph(graphs[r], ranks.cuda(r));
      ranks.synchronize();
      for (int r : {0, 1}) {
        ASSERT_TRUE(out[r].all_equal([&](size_t) { return 2 - r; }));
        std::fill_n(out[r].data(), kCount, 0);
      }
    }
    for (CpuGraph* graph : graphs) destroy_cpu_graph(graph);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(8)) << "the end waited for memory";
}

TEST(DeviceStreams, TwoCommunicatorsOnSeveralStreams) {
  DeviceRanks first({0, 1}), second({1, 0});
  constexpr size_t kCount = 100'000;
  auto a = first.buffers(kCount), b = second.buffers(kCount);
  for (int step = 0; step < 5; ++step) {
    for (int r : {0, 1})
      ASSERT_EQ(trAllReduce(a[r].data(), a[r].data(), kCount, trInt32, trMax, first.comm(r), first.stream(r)),
                trSuccess);
    for (int r : {1, 0})
      ASSERT_EQ(trAllReduce(b[r].data(), b[r].data(), kCount, trInt32, trMin, second.comm(r), second.stream(r)),
                trSuccess);
  }
  first.synchronize();
  second.synchronize();
  for (int r : {0, 1}) {
    ASSERT_TRUE(a[r].all_equal([](size_t) { return 2; }));
    ASSERT_TRUE(b[r].all_equal([](size_t) { return 1; }));
  }
}

// What was given to streams before the end of the communicators is done, by kernels and staged.
TEST(DeviceStreams, OperationsEndBeforeTheirCommunicator) {
  for (const std::vector<int>& devices : {std::vector<int>{0, 1}, std::vector<int>{0, -1}})
    for (int turn = 0; turn < 5; ++turn) {
      DeviceRanks ranks(devices);
      constexpr size_t kCount = 3'000'000;
      auto data = ranks.buffers(kCount, 1);
      for (int r : {0, 1})
        ASSERT_EQ(trAllReduce(data[r].data(), data[r].data(), kCount, trInt32, trSum, ranks.comm(r), ranks.stream(r)),
                  trSuccess);
      for (int r : {0, 1}) {
        if (devices[r] < 0) {
          ASSERT_EQ(trStreamSynchronize(ranks.stream(r)), trSuccess);
        }
        ASSERT_EQ(trCommDestroy(std::exchange(ranks.comm(r), nullptr)), trSuccess);
      }
      for (int r : {0, 1}) ASSERT_EQ(trStreamSynchronize(ranks.stream(r)), trSuccess);
      for (int r : {0, 1})
        ASSERT_TRUE(data[r].all_equal([](size_t i) { return 3 + 2 * static_cast<int>(i); })) << "turn " << turn;
    }
}

// The other rank never comes: the stream goes on when the communicator is aborted, and the error is told.
TEST(DeviceFailures, AbortFreesTheStream) {
  DeviceRanks ranks({0, 1});
  Buffer data(0, 1000, 1);
  ASSERT_EQ(trAllReduce(data.data(), data.data(), 1000, trInt32, trSum, ranks.comm(0), ranks.stream(0)), trSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(trCommAbort(ranks.comm(1)), trSuccess);
  ranks.comm(1) = nullptr;
  EXPECT_EQ(trStreamSynchronize(ranks.stream(0)), trSuccess);
  trResult_t result = trSuccess;
  EXPECT_EQ(trCommGetAsyncError(ranks.comm(0), &result), trSuccess);
  EXPECT_EQ(result, trRemoteError);
  EXPECT_NE(std::string(trGetLastError(ranks.comm(0))).find("aborted"), std::string::npos);
}

// Found by a kernel, which ends: the failure is told by whoever asks next, and by later calls.
TEST(DeviceFailures, CallsThatDifferAreAnErrorOnAllRanks) {
  for (int turn = 0; turn < 20; ++turn) {
    const size_t count = turn % 2 == 0 ? 200'000 : 100;
    DeviceRanks ranks({0, 1});
    auto data = ranks.buffers(count);
    for (int r : {0, 1})
      ASSERT_EQ(trAllReduce(data[r].data(), data[r].data(), count, trInt32, r == 0 ? trSum : trMax, ranks.comm(r),
                            ranks.stream(r)),
                trSuccess);
    for (int r : {0, 1}) ASSERT_EQ(trStreamSynchronize(ranks.stream(r)), trSuccess);
    for (int r : {0, 1}) {
      trResult_t result = trSuccess;
      ASSERT_EQ(trCommGetAsyncError(ranks.comm(r), &result), trSuccess);
      EXPECT_EQ(result, trInvalidUsage) << "turn " << turn << " rank " << r;
      EXPECT_NE(std::string(trGetLastError(ranks.comm(r))).find("differs from that of rank"), std::string::npos);
      EXPECT_EQ(trAllReduce(data[r].data(), data[r].data(), count, trInt32, trSum, ranks.comm(r), ranks.stream(r)),
                trInvalidUsage);
    }
  }
}

TEST(DeviceFailures, ADeadlineEndsTheWait) {
  DeviceRanks ranks({0, 1}, 300);
  Buffer data(0, 1000, 1);
  ASSERT_EQ(trAllReduce(data.data(), data.data(), 1000, trInt32, trSum, ranks.comm(0), ranks.stream(0)), trSuccess);
  EXPECT_EQ(trStreamSynchronize(ranks.stream(0)), trSuccess);
  trResult_t result = trSuccess;
  EXPECT_EQ(trCommGetAsyncError(ranks.comm(0), &result), trSuccess);
  EXPECT_EQ(result, trTimeout) << trGetLastError(ranks.comm(0));
}

TEST(DeviceArguments, WrongOnesAreNamed) {
  const auto error_of = [](trResult_t result) {
    return result == trSuccess ? std::string("success") : std::string(trGetLastError(nullptr));
  };
  int count = 0;
  ASSERT_EQ(trDeviceCount(&count), trSuccess);
  EXPECT_EQ(count, kCpuDevices);
  trStream_t stream = nullptr;
  EXPECT_NE(error_of(trStreamFromCuda(&stream, 99, nullptr)).find("device is 99"), std::string::npos);
  void* memory = nullptr;
  EXPECT_NE(error_of(trDeviceMemAlloc(&memory, 0, 0)).find("size is 0"), std::string::npos);
  EXPECT_NE(error_of(trDeviceMemFree(&count)).find("not memory of a GPU"), std::string::npos);
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.device = 99;
  trUniqueId id;
  ASSERT_EQ(trGetUniqueId(&id), trSuccess);
  trComm_t comm = nullptr;
  EXPECT_NE(error_of(trCommInitRankConfig(&comm, 1, id, 0, &config)).find("device is 99"), std::string::npos);

  DeviceRanks ranks({0, -1});
  Buffer data(0, 10);
  size_t rows = 0;
  EXPECT_NE(error_of(trSparseAllReduce(reinterpret_cast<int64_t*>(data.data()), data.data(), 1, 1, trInt32, trSum,
                                       nullptr, nullptr, 0, &rows, ranks.comm(0)))
                .find("memory of a GPU"),
            std::string::npos);
  trStream_t host = nullptr, wrong = nullptr;
  ASSERT_EQ(trStreamCreate(&host), trSuccess);
  ASSERT_EQ(trStreamFromCuda(&wrong, 1, nullptr), trSuccess);
  const auto reduce = [&](int rank, trStream_t s) {
    return error_of(trAllReduce(data.data(), data.data(), 10, trInt32, trSum, ranks.comm(rank), s));
  };
  EXPECT_NE(reduce(0, host).find("stream is the host's"), std::string::npos);
  EXPECT_NE(reduce(0, wrong).find("stream is of GPU 1"), std::string::npos);
  EXPECT_NE(reduce(1, wrong).find("the communicator has no GPU"), std::string::npos);
  EXPECT_EQ(trStreamDestroy(wrong), trSuccess);
  EXPECT_NE(reduce(0, wrong).find("was destroyed"), std::string::npos);
  EXPECT_EQ(trStreamDestroy(host), trSuccess);
}

}  // namespace
}  // namespace treering::testing
