// SPDX-License-Identifier: Apache-2.0
// Every collective against a plain reference: numbers of ranks, sizes, roots, in place and not, every algorithm. The
// ranks of a communicator are driven by one thread in groups.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "support/ranks.h"

namespace treering::testing {
namespace {

using Values = std::vector<int32_t>;
constexpr int32_t kUnwritten = -77'777;

constexpr size_t kPeriod = 9973;
int32_t value_of(int rank, size_t i) {
  return static_cast<int32_t>((i * 13 + static_cast<size_t>(rank) * 101) % kPeriod);
}

// Little staging memory: many slices already at moderate sizes.
trConfig_t config_of(const char* algorithm) {
  trConfig_t config = RankGroup::default_config();
  config.algorithm = algorithm;
  return config;
}

// What one collective is about, for rank r of n: sizes of its buffers in blocks, where the smaller lies in the larger
// when in place, and the reference.
struct Case {
  const char* name;
  std::vector<const char*> algorithms;
  bool rooted;
  int (*input_blocks)(int rank, int n, int root);  // 0: not used
  int (*output_blocks)(int rank, int n, int root);
  trResult_t (*call)(const void*, void*, size_t, int root, trComm_t);
  // Element i of block b of rank r's output, of blocks of `count` elements.
  int32_t (*expected)(int rank, int n, int root, size_t block, size_t i, size_t count);
};

constexpr int kMaxRanks = 9;
// Each is asked for many times.
int32_t sum_of(int n, size_t i) {
  static const std::vector<Values> sums = [] {
    std::vector<Values> made(kMaxRanks + 1, Values(kPeriod));
    for (int ranks = 1; ranks <= kMaxRanks; ++ranks)
      for (size_t at = 0; at < kPeriod; ++at)
        made[static_cast<size_t>(ranks)][at] = made[static_cast<size_t>(ranks) - 1][at] + value_of(ranks - 1, at);
    return made;
  }();
  return sums[static_cast<size_t>(n)][i % kPeriod];
}
int one(int, int, int) { return 1; }
int all(int, int n, int) { return n; }
int root_one(int rank, int, int root) { return rank == root ? 1 : 0; }
int root_all(int rank, int n, int root) { return rank == root ? n : 0; }

const Case kCases[] = {
    {"allreduce",
     {"one-shot", "recursive-doubling", "two-shot", "ring", "halving-doubling", "tree"},
     false,
     one,
     one,
     [](const void* in, void* out, size_t count, int, trComm_t comm) {
       return trAllReduce(in, out, count, trInt32, trSum, comm, nullptr);
     },
     [](int, int n, int, size_t, size_t i, size_t) { return sum_of(n, i); }},
    {"reduce",
     {"direct", "scatter-gather", "tree"},
     true,
     one,
     root_one,
     [](const void* in, void* out, size_t count, int root, trComm_t comm) {
       return trReduce(in, out, count, trInt32, trSum, root, comm, nullptr);
     },
     [](int, int n, int, size_t, size_t i, size_t) { return sum_of(n, i); }},
    {"broadcast",
     {"direct", "scatter-allgather", "chain", "binomial", "tree"},
     true,
     root_one,
     one,
     [](const void* in, void* out, size_t count, int root, trComm_t comm) {
       return trBroadcast(in, out, count, trInt32, root, comm, nullptr);
     },
     [](int, int, int root, size_t, size_t i, size_t) { return value_of(root, i); }},
    {"allgather",
     {"direct", "ring", "bruck"},
     false,
     one,
     all,
     [](const void* in, void* out, size_t count, int, trComm_t comm) {
       return trAllGather(in, out, count, trInt32, comm, nullptr);
     },
     [](int, int, int, size_t block, size_t i, size_t) { return value_of(static_cast<int>(block), i); }},
    {"reduce-scatter",
     {"direct", "ring", "halving"},
     false,
     all,
     one,
     [](const void* in, void* out, size_t count, int, trComm_t comm) {
       return trReduceScatter(in, out, count, trInt32, trSum, comm, nullptr);
     },
     [](int rank, int n, int, size_t, size_t i, size_t count) {
       return sum_of(n, static_cast<size_t>(rank) * count + i);
     }},
    {"alltoall",
     {"direct", "pairwise", "bruck"},
     false,
     all,
     all,
     [](const void* in, void* out, size_t count, int, trComm_t comm) {
       return trAllToAll(in, out, count, trInt32, comm, nullptr);
     },
     [](int rank, int, int, size_t block, size_t i, size_t count) {
       return value_of(static_cast<int>(block), static_cast<size_t>(rank) * count + i);
     }},
    {"gather",
     {"direct", "binomial"},
     true,
     one,
     root_all,
     [](const void* in, void* out, size_t count, int root, trComm_t comm) {
       return trGather(in, out, count, trInt32, root, comm, nullptr);
     },
     [](int, int, int, size_t block, size_t i, size_t) { return value_of(static_cast<int>(block), i); }},
    {"scatter",
     {"direct", "binomial"},
     true,
     root_all,
     one,
     [](const void* in, void* out, size_t count, int root, trComm_t comm) {
       return trScatter(in, out, count, trInt32, root, comm, nullptr);
     },
     [](int rank, int, int root, size_t, size_t i, size_t count) {
       return value_of(root, static_cast<size_t>(rank) * count + i);
     }},
};

void check_once(RankGroup& ranks, const Case& c, size_t count, int root, bool in_place, const std::string& what) {
  const int n = ranks.count();
  std::vector<Values> inputs, outputs;
  for (int rank = 0; rank < n; ++rank) {
    const auto in = static_cast<size_t>(c.input_blocks(rank, n, root)),
               out = static_cast<size_t>(c.output_blocks(rank, n, root));
    inputs.emplace_back(in * count + 1);
    outputs.emplace_back(std::max(in, out) * count + 1, kUnwritten);
    for (size_t i = 0; i < in * count; ++i) inputs.back()[i] = value_of(rank, i);
  }
  std::vector<int32_t*> results(static_cast<size_t>(n));
  ranks.run([&](int rank, trComm_t comm) {
    const auto r = static_cast<size_t>(rank);
    const auto in = static_cast<size_t>(c.input_blocks(rank, n, root)),
               out = static_cast<size_t>(c.output_blocks(rank, n, root));
    results[r] = outputs[r].data();
    if (!in_place || in == 0 || out == 0) return c.call(inputs[r].data(), results[r], count, root, comm);
    // One buffer; the smaller is this rank's block of the larger.
    const size_t own = in == out ? 0 : r * count;
    int32_t* buffer = outputs[r].data();
    int32_t* input = out > in ? buffer + own : buffer;
    std::copy_n(inputs[r].data(), in * count, input);
    results[r] = in > out ? buffer + own : buffer;
    return c.call(input, results[r], count, root, comm);
  });
  for (int rank = 0; rank < n; ++rank) {
    const auto r = static_cast<size_t>(rank);
    for (size_t block = 0; block < static_cast<size_t>(c.output_blocks(rank, n, root)); ++block)
      for (size_t i = 0; i < count; ++i) {
        const int32_t got = results[r][block * count + i], wanted = c.expected(rank, n, root, block, i, count);
        if (got == wanted) continue;  // a call less for each of millions
        FAIL() << what << ": rank " << rank << " of " << n << " block " << block << " element " << i << " of " << count
               << " root " << root << (in_place ? " in place" : "") << " is " << got << ", not " << wanted;
      }
    if (c.input_blocks(rank, n, root) == 0 || !in_place) {
      ASSERT_EQ(outputs[r].back(), kUnwritten) << what << ": rank " << rank << " wrote past its output";
    }
  }
}

void check(const Case& c, const char* algorithm) {
  const std::string forced = algorithm == nullptr ? "" : std::string(c.name) + ":" + algorithm;
  for (int n = 1; n <= kMaxRanks; ++n) {
    RankGroup ranks(n, config_of(algorithm == nullptr ? nullptr : forced.c_str()));
    for (size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{509}, size_t{20'011}})
      for (int root = 0; root<(c.rooted ? n : 1); root += n> 4 ? 3 : 1)
        for (bool in_place : {false, true}) {
          check_once(ranks, c, count, root, in_place, std::string(c.name) + " " + (algorithm ? algorithm : "chosen"));
          if (::testing::Test::HasFatalFailure()) return;
        }
  }
}

class Collectives : public ::testing::TestWithParam<size_t> {};

TEST_P(Collectives, EveryAlgorithmAgreesWithTheReference) {
  const Case& c = kCases[GetParam()];
  check(c, nullptr);
  for (const char* algorithm : c.algorithms) {
    if (HasFatalFailure()) return;
    check(c, algorithm);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Collectives, ::testing::Range(size_t{0}, std::size(kCases)), [](const auto& info) {
  std::string name = kCases[info.param].name;
  std::erase(name, '-');
  return name;
});

}  // namespace
}  // namespace treering::testing
