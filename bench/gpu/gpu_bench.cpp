// SPDX-License-Identifier: Apache-2.0
// Kernels against a copy by the driver, on one GPU: prints a table. The ranks are streams of this process.
//
//   copy      a kernel that only moves (lanes from a rank to itself), against cuMemcpy of the same bytes
//   reduce    2 ranks, two-shot, Simple
//   allreduce 4 ranks; at the least, every rank's bytes are read and written once: 2 x ranks x bytes
//   latency   of launches one behind the other, LL
//   C API     the same through communicators, by what the library chooses
//
// A byte copied is a byte read and a byte written. "of least" is the time of the least traffic, at the speed of the
// driver's copy, divided by the time that was taken.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>

#include "communicator_rows.h"
#include "device/gpus.h"
#include "gpu/gpu_machine.h"

using namespace treering;
using namespace treering::cuda;

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  size_t bytes = size_t{256} << 20;
  uint32_t repeats = 20;
  uint32_t channels = 0;  // of each rank; 0: the multiprocessors, shared by the ranks, up to kMaxDeviceChannels
};

void check(const std::string& failure) {
  if (!failure.empty()) throw std::runtime_error(failure);
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Seconds of one of `repeats` launches.
double time_launches(GpuMachine* machine, Gpus* gpus, const Prepared& prepared, uint32_t repeats) {
  gpus->upload_fifos();
  const uint32_t threads = gpus->settings().threads;
  double each = 0;
  for (uint32_t times : {std::max(repeats / 4, 1u), repeats}) {  // first to warm up
    const auto start = Clock::now();
    check(machine->start(prepared.calls, prepared.type, prepared.protocol, threads, times));
    check(machine->finish(prepared.calls));
    each = seconds_since(start) / times;
  }
  for (uint32_t rank = 0; rank < gpus->settings().ranks; ++rank)
    if (gpus->status(rank).failure != 0) throw std::runtime_error("a kernel failed");
  gpus->download_fifos();
  return each;
}

double time_copy(GpuMachine* machine, const Options& options) {
  const Allocation from(machine, options.bytes), to(machine, options.bytes);
  Device& device = machine->device();
  double each = 0;
  for (uint32_t times : {std::max(options.repeats / 4, 1u), options.repeats}) {
    const auto start = Clock::now();
    for (uint32_t i = 0; i < times; ++i)
      require(device.copy(to.data(), from.data(), options.bytes, machine->stream(0)));
    require(device.synchronize(machine->stream(0)));
    each = seconds_since(start) / times;
  }
  return each;
}

uint32_t channels_of(GpuMachine* machine, const Options& options, uint32_t ranks) {
  if (options.channels > 0) return options.channels;
  return std::clamp(machine->device().info().multiprocessors / ranks, 1u, kMaxDeviceChannels);
}

double time_copy_kernel(GpuMachine* machine, const Options& options) {
  const uint32_t channels = channels_of(machine, options, 1);
  Gpus gpus(machine, {.ranks = 1, .channels = channels, .depth = 1, .threads = 512, .slot_bytes = 512 << 10});
  const Allocation from(machine, options.bytes), to(machine, options.bytes);
  std::vector<std::vector<DeviceLane>> lanes(1);
  const size_t share = options.bytes / channels / 16 * 16;
  for (uint32_t channel = 0; channel < channels; ++channel) {
    const size_t begin = channel * share;
    const size_t bytes = channel + 1 == channels ? options.bytes - begin : share;
    lanes[0].push_back({from.data() + begin, to.data() + begin, bytes, 0, kCopyLane});
  }
  return time_launches(machine, &gpus, gpus.prepare_lanes(lanes), options.repeats);
}

double time_allreduce(GpuMachine* machine, const Options& options, uint32_t ranks, DeviceProtocol protocol,
                      size_t bytes, uint32_t repeats) {
  const bool small = protocol != DeviceProtocol::kSimple;
  const uint32_t channels = small ? 1 : channels_of(machine, options, ranks);
  Gpus gpus(machine, {.ranks = ranks,
                      .channels = channels,
                      .depth = 4,
                      .threads = small ? 64u : 512u,
                      .slot_bytes = small ? size_t{16} << 10 : size_t{256} << 10,
                      .min_slice_bytes = 64 << 10});
  GpuJob job{.protocol = protocol, .count = bytes / 4, .type = trFloat32};
  if (!find_algorithm(Collective::kAllReduce, small ? "one-shot" : "two-shot", &job.algorithm).ok())
    throw std::runtime_error("no such algorithm");
  std::vector<Allocation> memory;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    job.inputs.push_back(memory.emplace_back(machine, bytes).data());
    job.outputs.push_back(memory.emplace_back(machine, bytes).data());
  }
  Prepared prepared;
  check(gpus.prepare(job, &prepared));
  return time_launches(machine, &gpus, prepared, repeats);
}

void print(const char* what, size_t bytes, double seconds, double least) {
  std::printf("%-34s %11zu %12.1f", what, bytes, seconds * 1e6);
  if (least > 0)
    std::printf(" %10.1f %8.0f %%\n", static_cast<double>(bytes) / seconds / 1e9, 100 * least / seconds);
  else
    std::printf(" %10s %10s\n", "", "");
}

void run(GpuMachine* machine, const Options& options) {
  const DeviceInfo& info = machine->device().info();
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::localtime(&now));
  std::printf("%s, compute capability %u.%u, %u multiprocessors, %s\n\n", info.name.c_str(),
              info.compute_capability / 10, info.compute_capability % 10, info.multiprocessors, date);
  std::printf("%-34s %11s %12s %10s %10s\n", "", "bytes", "us", "GB/s", "of least");
  const double copy = time_copy(machine, options);
  print("cuMemcpy, device to device", options.bytes, copy, copy);
  print("copy kernel", options.bytes, time_copy_kernel(machine, options), copy);
  for (uint32_t ranks : {2u, 4u}) {
    const std::string what = "allreduce, " + std::to_string(ranks) + " ranks, Simple";
    const double taken =
        time_allreduce(machine, options, ranks, DeviceProtocol::kSimple, options.bytes, options.repeats);
    print(what.c_str(), options.bytes, taken, ranks * copy);
  }
  for (uint32_t ranks : {2u, 4u}) {
    const std::string what = "allreduce, " + std::to_string(ranks) + " ranks, LL";
    print(what.c_str(), 8, time_allreduce(machine, options, ranks, DeviceProtocol::kLl, 8, 50 * options.repeats), 0);
  }
  constexpr uint32_t kRanks = 4;
  for (size_t bytes : {size_t{8}, size_t{1} << 20, options.bytes}) {
    const double least =
        bytes == 8 ? 0 : kRanks * copy * static_cast<double>(bytes) / static_cast<double>(options.bytes);
    const uint32_t repeats = bytes == 8 ? 50 * options.repeats : options.repeats;
    print("allreduce, 4 ranks, C API", bytes, time_communicator(machine, kRanks, bytes, repeats, options.channels),
          least);
  }
}

constexpr const char* kUsage =
    "usage: gpu_bench [--bytes N] [--repeats N] [--channels N]\n"
    "  --bytes     of each rank; default 268435456\n"
    "  --repeats   launches that are timed together; default 20\n"
    "  --channels  blocks of each rank; default: the multiprocessors, shared by the ranks; 32 at most\n";

bool parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; i += 2) {
    char* end = nullptr;
    const unsigned long long value = i + 1 < argc ? std::strtoull(argv[i + 1], &end, 10) : 0;
    if (end == nullptr || *end != '\0' || value == 0) return false;
    if (std::strcmp(argv[i], "--bytes") == 0 && value >= 4096)
      options->bytes = value / 16 * 16;
    else if (std::strcmp(argv[i], "--repeats") == 0 && value <= 100000)
      options->repeats = static_cast<uint32_t>(value);
    else if (std::strcmp(argv[i], "--channels") == 0 && value <= 1024)
      options->channels = static_cast<uint32_t>(value);
    else
      return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, &options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  try {
    std::string why_not;
    GpuMachine* machine = gpu_machine(&why_not);
    if (machine == nullptr) {
      std::printf("no GPU: %s\n", why_not.c_str());
      return 77;
    }
    run(machine, options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
  return 0;
}
