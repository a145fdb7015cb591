// Fused groups: order, tensors that differ, tensors that peers can reach.
#include <vector>

#include "support/ranks.h"

namespace treering::testing {
namespace {

TEST(Fusion, ChainedCallsOfAGroupRunInOrder) {
  RankGroup ranks(2);
  std::vector<float> a(2, 1.0f), b(2, -7.0f), d(2, 0.0f);
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (size_t rank : {0u, 1u}) {
    const trComm_t comm = ranks.comm(static_cast<int>(rank));
    ASSERT_EQ(trAllReduce(&a[rank], &b[rank], 1, trFloat32, trSum, comm, nullptr), trSuccess);
    ASSERT_EQ(trAllReduce(&b[rank], &d[rank], 1, trFloat32, trSum, comm, nullptr), trSuccess);
  }
  ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  EXPECT_EQ(d[0], 4.0f);
  EXPECT_EQ(d[1], 4.0f);
}

// The same total, but other tensors.
TEST(Fusion, TensorsThatDifferBetweenRanksAreAnError) {
  trConfig_t config = RankGroup::default_config();
  config.timeout_ms = 20'000;
  RankGroup ranks(2, config);
  std::vector<std::vector<float>> values(2, std::vector<float>(48, 1.0f));
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (size_t rank : {0u, 1u}) {
    const size_t first = rank == 0 ? 16 : 32;
    float* data = values[rank].data();
    const trComm_t comm = ranks.comm(static_cast<int>(rank));
    ASSERT_EQ(trAllReduce(data, data, first, trFloat32, trSum, comm, nullptr), trSuccess);
    ASSERT_EQ(trAllReduce(data + first, data + first, 48 - first, trFloat32, trSum, comm, nullptr), trSuccess);
  }
  EXPECT_EQ(trGroupEnd(), trInvalidUsage);
}

// Tensors of many sizes that peers can reach, in place and not.
TEST(Fusion, RegisteredTensorsAreSummed) {
  RankGroup ranks(3);
  const std::vector<size_t> counts = {1, 70'000, 3, 300'000, 1025, 1024, 5000, 200'001};
  for (bool in_place : {true, false}) {
    std::vector<std::vector<std::vector<float>>> in(3), out(3);
    std::vector<std::pair<trComm_t, void*>> handles;
    for (size_t rank = 0; rank < 3; ++rank)
      for (size_t count : counts) {
        for (auto* set : {&in[rank], &out[rank]}) {
          set->emplace_back(count, static_cast<float>(rank + 1));
          void* handle = nullptr;
          const trComm_t comm = ranks.comm(static_cast<int>(rank));
          ASSERT_EQ(trCommRegister(comm, set->back().data(), count * sizeof(float), &handle), trSuccess);
          handles.emplace_back(comm, handle);
        }
        for (size_t i = 0; i < count; ++i) in[rank].back()[i] += static_cast<float>(i % 1000);
      }
    ASSERT_EQ(trGroupStart(), trSuccess);
    for (size_t rank = 0; rank < 3; ++rank)
      for (size_t t = 0; t < counts.size(); ++t) {
        float* input = in[rank][t].data();
        float* output = in_place || t == 3 ? input : out[rank][t].data();
        ASSERT_EQ(trAllReduce(input, output, counts[t], trFloat32, trSum, ranks.comm(static_cast<int>(rank)), nullptr),
                  trSuccess);
      }
    ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
    for (size_t rank = 0; rank < 3; ++rank)
      for (size_t t = 0; t < counts.size(); ++t) {
        const auto& result = in_place || t == 3 ? in[rank][t] : out[rank][t];
        for (size_t i = 0; i < counts[t]; ++i)
          ASSERT_EQ(result[i], 6.0f + 3.0f * static_cast<float>(i % 1000))
              << "rank " << rank << " tensor " << t << " at " << i;
        if (!in_place && t != 3) {
          ASSERT_EQ(in[rank][t][0], static_cast<float>(rank + 1)) << "the input stays";
        }
      }
    for (const auto& [comm, handle] : handles) EXPECT_EQ(trCommDeregister(comm, handle), trSuccess);
  }
}

}  // namespace
}  // namespace treering::testing
