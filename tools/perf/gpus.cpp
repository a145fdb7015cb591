// SPDX-License-Identifier: Apache-2.0
#include "gpus.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <treering/treering.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <new>

#include "cuda_driver.h"

namespace treering::perf {
namespace {

constexpr unsigned kLookForS = 120;  // drivers of machines with many GPUs start slowly

struct Answer {
  size_t count;
  Gpu gpus[64];
  char why_not[1024];
};

std::string describe(const CudaDriver& driver, int ordinal, Gpu* gpu) {
  int device = 0;
  std::string error = driver.error_of(driver.device_of(&device, ordinal), "cuDeviceGet");
  if (error.empty())
    error = driver.error_of(driver.device_name(gpu->name, sizeof gpu->name, device), "cuDeviceGetName");
  if (error.empty())
    error = driver.error_of(driver.device_bus(gpu->bus, sizeof gpu->bus, device), "cuDeviceGetPCIBusId");
  if (error.empty()) error = driver.error_of(driver.device_memory(&gpu->memory_bytes, device), "cuDeviceTotalMem");
  return error;
}

}  // namespace

std::vector<Gpu> list_gpus(std::string* why_not) {
  const CudaDriver* driver = open_cuda_driver(why_not);
  if (driver == nullptr) return {};
  int count = 0;
  *why_not = driver->error_of(driver->count(&count), "cuDeviceGetCount");
  if (why_not->empty() && count == 0) *why_not = "the CUDA driver sees none; is CUDA_VISIBLE_DEVICES empty?";
  std::vector<Gpu> gpus(static_cast<size_t>(count));
  for (int i = 0; i < count && why_not->empty(); ++i) *why_not = describe(*driver, i, &gpus[static_cast<size_t>(i)]);
  if (!why_not->empty()) return {};
  int usable = 0, current = -1;
  if (trDeviceCount(&usable) == trSuccess && usable == count) return gpus;
  // The library says what it lacks when it is asked for one.
  *why_not = trDeviceCurrent(&current) == trSuccess
                 ? "the library sees " + std::to_string(usable) + " of " + std::to_string(count)
                 : trGetLastError(nullptr);
  return {};
}

std::vector<Gpu> list_gpus_elsewhere(std::string* why_not) {
  void* memory = mmap(nullptr, sizeof(Answer), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const pid_t child = memory == MAP_FAILED ? -1 : fork();
  if (child < 0) {
    *why_not = std::string("no process to look for them: ") + strerror(errno);
    if (memory != MAP_FAILED) munmap(memory, sizeof(Answer));
    return {};
  }
  auto* answer = static_cast<Answer*>(memory);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(kLookForS);
    std::string reason;
    const std::vector<Gpu> found = list_gpus(&reason);
    answer->count = std::min(found.size(), std::size(answer->gpus));
    std::copy_n(found.begin(), answer->count, answer->gpus);
    snprintf(answer->why_not, sizeof answer->why_not, "%s", reason.c_str());
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  std::vector<Gpu> gpus(answer->gpus, answer->gpus + answer->count);
  *why_not = answer->why_not;
  if (WIFSIGNALED(status))
    *why_not = std::string("the process that looked for them was ended by a signal: ") + strsignal(WTERMSIG(status));
  munmap(memory, sizeof(Answer));
  return gpus;
}

std::string check_gpu_memory(const Options& options, int sharing, int number, const Gpu& gpu) {
  const double wanted = 2.0 * sharing * static_cast<double>(options.buffer_bytes());
  if (wanted <= static_cast<double>(gpu.memory_bytes)) return "";
  char text[256];
  snprintf(text, sizeof text, "-e %s: the buffers of %d rank(s) on GPU %d need %.1f GiB, it has %.1f GiB",
           format_size(options.max_bytes).c_str(), sharing, number, wanted / (1 << 30),
           static_cast<double>(gpu.memory_bytes) / (1 << 30));
  return text;
}

}  // namespace treering::perf
