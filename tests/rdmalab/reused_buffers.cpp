// SPDX-License-Identifier: Apache-2.0
// A rank that sums from ordinary buffers until they are registered on all ranks, which locks them, and then gives their pages
// back and uses the same addresses anew, in each possible way. Exit status 0: all sums were right.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "treering/treering.h"

namespace {

constexpr size_t kCount = 64 << 10, kBytes = kCount * sizeof(float);
constexpr int kMaxCalls = 2000;  // until they are registered
constexpr int kMinCalls = 3;     // the first ones after a change end the registration of the earlier pages
constexpr int kCallsAfter = 3;
constexpr int kWays = 4;

float* mapped(void* at = nullptr) {
  void* memory =
      mmap(at, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<float*>(memory);
}

bool give_back(float* memory, int way) {
  switch (way) {
    case 0:
      return munmap(memory, 2 * kBytes) == 0 && mapped(memory) == memory;
    case 1:
      return mapped(memory) == memory;
    case 2:
      return madvise(memory, 2 * kBytes, MADV_DONTNEED) == 0;
    default: {
      // Each is a mapping of its own by now.
      float* const other = mapped();
      for (size_t first : {size_t{0}, kCount})
        if (mremap(memory + first, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, other + first) != other + first)
          return false;
      return mapped(memory) == memory && munmap(other, 2 * kBytes) == 0;
    }
  }
}

int fail(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, trGetLastError(nullptr));
  return 1;
}

// What devices have locked, in KiB.
int locked_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmPin:")) return std::atoi(line.c_str() + 6);
  return 0;
}

struct Rank {
  trComm_t comm = nullptr;
  int ranks = 0, value = 0;

  bool sum(float* memory) {
    ++value;
    for (size_t i = 0; i < kCount; ++i) memory[i] = static_cast<float>(value);
    if (trAllReduce(memory, memory + kCount, kCount, trFloat32, trSum, comm, nullptr) != trSuccess)
      return fail("trAllReduce") == 0;
    for (size_t i = 0; i < kCount; ++i) {
      if (memory[kCount + i] == static_cast<float>(ranks * value)) continue;
      std::fprintf(stderr, "sum %d: element %zu is %g, not %d\n", value, i, static_cast<double>(memory[kCount + i]),
                   ranks * value);
      return false;
    }
    return true;
  }
  // Whether it is so on all ranks.
  bool all(bool here) {
    int least = here ? 1 : 0;
    return trAllReduce(&least, &least, 1, trInt32, trMin, comm, nullptr) == trSuccess && least == 1;
  }
};

}  // namespace

int main() {
  Rank rank;
  if (trCommInitFromEnvironment(&rank.comm, nullptr) != trSuccess) return fail("trCommInitFromEnvironment");
  if (trCommCount(rank.comm, &rank.ranks) != trSuccess) return fail("trCommCount");
  float* const memory = mapped();
  if (!rank.sum(memory)) return 1;  // connects
  // New pages may be registered in the first call that uses them, so what was locked is read before any are.
  const int registered_kib = locked_kib() + static_cast<int>(2 * kBytes >> 10);
  for (int way = 0; way <= kWays; ++way) {
    for (int call = 0; call < kMinCalls || !rank.all(locked_kib() >= registered_kib); ++call) {
      if (call == kMaxCalls) {
        std::fprintf(stderr, "change %d: not registered\n", way);
        return 1;
      }
      if (!rank.sum(memory)) return 1;
    }
    for (int call = 0; call < kCallsAfter; ++call)
      if (!rank.sum(memory)) return 1;
    if (way < kWays && !give_back(memory, way)) {
      std::perror("give_back");
      return 1;
    }
    if (!rank.sum(memory)) return 1;
  }
  return trCommDestroy(rank.comm) == trSuccess ? 0 : fail("trCommDestroy");
}
