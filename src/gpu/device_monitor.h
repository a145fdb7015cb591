// SPDX-License-Identifier: Apache-2.0
// DeviceMonitor: a thread, one a process, that looks every few milliseconds after communicators with kernels under way:
// for failures that end them, peers that died, deadlines. It sleeps while there are none.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <mutex>
#include <vector>

namespace treering {

class DeviceKernels;

class DeviceMonitor {
 public:
  static DeviceMonitor& instance();
  void watch(DeviceKernels* kernels);
  // It is not looked at any more when this returns.
  void forget(DeviceKernels* kernels);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable work_;
  std::vector<DeviceKernels*> watched_;
  pid_t thread_owner_ = 0;  // the process whose thread runs
};

}  // namespace treering
