// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/locked_memory.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>

namespace treering::verbs {
namespace {

bool may_lock_all() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  return syscall(SYS_capget, &header, sets) == 0 && (sets[0].effective >> CAP_IPC_LOCK & 1) != 0;
}

// Pages that devices have pinned. (Those of mlock() are counted apart.)
size_t pinned_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmPin:")) return std::stoull(line.substr(6)) << 10;
  return 0;
}

}  // namespace

std::string LockedLimit::text() const {
  if (limit == SIZE_MAX) return "this process may lock as much memory as there is";
  return fmt::format("this process may lock {} KiB of memory (ulimit -l), and has locked {} KiB", limit >> 10,
                     locked >> 10);
}

LockedLimit locked_limit() {
  rlimit limit{};
  if (may_lock_all() || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return {limit.rlim_cur, pinned_bytes()};
}

std::string locked_memory_text() {
  const LockedLimit limit = locked_limit();
  return limit.limit == SIZE_MAX ? "" : fmt::format("; {}: raise that", limit.text());
}

void raise_locked_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_MEMLOCK, &limit);
}

}  // namespace treering::verbs
