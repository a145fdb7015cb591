// SPDX-License-Identifier: Apache-2.0
// Fused groups: order, tensors that differ, tensors that peers can reach.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"
#include "support/texts.h"

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

// An allreduce is not moved past another collective, which may use the same memory.
TEST(Fusion, OtherCollectivesKeepTheirPlaces) {
  RankGroup ranks(2);
  std::vector<float> a(2, 1.0f), b = {5.0f, 9.0f};
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (size_t rank : {0u, 1u}) {
    const trComm_t comm = ranks.comm(static_cast<int>(rank));
    ASSERT_EQ(trAllReduce(&a[rank], &a[rank], 1, trFloat32, trSum, comm, nullptr), trSuccess);
    ASSERT_EQ(trBroadcast(&b[rank], &b[rank], 1, trFloat32, 0, comm, nullptr), trSuccess);
    ASSERT_EQ(trAllReduce(&b[rank], &b[rank], 1, trFloat32, trSum, comm, nullptr), trSuccess);
  }
  ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  EXPECT_EQ(a, std::vector<float>({2.0f, 2.0f}));
  EXPECT_EQ(b, std::vector<float>({10.0f, 10.0f}));
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
  const std::string text = trGetLastError(nullptr);
  EXPECT_NE(text.find("of 48 x float, sum (the sum of 2 calls"), std::string::npos) << text;
  EXPECT_NE(text.find("other counts of the single calls"), std::string::npos) << text;
}

// Users know the calls that they made, not what became of them: here 3 + 1 elements, and what lies between them.
TEST(Fusion, ErrorsSayThatCountsAreSums) {
  trConfig_t config = RankGroup::default_config();
  config.timeout_ms = 20'000;
  RankGroup ranks(2, config);
  std::vector<float> values(16, 1.0f);
  ASSERT_EQ(trGroupStart(), trSuccess);
  ASSERT_EQ(trAllReduce(&values[0], &values[0], 3, trFloat32, trSum, ranks.comm(0), nullptr), trSuccess);
  ASSERT_EQ(trAllReduce(&values[4], &values[4], 1, trFloat32, trSum, ranks.comm(0), nullptr), trSuccess);
  ASSERT_EQ(trAllReduce(&values[8], &values[8], 3, trFloat32, trSum, ranks.comm(1), nullptr), trSuccess);
  EXPECT_EQ(trGroupEnd(), trInvalidUsage);
  const std::string text = without_pids(trGetLastError(nullptr));
  EXPECT_NE(text.find("rank 0 called allreduce of 4 x float, sum (the sum of 2 calls of a group, which are fused)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("allreduce of 3 x float, sum"), std::string::npos) << text;
  EXPECT_EQ(text.find("of 3 x float, sum (the"), std::string::npos) << "one call is not fused: " << text;
}

// Memory that peers can reach. (Not registered memory of the heap: it stays shared with processes that are forked
// later.)
struct Shared {
  explicit Shared(size_t elements) : count(elements) {
    void* memory = nullptr;
    EXPECT_EQ(trMemAlloc(&memory, count * sizeof(float)), trSuccess);
    values = static_cast<float*>(memory);
  }
  Shared(Shared&& other) noexcept : values(std::exchange(other.values, nullptr)), count(other.count) {}
  ~Shared() { EXPECT_EQ(trMemFree(values), trSuccess); }
  float* values = nullptr;
  size_t count;
};

// Tensors of many sizes that peers can reach, in place and not.
TEST(Fusion, TensorsThatPeersCanReachAreSummed) {
  RankGroup ranks(3);
  const std::vector<size_t> counts = {1, 70'000, 3, 300'000, 1025, 1024, 5000, 200'001};
  for (bool in_place : {true, false}) {
    std::vector<std::vector<Shared>> in(3), out(3);
    for (size_t rank = 0; rank < 3; ++rank)
      for (size_t count : counts) {
        in[rank].emplace_back(count);
        out[rank].emplace_back(count);
        for (size_t i = 0; i < count; ++i) in[rank].back().values[i] = static_cast<float>(rank + 1 + i % 1000);
      }
    ASSERT_EQ(trGroupStart(), trSuccess);
    for (size_t rank = 0; rank < 3; ++rank)
      for (size_t t = 0; t < counts.size(); ++t) {
        float* input = in[rank][t].values;
        float* output = in_place || t == 3 ? input : out[rank][t].values;
        ASSERT_EQ(trAllReduce(input, output, counts[t], trFloat32, trSum, ranks.comm(static_cast<int>(rank)), nullptr),
                  trSuccess);
      }
    ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
    for (size_t rank = 0; rank < 3; ++rank)
      for (size_t t = 0; t < counts.size(); ++t) {
        const bool same = in_place || t == 3;
        const float* result = same ? in[rank][t].values : out[rank][t].values;
        for (size_t i = 0; i < counts[t]; ++i)
          ASSERT_EQ(result[i], 6.0f + 3.0f * static_cast<float>(i % 1000))
              << "rank " << rank << " tensor " << t << " at " << i;
        if (!same) {
          ASSERT_EQ(in[rank][t].values[0], static_cast<float>(rank + 1)) << "the input stays";
        }
      }
  }
}

// Memory of its own pages, so that it can be given back and had again at the same address.
struct Pages {
  static constexpr size_t kBytes = 1 << 20, kCount = kBytes / sizeof(float);
  void* at = nullptr;
  void* handle = nullptr;
  bool map() {
    const int fixed = at == nullptr ? 0 : MAP_FIXED;
    void* const got = mmap(at, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
    if (got != MAP_FAILED) at = got;
    return got != MAP_FAILED;
  }
  float* values() const { return static_cast<float*>(at); }
  void fill(float value) { std::fill_n(values(), kCount, value); }
  bool holds(float value) const {
    return std::all_of(values(), values() + kCount, [value](float v) { return v == value; });
  }
};

// A kept group of tensors that other processes map; then the registrations end, and other memory has their addresses.
int kept_group(int rank, const trUniqueId& id, bool in_place) {
  trComm_t comm = nullptr;
  TR_CHECK(trCommInitRank(&comm, 3, id, rank));
  std::vector<Pages> in(4), out(4);
  trPersistent_t kept = nullptr;
  for (auto* set : {&in, &out})
    for (Pages& pages : *set) {
      if (!pages.map()) return say("mmap"), 2;
      TR_CHECK(trCommRegister(comm, pages.at, Pages::kBytes, &pages.handle));
    }
  TR_CHECK(trPersistentBegin());
  for (size_t t = 0; t < in.size(); ++t)
    TR_CHECK(trAllReduce(in[t].at, in_place ? in[t].at : out[t].at, Pages::kCount, trFloat32, trSum, comm, nullptr));
  TR_CHECK(trPersistentEnd(&kept));
  for (int start = 0; start < 5; ++start) {
    if (start == 2)
      for (auto* set : {&in, &out})
        for (Pages& pages : *set) {
          TR_CHECK(trCommDeregister(comm, pages.handle));
          if (munmap(pages.at, Pages::kBytes) != 0 || !pages.map()) return say("mmap"), 2;
        }
    for (size_t t = 0; t < in.size(); ++t) in[t].fill(static_cast<float>(10 * start + static_cast<int>(t) + rank));
    TR_CHECK(trPersistentStart(kept));
    for (size_t t = 0; t < in.size(); ++t)
      if (const float sum = static_cast<float>(3 * (10 * start + static_cast<int>(t)) + 3);
          !(in_place ? in[t] : out[t]).holds(sum))
        return say("start " + std::to_string(start) + ", tensor " + std::to_string(t)), 3;
  }
  TR_CHECK(trPersistentDestroy(kept));
  TR_CHECK(trCommDestroy(comm));
  return 0;
}

TEST(Fusion, KeptGroupsOfProcessesFollowRegistrations) {
  for (bool in_place : {true, false}) {
    SCOPED_TRACE(in_place ? "in place" : "not in place");
    RankProcesses processes(3, [in_place](int rank, const trUniqueId& id) { return kept_group(rank, id, in_place); });
    for (const RankResult& result : processes.wait_all()) EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

// What was given to a stream before a fork is the parent's: the child's copy of the kept operation ends at once.
TEST(Fork, AKeptOperationThatIsUnderWayEndsInTheChildToo) {
  RankGroup ranks(2);
  trStream_t stream = nullptr;
  trPersistent_t kept = nullptr;
  float values[] = {1, 2};
  ASSERT_EQ(trStreamCreate(&stream), trSuccess);
  ASSERT_EQ(trPersistentBegin(), trSuccess);
  ASSERT_EQ(trAllReduce(&values[0], &values[0], 1, trFloat32, trSum, ranks.comm(0), stream), trSuccess);
  ASSERT_EQ(trPersistentEnd(&kept), trSuccess);
  ASSERT_EQ(trPersistentStart(kept), trSuccess);  // waits for rank 1
  const pid_t child = fork_when_quiet();
  if (child == 0) {
    alarm(20);
    _exit(trPersistentDestroy(kept) == trSuccess ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(trAllReduce(&values[1], &values[1], 1, trFloat32, trSum, ranks.comm(1), nullptr), trSuccess);
  EXPECT_EQ(trStreamSynchronize(stream), trSuccess);
  EXPECT_EQ(values[0], 3.0f);
  EXPECT_EQ(trPersistentDestroy(kept), trSuccess);
  EXPECT_EQ(trStreamDestroy(stream), trSuccess);
}

}  // namespace
}  // namespace treering::testing
