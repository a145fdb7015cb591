// SPDX-License-Identifier: Apache-2.0
// Compression on the wire: the same bits on all ranks, within the bound, with error feedback; pacing; fusion; the
// fixed-order mode.
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "support/ranks.h"
#include "support/sanitized.h"
#include "support/seed.h"

namespace treering::testing {
namespace {

using Buffers = std::vector<std::vector<float>>;

struct Wire {
  trDataType_t type;
  const char* name;
  float unit;  // half a unit in the last place: the relative error of one rounding
};
constexpr Wire kWires[] = {{trFloat16, "fp16", 0x1p-11f},
                           {trBfloat16, "bf16", 0x1p-8f},
                           {trFloat8e4m3, "fp8-e4m3", 0x1p-4f},
                           {trFloat8e5m2, "fp8-e5m2", 0x1p-3f}};

// docs/compression.md, of ranks on one host: each operand is rounded once, partial sums once a hop, the result once.
int roundings(const char* algorithm, int n) {
  const std::string_view name = algorithm == nullptr ? "" : algorithm;
  if (name == "two-shot" || name == "hierarchical" || name == "hybrid") return 2;
  if (name == "halving-doubling" || name == "tree") return std::bit_width(static_cast<unsigned>(n - 1)) + 1;
  return n + (name.empty() ? 1 : 0);
}

// Inputs of all ranks, their exact sums and those of their magnitudes.
struct Reference {
  Buffers inputs;
  std::vector<double> exact, magnitudes;
  Reference(int n, size_t count, uint64_t seed)
      : inputs(random_buffers(n, count, seed)), exact(count), magnitudes(count) {
    for (const auto& buffer : inputs)
      for (size_t i = 0; i < count; ++i)
        exact[i] += static_cast<double>(buffer[i]), magnitudes[i] += std::fabs(static_cast<double>(buffer[i]));
  }
};

TEST(Compression, SameBitsOnAllRanksWithinTheBound) {
  const uint64_t seed = test_seed(42);
  std::map<std::pair<int, size_t>, Reference> references;
  for (const Wire& wire : kWires)
    for (const char* algorithm : {static_cast<const char*>(nullptr), "two-shot", "ring", "halving-doubling", "tree",
                                  "hierarchical", "ring-2d", "hybrid", "hybrid-ring"})
      for (int n : {1, 2, 3, 4, 7}) {
        trConfig_t config = RankGroup::default_config();
        config.algorithm = algorithm;
        RankGroup ranks(n, config);
        trCompression_t compression = nullptr;
        ASSERT_EQ(trCompressionCreate(&compression, wire.type, 0, 0), trSuccess);
        for (size_t count : {size_t{0}, size_t{1}, size_t{127}, size_t{1000}, size_t{70'001}})
          for (bool in_place : {false, true}) {
            const Reference& reference = references.try_emplace({n, count}, n, count, seed).first->second;
            Buffers in = reference.inputs, out(in.size(), std::vector<float>(count));
            ranks.run([&](int rank, trComm_t comm) {
              auto r = static_cast<size_t>(rank);
              float* to = in_place ? in[r].data() : out[r].data();
              return trAllReduceCompressed(in[r].data(), to, count, trSum, compression, comm, nullptr);
            });
            const Buffers& result = in_place ? in : out;
            const double share = 1.01 * roundings(algorithm, n) * static_cast<double>(wire.unit);
            for (size_t i = 0; i < count; ++i) {
              const double error = std::fabs(static_cast<double>(result[0][i]) - reference.exact[i]);
              const double bound = n == 1 ? 0 : share * reference.magnitudes[i] + 1e-4;
              if (!(error <= bound))
                FAIL() << error << " is more than " << bound << ": " << wire.name << " "
                       << (algorithm ? algorithm : "chosen") << " n " << n << " element " << i << " of " << count;
            }
            for (const auto& buffer : result)
              ASSERT_TRUE(std::equal(buffer.begin(), buffer.end(), result[0].begin()))
                  << wire.name << " " << (algorithm ? algorithm : "chosen") << " n " << n << " count " << count;
          }
        EXPECT_EQ(trCompressionDestroy(compression), trSuccess);
      }
}

TEST(Compression, OfTheCommunicatorEqualsThatOfTheCall) {
  const uint64_t seed = test_seed(1);
  for (const Wire& wire : kWires) {
    trConfig_t config = RankGroup::default_config();
    config.wire = wire.name;
    RankGroup by_setting(2, config), by_call(2);
    trCompression_t compression = nullptr;
    ASSERT_EQ(trCompressionCreate(&compression, wire.type, 0, 0), trSuccess);
    Buffers a = random_buffers(2, 5003, seed), b = a;
    by_setting.run([&](int rank, trComm_t comm) {
      auto& buffer = a[static_cast<size_t>(rank)];
      return trAllReduce(buffer.data(), buffer.data(), buffer.size(), trFloat32, trAvg, comm, nullptr);
    });
    by_call.run([&](int rank, trComm_t comm) {
      auto& buffer = b[static_cast<size_t>(rank)];
      return trAllReduceCompressed(buffer.data(), buffer.data(), buffer.size(), trAvg, compression, comm, nullptr);
    });
    EXPECT_EQ(a, b) << wire.name;
    EXPECT_EQ(trCompressionDestroy(compression), trSuccess);
  }
}

// The same small gradients again and again: without feedback their sum drifts, with it the error stays that of a call.
TEST(Compression, ErrorFeedbackCarriesTheResidue) {
  constexpr size_t kCount = 512;
  constexpr int kSteps = 200;
  const Buffers gradients = random_buffers(2, kCount, test_seed(3));
  for (const Wire& wire : kWires) {
    double errors[2] = {};
    for (int feedback : {0, 1}) {
      RankGroup ranks(2);
      trCompression_t compressions[2];
      for (auto& compression : compressions)
        ASSERT_EQ(trCompressionCreate(&compression, wire.type, feedback, kCount), trSuccess);
      std::vector<double> total(kCount);
      Buffers out(2, std::vector<float>(kCount));
      for (int step = 0; step < kSteps; ++step) {
        ranks.run([&](int rank, trComm_t comm) {
          auto r = static_cast<size_t>(rank);
          return trAllReduceCompressed(gradients[r].data(), out[r].data(), kCount, trSum, compressions[r], comm,
                                       nullptr);
        });
        for (size_t i = 0; i < kCount; ++i) total[i] += static_cast<double>(out[0][i]);
      }
      for (size_t i = 0; i < kCount; ++i)
        errors[feedback] +=
            std::fabs(total[i] / kSteps - static_cast<double>(gradients[0][i] + gradients[1][i])) / kCount;
      for (auto& compression : compressions) EXPECT_EQ(trCompressionDestroy(compression), trSuccess);
    }
    // What the rounding of the result takes is not carried on; it is unbiased over the steps.
    EXPECT_LT(errors[1], 0.7 * errors[0]) << wire.name << ": " << errors[1] << " with, " << errors[0] << " without";
  }
}

TEST(Compression, OneRankRoundsNothing) {
  const Buffers in = random_buffers(1, 300, test_seed(4));
  RankGroup ranks(1);
  for (const Wire& wire : kWires)
    for (int feedback : {0, 1}) {
      trCompression_t compression = nullptr;
      ASSERT_EQ(trCompressionCreate(&compression, wire.type, feedback, 300), trSuccess);
      std::vector<float> out(300);
      for (int step = 0; step < 2; ++step) {
        ASSERT_EQ(trAllReduceCompressed(in[0].data(), out.data(), 300, trAvg, compression, ranks.comm(0), nullptr),
                  trSuccess);
        EXPECT_EQ(out, in[0]) << wire.name << (feedback ? " with feedback" : "") << " step " << step;
      }
      EXPECT_EQ(trCompressionDestroy(compression), trSuccess);
    }
}

TEST(Compression, WhatDoesNotFitIsRefused) {
  RankGroup ranks(1);
  trCompression_t compression = nullptr;
  EXPECT_EQ(trCompressionCreate(&compression, trInt8, 0, 0), trInvalidArgument);
  EXPECT_EQ(trCompressionCreate(&compression, trFloat16, 1, SIZE_MAX / 2), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "count is 9223372036854775807"), nullptr) << trGetLastError(nullptr);
  ASSERT_EQ(trCompressionCreate(&compression, trFloat16, 1, 4), trSuccess);
  float buffer[8] = {};
  EXPECT_EQ(trAllReduceCompressed(buffer, buffer, 8, trSum, compression, ranks.comm(0), nullptr), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "residue of 4 elements"), nullptr) << trGetLastError(nullptr);
  EXPECT_EQ(trAllReduceCompressed(buffer, buffer, 4, trMax, compression, ranks.comm(0), nullptr), trInvalidArgument);
  EXPECT_EQ(trCompressionDestroy(compression), trSuccess);
}

double seconds_of(RankGroup& ranks, Buffers buffers, trCompression_t compression) {
  const size_t count = buffers[0].size();
  const auto begin = std::chrono::steady_clock::now();
  ranks.run([&](int rank, trComm_t comm) {
    float* buffer = buffers[static_cast<size_t>(rank)].data();
    return compression != nullptr ? trAllReduceCompressed(buffer, buffer, count, trSum, compression, comm, nullptr)
                                  : trAllReduce(buffer, buffer, count, trFloat32, trSum, comm, nullptr);
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(PacedLink, LimitsTheRateAndHalfTheBytesTakeHalfTheTime) {
  trConfig_t config = RankGroup::default_config();
  config.staging_bytes = 1 << 20;
  constexpr int kMbps = kSanitized ? 100 : 250;  // slow enough that a busy processor costs a small part of the time
  config.link_mbps = kMbps;
  constexpr size_t kCount = 1 << 20;  // 4 MiB: each of two ranks sends 4 MiB
  constexpr double kSeconds = kCount * 32e-6 / kMbps;
  const Buffers buffers = random_buffers(2, kCount, test_seed(5));
  RankGroup ranks(2, config);
  trCompression_t compression = nullptr;
  ASSERT_EQ(trCompressionCreate(&compression, trFloat16, 0, 0), trSuccess);
  double plain = 1, half = 1;  // least of some rounds: a busy machine makes single ones longer
  for (int round = 0; round < 3 || (round < 20 && half > 0.55 * plain); ++round) {
    plain = std::min(plain, seconds_of(ranks, buffers, nullptr));
    half = std::min(half, seconds_of(ranks, buffers, compression));
  }
  std::printf("4 MiB over %d Mbit/s: float32 %.1f ms, fp16 %.1f ms\n", kMbps, plain * 1e3, half * 1e3);
  EXPECT_GE(plain, 0.999 * kSeconds) << "faster than the link";
  EXPECT_LE(half, 0.55 * plain);
  EXPECT_EQ(trCompressionDestroy(compression), trSuccess);
}

// Values that share a scale lose what is small beside the largest: those of one tensor, not of its neighbour.
TEST(Fusion, TensorsHaveTheirOwnScales) {
  for (const char* wire : {"fp8-e4m3", "fp8-e5m2"}) {
    trConfig_t config = RankGroup::default_config();
    config.wire = wire;
    RankGroup ranks(2, config);
    Buffers large(2, std::vector<float>(16, 1e4f)), small(2, std::vector<float>(16, 1e-3f));
    ranks.run([&](int rank, trComm_t comm) {
      const auto r = static_cast<size_t>(rank);
      if (trResult_t result = trAllReduce(large[r].data(), large[r].data(), 16, trFloat32, trSum, comm, nullptr))
        return result;
      return trAllReduce(small[r].data(), small[r].data(), 16, trFloat32, trSum, comm, nullptr);
    });
    for (size_t r = 0; r < 2; ++r)
      for (size_t i = 0; i < 16; ++i) {
        ASSERT_NEAR(large[r][i], 2e4f, 5e3f) << wire;
        ASSERT_NEAR(small[r][i], 2e-3f, 5e-4f) << wire;
      }
  }
}

TEST(Fusion, EqualsOneCallForEach) {
  const uint64_t seed = test_seed(0);
  constexpr size_t counts[] = {1, 3, 0, 1000, 64, 20'011, 7, 7, 300'007};
  for (int n : {1, 2, 5}) {
    std::vector<Buffers> originals;
    std::vector<std::vector<float>> largest;
    for (size_t count : counts) {
      originals.push_back(random_buffers(n, count, seed + count));
      largest.push_back(originals.back()[0]);
      for (const auto& buffer : originals.back())
        for (size_t i = 0; i < count; ++i) largest.back()[i] = std::max(largest.back()[i], buffer[i]);
    }
    for (int fusion_bytes : {0, 1 << 16, 64 << 20})
      for (int alignment : {16, 256}) {
        trConfig_t config = RankGroup::default_config();
        config.fusion_bytes = fusion_bytes;
        config.fusion_alignment = alignment;
        RankGroup ranks(n, config);
        std::vector<Buffers> in = originals, out;
        for (size_t t = 0; t < in.size(); ++t) out.emplace_back(in[t].size(), std::vector<float>(counts[t] + 1, -7.0f));
        std::vector<int32_t> integers(static_cast<size_t>(n), 3);
        ranks.run([&](int rank, trComm_t comm) {
          const auto r = static_cast<size_t>(rank);
          for (size_t t = 0; t < in.size(); ++t) {
            float* to = t % 2 == 0 ? out[t][r].data() : in[t][r].data();  // half of them in place
            if (trResult_t result = trAllReduce(in[t][r].data(), to, counts[t], trFloat32, trMax, comm, nullptr))
              return result;
          }
          return trAllReduce(&integers[r], &integers[r], 1, trInt32, trSum, comm,
                             nullptr);  // does not fit with the others
        });
        for (size_t t = 0; t < in.size(); ++t) {
          for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
            const float* const got = t % 2 == 0 ? out[t][r].data() : in[t][r].data();
            for (size_t i = 0; i < counts[t]; ++i)
              if (got[i] != largest[t][i])
                FAIL() << "tensor " << t << " element " << i << " is " << got[i] << ", not " << largest[t][i];
          }
          ASSERT_EQ(out[t][0].back(), -7.0f);
        }
        for (int32_t value : integers) ASSERT_EQ(value, 3 * n);
      }
  }
}

}  // namespace
}  // namespace treering::testing
