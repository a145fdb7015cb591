// SPDX-License-Identifier: Apache-2.0
// Groups of calls on the memory of devices: what becomes one kernel, and sends and receives that not all ranks make.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "support/cpu_device.h"
#include "support/device_ranks.h"
#include "treering/treering.h"

namespace treering::testing {
namespace {

// Ranks that send to one another say nothing to the others about it.
TEST(DeviceTransfers, OfSomeRanksAloneLeaveCollectivesInStep) {
  DeviceRanks ranks({0, 1, 2});
  constexpr size_t kCount = 3000;
  auto in = ranks.buffers(kCount), out = ranks.buffers(kCount);
  for (int round = 0; round < 3; ++round) {
    ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
      if (r == 2) return trSuccess;
      const trResult_t sent = trSend(in[r].data(), kCount, trInt32, 1 - r, comm, stream);
      return sent != trSuccess ? sent : trRecv(out[r].data(), kCount, trInt32, 1 - r, comm, stream);
    });
    for (int r : {0, 1}) ASSERT_TRUE(out[r].all_equal([&](size_t) { return 2 - r; }));
    ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
      return trAllReduce(in[r].data(), out[r].data(), kCount, trInt32, trSum, comm, stream);
    });
    for (const Buffer& b : out) ASSERT_TRUE(b.all_equal([](size_t) { return 6; }));
  }
}

// Any number, in order.
TEST(DeviceTransfers, AnyNumberOfAPairInOneGroup) {
  for (const std::vector<int>& devices : {std::vector<int>{0, 1}, {0, 0, 1, 1, 2}}) {
    DeviceRanks ranks(devices);
    const int n = ranks.count();
    constexpr size_t kTransfers = 700, kCount = 3;
    auto in = ranks.buffers(kTransfers * kCount, 1), out = ranks.buffers(kTransfers * kCount);
    ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
      for (size_t i = 0; i < kTransfers; ++i) {  // to the next rank, from the one before; the last few to itself
        const bool own = i >= kTransfers - 5;
        // Rank 0's receives are fewer than its sends are large: sizes differ from transfer to transfer.
        const size_t count = i % kCount + 1;
        const trResult_t sent = trSend(in[r].data() + i * kCount, count, trInt32, own ? r : (r + 1) % n, comm, stream);
        if (sent != trSuccess) return sent;
        const trResult_t received =
            trRecv(out[r].data() + i * kCount, count, trInt32, own ? r : (r + n - 1) % n, comm, stream);
        if (received != trSuccess) return received;
      }
      return trSuccess;
    });
    for (int r = 0; r < n; ++r)
      ASSERT_TRUE(out[r].all_equal([&](size_t i) {
        const size_t transfer = i / kCount;
        if (i % kCount > transfer % kCount) return r + 1;  // as it was
        const int from = transfer >= kTransfers - 5 ? r : (r + n - 1) % n;
        return from + 1 + static_cast<int>(i);
      })) << "rank "
          << r << " of " << n;
  }
}

// Ranks that have many transfers with some peers and few with others.
TEST(DeviceTransfers, NumbersOfPairsDiffer) {
  DeviceRanks ranks({0, 1, 2});
  constexpr size_t kMany = 400;
  auto in = ranks.buffers(kMany, 1), out = ranks.buffers(kMany), other = ranks.buffers(kMany);
  const auto transfers = [](int r, int peer) {
    if (r + peer == 1) return kMany;
    return r + peer == 3 ? size_t{90} : size_t{0};
  };
  for (int round = 0; round < 2; ++round)
    ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
      for (int peer = 0; peer < 3; ++peer)
        for (size_t i = 0; peer != r && i < transfers(r, peer); ++i) {
          trResult_t result = trSend(in[r].data() + i, 1, trInt32, peer, comm, stream);
          if (result == trSuccess && (r != 1 || peer == 0))
            result = trRecv(out[r].data() + i, 1, trInt32, peer, comm, stream);
          else if (result == trSuccess)
            result = trRecv(other[r].data() + i, 1, trInt32, peer, comm, stream);
          if (result != trSuccess) return result;
        }
      return trSuccess;
    });
  for (size_t i = 0; i < kMany; ++i) ASSERT_EQ(out[0].data()[i], 2 + static_cast<int>(i));
  for (size_t i = 0; i < 90; ++i) ASSERT_EQ(other[1].data()[i], 3 + static_cast<int>(i));
}

// One rank sends and receives in one group, the other in two.
TEST(DeviceTransfers, GroupsOfRanksDiffer) {
  constexpr size_t kTransfers = 300;
  DeviceRanks ranks({0, 1});
  auto in = ranks.buffers(kTransfers, 1), out = ranks.buffers(kTransfers);
  const auto send = [&](size_t r, size_t i) {
    return trSend(in[r].data() + i, 1, trInt32, 1 - static_cast<int>(r), ranks.comm(static_cast<int>(r)),
                  ranks.stream(static_cast<int>(r)));
  };
  const auto receive = [&](size_t r, size_t i) {
    return trRecv(out[r].data() + i, 1, trInt32, 1 - static_cast<int>(r), ranks.comm(static_cast<int>(r)),
                  ranks.stream(static_cast<int>(r)));
  };
  std::thread other([&] {
    for (const bool sends : {false, true}) {
      EXPECT_EQ(trGroupStart(), trSuccess);
      for (size_t i = 0; i < kTransfers; ++i) EXPECT_EQ(sends ? send(1, i) : receive(1, i), trSuccess);
      EXPECT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
    }
  });
  EXPECT_EQ(trGroupStart(), trSuccess);
  for (size_t i = 0; i < kTransfers; ++i) {
    EXPECT_EQ(send(0, i), trSuccess);
    EXPECT_EQ(receive(0, i), trSuccess);
  }
  EXPECT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  other.join();
  ranks.synchronize();
  for (int r : {0, 1}) ASSERT_TRUE(out[r].all_equal([&](size_t i) { return 2 - r + static_cast<int>(i); }));
}

// Groups that move nothing keep no memory.
TEST(DeviceTransfers, OfNothingKeepNoMemory) {
  DeviceRanks ranks({0, 1});
  auto in = ranks.buffers(10), out = ranks.buffers(10);
  const size_t nothing[2] = {0, 0};
  size_t before = 0;
  for (int turn = 0; turn < 20; ++turn) {
    ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
      return trAllToAllV(in[r].data(), nothing, nothing, out[r].data(), nothing, nothing, trInt32, comm, stream);
    });
    if (turn == 0) before = cpu_pinned_bytes();
  }
  EXPECT_EQ(cpu_pinned_bytes(), before);
}

// Allreduces of a group are one kernel, also several times as many as fit one.
TEST(DeviceGroups, OfSmallCallsAreFewKernels) {
  DeviceRanks ranks({0, 1, 2, 3});
  const uint64_t n = 4;
  constexpr size_t kCalls = 20, kCount = 100;
  auto in = ranks.buffers(kCalls * kCount, 1), out = ranks.buffers(kCalls * kCount);
  for (bool blocking : {false, true}) {
    const uint64_t before = cpu_launches();
    ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
      for (size_t i = 0; i < kCalls; ++i)
        if (trResult_t result = trAllReduce(in[r].data() + i * kCount, out[r].data() + i * kCount, kCount, trInt32,
                                            trSum, comm, stream);
            result != trSuccess)
          return result;
      return trSuccess;
    });
    EXPECT_EQ(cpu_launches() - before, 3 * n);  // 8, 8 and 4 calls
    for (const Buffer& b : out) ASSERT_TRUE(b.all_equal([](size_t i) { return 10 + 4 * static_cast<int>(i); }));
  }
}

// Calls of one group whose buffers depend on one another have the results of calls one after another.
TEST(DeviceGroups, CallsThatUseResultsOfOthersComeBehindThem) {
  DeviceRanks ranks({0, 1, 2});
  for (size_t count : {size_t{1}, size_t{500}, size_t{100'003}}) {
    auto a = ranks.buffers(count), b = ranks.buffers(count), c = ranks.buffers(count);
    for (int round = 0; round < 5; ++round) {
      ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
        // b = 6; c = 18; a = 36 behind the reading of a; then b = 3 x 36
        trResult_t result = trAllReduce(a[r].data(), b[r].data(), count, trInt32, trSum, comm, stream);
        if (result == trSuccess) result = trAllReduce(b[r].data(), c[r].data(), count, trInt32, trSum, comm, stream);
        if (result == trSuccess) result = trAllReduce(c[r].data(), a[r].data(), count, trInt32, trMax, comm, stream);
        if (result == trSuccess) result = trAllReduce(a[r].data(), b[r].data(), count, trInt32, trSum, comm, stream);
        return result;
      });
      for (const Buffer& each : b) ASSERT_TRUE(each.all_equal([](size_t) { return 54; })) << count;
      for (int r = 0; r < 3; ++r)
        for (size_t i = 0; i < count; ++i) a[static_cast<size_t>(r)].data()[i] = r + 1;
    }
  }
}

// What a rank makes one kernel of is its own affair: here buffers of rank 1 depend on one another, those of others do
// not, and rank 2 makes the calls one by one.
TEST(DeviceGroups, NeedNotBeTheSameOnAllRanks) {
  DeviceRanks ranks({0, 1, 2});
  constexpr size_t kCount = 1000, kCalls = 6;
  for (int round = 0; round < 10; ++round) {
    auto in = ranks.buffers(kCount), out = ranks.buffers(kCalls * kCount);
    const auto call = [&](int r, size_t i) {
      int* to =
          out[static_cast<size_t>(r)].data() + (r == 1 && i == 3 ? 2 : i) * kCount;  // rank 1: over the result before
      return trAllReduce(in[static_cast<size_t>(r)].data(), to, kCount, trInt32, i % 2 == 0 ? trSum : trMax,
                         ranks.comm(r), ranks.stream(r));
    };
    ASSERT_EQ(trGroupStart(), trSuccess);
    for (int r : {0, 1})
      for (size_t i = 0; i < kCalls; ++i) ASSERT_EQ(call(r, i), trSuccess);
    std::thread other([&] {  // of another thread: not in the group
      for (size_t i = 0; i < kCalls; ++i) EXPECT_EQ(call(2, i), trSuccess);
    });
    ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
    other.join();
    ranks.synchronize();
    for (int r = 0; r < 3; ++r)
      for (size_t i = 0; i < kCalls; ++i) {
        if (r == 1 && i == 3) continue;
        const int expected = (r == 1 && i == 2) || i % 2 == 1 ? 3 : 6;
        ASSERT_EQ(out[static_cast<size_t>(r)].data()[i * kCount + kCount / 2], expected) << r << " " << i;
      }
  }
}

// Counts that differ between blocks: by kernels as well, in one launch a rank.
TEST(DeviceVariableCounts, RunAsKernels) {
  DeviceRanks ranks({0, 1, 2, 3}, 60'000, by_kernels());
  const int n = ranks.count();
  for (size_t scale : {size_t{1}, size_t{17}, size_t{40'001}})
    for (trDataType_t type : {trInt32, trUint32}) {
      SCOPED_TRACE(scale);
      std::vector<size_t> counts, offsets, before_of;  // in the buffer with gaps, and without
      size_t all = 0, packed = 0;
      for (int r = 0; r < n; ++r) {
        counts.push_back(r == 2 ? 0 : scale * static_cast<size_t>(r + 1));
        offsets.push_back(all);
        before_of.push_back(packed);
        packed += counts.back();
        all += counts.back() + static_cast<size_t>(r);  // with gaps
      }
      const auto part_of = [&](size_t i) {
        for (int r = n - 1; r >= 0; --r)
          if (i >= offsets[static_cast<size_t>(r)])
            return i < offsets[static_cast<size_t>(r)] + counts[static_cast<size_t>(r)] ? r : -1;
        return -1;
      };
      auto in = ranks.buffers(all + 1), out = ranks.buffers(all + 1);
      uint64_t before = cpu_launches();
      ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
        return trAllGatherV(in[r].data(), counts[static_cast<size_t>(r)], out[r].data(), counts.data(), offsets.data(),
                            type, comm, stream);
      });
      EXPECT_EQ(cpu_launches() - before, static_cast<uint64_t>(n));
      for (int r = 0; r < n; ++r)
        ASSERT_TRUE(out[r].all_equal([&](size_t i) {
          const int part = i < all ? part_of(i) : -1;
          return part < 0 ? r + 1 : part + 1;  // gaps have what was there
        }));
      auto from = ranks.buffers(all + 1, 1), to = ranks.buffers(all + 1);
      before = cpu_launches();
      ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
        return trReduceScatterV(from[r].data(), to[r].data(), counts.data(), type, trSum, comm, stream);
      });
      EXPECT_EQ(cpu_launches() - before, static_cast<uint64_t>(n));
      for (int r = 0; r < n; ++r)
        ASSERT_TRUE(to[r].all_equal([&](size_t i) {
          if (i >= counts[static_cast<size_t>(r)]) return r + 1;
          return n * (n + 1) / 2 + n * static_cast<int>(before_of[static_cast<size_t>(r)] + i);
        }));
    }
}

// Calls without any message are compared as well: the next message tells that they differed, or that a rank made none.
class CallsWithoutMessages : public ::testing::TestWithParam<bool> {};
TEST_P(CallsWithoutMessages, AreComparedByTheNextMessage) {
  const bool one_rank_alone = GetParam();
  setenv("TREERING_DEVICE_PROTOCOL", "simple", 1);  // the others need as many messages on both sides
  DeviceRanks ranks({0, 1}, 20'000);
  unsetenv("TREERING_DEVICE_PROTOCOL");
  auto in = ranks.buffers(100), out = ranks.buffers(100);
  const size_t nothing[2] = {0, 0};
  for (int r : {0, 1}) {
    if (!one_rank_alone) {
      ASSERT_EQ(trBroadcast(in[r].data(), out[r].data(), 0, trInt32, r, ranks.comm(r), ranks.stream(r)), trSuccess);
    } else if (r == 1) {
      ASSERT_EQ(trAllGatherV(in[r].data(), 0, out[r].data(), nothing, nothing, trInt32, ranks.comm(r), ranks.stream(r)),
                trSuccess);
    }
  }
  ranks.enqueue([&](int r, trComm_t comm, trStream_t stream) {
    return trAllReduce(in[r].data(), out[r].data(), 100, trInt32, trSum, comm, stream);
  });
  for (int r : {0, 1}) {
    EXPECT_EQ(trStreamSynchronize(ranks.stream(r)), trSuccess);
    trResult_t result = trSuccess;
    ASSERT_EQ(trCommGetAsyncError(ranks.comm(r), &result), trSuccess);
    EXPECT_EQ(result, trInvalidUsage);
    EXPECT_NE(std::string(trGetLastError(ranks.comm(r))).find("differs from that of rank"), std::string::npos)
        << trGetLastError(ranks.comm(r));
  }
}
INSTANTIATE_TEST_SUITE_P(Device, CallsWithoutMessages, ::testing::Bool());

// A captured call that is never launched: calls on the host come behind calls in streams as before.
TEST(DeviceOrder, CallsOnTheHostComeBehindThoseInStreams) {
  DeviceRanks ranks({0, -1});
  constexpr size_t kCount = 100;
  auto data = ranks.buffers(kCount), captured = ranks.buffers(kCount);
  std::vector<std::vector<int>> host = {std::vector<int>(kCount, 1000), std::vector<int>(kCount, 2000)};
  begin_capture(ranks.cuda(0));
  EXPECT_EQ(trAllReduce(captured[0].data(), captured[0].data(), kCount, trInt32, trMax, ranks.comm(0), ranks.stream(0)),
            trSuccess);
  ProgramGraph* graph = end_capture(ranks.cuda(0));
  run_in_cpu_stream(
      ranks.cuda(0), [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }, nullptr);
  const auto calls = [&](int r) {
    auto& own = host[static_cast<size_t>(r)];
    EXPECT_EQ(trAllReduce(data[r].data(), data[r].data(), kCount, trInt32, trSum, ranks.comm(r), ranks.stream(r)),
              trSuccess);
    EXPECT_EQ(trAllReduce(own.data(), own.data(), kCount, trInt32, trSum, ranks.comm(r), nullptr), trSuccess);
  };
  std::thread other([&] { calls(1); });
  calls(0);
  other.join();
  for (int r : {0, 1}) {
    ASSERT_EQ(trStreamSynchronize(ranks.stream(r)), trSuccess);
    EXPECT_TRUE(data[r].all_equal([](size_t) { return 3; })) << "rank " << r;
    EXPECT_EQ(host[static_cast<size_t>(r)], std::vector<int>(kCount, 3000)) << "rank " << r;
  }
  destroy_graph(graph);
}

}  // namespace
}  // namespace treering::testing
