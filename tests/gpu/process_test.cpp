// SPDX-License-Identifier: Apache-2.0
// Two processes on one GPU: the FIFOs are memory of the one, which the other opens; each runs the kernel of its rank.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "gpu/gpu_test.h"

namespace treering::cuda {
namespace {

// What Gpus allocates first: slots, LL and LL128 buffers, flags, counters.
constexpr size_t kSharedAllocations = 5;

// One of two processes that make the same Gpus: its first allocations are those of the exporting process in both, and
// it launches its own rank alone.
class OneOfTwo final : public Machine {
 public:
  OneOfTwo(GpuMachine* machine, uint32_t rank, std::vector<DeviceHandle> handles)
      : machine_(*machine), rank_(rank), imports_(std::move(handles)) {}

  std::vector<DeviceHandle> exported;

  void* allocate(size_t bytes) override {
    void* made = nullptr;
    if (allocated_ < imports_.size()) {
      require(machine_.device().import_memory(imports_[allocated_++], &made));
      imported_.push_back(made);
      return made;
    }
    made = machine_.allocate(bytes);
    if (imports_.empty() && allocated_ < kSharedAllocations)
      require(machine_.device().export_memory(made, &exported.emplace_back()));
    ++allocated_;
    return made;
  }
  void free(void* address) override {
    if (std::find(imported_.begin(), imported_.end(), address) == imported_.end()) return machine_.free(address);
    EXPECT_TRUE(machine_.device().close_memory(address).ok());
  }
  void* allocate_shared(size_t bytes) override { return machine_.allocate_shared(bytes); }
  void free_shared(void* address) override { machine_.free_shared(address); }
  void copy(void* to, const void* from, size_t bytes) override { machine_.copy(to, from, bytes); }
  bool uses_host_memory() const override { return false; }
  uint32_t threads(uint32_t wanted) const override { return wanted; }
  std::string launch(const std::vector<DeviceCall>& calls, trDataType_t type, DeviceProtocol protocol, uint32_t threads,
                     uint32_t delays, const std::function<void()>& meanwhile) override {
    return machine_.launch({calls[rank_]}, type, protocol, threads, delays, meanwhile);
  }

 private:
  GpuMachine& machine_;
  const uint32_t rank_;
  const std::vector<DeviceHandle> imports_;
  std::vector<void*> imported_;
  size_t allocated_ = 0;
};

constexpr GpuSettings kSettings{.ranks = 2, .channels = 2, .depth = 4, .threads = 128, .slot_bytes = 4096};

// Allreduces by every protocol; empty when the rank's results are right.
std::string run_rank(Gpus* gpus, uint32_t rank) {
  const Algorithm* algorithm = nullptr;
  if (!find_algorithm(Collective::kAllReduce, "two-shot", &algorithm).ok()) return "no such algorithm";
  for (DeviceProtocol protocol : kAllProtocols)
    for (size_t count : {size_t{1}, size_t{1000}, size_t{30001}}) {
      std::vector<std::vector<int32_t>> inputs(2, std::vector<int32_t>(count)), outputs = inputs;
      GpuJob job{.algorithm = algorithm, .protocol = protocol, .count = count};
      job.input_bytes = job.output_bytes = count * 4;
      for (uint32_t r : {0u, 1u}) {
        for (size_t i = 0; i < count; ++i) inputs[r][i] = static_cast<int32_t>(i * (r + 1) + r);
        job.inputs.push_back(reinterpret_cast<const std::byte*>(inputs[r].data()));
        job.outputs.push_back(reinterpret_cast<std::byte*>(outputs[r].data()));
      }
      if (std::string failure = gpus->run(job); !failure.empty()) return failure;
      for (size_t i = 0; i < count; ++i)
        if (outputs[rank][i] != inputs[0][i] + inputs[1][i])
          return std::string(name_of(protocol)) + ": element " + std::to_string(i) + " of " + std::to_string(count);
    }
  return {};
}

bool read_all(int file, void* to, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = read(file, static_cast<char*>(to) + done, bytes - done);
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

TEST(TwoProcesses, ReduceThroughMemoryOfOne) {
  int to[2], from[2];
  ASSERT_EQ(pipe(to), 0);
  ASSERT_EQ(pipe(from), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(200);
    dup2(to[0], 3);
    dup2(from[1], 4);
    execl("/proc/self/exe", "process_test", "--other-process", "1", nullptr);
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  OneOfTwo machine(gpu(), 0, {});
  Gpus gpus(&machine, kSettings);
  ASSERT_EQ(machine.exported.size(), kSharedAllocations);
  const size_t bytes = kSharedAllocations * sizeof(DeviceHandle);
  ASSERT_EQ(write(to[1], machine.exported.data(), bytes), static_cast<ssize_t>(bytes));
  char ready = 0;
  ASSERT_TRUE(read_all(from[0], &ready, 1)) << "the other process did not open the memory";
  EXPECT_EQ(run_rank(&gpus, 0), "");
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  close(to[1]);
  close(from[0]);
}

}  // namespace
}  // namespace treering::cuda

int run_as_other_process(int, char**) {
  using namespace treering::cuda;
  std::vector<treering::DeviceHandle> handles(kSharedAllocations);
  if (!read_all(3, handles.data(), handles.size() * sizeof(treering::DeviceHandle))) return 2;
  OneOfTwo machine(gpu(), 1, handles);
  Gpus gpus(&machine, kSettings);
  if (write(4, "r", 1) != 1) return 3;
  const std::string failure = run_rank(&gpus, 1);
  if (!failure.empty()) std::fprintf(stderr, "rank 1: %s\n", failure.c_str());
  return failure.empty() ? 0 : 1;
}
