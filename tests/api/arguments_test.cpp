// SPDX-License-Identifier: Apache-2.0
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

TEST_F(OneRank, NoOtherRankThanTheOneThereIsIsOffered) {
  for (const trResult_t result :
       {trBroadcast(a_, b_, 8, trFloat32, 1, comm_, nullptr), trSend(a_, 8, trFloat32, 1, comm_, nullptr)}) {
    EXPECT_EQ(result, trInvalidArgument);
    EXPECT_TRUE(std::string(trGetLastError(nullptr)).ends_with(" is 1; give 0")) << trGetLastError(nullptr);
  }
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

TEST_F(OneRank, HandlesThatNoRegistrationGaveAreRefused) {
  expect_error(trCommDeregister(comm_, a_), trInvalidArgument, "is none that trCommRegister gave");
  expect_error(trCommDeregister(comm_, reinterpret_cast<void*>(uintptr_t{1'000'000})), trInvalidArgument,
               "handle 0xf4240 is none that trCommRegister gave");
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
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "nranks is 0; give 1 to 1024"), nullptr);
  EXPECT_EQ(trCommInitRank(&comm, 2, id, 2), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "rank is 2"), nullptr);
  EXPECT_EQ(trCommInitRank(&comm, 1, id, 1), trInvalidArgument);
  EXPECT_STREQ(trGetLastError(nullptr), "trCommInitRank: rank is 1; give 0");
  EXPECT_EQ(trCommInitRank(nullptr, 2, id, 0), trInvalidArgument);
  trUniqueId damaged{};
  EXPECT_EQ(trCommInitRank(&comm, 2, damaged, 0), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "unique id"), nullptr);
  EXPECT_EQ(trGetUniqueId(nullptr), trInvalidArgument);
  EXPECT_EQ(trGetVersion(nullptr), trInvalidArgument);
}

TEST(InitArguments, AnIdOfWhichABitWasChangedIsCalledDamaged) {
  trUniqueId id;
  ASSERT_EQ(trGetUniqueId(&id), trSuccess);
  for (size_t bit = 0; bit < 8 * sizeof id.internal; ++bit) {
    trUniqueId damaged = id;
    damaged.internal[bit / 8] = static_cast<char>(damaged.internal[bit / 8] ^ (1 << bit % 8));
    trComm_t comm = nullptr;
    const trResult_t result = trCommInitRank(&comm, 1, damaged, 0);
    ASSERT_TRUE(result == trInvalidArgument || result == trInvalidUsage) << bit << ": " << trGetErrorString(result);
    ASSERT_NE(std::strstr(trGetLastError(nullptr), "damaged"), nullptr) << bit << ": " << trGetLastError(nullptr);
  }
  trComm_t comm = nullptr;
  ASSERT_EQ(trCommInitRank(&comm, 1, id, 0), trSuccess) << trGetLastError(nullptr);
  EXPECT_EQ(trCommDestroy(comm), trSuccess);
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

// An array of handles or numbers that ends where memory ends.
class LastOfAPage {
 public:
  LastOfAPage() {
    page_ =
        static_cast<std::byte*>(mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(page_ + kPage, kPage, PROT_NONE), 0);
  }
  ~LastOfAPage() { munmap(page_, 2 * kPage); }
  template <typename T>
  T* one() const {
    return reinterpret_cast<T*>(page_ + kPage - sizeof(T));
  }

 private:
  static constexpr size_t kPage = 4096;
  std::byte* page_;
};

// A count that nothing can have is refused before the array that should have so many is read or written.
TEST(InitArguments, CountsBeforeArrays) {
  constexpr int kMany = 1 << 30;
  const LastOfAPage end;
  const auto refused = [](trResult_t result, const char* part) {
    EXPECT_EQ(result, trInvalidArgument);
    EXPECT_NE(std::string(trGetLastError(nullptr)).find(part), std::string::npos) << trGetLastError(nullptr);
  };
  trComm_t* const comms = end.one<trComm_t>();
  trComm_t live;
  ASSERT_EQ(trCommInitAll(&live, 1), trSuccess);
  *comms = live;
  refused(trCommInitAll(comms, kMany), "trCommInitAll: nranks is 1073741824; this version takes at most 1024");
  EXPECT_EQ(*comms, live) << "it was not touched";
  refused(trCommInitAll(comms, 1025), "nranks is 1025");
  int* const excluded = end.one<int>();
  trComm_t made = nullptr;
  refused(trCommShrink(live, excluded, kMany, &made, nullptr, 0),
          "excluded_count is 1073741824; the communicator has 1 ranks");
  trDoubleBuffer_t buffer = nullptr;
  ASSERT_EQ(trDoubleBufferCreate(&buffer, live, trFloat32, 0, nullptr), trSuccess);
  *end.one<void*>() = &buffer;
  int ready = 0;
  const LastOfAPage end_of_counts;
  *end_of_counts.one<size_t>() = 1;
  refused(trDoubleBufferExchange(buffer, kMany, end.one<void*>(), end_of_counts.one<size_t>(), &ready),
          "count is 1073741824; at most 1048576 tensors");
  EXPECT_EQ(trDoubleBufferDestroy(buffer), trSuccess);
  *end.one<trBox_t>() = trBox_t{};
  trExchange_t exchange = nullptr;
  refused(trExchangeCreate(&exchange, 1, kMany, end.one<trBox_t>(), 0, nullptr, trInt32, live),
          "held_count is 1073741824");
  refused(trExchangeCreate(&exchange, 1, 0, nullptr, kMany, end.one<trBox_t>(), trInt32, live),
          "needed_count is 1073741824");
  EXPECT_EQ(trCommDestroy(live), trSuccess);
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
  for (const char* part :
       {"TREERING_TRANSPORTS or config->transports is 'carrier-pigeon'", "'carrier-pigeon' is unknown",
        "in-process, shared-memory, cma, verbs, ucx, tcp", "for example ^cma"})
    EXPECT_NE(std::strstr(trGetLastError(nullptr), part), nullptr) << trGetLastError(nullptr);
  config.transports = " in-process , tcp, shared_memory ";  // spaces do not count
  EXPECT_EQ(trCommInitRankConfig(&comm, 1, id, 0, &config), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "'shared_memory' is unknown; did you mean shared-memory?"), nullptr)
      << trGetLastError(nullptr);
  config.transports = "^in-process,shared-memory,cma,tcp";
  EXPECT_EQ(trCommInitRankConfig(&comm, 1, id, 0, &config), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "nothing is left to use; give"), nullptr) << trGetLastError(nullptr);
  config.transports = "^";
  EXPECT_EQ(trCommInitRankConfig(&comm, 1, id, 0, &config), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "a name is missing; give"), nullptr) << trGetLastError(nullptr);
  config = TR_CONFIG_INITIALIZER;
  config.size = offsetof(trConfig_t, channels);  // a caller with an older, shorter struct
  config.channels = 99;
  EXPECT_EQ(trCommInitRankConfig(&comm, 1, id, 0, &config), trSuccess) << trGetLastError(nullptr);
  trCommDestroy(comm);
}

// Two ranks that one thread drives: a call that blocked would wait for the other rank until the deadline.
}  // namespace
}  // namespace treering::testing
