// SPDX-License-Identifier: Apache-2.0
// Collectives with a count for each rank, and sends and receives: random counts and displacements against a reference,
// groups in any order, what differs between ranks.
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"
#include "support/seed.h"

namespace treering::testing {
namespace {

using Values = std::vector<int32_t>;

int32_t value_of(size_t source, size_t destination, size_t i) {
  return static_cast<int32_t>(source * 1'000'003 + destination * 10'007 + i);
}

// counts[s][d]: elements from s to d; displacements with gaps between the blocks.
struct Blocks {
  std::vector<size_t> counts, displs;
  size_t total = 0;
  void add(size_t count, size_t gap) {
    counts.push_back(count);
    displs.push_back(total + gap);
    total += gap + count;
  }
};

size_t random_count(std::mt19937* random) {
  const size_t counts[] = {0, 0, 1, 3, 100, 4099, 30'011};
  return counts[(*random)() % std::size(counts)];
}

// Tests with processes come first: to ThreadSanitizer a forked child still has the threads that the others leave behind,
// and it ends where a new one has the number of such a thread.

// Rank 2 takes rank 0's message only after it has heard of rank 1, which waits for rank 0's other message: a group
// whose sends waited for one another would stand still.
TEST(PointToPoint, ALatePeerHoldsUpNobodyElse) {
  expect_all_succeed(3, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, 3, id, rank));
    constexpr size_t kCount = 3'000'000;
    std::vector<int32_t> a(kCount, 7), b(kCount, 8);
    int32_t token = 0;
    if (rank == 0) {
      TR_CHECK(trGroupStart());
      TR_CHECK(trSend(b.data(), kCount, trInt32, 2, comm, nullptr));
      TR_CHECK(trSend(a.data(), kCount, trInt32, 1, comm, nullptr));
      TR_CHECK(trGroupEnd());
    } else if (rank == 1) {
      TR_CHECK(trRecv(b.data(), kCount, trInt32, 0, comm, nullptr));
      TR_CHECK(trSend(&token, 1, trInt32, 2, comm, nullptr));
      if (b[kCount - 1] != 7) return say("wrong value"), 1;
    } else {
      TR_CHECK(trRecv(&token, 1, trInt32, 1, comm, nullptr));
      TR_CHECK(trRecv(a.data(), kCount, trInt32, 0, comm, nullptr));
      if (a[kCount - 1] != 8) return say("wrong value"), 1;
    }
    TR_CHECK(trBarrier(comm, nullptr));
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
}

TEST(PointToPoint, SendReceiveAroundARingAmongCollectives) {
  expect_all_succeed(4, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, 4, id, rank));
    for (size_t count : {size_t{0}, size_t{1}, size_t{8}, size_t{100'000}}) {
      std::vector<int64_t> out(count, rank), in(count, -1);
      TR_CHECK(trSendRecv(out.data(), count, (rank + 1) % 4, in.data(), count, (rank + 3) % 4, trInt64, comm, nullptr));
      for (int64_t value : in)
        if (value != (rank + 3) % 4) return say("got " + std::to_string(value)), 1;
      int64_t sum = rank;
      TR_CHECK(trAllReduce(&sum, &sum, 1, trInt64, trSum, comm, nullptr));
      if (sum != 6) return say("sum " + std::to_string(sum)), 1;
    }
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
}

TEST(Variable, AllToAllVWithRandomCounts) {
  const uint64_t seed = test_seed();
  std::mt19937 random(seed);
  for (int n : {1, 2, 3, 4, 7})
    for (int round = 0; round < 6; ++round) {
      RankGroup ranks(n);
      const auto size = static_cast<size_t>(n);
      std::vector<std::vector<size_t>> counts(size, std::vector<size_t>(size));
      for (auto& row : counts)
        for (size_t& count : row) count = random_count(&random);
      std::vector<Blocks> send(size), receive(size);
      std::vector<Values> in, out;
      for (size_t r = 0; r < size; ++r) {
        for (size_t k = 0; k < size; ++k)
          send[r].add(counts[r][k], random() % 3), receive[r].add(counts[k][r], random() % 3);
        in.emplace_back(send[r].total + 1);
        out.emplace_back(receive[r].total + 1, -1);
        for (size_t d = 0; d < size; ++d)
          for (size_t i = 0; i < counts[r][d]; ++i) in[r][send[r].displs[d] + i] = value_of(r, d, i);
      }
      ranks.run([&](int rank, trComm_t comm) {
        const auto r = static_cast<size_t>(rank);
        return trAllToAllV(in[r].data(), send[r].counts.data(), send[r].displs.data(), out[r].data(),
                           receive[r].counts.data(), receive[r].displs.data(), trInt32, comm, nullptr);
      });
      for (size_t r = 0; r < size; ++r) {
        Values expected(out[r].size(), -1);
        for (size_t s = 0; s < size; ++s)
          for (size_t i = 0; i < counts[s][r]; ++i) expected[receive[r].displs[s] + i] = value_of(s, r, i);
        ASSERT_EQ(out[r], expected) << "rank " << r << " of " << n << " seed " << seed;
      }
    }
}

TEST(Variable, AllGatherVReduceScatterVGatherVScatterV) {
  const uint64_t seed = test_seed();
  std::mt19937 random(seed);
  for (const char* algorithm :
       {static_cast<const char*>(nullptr), "direct", "ring", "allgather:bruck,reduce-scatter:halving"})
    for (int n : {1, 2, 4, 5})
      for (int round = 0; round < 3; ++round) {
        trConfig_t config = RankGroup::default_config();
        config.algorithm = algorithm;
        RankGroup ranks(n, config);
        const auto size = static_cast<size_t>(n);
        const int root = static_cast<int>(random() % size);
        Blocks gaps, packed;
        for (size_t r = 0; r < size; ++r) gaps.add(random_count(&random), random() % 3), packed.add(gaps.counts[r], 0);
        std::vector<Values> own, gathered(size, Values(gaps.total + 1, -1)), whole, part(size);
        for (size_t r = 0; r < size; ++r) {
          own.emplace_back(gaps.counts[r]);
          part[r].assign(gaps.counts[r], -1);
          for (size_t i = 0; i < own[r].size(); ++i) own[r][i] = value_of(r, 0, i);
          whole.emplace_back(packed.total);
          for (size_t i = 0; i < packed.total; ++i) whole[r][i] = static_cast<int32_t>(i % 1000 + r);
        }
        auto at = [&](std::vector<Values>& buffers, int rank) { return buffers[static_cast<size_t>(rank)].data(); };
        Values expected(gaps.total + 1, -1);
        for (size_t s = 0; s < size; ++s)
          for (size_t i = 0; i < own[s].size(); ++i) expected[gaps.displs[s] + i] = own[s][i];
        ranks.run([&](int rank, trComm_t comm) {
          return trAllGatherV(at(own, rank), own[static_cast<size_t>(rank)].size(), at(gathered, rank),
                              gaps.counts.data(), gaps.displs.data(), trInt32, comm, nullptr);
        });
        for (const Values& values : gathered) ASSERT_EQ(values, expected) << "allgatherv seed " << seed;
        ranks.run([&](int rank, trComm_t comm) {
          return trReduceScatterV(at(whole, rank), at(part, rank), packed.counts.data(), trInt32, trSum, comm, nullptr);
        });
        for (size_t r = 0; r < size; ++r)
          for (size_t i = 0; i < part[r].size(); ++i)
            ASSERT_EQ(part[r][i], static_cast<int32_t>((packed.displs[r] + i) % 1000 * size + size * (size - 1) / 2))
                << "reduce-scatterv seed " << seed;
        std::fill(gathered[static_cast<size_t>(root)].begin(), gathered[static_cast<size_t>(root)].end(), -1);
        ranks.run([&](int rank, trComm_t comm) {
          const bool at_root = rank == root;
          return trGatherV(at(own, rank), own[static_cast<size_t>(rank)].size(), at_root ? at(gathered, rank) : nullptr,
                           at_root ? gaps.counts.data() : nullptr, at_root ? gaps.displs.data() : nullptr, trInt32,
                           root, comm, nullptr);
        });
        ASSERT_EQ(gathered[static_cast<size_t>(root)], expected) << "gatherv seed " << seed;
        for (size_t r = 0; r < size; ++r) part[r].assign(gaps.counts[r], -2);
        ranks.run([&](int rank, trComm_t comm) {
          const bool at_root = rank == root;
          return trScatterV(at_root ? at(gathered, rank) : nullptr, at_root ? gaps.counts.data() : nullptr,
                            at_root ? gaps.displs.data() : nullptr, at(part, rank),
                            part[static_cast<size_t>(rank)].size(), trInt32, root, comm, nullptr);
        });
        for (size_t r = 0; r < size; ++r) ASSERT_EQ(part[r], own[r]) << "scatterv seed " << seed;
      }
}

TEST(Variable, WrongCountsAreNamed) {
  RankGroup ranks(1);
  int32_t buffer[4] = {};
  const size_t counts[] = {2}, other[] = {3};
  EXPECT_EQ(trAllGatherV(buffer, 1, buffer, counts, nullptr, trInt32, ranks.comm(0), nullptr), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "sendcount is 1, but recvcounts[0] is 2"), nullptr)
      << trGetLastError(nullptr);
  EXPECT_EQ(trAllToAllV(buffer, counts, nullptr, buffer + 2, other, nullptr, trInt32, ranks.comm(0), nullptr),
            trInvalidArgument);
  EXPECT_EQ(trAllToAllV(buffer, nullptr, nullptr, buffer + 2, other, nullptr, trInt32, ranks.comm(0), nullptr),
            trInvalidArgument);
  const size_t beyond[] = {SIZE_MAX / 4};
  auto named = [](trResult_t result, const char* text) {
    EXPECT_EQ(result, trInvalidArgument);
    EXPECT_NE(std::strstr(trGetLastError(nullptr), text), nullptr) << trGetLastError(nullptr);
  };
  const std::string value = std::to_string(beyond[0]);
  const std::string count_text = "recvcounts[0] is " + value, displ_text = "displacement of " + count_text;
  const trComm_t comm = ranks.comm(0);
  named(trAllGatherV(buffer, beyond[0], buffer, beyond, nullptr, trInt32, comm, nullptr), count_text.c_str());
  named(trAllGatherV(buffer, 2, buffer, counts, beyond, trInt32, comm, nullptr), displ_text.c_str());
  named(trGatherV(buffer, 2, buffer, counts, beyond, trInt32, 0, comm, nullptr), displ_text.c_str());
  EXPECT_EQ(trSend(buffer, 1, trInt32, 1, ranks.comm(0), nullptr), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "peer is 1"), nullptr) << trGetLastError(nullptr);
}

// Every pair of ranks exchanges several messages of random sizes; each rank calls in a random order.
TEST(Variable, OverlapIsRefused) {
  RankGroup alone(1), ranks(2);
  const trComm_t comm = ranks.comm(0);
  int32_t b[16] = {0, 1, 2, 3, 4, 5, 6, 7};
  const size_t two[2] = {2, 2}, shifted[2] = {0, 1}, turned[2] = {2, 0};
  auto refused = [](trResult_t result, int line) {
    EXPECT_EQ(result, trInvalidArgument) << "line " << line;
    EXPECT_NE(std::strstr(trGetLastError(nullptr), "overlap"), nullptr) << line << ": " << trGetLastError(nullptr);
  };
  refused(trAllToAllV(b, two, nullptr, b + 1, two, nullptr, trInt32, comm, nullptr), __LINE__);
  refused(trAllToAllV(b, two, nullptr, b + 8, two, shifted, trInt32, comm, nullptr), __LINE__);
  refused(trAllGatherV(b + 8, 2, b, two, shifted, trInt32, comm, nullptr), __LINE__);
  refused(trGatherV(b + 1, 2, b, two, nullptr, trInt32, 0, comm, nullptr), __LINE__);
  refused(trGatherV(b + 8, 2, b, two, shifted, trInt32, 0, comm, nullptr), __LINE__);
  refused(trScatterV(b, two, nullptr, b + 1, 2, trInt32, 0, comm, nullptr), __LINE__);
  refused(trSendRecv(b, 4, 1, b + 3, 4, 1, trInt32, comm, nullptr), __LINE__);
  refused(trSendRecv(b, 4, 1, b, 4, 1, trInt32, comm, nullptr), __LINE__);
  refused(trSendRecv(b, 4, 0, b + 1, 4, 0, trInt32, alone.comm(0), nullptr), __LINE__);
  refused(trSendRecv(b, 4, 0, b, 4, 0, trInt32, alone.comm(0), nullptr), __LINE__);
  for (int32_t i = 0; i < 8; ++i) EXPECT_EQ(b[i], i) << "nothing moves";
  // What only looks like it: blocks in any order, blocks of both kinds in turn in one array, in place.
  int32_t one[2][8] = {{0, 1, -1, -1, 2, 3, -1, -1}, {10, 11, -1, -1, 12, 13, -1, -1}}, all[2][4] = {};
  const size_t apart[2] = {0, 4};
  ranks.run([&](int rank, trComm_t each) {
    return trAllToAllV(one[rank], two, apart, one[rank] + 2, two, apart, trInt32, each, nullptr);
  });
  EXPECT_EQ(one[0][2], 0);
  EXPECT_EQ(one[0][7], 11);
  EXPECT_EQ(one[1][3], 3);
  ranks.run([&](int rank, trComm_t each) {
    all[rank][2 - 2 * rank] = rank + 1;
    return trAllGatherV(&all[rank][2 - 2 * rank], 2, all[rank], two, turned, trInt32, each, nullptr);
  });
  EXPECT_EQ(all[0][0], 2);
  EXPECT_EQ(all[1][2], 1);
  ranks.run([&](int rank, trComm_t each) {
    return trGatherV(&all[rank][2 * rank], 2, all[rank], two, nullptr, trInt32, 0, each, nullptr);
  });
  EXPECT_EQ(all[0][2], 1);
}

// Only blocks count as overlap: what is sent may lie in a gap of what is received, and an empty block is nowhere.
TEST(Variable, GapsAndEmptyBlocksAreNoOverlap) {
  RankGroup ranks(2);
  const size_t two[2] = {2, 2}, apart[2] = {0, 6}, first[2] = {2, 0}, far[2] = {0, SIZE_MAX};
  int32_t data[2][8];
  auto reset = [&] {
    for (int rank = 0; rank < 2; ++rank)
      for (int i = 0; i < 8; ++i) data[rank][i] = 10 * rank + i;
  };
  auto expect = [&](int rank, std::vector<int32_t> expected, const char* call) {
    EXPECT_EQ(std::vector<int32_t>(data[rank], data[rank] + 8), expected) << call << " rank " << rank;
  };
  reset();
  ranks.run([&](int rank, trComm_t comm) {
    return trAllGatherV(data[rank] + 3, 2, data[rank], two, apart, trInt32, comm, nullptr);
  });
  expect(0, {3, 4, 2, 3, 4, 5, 13, 14}, "allgatherv");
  expect(1, {3, 4, 12, 13, 14, 15, 13, 14}, "allgatherv");
  reset();
  ranks.run([&](int rank, trComm_t comm) {
    return trAllGatherV(data[rank] + 3, first[rank], data[rank], first, far, trInt32, comm, nullptr);
  });
  expect(1, {3, 4, 12, 13, 14, 15, 16, 17}, "allgatherv with an empty block");
  reset();
  ranks.run([&](int rank, trComm_t comm) {
    return trGatherV(data[rank] + 3, first[rank], data[rank], first, far, trInt32, 0, comm, nullptr);
  });
  expect(0, {3, 4, 2, 3, 4, 5, 6, 7}, "gatherv with an empty block");
  reset();
  ranks.run([&](int rank, trComm_t comm) {
    return trGatherV(data[rank] + 3, 2, data[rank], two, apart, trInt32, 0, comm, nullptr);
  });
  expect(0, {3, 4, 2, 3, 4, 5, 13, 14}, "gatherv");
  reset();
  ranks.run([&](int rank, trComm_t comm) {
    return trScatterV(data[rank], two, apart, data[rank] + 3, 2, trInt32, 0, comm, nullptr);
  });
  expect(0, {0, 1, 2, 0, 1, 5, 6, 7}, "scatterv");
  expect(1, {10, 11, 12, 6, 7, 15, 16, 17}, "scatterv");
  // Behind the gap is a block again.
  EXPECT_EQ(trAllGatherV(data[0] + 5, 2, data[0], two, apart, trInt32, ranks.comm(0), nullptr), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "overlap"), nullptr) << trGetLastError(nullptr);
}

TEST(PointToPoint, GroupsOfSendsAndReceivesInAnyOrder) {
  const uint64_t seed = test_seed();
  for (int n : {1, 2, 3, 6}) {
    RankGroup ranks(n);
    const auto size = static_cast<size_t>(n);
    std::mt19937 random(seed);
    // messages[s][d]: their sizes, in order
    std::vector<std::vector<std::vector<size_t>>> messages(size, std::vector<std::vector<size_t>>(size));
    for (auto& row : messages)
      for (auto& pair : row)
        for (size_t k = random() % 4; k-- > 0;) pair.push_back(random() % 3 == 0 ? 200'003 : random() % 50);
    std::vector<std::vector<Values>> in(size), out(size);
    ASSERT_EQ(trGroupStart(), trSuccess);
    for (size_t r = 0; r < size; ++r) {
      struct Call {
        bool send;
        size_t peer;
      };
      std::vector<Call> calls;
      for (size_t p = 0; p < size; ++p) {
        calls.insert(calls.end(), messages[r][p].size(), {true, p});
        calls.insert(calls.end(), messages[p][r].size(), {false, p});
      }
      std::shuffle(calls.begin(), calls.end(), random);
      std::vector<size_t> sent(size), received(size);
      in[r].reserve(calls.size());
      out[r].resize(size * 4);
      for (const Call& call : calls) {
        const int peer = static_cast<int>(call.peer);
        if (call.send) {
          const size_t k = sent[call.peer]++;
          Values& buffer = in[r].emplace_back(messages[r][call.peer][k] + 1);
          for (size_t i = 0; i < buffer.size(); ++i) buffer[i] = value_of(r, call.peer, i + k * 17);
          ASSERT_EQ(trSend(buffer.data(), buffer.size() - 1, trInt32, peer, ranks.comm(static_cast<int>(r)), nullptr),
                    trSuccess);
        } else {
          const size_t k = received[call.peer]++;
          Values& buffer = out[r][call.peer * 4 + k];
          buffer.assign(messages[call.peer][r][k] + 1, -1);
          ASSERT_EQ(trRecv(buffer.data(), buffer.size() - 1, trInt32, peer, ranks.comm(static_cast<int>(r)), nullptr),
                    trSuccess);
        }
      }
    }
    ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr) << " seed " << seed;
    for (size_t r = 0; r < size; ++r)
      for (size_t s = 0; s < size; ++s)
        for (size_t k = 0; k < messages[s][r].size(); ++k)
          for (size_t i = 0; i < messages[s][r][k]; ++i)
            ASSERT_EQ(out[r][s * 4 + k][i], value_of(s, r, i + k * 17)) << "seed " << seed;
  }
}

// Calls of ranks that one thread drives: directly in a group, on streams, and kept and started several times.
TEST(Variable, OnStreamsAndPersistentTheResultsAreTheSame) {
  constexpr size_t kRanks = 3, kResults = 6;
  RankGroup ranks(kRanks);
  trStream_t streams[kRanks];
  for (trStream_t& stream : streams) ASSERT_EQ(trStreamCreate(&stream), trSuccess);
  for (size_t n : {size_t{0}, size_t{1}, size_t{50}, size_t{5000}, size_t{60'000}}) {
    const size_t counts[kRanks] = {n, n / 2, n / 3};
    std::vector<Values> in(kRanks, Values(3 * n + 1));
    for (size_t r = 0; r < kRanks; ++r)
      for (size_t i = 0; i <= 3 * n; ++i) in[r][i] = value_of(r, 0, i);
    using Results = std::vector<Values>;
    auto empty = [&] { return std::vector<Results>(kRanks, Results(kResults, Values(3 * n + 1, -1))); };
    auto call_all = [&](std::vector<Results>* out, bool streamed) {
      for (size_t r = 0; r < kRanks; ++r) {
        const int rank = static_cast<int>(r);
        const trComm_t comm = ranks.comm(rank);
        const trStream_t stream = streamed ? streams[r] : nullptr;
        const int32_t* from = in[r].data();
        auto to = [&](size_t i) { return (*out)[r][i].data(); };
        const size_t own[kRanks] = {counts[r], counts[r], counts[r]};
        EXPECT_EQ(trAllToAllV(from, counts, nullptr, to(0), own, nullptr, trInt32, comm, stream), trSuccess);
        EXPECT_EQ(trAllGatherV(from, counts[r], to(1), counts, nullptr, trInt32, comm, stream), trSuccess);
        EXPECT_EQ(trGatherV(from, counts[r], to(2), counts, nullptr, trInt32, 1, comm, stream), trSuccess);
        EXPECT_EQ(trScatterV(from, counts, nullptr, to(3), counts[r], trInt32, 2, comm, stream), trSuccess);
        EXPECT_EQ(trReduceScatterV(from, to(4), counts, trInt32, trMax, comm, stream), trSuccess);
        EXPECT_EQ(trSendRecv(from, n, (rank + 1) % 3, to(5), n, (rank + 2) % 3, trInt32, comm, stream), trSuccess);
      }
    };
    auto synchronize = [&] {
      for (trStream_t stream : streams) ASSERT_EQ(trStreamSynchronize(stream), trSuccess) << trGetLastError(nullptr);
    };
    std::vector<Results> direct = empty(), streamed = empty(), kept = empty();
    ASSERT_EQ(trGroupStart(), trSuccess);
    call_all(&direct, false);
    ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
    for (size_t r = 0; r < kRanks && n > 0; ++r) {
      const size_t begins[] = {0, n, n + n / 2};
      EXPECT_EQ(direct[r][0][counts[r]], counts[r] > 0 ? in[1][begins[r]] : -1);
      EXPECT_EQ(direct[r][5][n - 1], in[(r + 2) % 3][n - 1]);
    }
    call_all(&streamed, true);
    synchronize();
    EXPECT_EQ(streamed, direct) << n;
    for (bool on_streams : {true, false}) {
      trPersistent_t persistent = nullptr;
      ASSERT_EQ(trPersistentBegin(), trSuccess);
      call_all(&kept, on_streams);
      ASSERT_EQ(trPersistentEnd(&persistent), trSuccess) << trGetLastError(nullptr);
      for (int start = 0; start < 3; ++start) {
        for (Results& results : kept)
          for (Values& values : results) std::fill(values.begin(), values.end(), -1);
        ASSERT_EQ(trPersistentStart(persistent), trSuccess) << trGetLastError(nullptr);
        synchronize();
        EXPECT_EQ(kept, direct) << n << ", start " << start;
      }
      EXPECT_EQ(trPersistentDestroy(persistent), trSuccess);
    }
  }
  for (trStream_t stream : streams) EXPECT_EQ(trStreamDestroy(stream), trSuccess);
}

}  // namespace
}  // namespace treering::testing
