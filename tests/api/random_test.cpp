// SPDX-License-Identifier: Apache-2.0
// Random programs: every rank derives the same sequence of calls from one seed (sizes of every band, in and
// out of place, kinds of memory that differ between ranks, two communicators, blocking, streams and groups)
// and checks every result. TREERING_TEST_SEED repeats a run.
#include <cstdlib>
#include <random>
#include <vector>

#include "support/processes.h"
#include "support/seed.h"

namespace treering::testing {
namespace {

constexpr size_t kMaxCount = 300'000;

float value_of(int rank, size_t i, uint32_t salt) {
  return static_cast<float>((i + salt * 5 + static_cast<size_t>(rank) * 11) % 31);
}

struct Buffer {
  float* data = nullptr;
  void* handle = nullptr;
  int kind = 0;  // 0 malloc, 1 registered, 2 trMemAlloc
};

int allocate(Buffer* buffer, int kind, trComm_t comm) {
  buffer->kind = kind;
  if (kind == 2) {
    void* memory = nullptr;
    TR_CHECK(trMemAlloc(&memory, kMaxCount * sizeof(float)));
    buffer->data = static_cast<float*>(memory);
    return 0;
  }
  buffer->data = static_cast<float*>(std::malloc(kMaxCount * sizeof(float)));
  if (kind == 1) TR_CHECK(trCommRegister(comm, buffer->data, kMaxCount * sizeof(float), &buffer->handle));
  return 0;
}

int release(Buffer* buffer, trComm_t comm, bool deregister) {
  if (buffer->kind == 1 && deregister) TR_CHECK(trCommDeregister(comm, buffer->handle));
  if (buffer->kind == 2) TR_CHECK(trMemFree(buffer->data));
  if (buffer->kind != 2) std::free(buffer->data);
  return 0;
}

struct Planned {
  size_t count;
  bool in_place;
  uint32_t salt;
  int mode;    // 0 blocking, 1 stream, 2 group
  bool renew;  // other buffers from here on
};

int run_program(int rank, int ranks, const trUniqueId& id, uint64_t seed, int calls) {
  std::mt19937_64 common(seed), own(seed + 1000 + static_cast<uint64_t>(rank));
  trComm_t comms[2];
  TR_CHECK(trCommInitRank(&comms[0], ranks, id, rank));
  // The second communicator's id reaches the ranks through the first: all but rank 0 add zeros.
  trUniqueId second{};
  if (rank == 0) TR_CHECK(trGetUniqueId(&second));
  TR_CHECK(trAllReduce(&second, &second, sizeof second, trUint8, trSum, comms[0], nullptr));
  TR_CHECK(trCommInitRank(&comms[1], ranks, second, rank));
  trStream_t stream = nullptr;
  TR_CHECK(trStreamCreate(&stream));
  Buffer input, output;
  if (allocate(&input, 0, comms[0]) || allocate(&output, 0, comms[0])) return 1;
  for (int call = 0; call < calls; ++call) {
    size_t magnitude = common() % 19;
    Planned plan{std::min<size_t>(kMaxCount, (size_t{1} << magnitude) + common() % ((size_t{1} << magnitude))),
                 common() % 3 == 0, static_cast<uint32_t>(common() % 1000), static_cast<int>(common() % 3),
                 common() % 8 == 0};
    trComm_t comm = comms[common() % 2];
    if (plan.renew) {
      if (release(&input, comms[0], own() % 2 == 0) || release(&output, comms[0], own() % 2 == 0)) return 2;
      if (allocate(&input, static_cast<int>(own() % 3), comms[0])) return 3;
      if (allocate(&output, static_cast<int>(own() % 3), comms[0])) return 4;
    }
    for (size_t i = 0; i < plan.count; ++i) input.data[i] = value_of(rank, i, plan.salt);
    float* result = plan.in_place ? input.data : output.data;
    if (plan.mode == 2) TR_CHECK(trGroupStart());
    TR_CHECK(trAllReduce(input.data, result, plan.count, trFloat32, trSum, comm, plan.mode == 1 ? stream : nullptr));
    if (plan.mode == 2) TR_CHECK(trGroupEnd());
    if (plan.mode == 1) TR_CHECK(trStreamSynchronize(stream));
    for (size_t i = 0; i < plan.count; ++i) {
      float expected = 0;
      for (int peer = 0; peer < ranks; ++peer) expected += value_of(peer, i, plan.salt);
      if (result[i] == expected) continue;
      say("call " + std::to_string(call) + " of " + std::to_string(plan.count) + " floats: element " +
          std::to_string(i) + " is " + std::to_string(result[i]) + ", not " + std::to_string(expected));
      return 5;
    }
  }
  TR_CHECK(trStreamDestroy(stream));
  for (trComm_t comm : comms) TR_CHECK(trCommDestroy(comm));
  return 0;
}

class RandomPrograms : public ::testing::TestWithParam<int> {};

TEST_P(RandomPrograms, EveryResultIsRight) {
  int ranks = GetParam();
  uint64_t seed = test_seed();
  expect_all_succeed(ranks, [=](int rank, const trUniqueId& id) { return run_program(rank, ranks, id, seed, 150); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RandomPrograms, ::testing::Values(2, 3, 4, 6));

}  // namespace
}  // namespace treering::testing
