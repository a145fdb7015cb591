// SPDX-License-Identifier: Apache-2.0
// Box exchange against a dense reference, sparse allreduce, subsets of communicators.
#include <dirent.h>

#include <complex>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"
#include "support/seed.h"

namespace treering::testing {
namespace {

constexpr int kExtent = 12;  // of every dimension of the global array

int32_t cell(const int64_t* at, int dimensions) {
  int32_t value = 1;
  for (int d = 0; d < dimensions; ++d) value = value * 31 + static_cast<int32_t>(at[d]);
  return value;
}

size_t volume(const trBox_t& box, int dimensions) {
  size_t result = 1;
  for (int d = 0; d < dimensions; ++d) result *= static_cast<size_t>(box.hi[d] - box.lo[d]);
  return result;
}

// Visits the cells of a box in the order of memory.
template <typename Visit>
void for_cells(const trBox_t& box, int dimensions, Visit visit) {
  for (size_t i = 0, n = volume(box, dimensions); i < n; ++i) {
    int64_t at[TR_MAX_DIMENSIONS] = {};
    size_t rest = i;
    for (int d = dimensions; d-- > 0;) {
      const auto extent = static_cast<size_t>(box.hi[d] - box.lo[d]);
      at[d] = box.lo[d] + static_cast<int64_t>(rest % extent);
      rest /= extent;
    }
    visit(i, at);
  }
}

trBox_t random_box(int dimensions, std::mt19937* random) {
  trBox_t box{};
  for (int d = 0; d < dimensions; ++d) {
    box.lo[d] = (*random)() % kExtent;
    box.hi[d] = box.lo[d] + 1 + (*random)() % (static_cast<uint32_t>(kExtent - box.lo[d]));
    if ((*random)() % 20 == 0) box.hi[d] = box.lo[d];  // empty
  }
  return box;
}

struct Side {
  std::vector<trBox_t> boxes;
  std::vector<std::vector<int32_t>> data;
  std::vector<void*> pointers;
  void add(const trBox_t& box, int dimensions) {
    boxes.push_back(box);
    data.emplace_back(volume(box, dimensions) + 1, -1);
  }
  void finish() {
    for (auto& values : data) pointers.push_back(values.data());
  }
};

TEST(Exchange, RandomBoxesMatchTheDenseArray) {
  const uint64_t seed = test_seed();
  std::mt19937 random(seed);
  for (int dimensions = 1; dimensions <= 5; ++dimensions)
    for (int n : {1, 2, 4}) {
      std::vector<Side> held(static_cast<size_t>(n)), needed(static_cast<size_t>(n));
      // Slabs of the first dimension cover everything; random boxes overlap them.
      for (int r = 0; r < n; ++r) {
        trBox_t slab{};
        for (int d = 0; d < dimensions; ++d) slab.hi[d] = kExtent;
        slab.lo[0] = kExtent * r / n;
        slab.hi[0] = kExtent * (r + 1) / n;
        auto& mine = held[static_cast<size_t>(r)];
        mine.add(slab, dimensions);
        if (random() % 2) mine.add(random_box(dimensions, &random), dimensions);
        mine.finish();
        for (size_t k = 0; k < mine.boxes.size(); ++k)
          for_cells(mine.boxes[k], dimensions,
                    [&](size_t i, const int64_t* at) { mine.data[k][i] = cell(at, dimensions); });
        auto& wanted = needed[static_cast<size_t>(r)];
        for (size_t k = random() % 4; k-- > 0;) wanted.add(random_box(dimensions, &random), dimensions);
        wanted.finish();
      }
      RankGroup ranks(n);
      std::vector<trExchange_t> plans(static_cast<size_t>(n));
      std::vector<std::thread> threads;  // making a plan blocks until all ranks do
      for (int rank = 0; rank < n; ++rank)
        threads.emplace_back([&, rank] {
          const auto r = static_cast<size_t>(rank);
          EXPECT_EQ(trExchangeCreate(&plans[r], dimensions, static_cast<int>(held[r].boxes.size()),
                                     held[r].boxes.data(), static_cast<int>(needed[r].boxes.size()),
                                     needed[r].boxes.data(), trInt32, ranks.comm(rank)),
                    trSuccess)
              << trGetLastError(nullptr);
          for (int round = 0; round < 3; ++round) {
            for (auto& values : needed[r].data) std::fill(values.begin(), values.end(), -1);
            EXPECT_EQ(trExchangeStart(plans[r], held[r].pointers.data(), needed[r].pointers.data(), nullptr), trSuccess)
                << trGetLastError(nullptr);
          }
        });
      for (auto& thread : threads) thread.join();
      for (size_t r = 0; r < held.size(); ++r) {
        for (size_t k = 0; k < needed[r].boxes.size(); ++k) {
          for_cells(needed[r].boxes[k], dimensions, [&](size_t i, const int64_t* at) {
            ASSERT_EQ(needed[r].data[k][i], cell(at, dimensions))
                << dimensions << " dimensions, rank " << r << " seed " << seed;
          });
          ASSERT_EQ(needed[r].data[k].back(), -1);
        }
        EXPECT_EQ(trExchangeDestroy(plans[r]), trSuccess);
      }
    }
}

// Rows become columns, of elements of every size; the bytes of a cell are told by its place.
TEST(Exchange, ElementsOfEverySize) {
  constexpr int64_t kSide = 7;
  struct Sized {
    trDataType_t type;
    size_t size;
  };
  for (const Sized& element : {Sized{trUint8, 1}, Sized{trBfloat16, 2}, Sized{trFloat32, 4}, Sized{trFloat64, 8},
                               Sized{trComplex128, 16}, Sized{trBool, 1}}) {
    RankGroup ranks(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        const int64_t begin = rank == 0 ? 0 : 3, end = rank == 0 ? 3 : kSide;
        const trBox_t held{{begin, 0}, {end, kSide}}, needed{{0, begin}, {kSide, end}};
        const auto byte = [&](const int64_t* at, size_t b) {
          return static_cast<unsigned char>(static_cast<size_t>(at[0] * kSide + at[1]) * element.size + b);
        };
        std::vector<unsigned char> rows(volume(held, 2) * element.size), columns(volume(needed, 2) * element.size);
        for_cells(held, 2, [&](size_t i, const int64_t* at) {
          for (size_t b = 0; b < element.size; ++b) rows[i * element.size + b] = byte(at, b);
        });
        trExchange_t plan = nullptr;
        EXPECT_EQ(trExchangeCreate(&plan, 2, 1, &held, 1, &needed, element.type, ranks.comm(rank)), trSuccess)
            << trGetLastError(nullptr);
        const void* from[] = {rows.data()};
        void* to[] = {columns.data()};
        EXPECT_EQ(trExchangeStart(plan, from, to, nullptr), trSuccess) << trGetLastError(nullptr);
        for_cells(needed, 2, [&](size_t i, const int64_t* at) {
          for (size_t b = 0; b < element.size; ++b)
            EXPECT_EQ(columns[i * element.size + b], byte(at, b)) << "type " << element.type << " cell " << i;
        });
        EXPECT_EQ(trExchangeDestroy(plan), trSuccess);
      });
    for (auto& thread : threads) thread.join();
  }
}

TEST(Exchange, WhatNobodyHoldsIsNamed) {
  RankGroup ranks(1);
  const trBox_t held{{0, 0}, {4, 4}}, needed{{2, 2}, {6, 3}}, wrong{{3, 0}, {2, 1}};
  trExchange_t exchange = nullptr;
  EXPECT_EQ(trExchangeCreate(&exchange, 2, 1, &held, 1, &needed, trInt32, ranks.comm(0)), trInvalidUsage);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "no rank holds [4, 6) x [2, 3)"), nullptr) << trGetLastError(nullptr);
  EXPECT_EQ(trExchangeCreate(&exchange, 2, 1, &wrong, 0, nullptr, trInt32, ranks.comm(0)), trInvalidArgument);
  EXPECT_EQ(trExchangeCreate(&exchange, 6, 1, &held, 0, nullptr, trInt32, ranks.comm(0)), trInvalidArgument);
}

TEST(Exchange, BoxesBeyondAnyMemoryAreNamed) {
  RankGroup ranks(1);
  constexpr int64_t kHuge = int64_t{1} << 40;
  const trBox_t endless{{INT64_MIN}, {INT64_MAX}}, square{{0, 0}, {kHuge, kHuge}}, fits{{0, 0}, {kHuge, 2}};
  const trBox_t column{{0, 0}, {kHuge, 1}}, empty{{INT64_MIN, 5}, {INT64_MAX, 5}};
  trExchange_t exchange = nullptr;
  auto refused = [&](int dimensions, const trBox_t& held, const trBox_t& needed, const char* text) {
    EXPECT_EQ(trExchangeCreate(&exchange, dimensions, 1, &held, 1, &needed, trInt32, ranks.comm(0)), trInvalidArgument);
    EXPECT_NE(std::strstr(trGetLastError(nullptr), text), nullptr) << trGetLastError(nullptr);
  };
  refused(1, endless, endless, "held[0] is [-9223372036854775808, 9223372036854775807) of int32: more elements than");
  refused(2, square, column, "held[0] is [0, 1099511627776) x [0, 1099511627776) of int32: more elements than");
  refused(2, column, square, "needed[0] is [0, 1099511627776) x [0, 1099511627776) of int32: more elements than");
  refused(
      2, fits, column,
      "[0, 1099511627776) x [0, 1) in [0, 1099511627776) x [0, 2) that rank 0 holds is 1099511627776 separate rows");
  // One row, however many elements: nothing is walked. An empty box has no elements, however wide.
  for (const trBox_t* box : {&fits, &column, &empty}) {
    EXPECT_EQ(trExchangeCreate(&exchange, 2, 1, box, 1, box, trInt8, ranks.comm(0)), trSuccess)
        << trGetLastError(nullptr);
    EXPECT_EQ(trExchangeDestroy(exchange), trSuccess);
  }
}

TEST(Exchange, OnAStreamOneStartAtATime) {
  RankGroup ranks(2);
  trExchange_t exchanges[2];
  trStream_t streams[2];
  auto create = [&](int rank) {
    const trBox_t held{{rank * 10}, {rank * 10 + 10}}, needed{{0}, {20}};
    EXPECT_EQ(trExchangeCreate(&exchanges[rank], 1, 1, &held, 1, &needed, trInt32, ranks.comm(rank)), trSuccess);
    EXPECT_EQ(trStreamCreate(&streams[rank]), trSuccess);
  };
  std::thread other(create, 1);
  create(0);
  other.join();
  for (int32_t round = 0; round < 3; ++round) {
    std::vector<int32_t> held[2], needed[2] = {std::vector<int32_t>(20, -1), std::vector<int32_t>(20, -1)};
    auto start = [&](int rank) {
      const void* from[1] = {held[rank].data()};
      void* to[1] = {needed[rank].data()};
      return trExchangeStart(exchanges[rank], from, to, streams[rank]);
    };
    for (int rank = 0; rank < 2; ++rank) {
      for (int32_t i = 0; i < 10; ++i) held[rank].push_back(rank * 10 + i + 100 * round);
      ASSERT_EQ(start(rank), trSuccess) << trGetLastError(nullptr);
      if (rank == 0) {
        EXPECT_EQ(start(rank), trInvalidUsage) << "it cannot have ended: the other rank has not begun";
      }
    }
    for (trStream_t stream : streams) ASSERT_EQ(trStreamSynchronize(stream), trSuccess) << trGetLastError(nullptr);
    for (const auto& values : needed)
      for (int32_t i = 0; i < 20; ++i) ASSERT_EQ(values[static_cast<size_t>(i)], i + 100 * round);
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(trExchangeDestroy(exchanges[rank]), trSuccess);
    EXPECT_EQ(trStreamDestroy(streams[rank]), trSuccess);
  }
}

TEST(Exchange, ArraysThatOverlapAreRefused) {
  RankGroup alone(1);
  const trBox_t held{{0}, {8}}, needed[2] = {{{0}, {4}}, {{4}, {8}}};
  trExchange_t exchange = nullptr;
  ASSERT_EQ(trExchangeCreate(&exchange, 1, 1, &held, 2, needed, trInt32, alone.comm(0)), trSuccess);
  int32_t data[24] = {0, 1, 2, 3, 4, 5, 6, 7};
  const void* from[1] = {data};
  for (auto [first, second] : {std::pair{7, 12}, std::pair{8, 11}, std::pair{12, 12}, std::pair{12, 0}}) {
    void* to[2] = {data + first, data + second};
    EXPECT_EQ(trExchangeStart(exchange, from, to, nullptr), trInvalidArgument) << first << ", " << second;
    EXPECT_NE(std::strstr(trGetLastError(nullptr), "overlap"), nullptr) << trGetLastError(nullptr);
  }
  void* to[2] = {data + 12, data + 8};
  EXPECT_EQ(trExchangeStart(exchange, from, to, nullptr), trSuccess) << trGetLastError(nullptr);
  EXPECT_EQ(data[8], 4);
  EXPECT_EQ(data[12], 0);
  EXPECT_EQ(trExchangeDestroy(exchange), trSuccess);
}

TEST(SparseAllReduce, UnionWithSummedRows) {
  const uint64_t seed = test_seed();
  std::mt19937 random(seed);
  for (int n : {1, 2, 5})
    for (size_t width : {size_t{1}, size_t{33}})
      for (trRedOp_t op : {trSum, trAvg}) {
        RankGroup ranks(n);
        const auto size = static_cast<size_t>(n);
        std::map<int64_t, std::vector<double>> expected;
        std::vector<std::vector<int64_t>> indices(size), out_indices(size);
        std::vector<std::vector<double>> values(size), out_values(size);
        for (size_t r = 0; r < size; ++r)
          for (size_t k = random() % 200; k-- > 0;) {
            const int64_t index = static_cast<int64_t>(random() % 100) - 50;
            indices[r].push_back(index);
            auto& row = expected.try_emplace(index, width).first->second;
            for (size_t e = 0; e < width; ++e) {
              values[r].push_back(random() % 64);
              row[e] += values[r].back() / (op == trAvg ? n : 1);
            }
          }
        std::vector<size_t> rows(size);
        std::vector<std::thread> threads;
        for (int rank = 0; rank < n; ++rank)
          threads.emplace_back([&, rank] {
            const auto r = static_cast<size_t>(rank);
            out_indices[r].resize(expected.size() + 1);
            out_values[r].resize((expected.size() + 1) * width);
            EXPECT_EQ(trSparseAllReduce(indices[r].data(), values[r].data(), indices[r].size(), width, trFloat64, op,
                                        out_indices[r].data(), out_values[r].data(), expected.size() + 1, &rows[r],
                                        ranks.comm(rank)),
                      trSuccess)
                << trGetLastError(nullptr);
          });
        for (auto& thread : threads) thread.join();
        for (size_t r = 0; r < size; ++r) {
          ASSERT_EQ(rows[r], expected.size()) << "seed " << seed;
          size_t at = 0;
          for (const auto& [index, row] : expected) {
            ASSERT_EQ(out_indices[r][at], index);
            for (size_t e = 0; e < width; ++e)
              ASSERT_NEAR(out_values[r][at * width + e], row[e], 1e-9) << "seed " << seed;
            ++at;
          }
          ASSERT_EQ(out_values[r], out_values[0]);
        }
      }
  RankGroup one(1);
  const int64_t index[] = {4, 7};
  const double value[] = {1, 2};
  int64_t out_index[1];
  double out_value[1];
  size_t rows = 0;
  EXPECT_EQ(trSparseAllReduce(index, value, 2, 1, trFloat64, trSum, out_index, out_value, 1, &rows, one.comm(0)),
            trInvalidArgument);
  EXPECT_EQ(rows, 2u);
}

// Rank r gives index 3 the row (r + 1, 2 r + 2) and an index of its own the row (7, 8).
template <typename T>
void check_sparse(trDataType_t type, T (*element)(int)) {
  constexpr int kRanks = 3;
  RankGroup ranks(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      const int64_t indices[] = {10 + rank, 3};
      const T values[] = {element(7), element(8), element(rank + 1), element(2 * rank + 2)};
      int64_t out_indices[4];
      T out[8];
      size_t rows = 0;
      EXPECT_EQ(trSparseAllReduce(indices, values, 2, 2, type, trSum, out_indices, out, 4, &rows, ranks.comm(rank)),
                trSuccess)
          << trGetLastError(nullptr);
      ASSERT_EQ(rows, 4u);
      EXPECT_TRUE(out[0] == element(6) && out[1] == element(12)) << "type " << type;
      for (size_t row = 0; row < 4; ++row) {
        EXPECT_EQ(out_indices[row], row == 0 ? 3 : 9 + static_cast<int64_t>(row));
        EXPECT_TRUE(row == 0 || (out[2 * row] == element(7) && out[2 * row + 1] == element(8))) << "type " << type;
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST(SparseAllReduce, OtherTypes) {
  check_sparse<int8_t>(trInt8, [](int value) { return static_cast<int8_t>(value); });
  check_sparse<uint64_t>(trUint64, [](int value) { return static_cast<uint64_t>(value); });
  check_sparse<float>(trFloat32, [](int value) { return static_cast<float>(value); });
  check_sparse<uint16_t>(trBfloat16, [](int value) {  // small integers are the upper half of a float
    const auto wide = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &wide, sizeof bits);
    return static_cast<uint16_t>(bits >> 16);
  });
  check_sparse<std::complex<float>>(trComplex64, [](int value) {
    return std::complex<float>(static_cast<float>(value), static_cast<float>(-value));
  });
}

TEST(SparseAllReduce, RanksWhoseShapesDifferAllFail) {
  struct Shape {
    size_t elements;
    trDataType_t type;
    trRedOp_t op;
  };
  for (const Shape& other : {Shape{3, trFloat32, trSum}, Shape{2, trInt32, trSum}, Shape{2, trFloat32, trAvg}}) {
    RankGroup ranks(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        const Shape shape = rank == 1 ? other : Shape{2, trFloat32, trSum};
        const int64_t index = 1;
        const float values[3] = {1, 2, 3};
        int64_t out_indices[3];
        float out[9];
        size_t rows = 0;
        EXPECT_EQ(trSparseAllReduce(&index, values, 1, shape.elements, shape.type, shape.op, out_indices, out, 3, &rows,
                                    ranks.comm(rank)),
                  trInvalidUsage);
        const std::string text = trGetLastError(nullptr);
        EXPECT_NE(text.find("rank 1 has rows of " + std::to_string(other.elements)), std::string::npos) << text;
      });
    for (auto& thread : threads) thread.join();
  }
}

TEST(SparseAllReduce, SizesBeyondAnyMemoryAreRefusedOnEveryRank) {
  struct Case {
    size_t rows, row_elements;  // of rank 1; rank 0 has one row
  };
  for (const Case& wrong :
       {Case{1, size_t{1} << 62}, Case{size_t{1} << 61, 1}, Case{size_t{1} << 32, size_t{1} << 32}}) {
    RankGroup ranks(2);
    auto call = [&](int rank) {
      int64_t index = 1, out_index[4] = {};
      float value[4] = {1}, out_value[4] = {};
      size_t out_rows = 0;
      EXPECT_EQ(trSparseAllReduce(&index, value, rank == 0 ? 1 : wrong.rows, wrong.row_elements, trFloat32, trSum,
                                  out_index, out_value, 4, &out_rows, ranks.comm(rank)),
                trInvalidArgument);
      EXPECT_NE(std::strstr(trGetLastError(nullptr), " x float: more than any memory holds"), nullptr)
          << trGetLastError(nullptr);
      EXPECT_EQ(trBarrier(ranks.comm(rank), nullptr), trSuccess) << trGetLastError(nullptr);
    };
    std::thread other(call, 1);
    call(0);
    other.join();
  }
}

TEST(Split, ByColourAndKey) {
  constexpr int kRanks = 6;
  RankGroup ranks(kRanks);
  trComm_t parts[kRanks];
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (int rank = 0; rank < kRanks; ++rank)  // odd and even ranks, in reverse order; rank 5 stays out
    ASSERT_EQ(trCommSplit(ranks.comm(rank), rank == 5 ? TR_SPLIT_NOCOLOR : rank % 2, -rank, &parts[rank], nullptr),
              trSuccess);
  ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  EXPECT_EQ(parts[5], nullptr);
  const int expected_rank[] = {2, 1, 1, 0, 0}, expected_count[] = {3, 2, 3, 2, 3};
  int values[5];
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (int rank = 0; rank < 5; ++rank) {
    int got_rank = -1, got_count = -1;
    EXPECT_EQ(trCommRank(parts[rank], &got_rank), trSuccess);
    EXPECT_EQ(trCommCount(parts[rank], &got_count), trSuccess);
    EXPECT_EQ(got_rank, expected_rank[rank]);
    EXPECT_EQ(got_count, expected_count[rank]);
    values[rank] = rank;
    EXPECT_EQ(trAllReduce(&values[rank], &values[rank], 1, trInt32, trSum, parts[rank], nullptr), trSuccess);
  }
  ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(values[rank], rank % 2 == 0 ? 6 : 4);
  for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(trCommDestroy(parts[rank]), trSuccess);
  EXPECT_EQ(trCommSplit(ranks.comm(0), -7, 0, &parts[0], nullptr), trInvalidArgument);
}

size_t entries(const char* folder) {
  size_t count = 0;
  DIR* directory = opendir(folder);
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

struct Counts {
  size_t descriptors, threads;
  bool operator==(const Counts&) const = default;
  std::string text() const {
    return std::to_string(descriptors) + " descriptors, " + std::to_string(threads) + " threads";
  }
};

// What ends in the background has ended.
Counts settled_counts() {
  const auto now = [] { return Counts{entries("/proc/self/fd"), entries("/proc/self/task")}; };
  Counts last = now();
  for (int same = 0, i = 0; same < 10 && i < 200; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const Counts found = now();
    same = last == found ? same + 1 : 0;
    last = found;
  }
  return last;
}

TEST(Split, AHundredCommunicatorsCostNoThreadAndNoDescriptor) {
  expect_all_succeed(2, [](int rank, const trUniqueId& id) {
    trComm_t world = nullptr, alone = nullptr;
    TR_CHECK(trCommInitRank(&world, 2, id, rank));
    TR_CHECK(trBarrier(world, nullptr));
    std::vector<trComm_t> comms(100);
    TR_CHECK(trCommDup(world, &comms[0]));  // what is made once (the machine's topology) is made
    TR_CHECK(trBarrier(comms[0], nullptr));
    const Counts before = settled_counts();
    for (size_t i = 1; i < comms.size(); ++i) TR_CHECK(trCommDup(world, &comms[i]));
    TR_CHECK(trCommSplit(world, rank, 0, &alone, nullptr));
    for (trComm_t comm : comms) {
      int value = rank + 1;
      TR_CHECK(trAllReduce(&value, &value, 1, trInt32, trSum, comm, nullptr));
      if (value != 3) return say("wrong sum"), 1;
    }
    float one = 5;
    TR_CHECK(trAllReduce(&one, &one, 1, trFloat32, trAvg, alone, nullptr));
    if (one != 5) return say("wrong value alone"), 1;
    if (const Counts after = settled_counts(); after != before) return say(before.text() + " -> " + after.text()), 1;
    for (trComm_t comm : comms) TR_CHECK(trCommDestroy(comm));
    TR_CHECK(trCommDestroy(alone));
    TR_CHECK(trCommDestroy(world));
    return 0;
  });
}

}  // namespace
}  // namespace treering::testing
