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

TEST_F(OneRank, OverlappingBuffers) {
  expect_error(trAllReduce(a_, a_ + 2, 4, trFloat32, trSum, comm_, nullptr), trInvalidArgument, "overlap");
  EXPECT_EQ(a_[2], 3);
  EXPECT_EQ(trAllReduce(a_, a_, 8, trFloat32, trSum, comm_, nullptr), trSuccess) << "in place is allowed";
  EXPECT_EQ(trAllReduce(a_, a_ + 4, 4, trFloat32, trSum, comm_, nullptr), trSuccess) << "adjacent is allowed";
}

TEST_F(OneRank, CountBeyondAnyMemory) {
  expect_error(trAllReduce(a_, b_, SIZE_MAX / 2, trFloat64, trSum, comm_, nullptr), trInvalidArgument, "count is");
}

// Their product with the element's size has 4 bytes in 64 bits.
TEST_F(OneRank, CountsWhoseBytesOverflowAreNamedWithTheirType) {
  constexpr size_t kBeyond = SIZE_MAX / 4 + 2;
  const size_t counts[] = {kBeyond};
  const std::string beyond = std::to_string(kBeyond), value = " is " + beyond + " x ";
  const auto refused = [&](trResult_t result, const std::string& text) {
    expect_error(result, trInvalidArgument, (text + ": more than any memory holds").c_str());
  };
  int32_t in[4] = {1, 2, 3, 4}, out[4] = {};
  refused(trSend(in, kBeyond, trInt32, 0, comm_, nullptr), "count" + value + "int32");
  refused(trRecv(out, kBeyond, trInt32, 0, comm_, nullptr), "count" + value + "int32");
  refused(trSendRecv(in, kBeyond, 0, out, kBeyond, 0, trInt32, comm_, nullptr), "sendcount" + value + "int32");
  refused(trSendRecv(in, 1, 0, out, kBeyond, 0, trInt32, comm_, nullptr), "recvcount" + value + "int32");
  refused(trGatherV(in, kBeyond, out, counts, nullptr, trInt32, 0, comm_, nullptr), "sendcount" + value + "int32");
  refused(trScatterV(in, counts, nullptr, out, kBeyond, trInt32, 0, comm_, nullptr), "recvcount" + value + "int32");
  refused(trAllToAllV(in, counts, nullptr, out, counts, nullptr, trInt32, comm_, nullptr),
          "sendcounts[0]" + value + "int32");
  refused(trAllReduce(in, out, kBeyond, trInt32, trSum, comm_, nullptr), "count" + value + "int32");
  refused(trBroadcast(in, out, kBeyond, trFloat32, 0, comm_, nullptr), "count" + value + "float");
  trDoubleBuffer_t buffer = nullptr;
  ASSERT_EQ(trDoubleBufferCreate(&buffer, comm_, trFloat32, 0, nullptr), trSuccess);
  void* tensor = a_;
  int ready = 0;
  refused(trDoubleBufferExchange(buffer, 1, &tensor, counts, &ready), "counts[0]" + value + "float");
  EXPECT_EQ(trDoubleBufferDestroy(buffer), trSuccess);
  trCompression_t compression = nullptr;
  refused(trCompressionCreate(&compression, trFloat16, 1, kBeyond), "count" + value + "float");
  EXPECT_EQ(out[0], 0) << "nothing moved";
}

TEST_F(OneRank, SizesBeyondAnyMemoryAreNamed) {
  void* memory = nullptr;
  for (const size_t size : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 64 + 1})
    expect_error(trMemAlloc(&memory, size), trInvalidArgument, ("size is " + std::to_string(size)).c_str());
  for (const size_t size : {SIZE_MAX, SIZE_MAX - 4096}) {
    void* handle = this;
    expect_error(trCommRegister(comm_, a_, size, &handle), trInvalidArgument,
                 (std::to_string(size) + " bytes ends behind the end of any memory").c_str());
  }
  void* handle = nullptr;
  auto* last = reinterpret_cast<void*>(UINTPTR_MAX - 100);
  expect_error(trCommRegister(comm_, last, 50, &handle), trInvalidArgument, "behind the end of any memory");
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

// As the header says: nothing is looked at where there is nothing to move.
TEST_F(OneRank, RegistrationWithoutAWholePageHasNoEffect) {
  for (const size_t size : {size_t{0}, sizeof a_}) {
    void* handle = this;
    EXPECT_EQ(trCommRegister(comm_, a_, size, &handle), trSuccess) << trGetLastError(nullptr);
    EXPECT_EQ(handle, nullptr);
    EXPECT_EQ(trCommDeregister(comm_, handle), trSuccess);
  }
}

TEST_F(OneRank, RegistrationsThatMeetEndTheEarlierOne) {
  constexpr size_t kPage = 4096;
  auto* memory =
      static_cast<char*>(mmap(nullptr, 6 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (size_t page = 0; page < 6; ++page) memory[page * kPage] = static_cast<char>(page + 1);
  void *first = nullptr, *inside = this, *second = nullptr;
  EXPECT_EQ(trCommRegister(comm_, memory, 4 * kPage, &first), trSuccess);
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(trCommRegister(comm_, memory + kPage, kPage, &inside), trSuccess);
  EXPECT_EQ(inside, nullptr);
  EXPECT_EQ(trCommRegister(comm_, memory + 2 * kPage, 4 * kPage, &second), trSuccess) << trGetLastError(nullptr);
  EXPECT_NE(second, nullptr);
  for (size_t page = 0; page < 6; ++page) EXPECT_EQ(memory[page * kPage], static_cast<char>(page + 1));
  for (void* handle : {first, second}) EXPECT_EQ(trCommDeregister(comm_, handle), trSuccess);
  munmap(memory, 6 * kPage);
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
  for (const char* known : {"quantum", "ring", "two-shot", "one-shot", "halving-doubling", "tree"})
    EXPECT_NE(std::strstr(trGetLastError(nullptr), known), nullptr) << trGetLastError(nullptr);
  config = TR_CONFIG_INITIALIZER;
  config.channels = 99;
  EXPECT_EQ(trCommInitRankConfig(&comm, 1, id, 0, &config), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "99"), nullptr);
  config = TR_CONFIG_INITIALIZER;
  config.transports = "carrier-pigeon";
  EXPECT_EQ(trCommInitRankConfig(&comm, 1, id, 0, &config), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "carrier-pigeon"), nullptr);
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
        const std::string text = trGetLastError(nullptr);
        EXPECT_EQ(text.find(each.text), 0u) << text;
        if (each.result == trInvalidUsage) {
          EXPECT_NE(text.find(persistent ? "after trPersistentEnd" : "after trGroupEnd"), std::string::npos) << text;
        }
        EXPECT_EQ(kept, nullptr);
      }
      EXPECT_EQ(sums[0], 1) << each.text << ": nothing of the group runs";
    }
  EXPECT_EQ(trDoubleBufferDestroy(buffer), trSuccess);
}

// What the open group has calls of; its name, and the call that the user is to make first.
TEST(Groups, WhatHasCallsInTheOpenGroupIsNotDestroyed) {
  RankGroup ranks(2);
  trStream_t stream = nullptr;
  trPersistent_t kept = nullptr;
  ASSERT_EQ(trStreamCreate(&stream), trSuccess);
  const auto named = [](trResult_t result, const char* call, const void* handle, const std::string& end) {
    char text[200];
    std::snprintf(text, sizeof text, "%s %p has calls in the open %s first", call, handle, end.c_str());
    EXPECT_EQ(result, trInvalidUsage);
    EXPECT_STREQ(trGetLastError(nullptr), text);
  };
  for (bool persistent : {false, true}) {
    const std::string end = persistent ? "persistent operation; call trPersistentEnd" : "group; call trGroupEnd";
    float values[2] = {1, 2};
    ASSERT_EQ(persistent ? trPersistentBegin() : trGroupStart(), trSuccess);
    EXPECT_EQ(trAllReduce(&values[0], &values[0], 1, trFloat32, trSum, ranks.comm(0), stream), trSuccess);
    named(trCommDestroy(ranks.comm(0)), "trCommDestroy: comm", ranks.comm(0), end);
    named(trStreamDestroy(stream), "trStreamDestroy: stream", stream, end);
    EXPECT_EQ(trPersistentBegin(), trInvalidUsage);
    EXPECT_NE(std::strstr(trGetLastError(nullptr), persistent ? "call trPersistentEnd first" : "call trGroupEnd first"),
              nullptr)
        << trGetLastError(nullptr);
    EXPECT_EQ(trAllReduce(&values[1], &values[1], 1, trFloat32, trSum, ranks.comm(1), nullptr), trSuccess);
    EXPECT_EQ(persistent ? trPersistentEnd(&kept) : trGroupEnd(), trSuccess);
    if (persistent) {
      ASSERT_EQ(trPersistentStart(kept), trSuccess) << trGetLastError(nullptr);
    }
    EXPECT_EQ(trStreamSynchronize(stream), trSuccess);
    EXPECT_EQ(values[0], 3);
  }
  // Of a kept operation the group holds nothing: it may end there.
  ASSERT_EQ(trGroupStart(), trSuccess);
  EXPECT_EQ(trPersistentDestroy(kept), trSuccess) << trGetLastError(nullptr);
  EXPECT_EQ(trGroupEnd(), trSuccess);
  EXPECT_EQ(trStreamDestroy(stream), trSuccess);
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
