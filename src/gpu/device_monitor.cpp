// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_monitor.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "communicator/idle_links.h"
#include "core/background_thread.h"
#include "gpu/device_kernels.h"

namespace treering {
namespace {

constexpr std::chrono::milliseconds kPeriod{5};
constexpr size_t kMonitorStackBytes = 256 << 10;

}  // namespace

DeviceMonitor& DeviceMonitor::instance() {
  static auto* monitor = new DeviceMonitor;  // never destroyed: its thread runs until the process ends
  return *monitor;
}

void DeviceMonitor::watch(DeviceKernels* kernels) {
  std::lock_guard lock(mutex_);
  if (std::find(watched_.begin(), watched_.end(), kernels) != watched_.end()) return;
  watched_.push_back(kernels);
  if (thread_owner_ != getpid()) {
    if (start_background_thread("treering-device", kMonitorStackBytes, [this] { loop(); })) thread_owner_ = getpid();
  }
  work_.notify_one();
}

void DeviceMonitor::forget(DeviceKernels* kernels) {
  std::lock_guard lock(mutex_);
  std::erase(watched_, kernels);
}

void DeviceMonitor::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return !watched_.empty(); });
    std::erase_if(watched_, [](DeviceKernels* kernels) { return !kernels->look(); });
    lock.unlock();
    IdleLinks::serve();  // what a kernel waits for may depend on them
    std::this_thread::sleep_for(kPeriod);
    lock.lock();
  }
}

}  // namespace treering
