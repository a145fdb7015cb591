// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_machine.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>

#include "device/open_backend.h"

namespace treering::cuda {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kDeadline = std::chrono::seconds(120);
constexpr auto kAfterAbort = std::chrono::seconds(20);

}  // namespace

void require(const Status& status) {
  if (status.ok()) return;
  if (status.message().find("OUT_OF_MEMORY") != std::string::npos) throw std::bad_alloc();
  throw std::runtime_error(status.message());
}

GpuMachine::GpuMachine(Device* device) : device_(*device) {
  require(device_.create_stream(&copies_));
  require(device_.create_event(&probe_));
}

DeviceStream GpuMachine::stream(size_t rank) {
  while (streams_.size() <= rank) {
    DeviceStream made = nullptr;
    require(device_.create_stream(&made));
    streams_.push_back(made);
  }
  return streams_[rank];
}

void* GpuMachine::allocate(size_t bytes) {
  void* made = nullptr;
  require(device_.allocate(bytes, &made));
  return made;
}
void GpuMachine::free(void* address) { (void)device_.free(address); }
void* GpuMachine::allocate_shared(size_t bytes) {
  void* made = nullptr;
  require(device_.allocate_host(bytes, &made));
  return made;
}
void GpuMachine::free_shared(void* address) { (void)device_.free_host(address); }

void GpuMachine::copy(void* to, const void* from, size_t bytes) {
  require(device_.copy(to, from, bytes, copies_));
  require(device_.synchronize(copies_));
}

std::string GpuMachine::launch(const std::vector<DeviceCall>& calls, trDataType_t type, DeviceProtocol protocol,
                               uint32_t threads, uint32_t, const std::function<void()>& meanwhile) {
  if (std::string failure = start(calls, type, protocol, threads, 1); !failure.empty()) return failure;
  if (meanwhile) meanwhile();
  return finish(calls);
}

std::string GpuMachine::start(const std::vector<DeviceCall>& calls, trDataType_t type, DeviceProtocol protocol,
                              uint32_t threads, uint32_t times) {
  // A kernel that were loaded while another spins could wait for it, and the other for this one.
  if (const Status status = device_.launch(DeviceLaunch{}, type, protocol, threads, copies_); !status.ok())
    return status.message();
  for (uint32_t t = 0; t < times; ++t)
    for (size_t i = 0; i < calls.size(); ++i)
      if (const Status status = device_.launch(launch_of(calls[i]), type, protocol, threads, stream(i)); !status.ok())
        return status.message();
  return {};
}

std::string GpuMachine::finish(const std::vector<DeviceCall>& calls) {
  // What a late stream counts in stays when the wait was given up.
  const auto ended = std::make_shared<std::atomic<size_t>>(0);
  for (size_t i = 0; i < calls.size(); ++i) {
    auto* mine = new std::shared_ptr<std::atomic<size_t>>(ended);
    const auto count = [](void* argument) {
      const std::unique_ptr<std::shared_ptr<std::atomic<size_t>>> counter(
          static_cast<std::shared_ptr<std::atomic<size_t>>*>(argument));
      counter->get()->fetch_add(1);
    };
    if (const Status status = device_.call_host(count, mine, stream(i)); !status.ok()) return status.message();
  }
  auto deadline = Clock::now() + kDeadline;
  bool aborted = false;
  for (uint64_t turn = 0; ended->load() < calls.size(); ++turn) {
    if (turn > 1000) std::this_thread::sleep_for(std::chrono::microseconds(50));
    // A kernel that failed ends its device: nothing is counted any more, and every call says so.
    if (turn % 1024 == 1023)
      if (const Status status = device_.record(probe_, copies_); !status.ok()) return status.message();
    if (Clock::now() < deadline) continue;
    if (aborted) return "the kernels did not end, not even when they were told to";
    for (const DeviceCall& call : calls) __atomic_store_n(&call.status->abort, 1u, __ATOMIC_RELEASE);
    aborted = true;
    deadline = Clock::now() + kAfterAbort;
  }
  if (aborted) return "the kernels did not end before the deadline; they were told to";
  for (size_t i = 0; i < calls.size(); ++i)
    if (const Status status = device_.synchronize(stream(i)); !status.ok()) return status.message();
  return {};
}

GpuMachine* gpu_machine(std::string* why_not) {
  static std::string reason;
  static GpuMachine* machine = []() -> GpuMachine* {
    // As many streams as ranks run side by side, whatever the driver's default is.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    DeviceBackend* backend = open_cuda_backend(&reason);
    if (backend == nullptr) return nullptr;
    Device* device = nullptr;
    if (const Status status = backend->open(0, &device); !status.ok()) {
      reason = status.message();
      return nullptr;
    }
    return new GpuMachine(device);
  }();
  *why_not = reason;
  return machine;
}

bool is_fake(GpuMachine* machine) { return machine->device().info().name.rfind("Fake", 0) == 0; }

bool is_short(GpuMachine* machine) { return is_fake(machine) || std::getenv("TREERING_GPU_SHORT") != nullptr; }

}  // namespace treering::cuda
