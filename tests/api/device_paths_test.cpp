// SPDX-License-Identifier: Apache-2.0
// Which way an operation on memory of devices takes: by what was proved and measured at init, and by the settings.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/cpu_device.h"
#include "support/device_ranks.h"

namespace treering::testing {
namespace {

class Link {
 public:
  explicit Link(const CpuLink& link) { set_cpu_link(link); }
  ~Link() { set_cpu_link({}); }
};

// Kernels launched by an allreduce of all ranks; checks its result.
uint64_t launched(DeviceRanks& ranks, size_t count) {
  const uint64_t before = cpu_launches();
  const int n = ranks.count();
  auto data = ranks.buffers(count);
  ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllReduce(data[r].data(), data[r].data(), count, trInt32, trSum, comm, stream);
  });
  for (const Buffer& b : data) EXPECT_TRUE(b.all_equal([&](size_t) { return n * (n + 1) / 2; }));
  return cpu_launches() - before;
}

std::string protocol_of(DeviceRanks& ranks, trCollective_t collective, size_t bytes, trSelection_t* selection) {
  EXPECT_EQ(trGetSelection(ranks.comm(0), collective, nullptr, nullptr, bytes, trInt32, selection), trSuccess);
  const std::string protocol = selection->protocol;
  const bool kernel = protocol == "ll" || protocol == "ll128" || protocol == "simple";
  EXPECT_STREQ(selection->transport, kernel ? "gpu" : "in-process") << protocol;
  return protocol;
}
std::string protocol_of(DeviceRanks& ranks, trCollective_t collective, size_t bytes) {
  trSelection_t selection;
  return protocol_of(ranks, collective, bytes, &selection);
}

TEST(DeviceFifos, ThatLoseWhatIsWrittenAreNotUsed) {
  const Link link({.drops = true});
  DeviceRanks ranks({0, 1});
  EXPECT_EQ(launched(ranks, 1000), 0u);
  const std::string protocol = protocol_of(ranks, trCollAllReduce, 4000);
  EXPECT_TRUE(protocol != "ll" && protocol != "simple") << protocol;
}

// Whether LL128 is among what an allreduce could use.
bool knows_lines(DeviceRanks& ranks) {
  std::string text(16 << 10, '\0');
  EXPECT_EQ(trExplain(ranks.comm(0), trCollAllReduce, 1 << 20, trInt32, text.data(), text.size(), nullptr), trSuccess);
  return text.find(" ll128 ") != std::string::npos;
}

TEST(DeviceFifos, BetweenGenerationsDoNotUseLl128) {
  set_cpu_capability(2, 80);
  DeviceRanks alike({0, 1}), older({2, 2}), mixed({0, 1, 2}, 60'000, by_kernels());
  set_cpu_capability(2, 90);
  EXPECT_TRUE(knows_lines(alike));
  EXPECT_TRUE(knows_lines(older));
  EXPECT_FALSE(knows_lines(mixed));
  EXPECT_GT(launched(mixed, 300'000), 0u);
}

std::chrono::milliseconds since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
}

TEST(DeviceFifos, ThatHangAreGivenUpAndWhatTheyUseIsKept) {
  constexpr std::chrono::milliseconds kTimeout{4000};
  {
    const Link link({.hanging = 1});
    ::testing::internal::CaptureStderr();
    const auto begin = std::chrono::steady_clock::now();
    DeviceRanks ranks({0, 1, 2}, static_cast<int>(kTimeout.count()));
    const auto taken = since(begin);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_LT(taken, kTimeout) << "half of it is for the link, and the others do not wait longer";
    EXPECT_NE(log.find("rank 1: on the link to rank 2's GPU, copies have not ended within 2 s; GPU 1 keeps "),
              std::string::npos)
        << log;
    EXPECT_NE(log.find("rank 0: copies of another rank have not ended in time; GPU 0 keeps "), std::string::npos)
        << log;
    EXPECT_EQ(launched(ranks, 1000), 0u);
    EXPECT_EQ(launched(ranks, 2 << 20), 0u);
    EXPECT_GT(cpu_hanging_copies(), 0);
  }
  // Now they write, though their communicator is no more.
  const auto begin = std::chrono::steady_clock::now();
  while (cpu_hanging_copies() > 0 && since(begin) < kTimeout) std::this_thread::yield();
  EXPECT_EQ(cpu_hanging_copies(), 0);
  DeviceRanks ranks({0, 1, 2});
  EXPECT_EQ(launched(ranks, 1000), 3u);
}

TEST(DeviceFifos, ThatAreSlowerThanTheHostAreLeftToSmallMessages) {
  constexpr size_t kMany = 1 << 20;
  // What others disturb while it is measured, a link or the host, seems slow: then another communicator measures it again.
  const auto ranks_that_launch = [kMany](uint64_t expected) {
    std::unique_ptr<DeviceRanks> ranks;
    for (int attempt = 0; attempt < 20; ++attempt) {
      ranks = std::make_unique<DeviceRanks>(std::vector<int>{0, 1});
      if (launched(*ranks, kMany) == expected) return ranks;
    }
    ADD_FAILURE() << "no communicator of 20 launches " << expected << " kernels for many values";
    return ranks;
  };
  const auto fast = ranks_that_launch(2);
  const Link link({.gbps = 0.002});
  const auto slow = ranks_that_launch(0);
  EXPECT_EQ(launched(*slow, 1), 2u);
  double of_fast = 0, of_slow = 0;
  EXPECT_EQ(trPredictTransfer(fast->comm(0), 1 << 20, &of_fast), trSuccess);
  EXPECT_EQ(trPredictTransfer(slow->comm(0), 1 << 20, &of_slow), trSuccess);
  EXPECT_GT(of_slow, 200'000) << "1 MiB at 0.002 GB/s";
  EXPECT_LT(of_fast, of_slow / 2);
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

// More than the copy that one rank's other operations are.
TEST(OneRank, LogicalOperationsGiveTruth) {
  DeviceRanks ranks({0});
  for (trRedOp_t op : {trLogicalAnd, trLogicalOr, trLogicalXor}) {
    Buffer data(0, 1000, 5);
    ranks.run(false, [&](int, trComm_t comm, trStream_t stream) {
      return trAllReduce(data.data(), data.data(), 1000, trInt32, op, comm, stream);
    });
    EXPECT_TRUE(data.all_equal([](size_t) { return 1; })) << "op " << op;
  }
}

TEST(DeviceFifos, OfOneProcessNeedNoHandles) {
  const Link link({.without_handles = true});
  DeviceRanks ranks({0, 1});
  EXPECT_EQ(launched(ranks, 1000), 2u);
  EXPECT_EQ(cpu_shareable_allocations(), 0);
}

// What one rank forbids is forbidden to its peers as well; ranks of one GPU do not need it.
TEST(DeviceFifos, AreNotUsedWhereARankForbidsThem) {
  const auto protocol_with = [](const std::vector<int>& devices, size_t forbidding) {
    trUniqueId id;
    EXPECT_EQ(trGetUniqueId(&id), trSuccess);
    std::vector<trComm_t> comms(devices.size());
    EXPECT_EQ(trGroupStart(), trSuccess);
    for (size_t r = 0; r < devices.size(); ++r) {
      setenv("TREERING_DEVICE_P2P", r == forbidding ? "0" : "1", 1);
      trConfig_t config = TR_CONFIG_INITIALIZER;
      config.device = devices[r];
      EXPECT_EQ(trCommInitRankConfig(&comms[r], static_cast<int>(devices.size()), id, static_cast<int>(r), &config),
                trSuccess);
    }
    unsetenv("TREERING_DEVICE_P2P");
    EXPECT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
    trSelection_t selection;
    EXPECT_EQ(trGetSelection(comms[0], trCollAllReduce, nullptr, nullptr, 8, trInt32, &selection), trSuccess);
    for (trComm_t comm : comms) EXPECT_EQ(trCommDestroy(comm), trSuccess);
    return std::string(selection.protocol);
  };
  EXPECT_EQ(protocol_with({0, 1, 2}, 3), "ll") << "of no rank";
  EXPECT_NE(protocol_with({0, 1, 2}, 1), "ll");
  EXPECT_NE(protocol_with({0, 0, 2}, 0), "ll");
  EXPECT_EQ(protocol_with({0, 0}, 1), "ll");
  setenv("TREERING_DEVICE_P2P", "0", 1);
  DeviceRanks ranks({0, 1});
  unsetenv("TREERING_DEVICE_P2P");
  EXPECT_EQ(launched(ranks, 1000), 0u);
}

trConfig_t with_protocols(const char* text) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.device_protocol = text;
  return config;
}

TEST(DeviceProtocols, AreThoseThatAreAllowed) {
  {
    DeviceRanks ranks({0, 1}), forced({0, 1}, 60'000, by_kernels());
    EXPECT_EQ(protocol_of(ranks, trCollAllReduce, 8), "ll");
    EXPECT_EQ(protocol_of(forced, trCollAllReduce, 64 << 20), "simple");
  }
  {
    DeviceRanks ranks({0, 1}, 60'000, with_protocols("^ll,simple"));
    for (size_t bytes : {8, 64 << 20}) EXPECT_EQ(protocol_of(ranks, trCollAllReduce, bytes), "ll128");
    EXPECT_EQ(launched(ranks, 100'000), 2u);
  }
  DeviceRanks ranks({0, 1, 1}, 60'000, with_protocols("ll;allreduce:^ll;allreduce:simple"));
  trSelection_t selection;
  EXPECT_EQ(protocol_of(ranks, trCollAllReduce, 8, &selection), "simple");
  EXPECT_GT(selection.predicted_us, 0);
  EXPECT_GE(selection.channels, 1);
  EXPECT_EQ(protocol_of(ranks, trCollBroadcast, 64 << 20), "ll");
  EXPECT_EQ(launched(ranks, 10), 3u);
  EXPECT_EQ(launched(ranks, 200'000), 3u);
}

trConfig_t with_blocks(int blocks) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.device_blocks = blocks;
  return config;
}

// All ranks exchange with all others: which block a pair has follows from the sum of its ranks. Gives the blocks of a
// kernel.
int blocks_of_an_exchange(DeviceRanks& ranks, size_t count) {
  const int n = ranks.count();
  auto in = ranks.buffers(count), out = ranks.buffers(count * static_cast<size_t>(n));
  ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
    for (int peer = 0; peer < n; ++peer) {
      if (const trResult_t sent = trSend(in[r].data(), count, trInt32, peer, comm, stream); sent != trSuccess)
        return sent;
      int* const to = out[r].data() + static_cast<size_t>(peer) * count;
      if (const trResult_t got = trRecv(to, count, trInt32, peer, comm, stream); got != trSuccess) return got;
    }
    return trSuccess;
  });
  for (const Buffer& b : out) EXPECT_TRUE(b.all_equal([&](size_t i) { return static_cast<int>(i / count) + 1; }));
  return static_cast<int>(cpu_launched_blocks());
}

// The stand-in's GPUs have 16 multiprocessors. The FIFOs of blocks above 8 are in memory of their own.
TEST(DeviceBlocks, AreAsManyAsIsSaid) {
  for (int blocks : {1, 3, 8, 9, 10, 16, 32}) {
    DeviceRanks ranks({0, 1, 2, 3, 4, 5}, 60'000, with_blocks(blocks));
    EXPECT_EQ(blocks_of_an_exchange(ranks, 100'000), std::min(blocks, 16));
    EXPECT_EQ(launched(ranks, 1000), 6u);
  }
  DeviceRanks chosen({0, 1});
  EXPECT_GE(blocks_of_an_exchange(chosen, 10), 8);
}

TEST(DeviceBlocks, OfSharedGpusLeaveRoomForOtherCommunicators) {
  std::vector<std::unique_ptr<DeviceRanks>> all;
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 4; ++i) all.push_back(std::make_unique<DeviceRanks>(std::vector<int>{0, 0, 1}));
  EXPECT_EQ(blocks_of_an_exchange(*all[0], 10), 2);
  EXPECT_EQ(launched(*all[3], 100'000), 3u);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "four fit, and GPU 1 is not shared";
  all.pop_back();
  all.push_back(std::make_unique<DeviceRanks>(std::vector<int>{0, 0, 1}));
  ::testing::internal::CaptureStderr();
  DeviceRanks fifth({1, 0, 0, 0});
  DeviceRanks not_shared({0, 1});
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string text =
      "GPU 0 is shared by 3 ranks of a new communicator, with 1 block(s) each; the kernels of 5 communicator(s) of this "
      "process now have 19 blocks there together, on 16 multiprocessors";
  const size_t at = log.find(text);
  EXPECT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find("is shared by", at + text.size()), std::string::npos) << log;
  EXPECT_NE(log.find("TREERING_DEVICE_BLOCKS"), std::string::npos) << log;
}

TEST(DeviceProtocols, WrongOnesAreNamed) {
  trUniqueId id;
  ASSERT_EQ(trGetUniqueId(&id), trSuccess);
  const auto error_of = [&](const char* text) {
    trConfig_t config = with_protocols(text);
    config.device = 0;
    trComm_t comm = nullptr;
    EXPECT_EQ(trCommInitRankConfig(&comm, 1, id, 0, &config), trInvalidArgument) << text;
    return std::string(trGetLastError(nullptr));
  };
  EXPECT_NE(error_of("ll,ll256").find("'ll256' is no protocol; known are ll, ll128 and simple"), std::string::npos);
  EXPECT_NE(error_of("ll,ll256").find("config->device_protocol is"), std::string::npos) << error_of("ll,ll256");
  EXPECT_NE(error_of("^ll,ll128,simple").find("leaves no protocol"), std::string::npos);
  EXPECT_NE(error_of("reduces:ll").find("'reduces', which is no collective"), std::string::npos);
  EXPECT_NE(error_of("ll;").find("'' is no protocol"), std::string::npos);
}

// What kernels do for a size is decided by the first call that asks.
TEST(DevicePaths, AreToldWhileAnotherThreadCalls) {
  DeviceRanks ranks({0, 1});
  std::atomic<bool> done{false};
  std::thread asks([&] {
    trSelection_t selection;
    trResult_t state = trSuccess;
    for (uint32_t i = 0; !done.load(); ++i) {
      const size_t bytes = size_t{1} << i % 30;
      EXPECT_EQ(trGetSelection(ranks.comm(i % 2), trCollAllReduce, nullptr, nullptr, bytes, trInt32, &selection),
                trSuccess);
      EXPECT_EQ(trCommGetAsyncError(ranks.comm(i % 2), &state), trSuccess);
      EXPECT_TRUE(state == trSuccess || state == trInProgress) << state;
    }
  });
  for (size_t count = 1; count < (1 << 16) && !HasFailure(); count *= 2) EXPECT_EQ(launched(ranks, count), 2u);
  done = true;
  asks.join();
}

TEST(DeviceTransfers, ArePredicted) {
  DeviceRanks kernels({0, 1}), host({-1, -1});
  for (DeviceRanks* ranks : {&kernels, &host}) {
    double before = 0;
    for (size_t bytes : {size_t{0}, size_t{1} << 20, size_t{1} << 30}) {
      double time = 0;
      ASSERT_EQ(trPredictTransfer(ranks->comm(0), bytes, &time), trSuccess);
      EXPECT_GT(time, before);
      before = time;
    }
  }
  EXPECT_EQ(trPredictTransfer(host.comm(0), 1, nullptr), trInvalidArgument);
}

}  // namespace
}  // namespace treering::testing
