// SPDX-License-Identifier: Apache-2.0
// Fixed-order mode: the bits depend on the inputs and their ranks alone.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"
#include "support/seed.h"

namespace treering::testing {
namespace {

using Buffers = std::vector<std::vector<float>>;

std::string bits_of(const std::vector<float>& values) {
  std::string text;
  for (float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    char word[9];
    std::snprintf(word, sizeof word, "%08x", bits);
    text += word;
  }
  return text;
}

// First, while this process has no thread. Sizes on either side of the mailbox, of one slice and of two channels.
TEST(FixedOrder, SameBitsInProcessesAndThreads) {
  constexpr int kRanks = 4;
  const uint64_t seed = test_seed(5);
  for (size_t count : {size_t{20}, size_t{900}, size_t{6000}}) {
    const Buffers inputs = random_buffers(kRanks, count, seed);
    trConfig_t config = RankGroup::default_config();
    config.deterministic = 1;
    RankProcesses processes(kRanks, [&](int rank, const trUniqueId& id) {
      trComm_t comm = nullptr;
      TR_CHECK(trCommInitRankConfig(&comm, kRanks, id, rank, &config));
      std::vector<float> buffer = inputs[static_cast<size_t>(rank)];
      TR_CHECK(trAllReduce(buffer.data(), buffer.data(), count, trFloat32, trSum, comm, nullptr));
      say(bits_of(buffer));
      TR_CHECK(trCommDestroy(comm));
      return 0;
    });
    std::vector<RankResult> results = processes.wait_all();
    // The definition: one operand after another in the order of the ranks.
    std::vector<float> expected = inputs[0];
    for (int r = 1; r < kRanks; ++r)
      for (size_t i = 0; i < count; ++i) expected[i] += inputs[static_cast<size_t>(r)][i];
    for (const RankResult& result : results) {
      ASSERT_EQ(result.exit_code, 0) << result.output;
      EXPECT_TRUE(result.output == bits_of(expected)) << "processes, count " << count;
    }
  }
  for (size_t count : {size_t{20}, size_t{900}, size_t{6000}}) {
    Buffers buffers = random_buffers(kRanks, count, seed);
    std::vector<float> expected = buffers[0];
    for (int r = 1; r < kRanks; ++r)
      for (size_t i = 0; i < count; ++i) expected[i] += buffers[static_cast<size_t>(r)][i];
    trConfig_t config = RankGroup::default_config();
    config.deterministic = 1;
    RankGroup ranks(kRanks, config);
    ranks.run([&](int rank, trComm_t comm) {
      auto& buffer = buffers[static_cast<size_t>(rank)];
      return trAllReduce(buffer.data(), buffer.data(), count, trFloat32, trSum, comm, nullptr);
    });
    for (const auto& buffer : buffers) EXPECT_TRUE(bits_of(buffer) == bits_of(expected)) << "threads, count " << count;
  }
}

// ... and not on the size around them, the algorithm, the channels, the chunks.
TEST(FixedOrder, SameBitsWhateverTheSizeAlgorithmChannelsAndChunks) {
  constexpr int kRanks = 5;
  constexpr size_t kWindow = 300;  // the elements that all runs share
  const Buffers window = random_buffers(kRanks, kWindow, test_seed(11));
  for (trDataType_t type : {trFloat32, trBfloat16}) {
    std::vector<unsigned char> reference;
    size_t plain_differs = 0;
    for (int deterministic : {1, 0})
      for (const char* algorithm : {"one-shot", "recursive-doubling", "two-shot", "ring", "tree", "halving-doubling"})
        for (int channels : {1, 2, 4})
          for (size_t count : {kWindow, size_t{20'000}})
            for (int staging : {65536, 1 << 20}) {
              trConfig_t config = RankGroup::default_config();
              config.deterministic = deterministic;
              config.algorithm = algorithm;
              config.channels = channels;
              config.staging_bytes = staging;
              RankGroup ranks(kRanks, config);
              const size_t size = type == trFloat32 ? 4 : 2;
              std::vector<std::vector<unsigned char>> buffers(kRanks, std::vector<unsigned char>(count * size));
              for (size_t r = 0; r < kRanks; ++r)
                for (size_t i = 0; i < kWindow; ++i)
                  std::memcpy(buffers[r].data() + (count - kWindow + i) * size,
                              reinterpret_cast<const unsigned char*>(&window[r][i]) + 4 - size, size);
              ranks.run([&](int rank, trComm_t comm) {
                auto& buffer = buffers[static_cast<size_t>(rank)];
                return trAllReduce(buffer.data(), buffer.data(), count, type, trSum, comm, nullptr);
              });
              std::vector<unsigned char> result(buffers[0].end() - static_cast<std::ptrdiff_t>(kWindow * size),
                                                buffers[0].end());
              if (reference.empty()) reference = result;
              plain_differs += result != reference;
              if (deterministic != 0) {
                ASSERT_EQ(result, reference) << algorithm << " channels " << channels << " count " << count;
              }
            }
    EXPECT_GT(plain_differs, 0u) << "without the mode nothing differs either: the test would not notice";
  }
}

// What rounds operands: wire types, and factors that narrow floats do not hold the products of.
struct Rounding {
  trDataType_t type;
  const char* wire;
  trRedOp_t op;  // trRedOpFirstCreated: a pre-multiplied sum
};
constexpr Rounding kRoundings[] = {
    {trFloat32, "fp16", trSum},
    {trFloat32, "bf16", trAvg},
    {trFloat32, "fp8-e4m3", trSum},
    {trFloat32, "fp8-e5m2", trAvg},
    {trBfloat16, nullptr, trAvg},
    {trBfloat16, nullptr, trRedOpFirstCreated},
    {trFloat32, nullptr, trRedOpFirstCreated},
};

using Bytes = std::vector<unsigned char>;

// The first elements of a call's results on one rank: of allreduce (kind 0), reduce (1), reduce-scatter (2).
Bytes first_results(RankGroup& ranks, const Rounding& rounding, int kind, const Buffers& window, size_t count) {
  const size_t size = rounding.type == trFloat32 ? 4 : 2, n = window.size(), blocks = kind == 2 ? n : 1;
  const auto write = [&](float value, void* to) {
    std::memcpy(to, reinterpret_cast<const unsigned char*>(&value) + 4 - size, size);
  };
  std::vector<Bytes> in(n, Bytes(blocks * count * size)), out(n, Bytes(count * size));
  std::vector<trRedOp_t> ops(n, rounding.op);
  for (size_t r = 0; r < n; ++r) {
    for (size_t b = 0; b < blocks; ++b)
      for (size_t i = 0; i < window[r].size(); ++i) write(window[r][i], in[r].data() + (b * count + i) * size);
    float factor = 0.3f + 0.17f * static_cast<float>(r);
    write(factor, &factor);
    if (rounding.op == trRedOpFirstCreated) {
      EXPECT_EQ(trRedOpCreatePreMulSum(&ops[r], &factor, rounding.type, ranks.comm(static_cast<int>(r))), trSuccess);
    }
  }
  ranks.run([&](int rank, trComm_t comm) {
    const auto r = static_cast<size_t>(rank);
    if (kind == 0) return trAllReduce(in[r].data(), out[r].data(), count, rounding.type, ops[r], comm, nullptr);
    if (kind == 1) return trReduce(in[r].data(), out[r].data(), count, rounding.type, ops[r], 2, comm, nullptr);
    return trReduceScatter(in[r].data(), out[r].data(), count, rounding.type, ops[r], comm, nullptr);
  });
  for (size_t r = 0; r < n && kind != 1; ++r)
    EXPECT_TRUE(std::equal(out[r].begin(), out[r].begin() + static_cast<std::ptrdiff_t>(256 * size), out[0].begin()))
        << "rank " << r << " differs";
  out[2].resize(window[0].size() * size);
  return out[2];
}

TEST(FixedOrder, SameBitsWhateverRankComputesWhatIsRounded) {
  const Buffers window = random_buffers(5, 256, test_seed(17));  // two blocks of float8
  for (const Rounding& rounding : kRoundings) {
    Bytes reference;
    for (const char* algorithm : {"one-shot", "two-shot", "ring"})
      for (int channels : {1, 3})
        for (size_t count : {size_t{256}, size_t{20'000}})
          for (int kind = 0; kind < (rounding.wire == nullptr ? 3 : 1); ++kind) {
            trConfig_t config = RankGroup::default_config();
            config.deterministic = 1;
            config.algorithm = algorithm;
            config.channels = channels;
            config.wire = rounding.wire;
            RankGroup ranks(5, config);
            const Bytes result = first_results(ranks, rounding, kind, window, count);
            if (reference.empty()) reference = result;
            ASSERT_EQ(result, reference) << "type " << rounding.type << " wire "
                                         << (rounding.wire != nullptr ? rounding.wire : "none") << " op " << rounding.op
                                         << " kind " << kind << " " << algorithm << " channels " << channels
                                         << " count " << count;
          }
  }
}

// trExplain() and trGetSelection() tell what this mode and wire types leave, not what was forced.
TEST(Explain, NamesTheAlgorithmThatRuns) {
  for (const char* algorithm : {static_cast<const char*>(nullptr), "ring", "one-shot", "recursive-doubling"})
    for (const char* wire : {static_cast<const char*>(nullptr), "fp16", "fp8-e4m3"})
      for (int deterministic : {0, 1}) {
        trConfig_t config = RankGroup::default_config();
        config.algorithm = algorithm;
        config.wire = wire;
        config.deterministic = deterministic;
        RankGroup ranks(4, config);
        for (size_t bytes = 64; bytes <= 64 << 20; bytes *= 16) {
          std::vector<char> text(20'000);
          trSelection_t selection;
          ASSERT_EQ(trExplain(ranks.comm(0), trCollAllReduce, bytes, trFloat32, text.data(), text.size(), nullptr),
                    trSuccess);
          ASSERT_EQ(trGetSelection(ranks.comm(0), trCollAllReduce, nullptr, nullptr, bytes, trFloat32, &selection),
                    trSuccess);
          const std::string chosen = std::string("chosen: ") + selection.algorithm + " (";
          EXPECT_NE(std::strstr(text.data(), chosen.c_str()), nullptr) << chosen << "\n" << text.data();
          const std::string name = selection.algorithm;
          EXPECT_TRUE(deterministic == 0 || name == "one-shot" || name == "two-shot") << name;
          EXPECT_TRUE(wire == nullptr || (name != "one-shot" && name != "recursive-doubling")) << name;
        }
      }
}

}  // namespace
}  // namespace treering::testing
