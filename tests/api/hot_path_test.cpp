// SPDX-License-Identifier: Apache-2.0
// A warm blocking call of up to 4 KiB (allreduce; 32 bytes of the others) allocates nothing, takes no lock and, an
// allreduce, makes no system call. Allocations and locks are counted by standing in for malloc and pthread_mutex_lock;
// system calls by a seccomp filter that traps them.
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdio>
#include <fstream>
#include <mutex>
#include <new>

#include "support/processes.h"
#include "support/seccomp.h"

namespace {

struct Counts {
  bool on = false;
  unsigned long allocations = 0, locks = 0;
};
// The calling thread's counts. Plain data, so that touching it never allocates. (initial-exec: part of the
// executable)
thread_local Counts counts;

// System calls that the filter has trapped in this process since the last reset.
volatile sig_atomic_t waits = 0, other_calls = 0, last_other = -1;

}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

#define STAND_IN __attribute__((visibility("default"), used))
STAND_IN void* malloc(size_t bytes) noexcept { return counts.allocations += counts.on, __libc_malloc(bytes); }
STAND_IN void* calloc(size_t n, size_t bytes) noexcept {
  return counts.allocations += counts.on, __libc_calloc(n, bytes);
}
STAND_IN void* realloc(void* old, size_t bytes) noexcept {
  return counts.allocations += counts.on, __libc_realloc(old, bytes);
}
STAND_IN void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  return counts.allocations += counts.on, __libc_memalign(alignment, bytes);
}
STAND_IN int posix_memalign(void** memory, size_t alignment, size_t bytes) noexcept {
  counts.allocations += counts.on;
  *memory = __libc_memalign(alignment, bytes);
  return *memory != nullptr ? 0 : ENOMEM;
}
STAND_IN void free(void* memory) noexcept {
  counts.allocations += counts.on && memory != nullptr;
  __libc_free(memory);
}

STAND_IN int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  using Lock = int (*)(pthread_mutex_t*);
  static Lock real = nullptr;  // no guard variable: that would lock
  if (real == nullptr) real = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  counts.locks += counts.on;
  return real(mutex);
}
STAND_IN int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  using Lock = int (*)(pthread_mutex_t*);
  static Lock real = nullptr;
  if (real == nullptr) real = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_mutex_trylock"));
  counts.locks += counts.on;
  return real(mutex);
}
}

namespace treering::testing {
namespace {

constexpr size_t kCounts[] = {0, 1, 2, 14, 15, 56, 57, 256, 1000, 1024};  // floats: up to 4 KiB
constexpr int kRounds = 200;
constexpr int kCallsPerRound = 50;

// CPUs that this process may use, and that its cgroup pays for.
int usable_cpus(std::vector<int>* cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus->push_back(cpu);
  auto count = static_cast<double>(cpus->size());
  std::ifstream limit("/sys/fs/cgroup/cpu.max");
  if (double quota = 0, period = 0; limit >> quota >> period) count = std::min(count, quota / period);
  return static_cast<int>(count);
}

class HotPath : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { usable_ = usable_cpus(&cpus_); }
  // A communicator of pinned ranks that has run every size.
  int warm_up(int rank, const trUniqueId& id, trComm_t* comm) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus_[static_cast<size_t>(rank) % cpus_.size()], &set);
    sched_setaffinity(0, sizeof set, &set);
    TR_CHECK(trCommInitRank(comm, GetParam(), id, rank));
    for (int time = 0; time < 3; ++time)
      for (size_t count : kCounts) TR_CHECK(trAllReduce(input_, output_, count, trFloat32, trSum, *comm, nullptr));
    return 0;
  }
  std::vector<int> cpus_;
  int usable_ = 0;
  float input_[1024] = {}, output_[1024] = {};
};

TEST_P(HotPath, AllocatesNothingAndLocksNothing) {
  expect_all_succeed(GetParam(), [this](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    if (int code = warm_up(rank, id, &comm); code != 0) return code;
    trResult_t result = trSuccess;
    counts.on = true;
    for (int call = 0; call < 1000 && result == trSuccess; ++call)
      result = trAllReduce(input_, output_, kCounts[call % 10], trFloat32, trSum, comm, nullptr);
    counts.on = false;
    TR_CHECK(result);
    unsigned long allocations = counts.allocations, locks = counts.locks;
    if (allocations + locks != 0)
      return say(std::to_string(allocations) + " allocations or frees, " + std::to_string(locks) + " locks"), 1;
    // The counters do count.
    counts.on = true;
    std::mutex mutex;
    mutex.lock();
    mutex.unlock();
    delete new (std::nothrow) volatile int(rank);
    void* volatile memory = std::malloc(10);
    std::free(memory);
    counts.on = false;
    if (counts.allocations < 2 || counts.locks != 1) return say("the counters do not count"), 2;
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
}

// What a warm call allocates and locks on this thread.
template <typename Call>
int count_one(const char* name, Call call) {
  trResult_t result = trSuccess;
  for (int time = 0; time < 20 && result == trSuccess; ++time) result = call();
  TR_CHECK(result);
  counts.allocations = counts.locks = 0;
  counts.on = true;
  for (int time = 0; time < 200 && result == trSuccess; ++time) result = call();
  counts.on = false;
  TR_CHECK(result);
  if (counts.allocations + counts.locks == 0) return 0;
  say(std::string(name) + ": " + std::to_string(counts.allocations) + " allocations or frees, " +
      std::to_string(counts.locks) + " locks in 200 calls");
  return 1;
}

TEST_P(HotPath, SmallCallsOfEveryCollectiveAllocateNothing) {
  expect_all_succeed(GetParam(), [this](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    if (int code = warm_up(rank, id, &comm); code != 0) return code;
    const trDataType_t f = trFloat32;
    const int n = GetParam();
    const std::vector<size_t> eight(static_cast<size_t>(n), 8);
    const size_t* v = eight.data();
    int wrong = 0;
    wrong += count_one("reduce", [&] { return trReduce(input_, output_, 8, f, trSum, 1, comm, nullptr); });
    wrong += count_one("broadcast", [&] { return trBroadcast(input_, output_, 8, f, 1, comm, nullptr); });
    wrong += count_one("allgather", [&] { return trAllGather(input_, output_, 8, f, comm, nullptr); });
    wrong += count_one("reduce-scatter", [&] { return trReduceScatter(input_, output_, 8, f, trSum, comm, nullptr); });
    wrong += count_one("alltoall", [&] { return trAllToAll(input_, output_, 100, f, comm, nullptr); });
    wrong += count_one("gather", [&] { return trGather(input_, output_, 8, f, 0, comm, nullptr); });
    wrong += count_one("scatter", [&] { return trScatter(input_, output_, 8, f, 0, comm, nullptr); });
    wrong += count_one("barrier", [&] { return trBarrier(comm, nullptr); });
    wrong +=
        count_one("alltoallv", [&] { return trAllToAllV(input_, v, nullptr, output_, v, nullptr, f, comm, nullptr); });
    wrong += count_one("gatherv", [&] { return trGatherV(input_, 8, output_, v, nullptr, f, 0, comm, nullptr); });
    wrong += count_one("scatterv", [&] { return trScatterV(input_, v, nullptr, output_, 8, f, 0, comm, nullptr); });
    const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    wrong += count_one("sendrecv", [&] { return trSendRecv(input_, 8, next, output_, 8, previous, f, comm, nullptr); });
    TR_CHECK(trCommDestroy(comm));
    return wrong;
  });
}

// A group of many calls, planned once: fused allreduces, a broadcast, transfers.
TEST_P(HotPath, StartingAPersistentOperationAllocatesNothing) {
  expect_all_succeed(GetParam(), [this](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    if (int code = warm_up(rank, id, &comm); code != 0) return code;
    std::vector<float> large(100'000, 1.0f);
    trStream_t stream = nullptr;
    TR_CHECK(trStreamCreate(&stream));
    for (trStream_t on : {static_cast<trStream_t>(nullptr), stream}) {
      trPersistent_t planned = nullptr;
      TR_CHECK(trPersistentBegin());
      for (size_t i = 0; i < 8; ++i)
        TR_CHECK(trAllReduce(input_ + 8 * i, output_ + 8 * i, 8, trFloat32, trSum, comm, on));
      TR_CHECK(trBroadcast(large.data(), large.data(), large.size(), trFloat32, 0, comm, on));
      TR_CHECK(trSendRecv(input_, 8, rank, output_ + 512, 8, rank, trFloat32, comm, on));
      TR_CHECK(trPersistentEnd(&planned));
      for (int time = 0; time < 3; ++time) {
        TR_CHECK(trPersistentStart(planned));
        if (on != nullptr) TR_CHECK(trStreamSynchronize(on));
      }
      counts.allocations = 0;
      trResult_t result = trSuccess;
      for (int time = 0; time < 100 && result == trSuccess; ++time) {
        counts.on = true;
        result = trPersistentStart(planned);
        counts.on = false;
        if (on != nullptr && result == trSuccess) result = trStreamSynchronize(on);
      }
      TR_CHECK(result);
      if (counts.allocations != 0)
        return say(std::to_string(counts.allocations) +
                   (on == nullptr ? " allocations, blocking" : " allocations, on a stream")),
               1;
      TR_CHECK(trPersistentDestroy(planned));
    }
    TR_CHECK(trStreamDestroy(stream));
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
}

// The trapped call fails with ENOSYS, as a kernel without it would have it.
void fail_with_enosys(void* context) {
  auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  machine.gregs[REG_RAX] = -ENOSYS;
#elif defined(__aarch64__)
  machine.regs[0] = static_cast<unsigned long long>(-ENOSYS);
#endif
}

void on_trap(int, siginfo_t* info, void* context) {
  fail_with_enosys(context);
  if (info->si_syscall == SYS_sched_yield || info->si_syscall == SYS_clock_nanosleep) {
    waits = waits + 1;
  } else {
    other_calls = other_calls + 1;
    last_other = info->si_syscall;
  }
}

// Another process may take the core away from one rank; then the others wait for long and legitimately yield, or sleep
// where yields took long before. Such a round does not count; most rounds have none.
TEST_P(HotPath, MakesNoSystemCall) {
  if (usable_ < GetParam())
    GTEST_SKIP() << GetParam() << " ranks need a core each to wait by spinning alone; " << usable_ << " are usable";
  expect_all_succeed(GetParam(), [this](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    if (int code = warm_up(rank, id, &comm); code != 0) return code;
    struct sigaction action {};
    action.sa_sigaction = on_trap;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSYS, &action, nullptr);
    if (!filter_system_calls({SYS_write, SYS_exit_group, SYS_rt_sigreturn}, SECCOMP_RET_ALLOW, SECCOMP_RET_TRAP, false))
      return say("the kernel allows no seccomp filter"), 3;
    int clean = 0;
    for (int round = 0; round < kRounds; ++round) {
      waits = 0;
      other_calls = 0;
      for (int call = 0; call < kCallsPerRound; ++call)
        if (trAllReduce(input_, output_, kCounts[call % 10], trFloat32, trSum, comm, nullptr) != trSuccess) return 4;
      if (other_calls != 0 && waits == 0)
        return say("system call " + std::to_string(last_other) + " without having waited"), 5;
      clean += waits == 0;
    }
    if (clean < kRounds / 10) return say("only " + std::to_string(clean) + " rounds without a system call"), 6;
    // The filter does trap.
    other_calls = 0;
    (void)getppid();
    return other_calls == 1 ? 0 : 7;
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, HotPath, ::testing::Values(2, 4));

}  // namespace
}  // namespace treering::testing
