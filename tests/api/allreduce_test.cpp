// SPDX-License-Identifier: Apache-2.0
// trAllReduce against a plain reference: ranks as processes and as threads, every algorithm and transport, kinds of
// memory, in place and out of place, blocking, in groups and on streams.
#include <sys/mman.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "support/combined.h"
#include "support/processes.h"
#include "support/sanitized.h"

namespace treering::testing {
namespace {

constexpr size_t kSizes[] = {0, 1, 3, 17, 63, 64, 257, 1000, 4099, 65'537, 300'007};

// Small integers: every sum is exact in float32, whatever its order.
float input_value(int rank, size_t i, int round) {
  return static_cast<float>((i * 7 + static_cast<size_t>(rank * 3 + round)) % 23);
}

float expected_sum(int ranks, size_t i, int round) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += input_value(rank, i, round);
  return sum;
}

// One allreduce of `count` floats in `input` to `output`; the text of the first wrong element or an empty one.
std::string check_sum(trComm_t comm, int rank, int ranks, float* input, float* output, size_t count, int round,
                      trStream_t stream = nullptr) {
  for (size_t i = 0; i < count; ++i) input[i] = input_value(rank, i, round);
  if (output != input) std::fill(output, output + count, -1.0f);
  if (trAllReduce(input, output, count, trFloat32, trSum, comm, stream) != trSuccess) return trGetLastError(nullptr);
  if (stream != nullptr && trStreamSynchronize(stream) != trSuccess) return trGetLastError(nullptr);
  for (size_t i = 0; i < count; ++i)
    if (output[i] != expected_sum(ranks, i, round))
      return "rank " + std::to_string(rank) + ": element " + std::to_string(i) + " of " + std::to_string(count) +
             " is " + std::to_string(output[i]) + ", not " + std::to_string(expected_sum(ranks, i, round));
  return {};
}

struct Setting {
  int ranks;
  const char* algorithm;   // nullptr: chosen
  const char* transports;  // nullptr: all
};

std::string setting_name(const ::testing::TestParamInfo<Setting>& info) {
  std::string name = std::to_string(info.param.ranks) + "_" + (info.param.algorithm ? info.param.algorithm : "chosen") +
                     "_" + (info.param.transports ? info.param.transports : "all");
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

class Processes : public ::testing::TestWithParam<Setting> {};

TEST_P(Processes, SumInEverySize) {
  Setting setting = GetParam();
  expect_all_succeed(setting.ranks, [setting](int rank, const trUniqueId& id) {
    trConfig_t config = TR_CONFIG_INITIALIZER;
    config.algorithm = setting.algorithm;
    config.transports = setting.transports;
    config.timeout_ms = 60'000;
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRankConfig(&comm, setting.ranks, id, rank, &config));
    std::vector<float> input(300'007), output(300'007);
    int round = 0;
    for (size_t count : kSizes)
      for (bool in_place : {false, true}) {
        std::string error =
            check_sum(comm, rank, setting.ranks, input.data(), in_place ? input.data() : output.data(), count, ++round);
        if (!error.empty()) return say(error), 1;
      }
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Processes,
                         ::testing::Values(Setting{1, nullptr, nullptr}, Setting{2, "ring", nullptr},
                                           Setting{4, "ring", nullptr}, Setting{2, "two-shot", nullptr},
                                           Setting{5, "two-shot", nullptr}, Setting{3, "one-shot", nullptr},
                                           Setting{4, "halving-doubling", nullptr},
                                           Setting{6, "halving-doubling", nullptr}, Setting{2, "tree", nullptr},
                                           Setting{7, "tree", nullptr}, Setting{2, nullptr, nullptr},
                                           Setting{9, nullptr, nullptr}),
                         setting_name);
INSTANTIATE_TEST_SUITE_P(Transports, Processes,
                         ::testing::Values(Setting{3, "ring", "cma"}, Setting{3, "two-shot", "cma"},
                                           Setting{3, "tree", "cma"}, Setting{4, nullptr, "cma"},
                                           Setting{3, "one-shot", "cma"}, Setting{3, nullptr, "shared-memory"},
                                           Setting{4, "halving-doubling", "cma"}),
                         setting_name);

enum class Memory { kAllocated, kRegistered, kRegisteredUnaligned, kMixed };

class ZeroCopy : public ::testing::TestWithParam<std::pair<Memory, const char*>> {};

TEST_P(ZeroCopy, SumInEverySize) {
  auto [memory, algorithm] = GetParam();
  constexpr int kRanks = 4;
  constexpr size_t kCount = 1'000'003;
  expect_all_succeed(kRanks, [memory = memory, algorithm = algorithm](int rank, const trUniqueId& id) {
    trConfig_t config = TR_CONFIG_INITIALIZER;
    config.algorithm = algorithm;
    config.timeout_ms = 60'000;
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRankConfig(&comm, kRanks, id, rank, &config));
    void *input = nullptr, *output = nullptr, *handles[2] = {};
    bool allocate = memory == Memory::kAllocated || (memory == Memory::kMixed && rank % 2 == 0);
    bool reg = memory == Memory::kRegistered || memory == Memory::kRegisteredUnaligned ||
               (memory == Memory::kMixed && rank == 1);
    if (allocate) {
      TR_CHECK(trMemAlloc(&input, kCount * sizeof(float)));
      TR_CHECK(trMemAlloc(&output, kCount * sizeof(float)));
    } else {
      input = std::malloc((kCount + 8) * sizeof(float));
      output = std::malloc((kCount + 8) * sizeof(float));
      for (size_t i = 0; i < kCount; ++i) static_cast<float*>(input)[i] = static_cast<float>(i);
    }
    if (reg) {
      TR_CHECK(trCommRegister(comm, input, kCount * sizeof(float), &handles[0]));
      TR_CHECK(trCommRegister(comm, output, kCount * sizeof(float), &handles[1]));
      for (size_t i = 0; i < kCount; ++i)
        if (static_cast<float*>(input)[i] != static_cast<float>(i)) return say("registering changed the buffer"), 1;
    }
    size_t shift = memory == Memory::kRegisteredUnaligned ? static_cast<size_t>(rank) + 1 : 0;
    auto* in = static_cast<float*>(input) + shift;
    auto* out = static_cast<float*>(output) + (memory == Memory::kRegisteredUnaligned ? 3 : 0);
    int round = 0;
    for (size_t count : {size_t{1}, size_t{5000}, size_t{123'457}, kCount - 8})
      for (bool in_place : {false, true, false})
        if (std::string error = check_sum(comm, rank, kRanks, in, in_place ? in : out, count, ++round); !error.empty())
          return say(error), 1;
    TR_CHECK(trCommDeregister(comm, handles[0]));
    // The rest: after the end of a registration, and with another kind of memory.
    if (std::string error = check_sum(comm, rank, kRanks, in, out, 200'000, ++round); !error.empty())
      return say(error), 2;
    if (allocate) {
      TR_CHECK(trMemFree(input));
      TR_CHECK(trMemFree(output));
    } else {
      std::free(input);
      std::free(output);
    }
    // Freed while registered, and the address used again: the peers must see the new memory.
    auto* again = static_cast<float*>(std::malloc((kCount + 8) * sizeof(float)));
    auto* result = static_cast<float*>(std::malloc((kCount + 8) * sizeof(float)));
    if (std::string error = check_sum(comm, rank, kRanks, again, result, kCount, ++round); !error.empty())
      return say("after free: " + error), 3;
    std::free(again);
    std::free(result);
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Memories, ZeroCopy,
    ::testing::Values(std::pair{Memory::kAllocated, "two-shot"}, std::pair{Memory::kAllocated, "ring"},
                      std::pair{Memory::kAllocated, "tree"}, std::pair{Memory::kAllocated, "halving-doubling"},
                      std::pair{Memory::kAllocated, "one-shot"}, std::pair{Memory::kRegistered, "two-shot"},
                      std::pair{Memory::kRegistered, "ring"}, std::pair{Memory::kRegisteredUnaligned, "two-shot"},
                      std::pair{Memory::kMixed, "two-shot"}, std::pair{Memory::kMixed, "ring"}));

// Ranks of one process: every kind of driving them.
class Threads : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int kRanks = 4;
  void SetUp() override {
    trUniqueId id;
    ASSERT_EQ(trGetUniqueId(&id), trSuccess);
    trConfig_t config = TR_CONFIG_INITIALIZER;
    config.algorithm = GetParam();
    config.timeout_ms = 60'000;
    ASSERT_EQ(trGroupStart(), trSuccess);
    for (int rank = 0; rank < kRanks; ++rank)
      ASSERT_EQ(trCommInitRankConfig(&comms_[rank], kRanks, id, rank, &config), trSuccess);
    ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  }
  void TearDown() override {
    for (trComm_t comm : comms_) EXPECT_EQ(trCommDestroy(comm), trSuccess) << trGetLastError(nullptr);
  }
  trComm_t comms_[kRanks] = {};
};

TEST_P(Threads, OneThreadARank) {
  std::vector<std::thread> threads;
  std::string errors[kRanks];
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      std::vector<float> input(100'003), output(100'003);
      int round = 0;
      for (size_t count : {size_t{0}, size_t{2}, size_t{900}, size_t{100'003}})
        for (bool in_place : {false, true})
          if (errors[rank].empty())
            errors[rank] = check_sum(comms_[rank], rank, kRanks, input.data(), in_place ? input.data() : output.data(),
                                     count, ++round);
    });
  for (auto& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST_P(Threads, OneThreadDrivesAllInAGroup) {
  for (size_t count : {size_t{1}, size_t{5000}, size_t{100'003}}) {
    std::vector<std::vector<float>> inputs(kRanks, std::vector<float>(count)), outputs(inputs), seconds(inputs);
    ASSERT_EQ(trGroupStart(), trSuccess);
    for (int rank = 0; rank < kRanks; ++rank) {
      auto index = static_cast<size_t>(rank);
      for (size_t i = 0; i < count; ++i) inputs[index][i] = input_value(rank, i, 1);
      for (auto* output : {&outputs, &seconds})
        ASSERT_EQ(
            trAllReduce(inputs[index].data(), (*output)[index].data(), count, trFloat32, trSum, comms_[rank], nullptr),
            trSuccess);
    }
    ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
    for (size_t rank = 0; rank < kRanks; ++rank)
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(outputs[rank][i], expected_sum(kRanks, i, 1)) << "rank " << rank << " element " << i;
        ASSERT_EQ(seconds[rank][i], expected_sum(kRanks, i, 1)) << "rank " << rank << " element " << i;
      }
  }
}

TEST_P(Threads, StreamsRunInOrder) {
  constexpr size_t kCount = 20'000;
  constexpr int kCalls = 10;
  trStream_t streams[kRanks];
  std::vector<std::vector<float>> buffers(kRanks, std::vector<float>(kCount, 1.0f));
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_EQ(trStreamCreate(&streams[rank]), trSuccess);
  // In place, each call multiplies every element by the number of ranks: only in order does this give the power.
  for (int call = 0; call < kCalls; ++call)
    for (int rank = 0; rank < kRanks; ++rank) {
      float* buffer = buffers[static_cast<size_t>(rank)].data();
      ASSERT_EQ(trAllReduce(buffer, buffer, kCount, trFloat32, trSum, comms_[rank], streams[rank]), trSuccess);
    }
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(trStreamSynchronize(streams[rank]), trSuccess) << trGetLastError(nullptr);
    EXPECT_EQ(trStreamQuery(streams[rank]), trSuccess);
    for (float value : buffers[static_cast<size_t>(rank)]) ASSERT_EQ(value, std::pow(4.0f, kCalls));
    ASSERT_EQ(trStreamDestroy(streams[rank]), trSuccess);
  }
}

TEST_P(Threads, BlockingCallWaitsForTheStream) {
  trStream_t stream = nullptr;
  ASSERT_EQ(trStreamCreate(&stream), trSuccess);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      std::vector<float> buffer(50'000, 1.0f);
      if (rank == 0 && trAllReduce(buffer.data(), buffer.data(), buffer.size(), trFloat32, trSum, comms_[rank], stream))
        ++wrong;
      if (rank != 0 &&
          trAllReduce(buffer.data(), buffer.data(), buffer.size(), trFloat32, trSum, comms_[rank], nullptr))
        ++wrong;
      if (trAllReduce(buffer.data(), buffer.data(), buffer.size(), trFloat32, trSum, comms_[rank], nullptr)) ++wrong;
      for (float value : buffer) wrong += value != 16.0f;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(trStreamDestroy(stream), trSuccess);
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Threads,
                         ::testing::Values(nullptr, "ring", "two-shot", "one-shot", "recursive-doubling",
                                           "halving-doubling", "tree"),
                         [](const auto& info) {
                           std::string name = info.param ? info.param : "chosen";
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

// Every type and op, by threads of one process. Values are such that every result is exact.
template <typename T>
void check_type(trComm_t* comms, int ranks, trDataType_t type, trRedOp_t op, size_t count,
                double (*value)(int, size_t)) {
  std::vector<std::vector<T>> inputs(static_cast<size_t>(ranks), std::vector<T>(count)), outputs(inputs);
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (int rank = 0; rank < ranks; ++rank) {
    auto index = static_cast<size_t>(rank);
    for (size_t i = 0; i < count; ++i) inputs[index][i] = static_cast<T>(value(rank, i));
    ASSERT_EQ(trAllReduce(inputs[index].data(), outputs[index].data(), count, type, op, comms[rank], nullptr),
              trSuccess);
  }
  ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  for (size_t i = 0; i < count; ++i) {
    double expected = value(0, i);
    for (int rank = 1; rank < ranks; ++rank) expected = combined(op, trProd, trMax, trMin, expected, value(rank, i));
    if (op == trAvg) expected = std::is_integral_v<T> ? std::trunc(expected / ranks) : expected / ranks;
    for (int rank = 0; rank < ranks; ++rank)
      ASSERT_EQ(static_cast<double>(outputs[static_cast<size_t>(rank)][i]), expected)
          << "rank " << rank << " element " << i << " type " << type << " op " << op;
  }
}

TEST(TypesAndOps, AllOfThem) {
  constexpr int kRanks = 4;
  trComm_t comms[kRanks];
  ASSERT_EQ(trCommInitAll(comms, kRanks), trSuccess) << trGetLastError(nullptr);
  auto value = [](int rank, size_t i) { return static_cast<double>((i + static_cast<size_t>(rank)) % 3 + 1); };
  for (trRedOp_t op : {trSum, trProd, trMax, trMin, trAvg})
    for (size_t count : {size_t{5}, size_t{40'001}}) {
      check_type<int8_t>(comms, kRanks, trInt8, op, count, value);
      check_type<uint8_t>(comms, kRanks, trUint8, op, count, value);
      check_type<int32_t>(comms, kRanks, trInt32, op, count, value);
      check_type<uint32_t>(comms, kRanks, trUint32, op, count, value);
      check_type<int64_t>(comms, kRanks, trInt64, op, count, value);
      check_type<uint64_t>(comms, kRanks, trUint64, op, count, value);
      check_type<float>(comms, kRanks, trFloat32, op, count, value);
      check_type<double>(comms, kRanks, trFloat64, op, count, value);
      check_type<_Float16>(comms, kRanks, trFloat16, op, count, value);
    }
  for (trComm_t comm : comms) EXPECT_EQ(trCommDestroy(comm), trSuccess);
}

float from_bfloat16(uint16_t bits) {
  uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// 1 and seven times 2^-9: a bfloat16 holds 8 bits, so a partial sum that is rounded loses what a wide one keeps.
TEST(Rounding, OnceOrOnceAHopAsDocumented) {
  constexpr int kRanks = 8;
  constexpr size_t kCount = 30'000;
  const uint16_t one = 0x3F80, small = 0x3B00;  // 1 and 2^-9
  for (const char* algorithm : {"one-shot", "recursive-doubling", "two-shot", "ring", "halving-doubling", "tree"})
    for (int wide : {0, 1}) {
      trUniqueId id;
      ASSERT_EQ(trGetUniqueId(&id), trSuccess);
      trConfig_t config = TR_CONFIG_INITIALIZER;
      config.algorithm = algorithm;
      config.wide_partials = wide;
      trComm_t comms[kRanks];
      ASSERT_EQ(trGroupStart(), trSuccess);
      for (int rank = 0; rank < kRanks; ++rank) trCommInitRankConfig(&comms[rank], kRanks, id, rank, &config);
      ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
      std::vector<std::vector<uint16_t>> buffers(kRanks, std::vector<uint16_t>(kCount, small));
      for (size_t rank = 0; rank < kRanks; ++rank)
        for (size_t i = 0; i < kCount; ++i)
          if (i % kRanks == rank) buffers[rank][i] = one;
      ASSERT_EQ(trGroupStart(), trSuccess);
      for (size_t rank = 0; rank < kRanks; ++rank)
        trAllReduce(buffers[rank].data(), buffers[rank].data(), kCount, trBfloat16, trSum, comms[rank], nullptr);
      ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
      const float exact_rounded_once = 1.015625f;  // of 1 + 7 * 2^-9 = 1.013671875
      size_t rounded_more = 0;
      for (size_t i = 0; i < kCount; ++i) {
        float value = from_bfloat16(buffers[0][i]);
        rounded_more += value != exact_rounded_once;
        for (size_t rank = 1; rank < kRanks; ++rank) ASSERT_EQ(buffers[rank][i], buffers[0][i]) << "ranks differ";
      }
      bool forwards = std::strcmp(algorithm, "one-shot") != 0 && std::strcmp(algorithm, "two-shot") != 0;
      if (!forwards || wide) {
        EXPECT_EQ(rounded_more, 0u) << algorithm << " must round once";
      } else {
        EXPECT_GT(rounded_more, 0u) << algorithm
                                    << " forwards rounded partial sums: the test would not notice a change";
      }
      for (trComm_t comm : comms) trCommDestroy(comm);
    }
}

TEST(LargeCounts, Past2To31Elements) {
  if (kThreadSanitizer && std::getenv("TREERING_LONG_TESTS") == nullptr)
    GTEST_SKIP() << "4 GiB take ThreadSanitizer a minute; set TREERING_LONG_TESTS=1";
  constexpr size_t kCount = (size_t{1} << 31) + 4099;
  // One byte an element; pages of zeros that are not written cost nothing on the input side.
  expect_all_succeed(2, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, 2, id, rank));
    void* memory = mmap(nullptr, kCount, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return say("mmap failed"), 1;
    auto* bytes = static_cast<uint8_t*>(memory);
    const size_t marks[] = {0, 12'345, (size_t{1} << 31) - 1, size_t{1} << 31, (size_t{1} << 31) + 1, kCount - 1};
    for (size_t mark : marks) bytes[mark] = static_cast<uint8_t>(rank + 1);
    TR_CHECK(trAllReduce(bytes, bytes, kCount, trUint8, trSum, comm, nullptr));
    for (size_t mark : marks)
      if (bytes[mark] != 3) return say("element " + std::to_string(mark) + " is " + std::to_string(bytes[mark])), 1;
    size_t sum = 0;
    for (size_t i = 0; i < kCount; ++i) sum += bytes[i];
    if (sum != 3 * std::size(marks)) return say("sum " + std::to_string(sum)), 1;
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
}

}  // namespace
}  // namespace treering::testing
