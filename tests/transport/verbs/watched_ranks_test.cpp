// SPDX-License-Identifier: Apache-2.0
// Ordinary buffers that ranks over verbs use again and again, through the C API: they are sent from where they lie, until
// their pages change.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "support/seccomp.h"
#include "transport/module_ranks.h"
#include "transport/verbs/stand_in.h"
#include "treering/treering.h"

namespace treering::testing {
namespace {

constexpr int kRanks = 2;
constexpr size_t kCount = 1 << 19, kBytes = kCount * sizeof(float);
constexpr int kMaxCalls = 500;  // until a buffer is registered

bool is_denied() {
  const auto descriptor = syscall(SYS_userfaultfd, 1 /* UFFD_USER_MODE_ONLY */);
  if (descriptor >= 0) close(static_cast<int>(descriptor));
  return descriptor < 0;
}

class VerbsWatchedBuffers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (is_denied()) GTEST_SKIP() << "userfaultfd: " << std::strerror(errno);
    setenv("TREERING_TRANSPORTS", "verbs", 1);
    setenv("TREERING_ALGO", "two-shot", 1);
    setenv("TREERING_VERBS_DEVICES", "=fake0", 1);
  }
  void TearDown() override {
    for (const char* name :
         {"TREERING_TRANSPORTS", "TREERING_ALGO", "TREERING_VERBS_DEVICES", "TREERING_WATCH_BUFFERS", "TREERING_WIRE"})
      unsetenv(name);
  }
};

// Both ranks call this. What rank 0's device has read from its buffers meanwhile.
class Calls {
 public:
  // Input and output are one behind the other.
  uint64_t reduce(trComm_t comm, int rank, float* memory, size_t count = kCount) {
    std::fill(memory, memory + count, static_cast<float>(++number_[rank]));
    wait();
    if (rank == 0) {
      watch(memory, 2 * count * sizeof(float));
      before_ = counters();
    }
    wait();
    EXPECT_EQ(trAllReduce(memory, memory + count, count, trFloat32, trSum, comm, nullptr), trSuccess)
        << trGetLastError(nullptr);
    const auto expected = static_cast<float>(kRanks * number_[rank]);
    const auto wrong = std::find_if(memory + count, memory + 2 * count, [&](float sum) { return sum != expected; });
    EXPECT_EQ(wrong - memory, static_cast<std::ptrdiff_t>(2 * count)) << "is " << *wrong << " for " << expected;
    wait();
    if (rank == 0) {
      read_ = counters().bytes_from_watched - before_.bytes_from_watched;
      written_ = counters().bytes_watched - before_.bytes_watched;
      registered_ = counters().regions_registered;
      watch(nullptr, 0);
    }
    wait();
    return read_;
  }
  // Until everything that rank 0 sends leaves from its buffers: half of its input, and its half of the result.
  void reduce_until_registered(trComm_t comm, int rank, float* memory) {
    for (int call = 0; call < kMaxCalls; ++call)
      if (reduce(comm, rank, memory) == kBytes) return;
    FAIL() << "not registered after " << kMaxCalls << " calls";
  }
  // ... and what was written into them.
  uint64_t written() const { return written_; }
  // Registrations so far, at the end of the last call.
  uint64_t registered() const { return registered_; }
  void wait() { barrier_.arrive_and_wait(); }

 private:
  std::barrier<> barrier_{kRanks};
  int number_[kRanks] = {};
  fake_verbs_counters before_{};
  std::atomic<uint64_t> read_ = 0, written_ = 0, registered_ = 0;
};

float* mapped(void* at = nullptr) {
  void* memory =
      mmap(at, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<float*>(memory);
}

// Floats that end where nothing may be read.
class Guarded {
 public:
  explicit Guarded(size_t count) : bytes_(count * sizeof(float)), pages_((bytes_ + kPage - 1) / kPage * kPage) {
    begin_ = static_cast<std::byte*>(
        mmap(nullptr, pages_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(static_cast<void*>(begin_), MAP_FAILED);
    EXPECT_EQ(mprotect(begin_ + pages_, kPage, PROT_NONE), 0);
  }
  ~Guarded() { munmap(begin_, pages_ + kPage); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  float* data() const { return reinterpret_cast<float*>(begin_ + (pages_ - bytes_)); }

 private:
  static constexpr size_t kPage = 4096;
  const size_t bytes_, pages_;
  std::byte* begin_;
};

TEST_F(VerbsWatchedBuffers, AreSentFromWhereTheyLie) {
  Calls calls;
  run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
    std::vector<float> memory(2 * kCount);
    EXPECT_EQ(calls.reduce(comm, rank, memory.data()), 0u) << "at its first use it is copied";
    calls.reduce_until_registered(comm, rank, memory.data());
    // The other rank's may be registered later.
    int alike = 0;
    for (int call = 0; call < kMaxCalls && alike < 5; ++call) {
      const uint64_t before = calls.registered();
      EXPECT_EQ(calls.reduce(comm, rank, memory.data()), kBytes) << "a core has copied some of it";
      EXPECT_EQ(calls.written(), kBytes / 2) << "the other rank's half of the result";
      alike = calls.registered() == before ? alike + 1 : 0;
    }
    EXPECT_EQ(alike, 5) << "buffers that are known are registered again and again";
  });
}

// Memory that has come to the address of a registered buffer is copied at its first use, and its sums are right.
TEST_F(VerbsWatchedBuffers, AreNotTakenForWhatComesToTheirAddress) {
  std::mutex changing;  // else the other rank is given memory at the address before it is mapped again
  const std::vector<std::function<void(float*)>> changes = {
      [](float* memory) { munmap(memory, 2 * kBytes), mapped(memory); },
      [](float* memory) { mapped(memory); },
      [](float* memory) { ASSERT_EQ(madvise(memory, 2 * kBytes, MADV_DONTNEED), 0); },
      [](float* memory) {
        float* const other = mapped();
        // Where one of the two buffers alone is watched, each is a mapping of its own.
        for (const size_t first : {size_t{0}, kCount})
          ASSERT_EQ(mremap(memory + first, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, other + first),
                    other + first);
        mapped(memory);
        munmap(other, 2 * kBytes);
      },
      [](float* memory) { munmap(memory + kCount / 2, 4096), mapped(memory); },
  };
  Calls calls;
  run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
    float* const memory = mapped();
    for (const auto& change : changes) {
      calls.reduce_until_registered(comm, rank, memory);
      {
        std::lock_guard lock(changing);
        change(memory);
      }
      EXPECT_EQ(calls.reduce(comm, rank, memory), 0u) << "the registration of what was there before was used";
    }
    calls.reduce_until_registered(comm, rank, memory);
    munmap(memory, 2 * kBytes);
    calls.wait();
  });
}

// malloc() gives back freed memory, by the kernel or by itself, at any time.
TEST_F(VerbsWatchedBuffers, MayBeFreedAndAllocatedAtAnyTime) {
  Calls calls;
  run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
    for (int round = 0; round < 40; ++round) {
      const size_t count = kCount - static_cast<size_t>(round % 3) * 1000;
      const std::unique_ptr<float[]> memory(new float[2 * count]);
      for (int call = 0; call < 3; ++call) calls.reduce(comm, rank, memory.get(), count);
    }
  });
}

// What is freed is registered no longer once the next call has begun.
TEST_F(VerbsWatchedBuffers, EndWithTheNextCall) {
  Calls calls;
  run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
    float* const memory = mapped();
    std::vector<float> small(2 << 13);
    calls.reduce(comm, rank, small.data(), small.size() / 2);
    const uint64_t before = registered_bytes();
    calls.wait();
    calls.reduce_until_registered(comm, rank, memory);
    EXPECT_GE(registered_bytes(), before + 2 * kBytes);
    calls.wait();
    munmap(memory, 2 * kBytes);
    // One that has begun after the change was marked.
    bool has_ended = false;
    for (int call = 0; call < kMaxCalls && !has_ended; ++call) {
      calls.reduce(comm, rank, small.data(), small.size() / 2);
      has_ended = registered_bytes() == before;
      calls.wait();
    }
    EXPECT_TRUE(has_ended);
    calls.wait();
  });
}

// ... also where it is one that takes the way of a few bytes.
TEST_F(VerbsWatchedBuffers, EndWithTheNextCallOfAFewBytes) {
  Calls calls;
  run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
    float* const memory = mapped();
    std::vector<float> small(2 << 13);
    calls.reduce(comm, rank, small.data(), small.size() / 2);
    const uint64_t before = registered_bytes();
    calls.wait();
    calls.reduce_until_registered(comm, rank, memory);
    calls.wait();
    munmap(memory, 2 * kBytes);
    bool has_ended = false;
    for (int call = 0; call < kMaxCalls && !has_ended; ++call) {
      int from = 0;
      // Each by itself: what is in a group goes another way.
      for (const bool sends : {rank == 0, rank != 0}) {
        EXPECT_SUCCESS(sends ? trSend(&rank, 1, trInt32, 1 - rank, comm, nullptr)
                             : trRecv(&from, 1, trInt32, 1 - rank, comm, nullptr));
      }
      EXPECT_EQ(from, 1 - rank);
      calls.wait();
      has_ended = registered_bytes() == before;
      calls.wait();
    }
    EXPECT_TRUE(has_ended);
    calls.wait();
  });
}

// Buffers of unequal blocks are as large as the blocks: what lies behind them is neither locked nor open to peers.
TEST_F(VerbsWatchedBuffers, EndWhereUnequalBlocksEnd) {
  unsetenv("TREERING_ALGO");
  constexpr size_t kCounts[kRanks] = {kCount, 30'000}, kAll = kCounts[0] + kCounts[1];
  Calls calls;
  run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
    const size_t own = kCounts[rank];
    const Guarded mine(own), all(kAll), operands(kAll), sums(own);
    std::fill_n(mine.data(), own, static_cast<float>(rank + 1));
    std::fill_n(operands.data(), kAll, static_cast<float>(rank + 1));
    uint64_t before = 0, registered = 0;
    for (int call = 0; call < kMaxCalls; ++call) {
      EXPECT_SUCCESS(trAllGatherV(mine.data(), own, all.data(), kCounts, nullptr, trFloat32, comm, nullptr));
      EXPECT_SUCCESS(trReduceScatterV(operands.data(), sums.data(), kCounts, trFloat32, trSum, comm, nullptr));
      EXPECT_EQ(std::count(all.data(), all.data() + kCounts[0], 1.0F), static_cast<std::ptrdiff_t>(kCounts[0]));
      EXPECT_EQ(std::count(all.data() + kCounts[0], all.data() + kAll, 2.0F), static_cast<std::ptrdiff_t>(kCounts[1]));
      EXPECT_EQ(std::count(sums.data(), sums.data() + own, 3.0F), static_cast<std::ptrdiff_t>(own));
      calls.wait();
      if (call == 0) before = registered_bytes();  // all that the connection needs; buffers are copied at first
      registered = registered_bytes() - before;
      calls.wait();
      if (registered >= 6 * kAll * sizeof(float)) break;
    }
    EXPECT_EQ(registered, 6 * kAll * sizeof(float)) << "each rank: twice all blocks, and twice its own";
    calls.wait();
  });
}

// Where no more may be locked, what was not used for the longest time gives way.
// The limit is the process's. Rank 1 has memory of the library, or it might take what rank 0 has given up.
TEST_F(VerbsWatchedBuffers, GiveWayToOthersWhereMemoryIsShort) {
  Calls calls;
  run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
    void* allocated = nullptr;
    EXPECT_EQ(trMemAlloc(&allocated, 2 * kBytes), trSuccess);
    float* const own = static_cast<float*>(allocated);
    float* const first = rank == 0 ? mapped() : own;
    float* const second = rank == 0 ? mapped() : own;
    calls.reduce_until_registered(comm, rank, first);
    const uint64_t limit = registered_bytes() + kBytes;
    calls.wait();
    if (rank == 0) call_stand_in<decltype(fake_verbs_set_memlock)>("fake_verbs_set_memlock", limit);
    calls.wait();
    for (float* const memory : {second, first, second}) {
      calls.reduce_until_registered(comm, rank, memory);
      EXPECT_LE(registered_bytes(), limit);
      calls.wait();
    }
    if (rank == 0) {
      call_stand_in<decltype(fake_verbs_set_memlock)>("fake_verbs_set_memlock", UINT64_MAX);
      munmap(first, 2 * kBytes);
      munmap(second, 2 * kBytes);
    }
    calls.wait();
    EXPECT_EQ(trMemFree(allocated), trSuccess);
  });
}

TEST_F(VerbsWatchedBuffers, AreCopiedWhereTheOptionSaysSo) {
  setenv("TREERING_WATCH_BUFFERS", "0", 1);
  Calls calls;
  run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
    std::vector<float> memory(2 * kCount);
    for (int call = 0; call < 10; ++call) EXPECT_EQ(calls.reduce(comm, rank, memory.data()), 0u);
  });
}

// What travels compressed is never sent from where it lies.
TEST_F(VerbsWatchedBuffers, OfCompressedCallsAreNotRegistered) {
  setenv("TREERING_WIRE", "fp16", 1);
  Calls calls;
  run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
    std::vector<float> memory(2 * kCount);
    calls.reduce(comm, rank, memory.data());
    const uint64_t before = calls.registered();
    for (int call = 0; call < 10; ++call) EXPECT_EQ(calls.reduce(comm, rank, memory.data()), 0u);
    EXPECT_EQ(calls.registered(), before);
  });
}

// Once a buffer is of trCommRegister it is registered as that, and then as before.
TEST_F(VerbsWatchedBuffers, BecomeRegionsAndOrdinaryMemoryAgain) {
  Calls calls;
  run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
    float* const memory = mapped();
    void* handle = nullptr;
    calls.reduce_until_registered(comm, rank, memory);
    EXPECT_SUCCESS(trCommRegister(comm, memory, 2 * kBytes, &handle));
    EXPECT_EQ(calls.reduce(comm, rank, memory), kBytes);
    EXPECT_SUCCESS(trCommDeregister(comm, handle));
    for (int call = 0; call < 5; ++call) calls.reduce(comm, rank, memory);
    munmap(memory, 2 * kBytes);
    calls.wait();
  });
}

constexpr const char* kDenies = "TREERING_TEST_DENIES_USERFAULTFD";

// In a program of its own: a filter of system calls cannot be removed.
TEST_F(VerbsWatchedBuffers, AreCopiedWhereTheKernelDeniesIt) {
  Calls calls;
  if (getenv(kDenies) != nullptr) {
    ASSERT_TRUE(deny_system_calls({SYS_userfaultfd}));
    run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
      std::vector<float> memory(2 * kCount);
      for (int call = 0; call < 10; ++call) EXPECT_EQ(calls.reduce(comm, rank, memory.data()), 0u);
    });
    return;
  }
  setenv(kDenies, "1", 1);
  const std::string command =
      "/proc/" + std::to_string(getpid()) + "/exe --gtest_filter=*.AreCopiedWhereTheKernelDeniesIt 2>&1";
  FILE* const program = popen(command.c_str(), "r");
  unsetenv(kDenies);
  ASSERT_NE(program, nullptr);
  std::string output;
  for (int c = 0; (c = fgetc(program)) != EOF;) output += static_cast<char>(c);
  EXPECT_EQ(pclose(program), 0) << output;
  const std::string text = "are copied: their pages cannot be watched: userfaultfd: Operation not permitted";
  const size_t said = output.find(text);
  EXPECT_NE(said, std::string::npos) << output;
  EXPECT_EQ(output.find(text, said + 1), std::string::npos) << "said twice";
}

}  // namespace
}  // namespace treering::testing
