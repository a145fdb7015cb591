// SPDX-License-Identifier: Apache-2.0
// Double buffering against a model of its semantics, over random programs; compression on the wire; fusion.
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "support/ranks.h"
#include "support/seed.h"

namespace treering::testing {
namespace {

using Tensors = std::vector<std::vector<float>>;

// What every rank's object must do: the mean of the step before, or nothing.
struct Model {
  std::optional<Tensors> pending;

  // `means` of this step; what comes out.
  std::optional<Tensors> exchange(const Tensors& means, bool shape_changed) {
    std::optional<Tensors> out = shape_changed ? std::nullopt : pending;
    pending = means;
    return out;
  }
  std::optional<Tensors> flush() { return std::exchange(pending, std::nullopt); }
};

struct Program {
  int ranks;
  int flags;
  trDataType_t wire;  // trFloat32: as it is
};

class DoubleBuffer : public ::testing::TestWithParam<Program> {};

TEST_P(DoubleBuffer, RandomProgramsDoWhatTheModelDoes) {
  const uint64_t seed = test_seed();
  std::mt19937 random(seed);
  const auto [n, flags, wire] = GetParam();
  const auto size = static_cast<size_t>(n);
  RankGroup ranks(n);
  trCompression_t compression = nullptr;
  if (wire != trFloat32) {
    ASSERT_EQ(trCompressionCreate(&compression, wire, 0, 0), trSuccess);
  }
  std::vector<trDoubleBuffer_t> buffers(size);
  for (size_t r = 0; r < size; ++r)
    ASSERT_EQ(trDoubleBufferCreate(&buffers[r], ranks.comm(static_cast<int>(r)), trFloat32, flags, compression),
              trSuccess);
  Model model;
  std::vector<size_t> counts = {5, 0, 1000};
  // Two sets for each rank: those that are handed in take turns.
  std::vector<Tensors> sets[2] = {std::vector<Tensors>(size), std::vector<Tensors>(size)};
  int turn = 0;
  auto expect_out = [&](size_t r, int ready, void* const* tensors, const std::optional<Tensors>& expected) {
    ASSERT_EQ(ready, expected.has_value() ? 1 : 0) << "seed " << seed;
    if (!expected) return;
    for (size_t t = 0; t < expected->size(); ++t)
      ASSERT_TRUE(std::equal((*expected)[t].begin(), (*expected)[t].end(), static_cast<const float*>(tensors[t])))
          << "rank " << r << " tensor " << t << " seed " << seed;
  };
  for (int step = 0; step < 60; ++step) {
    const auto choice = random() % 10;
    std::vector<std::vector<void*>> pointers(size);
    if (choice == 0) {  // flush
      const auto expected = model.flush();
      for (size_t r = 0; r < size; ++r) {
        int ready = -1;
        Tensors space;
        for (size_t count : counts) space.emplace_back(count + 1);
        for (auto& tensor : space) pointers[r].push_back(tensor.data());
        ASSERT_EQ(trDoubleBufferFlush(buffers[r], static_cast<int>(counts.size()), pointers[r].data(), &ready),
                  trSuccess)
            << trGetLastError(nullptr) << " seed " << seed;
        expect_out(r, ready, pointers[r].data(), expected);
      }
      continue;
    }
    bool changed = false;
    if (choice == 1) {
      std::vector<size_t> other(1 + random() % 4);
      for (size_t& count : other) count = random() % 3000;
      changed = model.pending.has_value() && other != counts;
      if (changed && (flags & TR_DOUBLE_BUFFER_RESTART) == 0) {  // refused, and nothing is lost
        int ready = -1;
        Tensors space;
        std::vector<void*> given;
        for (size_t count : other) space.emplace_back(count + 1);
        for (auto& tensor : space) given.push_back(tensor.data());
        ASSERT_EQ(
            trDoubleBufferExchange(buffers[0], static_cast<int>(other.size()), given.data(), other.data(), &ready),
            trInvalidUsage);
        continue;
      }
      counts = other;
    }
    Tensors means;
    for (size_t count : counts) means.emplace_back(count);
    for (size_t r = 0; r < size; ++r) {
      Tensors& set = sets[turn][r];
      set.clear();
      for (size_t t = 0; t < counts.size(); ++t) {
        set.emplace_back(counts[t] + 1);
        for (size_t i = 0; i < counts[t]; ++i) {
          set[t][i] = static_cast<float>(random() % 8);  // exact in every wire type, and so are their sums and means
          means[t][i] += set[t][i] / static_cast<float>(n);
        }
        pointers[r].push_back(set[t].data());
      }
    }
    const auto expected = model.exchange(means, changed);
    for (size_t r = 0; r < size; ++r) {
      int ready = -1;
      ASSERT_EQ(trDoubleBufferExchange(buffers[r], static_cast<int>(counts.size()), pointers[r].data(), counts.data(),
                                       &ready),
                trSuccess)
          << trGetLastError(nullptr) << " seed " << seed;
      expect_out(r, ready, pointers[r].data(), expected);
    }
    turn = 1 - turn;
  }
  for (trDoubleBuffer_t buffer : buffers) EXPECT_EQ(trDoubleBufferDestroy(buffer), trSuccess);
  EXPECT_EQ(trCompressionDestroy(compression), trSuccess);
}

INSTANTIATE_TEST_SUITE_P(Programs, DoubleBuffer,
                         ::testing::Values(Program{1, 0, trFloat32}, Program{2, 0, trFloat32},
                                           Program{4, TR_DOUBLE_BUFFER_OWNED, trFloat32},
                                           Program{2, TR_DOUBLE_BUFFER_RESTART, trFloat32},
                                           Program{4, TR_DOUBLE_BUFFER_OWNED | TR_DOUBLE_BUFFER_RESTART, trFloat32},
                                           Program{2, 0, trFloat16}, Program{4, TR_DOUBLE_BUFFER_OWNED, trBfloat16}));

// Steps of 84 ms of work, which needs no core, and 84 ms of link, one beside the other or in turn: ms for all of them.
double steps_ms(const RankGroup& ranks, int steps, size_t elements, bool in_turn) {
  std::vector<std::vector<float>> sets(4, std::vector<float>(elements, 1.0f));
  std::vector<trDoubleBuffer_t> buffers(2);
  for (size_t rank : {0u, 1u})
    EXPECT_EQ(trDoubleBufferCreate(&buffers[rank], ranks.comm(static_cast<int>(rank)), trFloat32, 0, nullptr),
              trSuccess);
  const auto begin = std::chrono::steady_clock::now();
  for (int step = 0; step < steps; ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(84));
    for (size_t rank : {0u, 1u}) {
      void* tensors[] = {sets[2 * rank + static_cast<size_t>(step) % 2].data()};
      const size_t counts[] = {elements};
      int ready = -1;
      EXPECT_EQ(trDoubleBufferExchange(buffers[rank], 1, tensors, counts, &ready), trSuccess)
          << trGetLastError(nullptr);
      EXPECT_EQ(ready, !in_turn && step > 0);
    }
    for (size_t rank = 0; rank < 2 && (in_turn || step + 1 == steps); ++rank) {
      void* tensors[1] = {nullptr};
      int ready = 0;
      EXPECT_EQ(trDoubleBufferFlush(buffers[rank], 1, tensors, &ready), trSuccess);
      EXPECT_TRUE(tensors[0] != nullptr && static_cast<float*>(tensors[0])[elements - 1] == 1.0f);
    }
  }
  const auto end = std::chrono::steady_clock::now();
  for (trDoubleBuffer_t buffer : buffers) EXPECT_EQ(trDoubleBufferDestroy(buffer), trSuccess);
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

// 1 MiB over 100 Mbit/s: 84 ms a step between two ranks. In turn that comes on top of the work. Other programs may keep the
// core of a round, but not of each.
TEST(DoubleBufferOverlap, HidesTheLinkBehindTheWork) {
  trConfig_t config = RankGroup::default_config();
  config.staging_bytes = 1 << 20;
  config.link_mbps = 100;
  constexpr int kSteps = 4;
  RankGroup ranks(2, config);
  bool is_hidden = false;
  for (int round = 0; round < 5 && !is_hidden; ++round) {
    const double in_turn = steps_ms(ranks, kSteps, 1 << 18, true);
    const double beside = steps_ms(ranks, kSteps, 1 << 18, false);
    std::printf("%d steps of 84 ms of work and 84 ms of link: %.0f ms in turn, %.0f ms\n", kSteps, in_turn, beside);
    EXPECT_GE(beside, (kSteps + 1) * 83.0) << "faster than the link";
    is_hidden = beside < 0.85 * in_turn;
  }
  EXPECT_TRUE(is_hidden);
}

TEST(DoubleBufferFailure, NullTensorsAreNamed) {
  for (int flags : {0, TR_DOUBLE_BUFFER_OWNED}) {
    RankGroup alone(1);
    trDoubleBuffer_t buffer = nullptr;
    ASSERT_EQ(trDoubleBufferCreate(&buffer, alone.comm(0), trFloat32, flags, nullptr), trSuccess);
    float values[4] = {1, 2, 3, 4};
    void *tensors[2] = {values, nullptr}, *nothing[2] = {nullptr, nullptr};
    const size_t counts[2] = {4, 0};
    int ready = -1;
    EXPECT_EQ(trDoubleBufferExchange(buffer, 2, nothing, counts, &ready), trInvalidArgument);
    ASSERT_EQ(trDoubleBufferExchange(buffer, 2, tensors, counts, &ready), trSuccess);
    const bool owned = flags == TR_DOUBLE_BUFFER_OWNED;
    EXPECT_EQ(trDoubleBufferFlush(buffer, 2, nothing, &ready), owned ? trInvalidArgument : trSuccess);
    EXPECT_EQ(ready, owned ? 0 : 1);
    if (owned) {
      EXPECT_NE(std::strstr(trGetLastError(nullptr), "tensors[0] is NULL"), nullptr) << trGetLastError(nullptr);
      EXPECT_EQ(trDoubleBufferFlush(buffer, 2, tensors, &ready), trSuccess) << "the mean is still there";
      EXPECT_EQ(ready, 1);
    }
    EXPECT_EQ(trDoubleBufferDestroy(buffer), trSuccess);
  }
}

TEST(DoubleBufferFailure, ARefusedRestartKeepsThePendingMean) {
  for (int flags : {TR_DOUBLE_BUFFER_RESTART, TR_DOUBLE_BUFFER_RESTART | TR_DOUBLE_BUFFER_OWNED}) {
    RankGroup alone(1);
    trDoubleBuffer_t buffer = nullptr;
    ASSERT_EQ(trDoubleBufferCreate(&buffer, alone.comm(0), trFloat32, flags, nullptr), trSuccess);
    float a[4] = {1, 2, 3, 4}, b[4] = {};
    void *first[] = {a}, *second[] = {b};
    const size_t four[] = {4};
    int ready = -1;
    ASSERT_EQ(trDoubleBufferExchange(buffer, 1, first, four, &ready), trSuccess);
    for (size_t count : {size_t{1} << 62, SIZE_MAX}) {
      EXPECT_EQ(trDoubleBufferExchange(buffer, 1, second, &count, &ready), trInvalidArgument);
      EXPECT_NE(std::strstr(trGetLastError(nullptr), ("counts[0] is " + std::to_string(count)).c_str()), nullptr)
          << trGetLastError(nullptr);
    }
    EXPECT_EQ(ready, 0);
    EXPECT_EQ(trDoubleBufferFlush(buffer, 1, second, &ready), trSuccess) << trGetLastError(nullptr);
    EXPECT_EQ(ready, 1);
    EXPECT_EQ(static_cast<float*>(second[0])[3], 4);
    EXPECT_EQ(trDoubleBufferDestroy(buffer), trSuccess);
  }
}

TEST(DoubleBufferFailure, BorrowedTensorsThatOverlapAreRefused) {
  RankGroup alone(1);
  trDoubleBuffer_t buffer = nullptr;
  ASSERT_EQ(trDoubleBufferCreate(&buffer, alone.comm(0), trFloat32, TR_DOUBLE_BUFFER_RESTART, nullptr), trSuccess);
  float a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[8] = {};
  const size_t two[] = {2, 2}, one[] = {2};
  int ready = -1;
  auto refused = [&](void* first, void* second, const char* text) {
    void* tensors[] = {first, second};
    EXPECT_EQ(trDoubleBufferExchange(buffer, 2, tensors, two, &ready), trInvalidUsage);
    EXPECT_NE(std::strstr(trGetLastError(nullptr), text), nullptr) << trGetLastError(nullptr);
  };
  refused(a, a, "overlaps another");
  refused(a + 1, a, "tensors[0] overlaps another");
  void *first[] = {a, a + 2}, *second[] = {b, b + 2}, *only[] = {a};
  ASSERT_EQ(trDoubleBufferExchange(buffer, 2, first, two, &ready), trSuccess) << trGetLastError(nullptr);
  refused(a + 2, b, "tensors[0] still holds");  // at another place
  refused(b, a + 3, "tensors[1] still holds");  // a part of it
  EXPECT_EQ(trDoubleBufferExchange(buffer, 2, second, two, &ready), trSuccess) << trGetLastError(nullptr);
  EXPECT_EQ(ready, 1);
  EXPECT_EQ(second[1], static_cast<void*>(a + 2));
  // A restart drops the pending mean: nothing is under way any more.
  EXPECT_EQ(trDoubleBufferExchange(buffer, 1, only, one, &ready), trSuccess) << trGetLastError(nullptr);
  only[0] = b;
  EXPECT_EQ(trDoubleBufferExchange(buffer, 1, only, one, &ready), trSuccess) << trGetLastError(nullptr);
  EXPECT_EQ(trDoubleBufferDestroy(buffer), trSuccess);
}

TEST(DoubleBufferFailure, IsReturnedAndTheMeanIsNotReady) {
  trConfig_t config = RankGroup::default_config();
  config.timeout_ms = 2000;  // creating them has the same
  RankGroup ranks(2, config);
  trDoubleBuffer_t buffer = nullptr;
  ASSERT_EQ(trDoubleBufferCreate(&buffer, ranks.comm(0), trFloat32, 0, nullptr), trSuccess);
  float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8};
  void* tensors[] = {a};
  const size_t counts[] = {4};
  int ready = -1;
  EXPECT_EQ(trDoubleBufferExchange(buffer, 1, tensors, counts, &ready), trSuccess);
  EXPECT_EQ(ready, 0);
  EXPECT_EQ(trDoubleBufferExchange(buffer, 1, tensors, counts, &ready), trInvalidUsage) << "the same tensors again";
  tensors[0] = b;
  const size_t fewer[] = {3};
  EXPECT_EQ(trDoubleBufferExchange(buffer, 1, tensors, fewer, &ready), trInvalidUsage);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "tensor 0 has 3 elements, before 4"), nullptr)
      << trGetLastError(nullptr);
  EXPECT_EQ(trDoubleBufferExchange(buffer, 1, tensors, counts, &ready), trTimeout) << "rank 1 never came";
  EXPECT_EQ(ready, 0);
  EXPECT_EQ(tensors[0], static_cast<void*>(b));
  EXPECT_EQ(trDoubleBufferDestroy(buffer), trSuccess);
}

}  // namespace
}  // namespace treering::testing
