// SPDX-License-Identifier: Apache-2.0
#include "communicator_rows.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/open_backend.h"
#include "treering/treering.h"

namespace treering::cuda {
namespace {

void check(trResult_t result, const char* call) {
  if (result != trSuccess) throw std::runtime_error(std::string(call) + ": " + trGetLastError(nullptr));
}
#define TR_BENCH(call) check(call, #call)

// The ranks of one communicator, with a stream and two buffers each.
class Ranks {
 public:
  Ranks(GpuMachine* machine, uint32_t count, size_t bytes, uint32_t blocks) : comms_(count), streams_(count) {
    trUniqueId id;
    TR_BENCH(trGetUniqueId(&id));
    trConfig_t config = TR_CONFIG_INITIALIZER;
    config.device = machine->device().info().ordinal;
    config.device_blocks = static_cast<int>(blocks);
    TR_BENCH(trGroupStart());
    for (uint32_t rank = 0; rank < count; ++rank)
      TR_BENCH(trCommInitRankConfig(&comms_[rank], static_cast<int>(count), id, static_cast<int>(rank), &config));
    TR_BENCH(trGroupEnd());
    for (uint32_t rank = 0; rank < count; ++rank) {
      TR_BENCH(trStreamFromCuda(&streams_[rank], config.device, machine->stream(rank)));
      inputs_.emplace_back(machine, bytes);
      outputs_.emplace_back(machine, bytes);
    }
  }
  ~Ranks() {
    for (trStream_t stream : streams_) (void)trStreamDestroy(stream);
    for (trComm_t comm : comms_) (void)trCommDestroy(comm);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void allreduce(size_t bytes) {
    TR_BENCH(trGroupStart());
    for (size_t rank = 0; rank < comms_.size(); ++rank)
      TR_BENCH(trAllReduce(inputs_[rank].data(), outputs_[rank].data(), bytes / sizeof(float), trFloat32, trSum,
                           comms_[rank], streams_[rank]));
    TR_BENCH(trGroupEnd());
  }
  void synchronize() {
    for (size_t rank = 0; rank < comms_.size(); ++rank) {
      TR_BENCH(trStreamSynchronize(streams_[rank]));
      trResult_t result = trSuccess;
      TR_BENCH(trCommGetAsyncError(comms_[rank], &result));
      if (result != trSuccess && result != trInProgress) throw std::runtime_error(trGetLastError(comms_[rank]));
    }
  }

 private:
  std::vector<trComm_t> comms_;
  std::vector<trStream_t> streams_;
  std::vector<Allocation> inputs_, outputs_;
};

}  // namespace

double time_communicator(GpuMachine* machine, uint32_t ranks, size_t bytes, uint32_t repeats, uint32_t blocks) {
  using Clock = std::chrono::steady_clock;
  // This program has the library in itself, and none beside it.
  setenv("TREERING_DEVICE_LIBRARY", cuda_library(), 0);
  Ranks all(machine, ranks, bytes, blocks);
  double each = 0;
  for (uint32_t times : {std::max(repeats / 4, 1u), repeats}) {  // first to warm up
    const auto start = Clock::now();
    for (uint32_t i = 0; i < times; ++i) all.allreduce(bytes);
    all.synchronize();
    each = std::chrono::duration<double>(Clock::now() - start).count() / times;
  }
  return each;
}

}  // namespace treering::cuda
