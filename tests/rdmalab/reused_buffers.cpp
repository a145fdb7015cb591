// SPDX-License-Identifier: Apache-2.0
// A rank that sums from ordinary buffers again and again, and then gives their pages back in each possible way and uses the
// same addresses anew. Exit status 0: all sums were right.
#include <sys/mman.h>

#include <cstdio>
#include <cstring>

#include "treering/treering.h"

namespace {

constexpr size_t kCount = 64 << 10, kBytes = kCount * sizeof(float);
constexpr int kCalls = 40;  // for each set of pages: some copied, most of them in place

float* mapped(void* at = nullptr) {
  void* memory = mmap(at, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
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
      float* const other = mapped();
      return mremap(memory, 2 * kBytes, 2 * kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other &&
             mapped(memory) == memory && munmap(other, 2 * kBytes) == 0;
    }
  }
}

int fail(const char* what) { return std::fprintf(stderr, "%s: %s\n", what, trGetLastError(nullptr)), 1; }

}  // namespace

int main() {
  trComm_t comm = nullptr;
  int ranks = 0, value = 0;
  if (trCommInitFromEnvironment(&comm, nullptr) != trSuccess) return fail("trCommInitFromEnvironment");
  if (trCommCount(comm, &ranks) != trSuccess) return fail("trCommCount");
  float* const memory = mapped();
  for (int way = 0; way < 5; ++way) {
    for (int call = 0; call < kCalls; ++call) {
      for (size_t i = 0; i < kCount; ++i) memory[i] = static_cast<float>(value + 1);
      ++value;
      if (trAllReduce(memory, memory + kCount, kCount, trFloat32, trSum, comm, nullptr) != trSuccess)
        return fail("trAllReduce");
      for (size_t i = 0; i < kCount; ++i)
        if (memory[kCount + i] != static_cast<float>(ranks * value)) {
          std::fprintf(stderr, "call %d after change %d: element %zu is %g, not %d\n", call, way, i,
                       static_cast<double>(memory[kCount + i]), ranks * value);
          return 1;
        }
    }
    if (way < 4 && !give_back(memory, way)) return std::perror("give_back"), 1;
  }
  return trCommDestroy(comm) == trSuccess ? 0 : fail("trCommDestroy");
}
