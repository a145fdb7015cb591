// Fixed-order mode: the bits depend on the inputs and their ranks alone.
#include <cstdio>
#include <cstring>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"

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
  for (size_t count : {size_t{20}, size_t{900}, size_t{6000}}) {
    const Buffers inputs = random_buffers(kRanks, count, 5);
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
    Buffers buffers = random_buffers(kRanks, count, 5);
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
  const Buffers window = random_buffers(kRanks, kWindow, 11);
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

}  // namespace
}  // namespace treering::testing
