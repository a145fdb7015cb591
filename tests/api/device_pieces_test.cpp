// Large operations that go through pinned memory of the host, in pieces: on all ranks alike, with little memory.
#include <gtest/gtest.h>

#include <cstring>
#include <cmath>
#include <random>
#include <thread>
#include <string>

#include "support/device_ranks.h"

namespace treering::testing {
namespace {

constexpr int kPiece = 64 << 10;
// Six slots of a rank, the flags, and what is rounded up to pages.
constexpr size_t kPinnedOfRank = 6 * kPiece + (16 << 10);

trConfig_t pieces_of(int bytes, bool fixed_order = false) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.device_piece_bytes = bytes;
  config.deterministic = fixed_order ? 1 : 0;
  return config;
}

struct Place {
  const char* name;
  std::vector<int> devices;
};
const Place kPlaces[] = {{"two", {-1, 0}}, {"mixed", {0, -1, 2}}, {"host_first", {-1, -1, 1, 1}}};

class Pieces : public ::testing::TestWithParam<Place> {};

// Values that differ in every element; sums stay exact.
int value(int rank, size_t i) { return rank * 1'000'003 + static_cast<int>(i); }
void fill(std::vector<Buffer>* buffers) {
  for (size_t rank = 0; rank < buffers->size(); ++rank)
    for (size_t i = 0; i < (*buffers)[rank].count(); ++i) (*buffers)[rank].data()[i] = value(static_cast<int>(rank), i);
}

TEST_P(Pieces, EveryCollective) {
  DeviceRanks ranks(GetParam().devices, 60'000, pieces_of(kPiece));
  const int n = ranks.count();
  const auto un = static_cast<size_t>(n);
  // Exactly a piece and one more; several; many with an odd rest.
  for (size_t count : {size_t{kPiece / 4}, size_t{kPiece / 4 + 1}, size_t{60'000}, size_t{500'009}})
    for (bool blocking : {false, true}) {
      SCOPED_TRACE("count " + std::to_string(count) + (blocking ? " blocking" : " on streams"));
      auto own = ranks.buffers(count), out = ranks.buffers(count), all = ranks.buffers(count * un),
           other = ranks.buffers(count * un);
      fill(&own);
      fill(&all);
      const auto sum = [&](size_t i) {
        int total = 0;
        for (int r = 0; r < n; ++r) total += value(r, i);
        return total;
      };
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trAllReduce(own[r].data(), out[r].data(), count, trInt32, trSum, comm, stream);
      });
      for (const Buffer& b : out) ASSERT_TRUE(b.all_equal(sum));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trReduce(own[r].data(), out[r].data(), count, trInt32, trMax, n - 1, comm, stream);
      });
      ASSERT_TRUE(out[n - 1].all_equal([&](size_t i) { return value(n - 1, i); }));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trBroadcast(own[r].data(), out[r].data(), count, trInt32, 1, comm, stream);
      });
      for (const Buffer& b : out) ASSERT_TRUE(b.all_equal([](size_t i) { return value(1, i); }));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trAllGather(own[r].data(), other[r].data(), count, trInt32, comm, stream);
      });
      const auto gathered = [&](size_t i) { return value(static_cast<int>(i / count), i % count); };
      for (const Buffer& b : other) ASSERT_TRUE(b.all_equal(gathered));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trReduceScatter(all[r].data(), out[r].data(), count, trInt32, trSum, comm, stream);
      });
      for (int r = 0; r < n; ++r)
        ASSERT_TRUE(out[r].all_equal([&](size_t i) { return sum(static_cast<size_t>(r) * count + i); }));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trAllToAll(all[r].data(), other[r].data(), count, trInt32, comm, stream);
      });
      for (int r = 0; r < n; ++r)
        ASSERT_TRUE(other[r].all_equal(
            [&](size_t i) { return value(static_cast<int>(i / count), static_cast<size_t>(r) * count + i % count); }));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trGather(own[r].data(), other[r].data(), count, trInt32, 1, comm, stream);
      });
      ASSERT_TRUE(other[1].all_equal(gathered));
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trScatter(all[r].data(), out[r].data(), count, trInt32, 0, comm, stream);
      });
      for (int r = 0; r < n; ++r)
        ASSERT_TRUE(out[r].all_equal([&](size_t i) { return value(0, static_cast<size_t>(r) * count + i); }));
    }
}

TEST_P(Pieces, InPlace) {
  DeviceRanks ranks(GetParam().devices, 60'000, pieces_of(kPiece));
  const int n = ranks.count();
  const auto un = static_cast<size_t>(n);
  const size_t count = 100'003;
  const auto block = [&](const std::vector<Buffer>& all, int r) {
    return all[r].data() + static_cast<size_t>(r) * count;
  };
  auto all = ranks.buffers(count * un);
  fill(&all);
  ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllGather(block(all, r), all[r].data(), count, trInt32, comm, stream);
  });
  for (const Buffer& b : all) ASSERT_TRUE(b.all_equal([&](size_t i) { return value(static_cast<int>(i / count), i); }));
  ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
    return trReduceScatter(all[r].data(), block(all, r), count, trInt32, trSum, comm, stream);
  });
  for (int r = 0; r < n; ++r)
    for (size_t i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>(r) * count + i;
      ASSERT_EQ(all[r].data()[at], n * value(r, at)) << "rank " << r << " element " << i;
    }
  fill(&all);
  ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllToAll(all[r].data(), all[r].data(), count, trInt32, comm, stream);
  });
  for (int r = 0; r < n; ++r)
    ASSERT_TRUE(all[r].all_equal(
        [&](size_t i) { return value(static_cast<int>(i / count), static_cast<size_t>(r) * count + i % count); }));
}

// Calls of a group and of a persistent operation, of which a rank without a GPU makes fused ones elsewhere.
TEST_P(Pieces, GroupsOfSeveralCalls) {
  DeviceRanks ranks(GetParam().devices, 60'000, pieces_of(kPiece));
  const int n = ranks.count();
  for (bool blocking : {false, true}) {
    auto small = ranks.buffers(100), large = ranks.buffers(70'001), more = ranks.buffers(1000);
    ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
      for (auto* buffers : {&small, &large, &more}) {
        Buffer& b = (*buffers)[r];
        const trResult_t result = trAllReduce(b.data(), b.data(), b.count(), trInt32, trSum, comm, stream);
        if (result != trSuccess) return result;
      }
      return trSuccess;
    });
    for (auto* buffers : {&small, &large, &more})
      for (const Buffer& b : *buffers) ASSERT_TRUE(b.all_equal([&](size_t) { return n * (n + 1) / 2; }));
  }
}

INSTANTIATE_TEST_SUITE_P(Device, Pieces, ::testing::ValuesIn(kPlaces),
                         [](const auto& info) { return info.param.name; });

TEST(PiecesMemory, StaysBoundedHoweverLargeTheBuffers) {
  DeviceRanks ranks({0, -1, 1}, 60'000, pieces_of(kPiece));
  constexpr size_t kCount = 8 << 20;  // 512 pieces
  auto data = ranks.buffers(kCount);
  reset_cpu_pinned_peak();
  const size_t before = cpu_pinned_peak();
  // Several at once: they share the slots.
  for (int turn = 0; turn < 4; ++turn)
    for (int r = 0; r < 3; ++r)
      ASSERT_EQ(trAllReduce(data[r].data(), data[r].data(), kCount, trInt32, trMax, ranks.comm(r), ranks.stream(r)),
                trSuccess);
  ranks.synchronize();
  for (const Buffer& b : data) ASSERT_TRUE(b.all_equal([](size_t) { return 3; }));
  EXPECT_GT(cpu_pinned_peak(), before);
  EXPECT_LE(cpu_pinned_peak() - before, 2 * (kPinnedOfRank + 4 * 4096));
}

// With a fixed order a result depends on nothing else: in pieces it is, bit for bit, the one of a single piece.
TEST(PiecesResults, AreThoseOfTheWhole) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr size_t kCount = 200'001;
  std::vector<std::vector<float>> inputs(3, std::vector<float>(kCount)), results;
  std::mt19937 random(seed);
  for (auto& input : inputs)
    for (float& x : input) x = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 60) - 30);
  for (int piece : {1 << 30, kPiece, 3 * kPiece + 4}) {
    DeviceRanks ranks({0, -1, 1}, 60'000, pieces_of(piece, true));
    auto in = ranks.buffers(kCount), out = ranks.buffers(kCount);
    for (size_t r = 0; r < 3; ++r) std::memcpy(in[r].data(), inputs[r].data(), kCount * sizeof(float));
    ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
      return trAllReduce(in[r].data(), out[r].data(), kCount, trFloat32, trSum, comm, stream);
    });
    const auto* first = reinterpret_cast<const float*>(out[0].data());
    results.emplace_back(first, first + kCount);
    for (const Buffer& b : out) EXPECT_EQ(std::memcmp(b.data(), out[0].data(), kCount * sizeof(float)), 0);
  }
  for (const auto& result : results)
    EXPECT_EQ(std::memcmp(result.data(), results[0].data(), kCount * sizeof(float)), 0);
}

TEST(PiecesStreams, WorkBeforeAndBehindIsInOrder) {
  DeviceRanks ranks({0, -1}, 60'000, pieces_of(kPiece));
  constexpr size_t kCount = 150'000;
  auto data = ranks.buffers(kCount);
  const auto add_one = [](void* argument) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    auto* values = static_cast<int*>(argument);
    for (size_t i = 0; i < kCount; ++i) ++values[i];
  };
  int expected[2] = {1, 2};
  for (int step = 0; step < 5; ++step) {
    run_in_cpu_stream(ranks.cuda(0), add_one, data[0].data());
    for (int r : {0, 1})
      ASSERT_EQ(trAllReduce(data[r].data(), data[r].data(), kCount, trInt32, trSum, ranks.comm(r), ranks.stream(r)),
                trSuccess);
    expected[0] = expected[1] = expected[0] + expected[1] + 1;
  }
  ranks.synchronize();
  for (int r : {0, 1}) ASSERT_TRUE(data[r].all_equal([&](size_t) { return expected[r]; }));
}

TEST(PiecesStreams, GraphsAreReplayed) {
  DeviceRanks ranks({0, -1}, 60'000, pieces_of(kPiece));
  constexpr size_t kCount = 150'001;
  auto data = ranks.buffers(kCount);
  const auto reduce = [&](int r) {
    return trAllReduce(data[r].data(), data[r].data(), kCount, trInt32, trSum, ranks.comm(r), ranks.stream(r));
  };
  begin_cpu_capture(ranks.cuda(0));
  ASSERT_EQ(reduce(0), trSuccess);
  CpuGraph* graph = end_cpu_capture(ranks.cuda(0));
  ASSERT_TRUE(data[0].all_equal([](size_t) { return 1; })) << "captured, not run";
  for (int turn = 0; turn < 4; ++turn) {
    launch_cpu_graph(graph, ranks.cuda(0));
    ASSERT_EQ(reduce(1), trSuccess);
  }
  ranks.synchronize();
  for (int r : {0, 1}) ASSERT_TRUE(data[r].all_equal([](size_t) { return 3 * 8; }));
  destroy_cpu_graph(graph);
}

// The other rank never comes: every stream goes on, and all memory is given back.
TEST(PiecesFailures, AbortFreesTheStreams) {
  const size_t before = cpu_pinned_bytes();
  const auto begun = std::chrono::steady_clock::now();
  {
    DeviceRanks ranks({0, -1}, 60'000, pieces_of(kPiece));
    Buffer data(0, 300'000, 1);
    ASSERT_EQ(trAllReduce(data.data(), data.data(), data.count(), trInt32, trSum, ranks.comm(0), ranks.stream(0)),
              trSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(trCommAbort(ranks.comm(1)), trSuccess);
    ranks.comm(1) = nullptr;
    EXPECT_EQ(trStreamSynchronize(ranks.stream(0)), trSuccess);
    trResult_t result = trSuccess;
    EXPECT_EQ(trCommGetAsyncError(ranks.comm(0), &result), trSuccess);
    EXPECT_EQ(result, trRemoteError);
  }
  EXPECT_EQ(cpu_pinned_bytes(), before);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(8)) << "the end waited for memory";
}

// What kernels do not do is staged on all ranks, those with buffers of the host among them.
TEST(PiecesPaths, FunctionsOfTheUser) {
  DeviceRanks ranks({0, 1, 2}, 60'000, pieces_of(kPiece));
  constexpr size_t kCount = 90'001;
  const auto add = [](const void* in, void* inout, size_t count, trDataType_t, void*) {
    for (size_t i = 0; i < count; ++i) static_cast<int*>(inout)[i] += static_cast<const int*>(in)[i];
  };
  std::vector<trRedOp_t> ops(3);
  for (int r = 0; r < 3; ++r) ASSERT_EQ(trRedOpCreateUser(&ops[r], add, nullptr, 1, ranks.comm(r)), trSuccess);
  auto device = ranks.buffers(kCount), host = ranks.buffers(kCount, 0, true);
  const uint64_t launched = cpu_launches();
  ranks.run(true, [&](int r, trComm_t comm, trStream_t stream) {
    int* data = r == 1 ? host[r].data() : device[r].data();
    return trAllReduce(data, data, kCount, trInt32, ops[r], comm, stream);
  });
  EXPECT_EQ(cpu_launches(), launched);
  ASSERT_TRUE(host[1].all_equal([](size_t) { return 6; }));
  for (int r : {0, 2}) ASSERT_TRUE(device[r].all_equal([](size_t) { return 6; }));
}

}  // namespace
}  // namespace treering::testing
