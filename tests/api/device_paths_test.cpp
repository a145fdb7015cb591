// Which way an operation on memory of devices takes: by what was proved and measured at init, and by the settings.
#include <gtest/gtest.h>

#include <string>

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
  return selection->protocol;
}
std::string protocol_of(DeviceRanks& ranks, trCollective_t collective, size_t bytes) {
  trSelection_t selection;
  return protocol_of(ranks, collective, bytes, &selection);
}

TEST(DeviceLinks, ThatLoseWhatIsWrittenAreNotUsed) {
  const Link link({.drops = true});
  DeviceRanks ranks({0, 1});
  EXPECT_EQ(launched(ranks, 1000), 0u);
  const std::string protocol = protocol_of(ranks, trCollAllReduce, 4000);
  EXPECT_TRUE(protocol != "ll" && protocol != "simple") << protocol;
}

TEST(DeviceLinks, ThatAreSlowerThanTheHostAreLeftToSmallMessages) {
  DeviceRanks fast({0, 1});
  const Link link({.gbps = 0.002});
  DeviceRanks slow({0, 1});
  constexpr size_t kMany = 1 << 20;
  EXPECT_EQ(launched(fast, kMany), 2u);
  EXPECT_EQ(launched(slow, kMany), 0u);
  EXPECT_EQ(launched(slow, 1), 2u);
  double of_fast = 0, of_slow = 0;
  EXPECT_EQ(trPredictTransfer(fast.comm(0), 1 << 20, &of_fast), trSuccess);
  EXPECT_EQ(trPredictTransfer(slow.comm(0), 1 << 20, &of_slow), trSuccess);
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

TEST(DeviceLinks, OfOneProcessNeedNoHandles) {
  const Link link({.without_handles = true});
  DeviceRanks ranks({0, 1});
  EXPECT_EQ(launched(ranks, 1000), 2u);
  EXPECT_EQ(cpu_shareable_allocations(), 0);
}

trConfig_t with_protocols(const char* text) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.device_protocol = text;
  return config;
}

TEST(DeviceProtocols, AreThoseThatAreAllowed) {
  {
    DeviceRanks ranks({0, 1});
    EXPECT_EQ(protocol_of(ranks, trCollAllReduce, 8), "ll");
    EXPECT_EQ(protocol_of(ranks, trCollAllReduce, 64 << 20), "simple");
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
  EXPECT_NE(error_of("^ll,ll128,simple").find("leaves no protocol"), std::string::npos);
  EXPECT_NE(error_of("reduces:ll").find("'reduces', which is no collective"), std::string::npos);
  EXPECT_NE(error_of("ll;").find("'' is no protocol"), std::string::npos);
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
