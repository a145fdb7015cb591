// Wrong arguments: a code and a message that names the value, and nothing else happens.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"

namespace treering::testing {
namespace {

class OneRank : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(trCommInitAll(&comm_, 1), trSuccess) << trGetLastError(nullptr); }
  void TearDown() override {
    if (comm_ != nullptr) {
      EXPECT_EQ(trCommDestroy(comm_), trSuccess);
    }
  }
  void expect_error(trResult_t result, trResult_t expected, const char* part) {
    EXPECT_EQ(result, expected);
    EXPECT_NE(std::string(trGetLastError(nullptr)).find(part), std::string::npos)
        << "'" << trGetLastError(nullptr) << "' lacks '" << part << "'";
  }
  trComm_t comm_ = nullptr;
  float a_[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  float b_[8] = {};
};

TEST_F(OneRank, NullBuffers) {
  expect_error(trAllReduce(nullptr, b_, 8, trFloat32, trSum, comm_, nullptr), trInvalidArgument, "sendbuf is NULL");
  expect_error(trAllReduce(a_, nullptr, 8, trFloat32, trSum, comm_, nullptr), trInvalidArgument, "recvbuf is NULL");
  EXPECT_EQ(trAllReduce(nullptr, nullptr, 0, trFloat32, trSum, comm_, nullptr), trSuccess) << "a count of 0 needs none";
}

TEST_F(OneRank, UnknownTypeAndOp) {
  auto type = static_cast<trDataType_t>(42);
  auto op = static_cast<trRedOp_t>(63);
  expect_error(trAllReduce(a_, b_, 8, type, trSum, comm_, nullptr), trInvalidArgument, "datatype is 42");
  expect_error(trAllReduce(a_, b_, 8, trFloat32, op, comm_, nullptr), trInvalidArgument, "op is 63");
  EXPECT_EQ(b_[0], 0) << "the receive buffer is untouched";
}

// What is known, but not possible there, is named as the tools name it; of what is not known there is a number alone.
TEST_F(OneRank, TypesAndOpsAreNamed) {
  trCompression_t compression = nullptr;
  expect_error(trCompressionCreate(&compression, trFloat32, 0, 0), trInvalidArgument,
               "wire is float; give trFloat16, trBfloat16, trFloat8e4m3 or trFloat8e5m2");
  expect_error(trCompressionCreate(&compression, static_cast<trDataType_t>(42), 0, 0), trInvalidArgument,
               "wire is 42; give");
  ASSERT_EQ(trCompressionCreate(&compression, trFloat16, 0, 0), trSuccess);
  expect_error(trAllReduceCompressed(a_, b_, 8, trMax, compression, comm_, nullptr), trInvalidArgument,
               "op is max; only sum and avg");
  EXPECT_EQ(trCompressionDestroy(compression), trSuccess);
  trRedOp_t op = trSum;
  expect_error(trRedOpCreatePreMulSum(&op, a_, trBool, comm_), trInvalidArgument, "datatype is bool; give an integer");
  expect_error(trRedOpDestroy(trSum, comm_), trInvalidArgument, "op sum was not made");
  trDoubleBuffer_t buffer = nullptr;
  expect_error(trDoubleBufferCreate(&buffer, comm_, trBool, 0, nullptr), trInvalidArgument, "datatype is bool; give");
  int64_t index = 0;
  size_t rows = 0;
  expect_error(trSparseAllReduce(&index, a_, 1, 1, trBool, trSum, &index, b_, 1, &rows, comm_), trInvalidArgument,
               "datatype is bool; give one that has sums");
  expect_error(trSparseAllReduce(&index, a_, 1, 1, trFloat32, trMax, &index, b_, 1, &rows, comm_), trInvalidArgument,
               "op is max; give trSum or trAvg");
}

// Two ranks of one thread each, as calls that compare what all ranks gave block.
TEST(TwoRanks, TypesThatDifferAreNamed) {
  RankGroup ranks(2);
  const trBox_t box{{0}, {1}};
  std::string errors[2], sparse[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      trExchange_t exchange = nullptr;
      EXPECT_EQ(trExchangeCreate(&exchange, 1, 1, &box, 1, &box, rank == 0 ? trFloat32 : trInt64, ranks.comm(rank)),
                trInvalidUsage);
      errors[rank] = trGetLastError(nullptr);
      int64_t index = 0;
      float value = 1, sum = 0;
      size_t rows = 0;
      EXPECT_EQ(trSparseAllReduce(&index, &value, 1, 1, trFloat32, rank == 0 ? trSum : trAvg, &index, &sum, 1, &rows,
                                  ranks.comm(rank)),
                trInvalidUsage);
      sparse[rank] = trGetLastError(nullptr);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(sparse[0].find("rank 0 has rows of 1 x float, op sum; rank 1 has rows of 1 x float, op avg"),
            std::string::npos)
      << sparse[0];
  EXPECT_NE(errors[0].find("dimensions of type float; rank 1 has 1 of type int64"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("dimensions of type int64; rank 0 has 1 of type float"), std::string::npos) << errors[1];
}

TEST_F(OneRank, OverlappingBuffers) {
  expect_error(trAllReduce(a_, a_ + 2, 4, trFloat32, trSum, comm_, nullptr), trInvalidArgument, "overlap");
  EXPECT_EQ(a_[2], 3);
  EXPECT_EQ(trAllReduce(a_, a_, 8, trFloat32, trSum, comm_, nullptr), trSuccess) << "in place is allowed";
  EXPECT_EQ(trAllReduce(a_, a_ + 4, 4, trFloat32, trSum, comm_, nullptr), trSuccess) << "adjacent is allowed";
}

TEST_F(OneRank, CountBeyondAnyMemory) {
  expect_error(trAllReduce(a_, b_, SIZE_MAX / 2, trFloat64, trSum, comm_, nullptr), trInvalidArgument, "count is");
}

TEST_F(OneRank, HandlesThatAreNone) {
  expect_error(trAllReduce(a_, b_, 8, trFloat32, trSum, nullptr, nullptr), trInvalidArgument, "comm is NULL");
  auto wild = reinterpret_cast<trComm_t>(uintptr_t{0x1234567});
  expect_error(trAllReduce(a_, b_, 8, trFloat32, trSum, wild, nullptr), trInvalidUsage, "not a communicator");
  auto stream = reinterpret_cast<trStream_t>(uintptr_t{0x123456});
  expect_error(trAllReduce(a_, b_, 8, trFloat32, trSum, comm_, stream), trInvalidUsage, "not a stream");
}

TEST_F(OneRank, UseAfterDestroy) {
  trComm_t gone = comm_;
  ASSERT_EQ(trCommDestroy(comm_), trSuccess);
  comm_ = nullptr;
  expect_error(trAllReduce(a_, b_, 8, trFloat32, trSum, gone, nullptr), trInvalidUsage, "destroyed");
  expect_error(trCommDestroy(gone), trInvalidUsage, "destroyed");
  expect_error(trCommAbort(gone), trInvalidUsage, "destroyed");
  int count = 0;
  expect_error(trCommCount(gone, &count), trInvalidUsage, "destroyed");
  // A new communicator may take the slot; the old handle stays invalid.
  ASSERT_EQ(trCommInitAll(&comm_, 1), trSuccess);
  expect_error(trCommCount(gone, &count), trInvalidUsage, "destroyed");
}

TEST_F(OneRank, StreamAfterDestroy) {
  trStream_t stream = nullptr;
  ASSERT_EQ(trStreamCreate(&stream), trSuccess);
  ASSERT_EQ(trStreamDestroy(stream), trSuccess);
  expect_error(trAllReduce(a_, b_, 8, trFloat32, trSum, comm_, stream), trInvalidUsage, "destroyed");
  expect_error(trStreamSynchronize(stream), trInvalidUsage, "destroyed");
}

TEST_F(OneRank, MessageOfTheCommunicator) {
  EXPECT_STREQ(trGetLastError(comm_), "");
  EXPECT_EQ(trAllReduce(nullptr, b_, 8, trFloat32, trSum, comm_, nullptr), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(comm_), "rank 0"), nullptr) << trGetLastError(comm_);
}

TEST_F(OneRank, Registration) {
  void* handle = &handle;
  alignas(4096) char on_stack[16384];
  expect_error(trCommRegister(comm_, on_stack, sizeof on_stack, &handle), trInvalidArgument, "stack");
  char path[] = "/tmp/treering-test-XXXXXX";
  int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  unlink(path);
  ASSERT_EQ(ftruncate(fd, 1 << 16), 0);
  void* file = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  expect_error(trCommRegister(comm_, file, 1 << 16, &handle), trInvalidArgument, "file");
  munmap(file, 1 << 16);
  close(fd);
  void* read_only = mmap(nullptr, 1 << 16, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  expect_error(trCommRegister(comm_, read_only, 1 << 16, &handle), trInvalidArgument, "not readable and writable");
  munmap(read_only, 1 << 16);
  expect_error(trCommRegister(comm_, read_only, 1 << 16, &handle), trInvalidArgument, "not mapped");
  expect_error(trCommRegister(comm_, nullptr, 1 << 16, &handle), trInvalidArgument, "buffer is NULL");
}

TEST_F(OneRank, StackOfAnotherThreadIsRefused) {
  std::thread([this] {
    alignas(4096) char on_stack[32768];
    void* handle = nullptr;
    expect_error(trCommRegister(comm_, on_stack, sizeof on_stack, &handle), trInvalidArgument, "stack");
  }).join();
}

TEST(InitArguments, AreNamed) {
  trUniqueId id;
  ASSERT_EQ(trGetUniqueId(&id), trSuccess);
  trComm_t comm = nullptr;
  EXPECT_EQ(trCommInitRank(&comm, 0, id, 0), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "nranks is 0"), nullptr);
  EXPECT_EQ(trCommInitRank(&comm, 2, id, 2), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "rank is 2"), nullptr);
  EXPECT_EQ(trCommInitRank(nullptr, 2, id, 0), trInvalidArgument);
  trUniqueId damaged{};
  EXPECT_EQ(trCommInitRank(&comm, 2, damaged, 0), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "unique id"), nullptr);
  EXPECT_EQ(trGetUniqueId(nullptr), trInvalidArgument);
  EXPECT_EQ(trGetVersion(nullptr), trInvalidArgument);
}

TEST(InitArguments, WhatFailsLeavesOtherCommunicatorsAlone) {
  trComm_t live[2], comms[2];
  ASSERT_EQ(trCommInitAll(live, 2), trSuccess);
  std::copy(live, live + 2, comms);  // as a program has it that did not clear them
  setenv("TREERING_CHANNELS", "99", 1);
  EXPECT_EQ(trCommInitAll(comms, 2), trInvalidArgument);
  unsetenv("TREERING_CHANNELS");
  for (trComm_t comm : comms) EXPECT_EQ(comm, nullptr);
  for (trComm_t comm : live) EXPECT_EQ(trCommDestroy(comm), trSuccess);
}

TEST(InitArguments, ConfigIsChecked) {
  trUniqueId id;
  ASSERT_EQ(trGetUniqueId(&id), trSuccess);
  trComm_t comm = nullptr;
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.magic = 1;
  EXPECT_EQ(trCommInitRankConfig(&comm, 1, id, 0, &config), trInvalidArgument);
  config = TR_CONFIG_INITIALIZER;
  config.algorithm = "quantum";
  EXPECT_EQ(trCommInitRankConfig(&comm, 1, id, 0, &config), trInvalidArgument);
  for (const char* known :
       {"TREERING_ALGO or config->algorithm is 'quantum'", "ring", "two-shot", "one-shot", "halving-doubling", "tree"})
    EXPECT_NE(std::strstr(trGetLastError(nullptr), known), nullptr) << trGetLastError(nullptr);
  config = TR_CONFIG_INITIALIZER;
  config.channels = 99;
  EXPECT_EQ(trCommInitRankConfig(&comm, 1, id, 0, &config), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "99"), nullptr);
  config = TR_CONFIG_INITIALIZER;
  config.transports = "carrier-pigeon";
  EXPECT_EQ(trCommInitRankConfig(&comm, 1, id, 0, &config), trInvalidArgument);
  for (const char* part : {"TREERING_TRANSPORTS or config->transports is 'carrier-pigeon'",
                           "'carrier-pigeon' is unknown", "in-process, shared-memory, cma, tcp", "for example ^cma"})
    EXPECT_NE(std::strstr(trGetLastError(nullptr), part), nullptr) << trGetLastError(nullptr);
  config.transports = "^in-process,shared-memory,cma,tcp";
  EXPECT_EQ(trCommInitRankConfig(&comm, 1, id, 0, &config), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "nothing is left to use; give"), nullptr) << trGetLastError(nullptr);
  config = TR_CONFIG_INITIALIZER;
  config.size = offsetof(trConfig_t, channels);  // a caller with an older, shorter struct
  config.channels = 99;
  EXPECT_EQ(trCommInitRankConfig(&comm, 1, id, 0, &config), trSuccess) << trGetLastError(nullptr);
  trCommDestroy(comm);
}

// Two ranks that one thread drives: a call that blocked would wait for the other rank until the deadline.
TEST(Groups, RefuseCallsThatCannotBeCollected) {
  RankGroup ranks(2);
  const trComm_t comm = ranks.comm(0);
  const trBox_t box{{0}, {1}};
  trExchange_t exchange = nullptr;
  trDoubleBuffer_t buffer = nullptr;
  ASSERT_EQ(trDoubleBufferCreate(&buffer, comm, trFloat32, 0, nullptr), trSuccess);
  int64_t index = 0;
  float value = 1, sum = 0;
  void* tensor = &value;
  size_t count = 1, rows = 0;
  int ready = 0;
  struct Refused {
    trResult_t result;
    const char* text;
    std::function<trResult_t()> call;
  };
  const Refused calls[] = {
      {trInvalidUsage, "trExchangeCreate inside a group",
       [&] { return trExchangeCreate(&exchange, 1, 1, &box, 1, &box, trFloat32, comm); }},
      {trInvalidUsage, "trExchangeStart inside a group",
       [&] { return trExchangeStart(exchange, nullptr, nullptr, {}); }},
      {trInvalidUsage, "trSparseAllReduce inside a group",
       [&] { return trSparseAllReduce(&index, &value, 1, 1, trFloat32, trSum, &index, &sum, 1, &rows, comm); }},
      {trInvalidUsage, "trDoubleBufferExchange inside a group",
       [&] { return trDoubleBufferExchange(buffer, 1, &tensor, &count, &ready); }},
      {trInvalidArgument, "trAllReduceCompressed: compression is NULL",
       [&] { return trAllReduceCompressed(&value, &sum, 1, trSum, nullptr, comm, nullptr); }}};
  for (bool persistent : {false, true})
    for (const Refused& each : calls) {
      float sums[2] = {1, 2};
      ASSERT_EQ(persistent ? trPersistentBegin() : trGroupStart(), trSuccess);
      for (int rank = 0; rank < 2; ++rank)
        EXPECT_EQ(trAllReduce(&sums[rank], &sums[rank], 1, trFloat32, trSum, ranks.comm(rank), nullptr), trSuccess);
      for (int end = 0; end < 2; ++end) {  // the call itself, and the group that it belongs to
        trPersistent_t kept = nullptr;
        const trResult_t result = end == 0 ? each.call() : persistent ? trPersistentEnd(&kept) : trGroupEnd();
        EXPECT_EQ(result, each.result) << each.text;
        EXPECT_EQ(std::string(trGetLastError(nullptr)).find(each.text), 0u) << trGetLastError(nullptr);
        EXPECT_EQ(kept, nullptr);
      }
      EXPECT_EQ(sums[0], 1) << each.text << ": nothing of the group runs";
    }
  EXPECT_EQ(trDoubleBufferDestroy(buffer), trSuccess);
}

TEST(Groups, ACommunicatorWithCallsInTheOpenGroupIsNotDestroyed) {
  trComm_t comms[2];
  ASSERT_EQ(trCommInitAll(comms, 2), trSuccess);
  float values[2] = {1, 2};
  ASSERT_EQ(trGroupStart(), trSuccess);
  EXPECT_EQ(trAllReduce(&values[0], &values[0], 1, trFloat32, trSum, comms[0], nullptr), trSuccess);
  EXPECT_EQ(trCommDestroy(comms[0]), trInvalidUsage);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "call trGroupEnd first"), nullptr) << trGetLastError(nullptr);
  EXPECT_EQ(trAllReduce(&values[1], &values[1], 1, trFloat32, trSum, comms[1], nullptr), trSuccess);
  EXPECT_EQ(trGroupEnd(), trSuccess);
  EXPECT_EQ(values[0], 3);
  for (trComm_t comm : comms) EXPECT_EQ(trCommDestroy(comm), trSuccess);
}

// They would come before what the group holds, and look as if they came after it.
TEST(Groups, NothingWaitsForOrMarksWhatTheOpenGroupHolds) {
  trComm_t comm = nullptr, half = nullptr;
  ASSERT_EQ(trCommInitAll(&comm, 1), trSuccess);
  trStream_t stream = nullptr, other = nullptr;
  trEvent_t event = nullptr;
  ASSERT_EQ(trStreamCreate(&stream), trSuccess);
  ASSERT_EQ(trStreamCreate(&other), trSuccess);
  ASSERT_EQ(trEventCreate(&event), trSuccess);
  float value = 1;
  int called = 0;
  const trCallback count = [](trResult_t, void* calls) { ++*static_cast<int*>(calls); };
  struct {
    const char* name;
    std::function<trResult_t()> call;
    bool fails_group;  // it was to have a place in the order of the group's calls
  } calls[] = {{"trStreamSynchronize", [&] { return trStreamSynchronize(stream); }, false},
               {"trStreamQuery", [&] { return trStreamQuery(stream); }, false},
               {"trStreamDestroy", [&] { return trStreamDestroy(stream); }, false},
               {"trCommFinalize", [&] { return trCommFinalize(comm); }, false},
               {"trCommDestroy", [&] { return trCommDestroy(comm); }, false},
               {"trStreamAddCallback", [&] { return trStreamAddCallback(stream, count, &called); }, true},
               {"trEventRecord", [&] { return trEventRecord(event, stream); }, true},
               {"trStreamWaitEvent", [&] { return trStreamWaitEvent(stream, event); }, true}};
  for (const auto& each : calls) {
    ASSERT_EQ(trGroupStart(), trSuccess);
    EXPECT_EQ(trStreamWaitEvent(stream, event), trSuccess) << "the group holds nothing of it yet";
    EXPECT_EQ(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, stream), trSuccess);
    EXPECT_EQ(each.call(), trInvalidUsage) << each.name;
    const std::string text = trGetLastError(nullptr);
    EXPECT_NE(text.find(each.name), std::string::npos) << text;
    EXPECT_NE(text.find("call trGroupEnd first"), std::string::npos) << text;
    EXPECT_EQ(trEventRecord(event, other), trSuccess) << "another stream";
    EXPECT_EQ(trGroupEnd(), each.fails_group ? trInvalidUsage : trSuccess) << each.name;
    EXPECT_EQ(trStreamSynchronize(stream), trSuccess);
  }
  EXPECT_EQ(called, 0);
  ASSERT_EQ(trGroupStart(), trSuccess);
  EXPECT_EQ(trCommSplit(comm, 0, 0, &half, nullptr), trSuccess);
  EXPECT_EQ(trCommDestroy(comm), trInvalidUsage) << "it is to be split";
  EXPECT_EQ(trGroupEnd(), trSuccess);
  for (trComm_t each : {half, comm}) EXPECT_EQ(trCommDestroy(each), trSuccess);
  for (trStream_t each : {stream, other}) EXPECT_EQ(trStreamDestroy(each), trSuccess);
  EXPECT_EQ(trEventDestroy(event), trSuccess);
}

TEST(Groups, EndWithoutStartAndFailuresInside) {
  EXPECT_EQ(trGroupEnd(), trInvalidUsage);
  trComm_t comms[2];
  ASSERT_EQ(trCommInitAll(comms, 2), trSuccess);
  float a = 1, b = 2;
  ASSERT_EQ(trGroupStart(), trSuccess);
  EXPECT_EQ(trAllReduce(&a, &a, 1, trFloat32, trSum, comms[0], nullptr), trSuccess);
  EXPECT_EQ(trAllReduce(nullptr, &b, 1, trFloat32, trSum, comms[1], nullptr), trInvalidArgument);
  EXPECT_EQ(trGroupEnd(), trInvalidArgument);
  EXPECT_EQ(a, 1) << "nothing of a group with a wrong call starts";
  for (trComm_t comm : comms) EXPECT_EQ(trCommDestroy(comm), trSuccess);
}

}  // namespace
}  // namespace treering::testing
