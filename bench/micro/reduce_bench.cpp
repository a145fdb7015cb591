// SPDX-License-Identifier: Apache-2.0
// Reduction kernels against a copy of the same bytes.
//
// Every figure counts the bytes that cross the memory bus at least: each source read once, each destination
// written once (bytes_per_second), so it compares directly with the memcpy rows, which read one buffer and
// write one. The working set (all sources and destinations together) is 1 MiB (second-level cache), 12 MiB
// (last level) or 512 MiB (memory; stores are non-temporal there).
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/types.h"
#include "executor/reduce/reduce.h"

namespace treering {
namespace {

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, FreeDeleter>;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kStreamingFrom = 64 * kMiB;

Memory allocate(size_t bytes) {
  const size_t page = 4096;
  Memory memory(std::aligned_alloc(page, (bytes + page - 1) / page * page));
  std::memset(memory.get(), 0, bytes);
  return memory;
}

struct Arrays {
  Arrays(size_t count, size_t bytes) {
    for (size_t i = 0; i < count; ++i) {
      memory.push_back(allocate(bytes));
      pointers.push_back(memory.back().get());
    }
  }
  std::vector<Memory> memory;
  std::vector<void*> pointers;
};

// Arguments: type, op, sources, destinations, bytes of the working set.
void reduction(benchmark::State& state) {
  const DataTypeInfo* type = find_type(static_cast<trDataType_t>(state.range(0)));
  const OpInfo* op = find_op(static_cast<trRedOp_t>(state.range(1)));
  const auto source_count = static_cast<size_t>(state.range(2)),
             destination_count = static_cast<size_t>(state.range(3));
  const auto working_set = static_cast<size_t>(state.range(4));
  const size_t count = working_set / (source_count + destination_count) / type->size;
  const Arrays sources(source_count, count * type->size), destinations(destination_count, count * type->size);
  ReduceCall call;
  call.type = type->type;
  call.op = op->op;
  call.divisor = op->op == trAvg ? static_cast<uint32_t>(source_count) : 1;
  call.sources = sources.pointers.data();
  call.source_count = source_count;
  call.destinations = destinations.pointers.data();
  call.destination_count = destination_count;
  call.streaming = working_set >= kStreamingFrom ? ~uint64_t{0} : 0;
  call.count = count;
  for (auto _ : state) {
    reduce(call);
    streaming_fence();
    benchmark::ClobberMemory();
  }
  const size_t bytes = (source_count + destination_count) * count * type->size;
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(bytes));
  state.SetLabel(std::string(type->name) + " " + op->name + " " + std::to_string(source_count) + " to " +
                 std::to_string(destination_count) + " " + reduce_target());
}

void reductions(benchmark::internal::Benchmark* b) {
  for (int64_t working_set : {kMiB, 12 * kMiB, 512 * kMiB}) {
    for (int64_t sources = 1; sources <= 8; ++sources) b->Args({trFloat32, trSum, sources, 1, working_set});
    for (int64_t both : {2, 4, 8}) b->Args({trFloat32, trSum, both, both, working_set});
  }
  for (const DataTypeInfo& type : kDataTypes)
    for (const OpInfo& op : kOps) b->Args({type.type, op.op, 4, 1, kMiB});
}
BENCHMARK(reduction)->Apply(reductions);

void memcpy_of(benchmark::State& state) {
  const auto half = static_cast<size_t>(state.range(0)) / 2;
  const Memory from = allocate(half), to = allocate(half);
  for (auto _ : state) {
    std::memcpy(to.get(), from.get(), half);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(2 * half));
}
BENCHMARK(memcpy_of)->Arg(kMiB)->Arg(12 * kMiB)->Arg(512 * kMiB);

void copy_streaming(benchmark::State& state) {
  const auto half = static_cast<size_t>(state.range(0)) / 2;
  const Memory from = allocate(half), to = allocate(half);
  for (auto _ : state) {
    copy(to.get(), from.get(), half, true);
    streaming_fence();
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(2 * half));
}
BENCHMARK(copy_streaming)->Arg(kMiB)->Arg(12 * kMiB)->Arg(512 * kMiB);

// The latency of a tiny call: arguments are elements of float32 and sources.
void tiny(benchmark::State& state) {
  const auto count = static_cast<size_t>(state.range(0)), source_count = static_cast<size_t>(state.range(1));
  const Arrays sources(source_count, 4096), destinations(1, 4096);
  ReduceCall call;
  call.sources = sources.pointers.data();
  call.source_count = source_count;
  call.destinations = destinations.pointers.data();
  call.destination_count = 1;
  call.count = count;
  for (auto _ : state) {
    reduce(call);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(tiny)->Args({2, 1})->Args({2, 2})->Args({2, 4})->Args({15, 4})->Args({64, 4})->Args({1024, 4});

}  // namespace
}  // namespace treering

BENCHMARK_MAIN();
