// SPDX-License-Identifier: Apache-2.0
#include "core/process.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>

namespace treering {
namespace {

// "": /proc does not show it.
std::string boot_id() {
  static std::atomic<const std::string*> known{nullptr};
  if (const std::string* text = known.load(std::memory_order_acquire)) return *text;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  if (!(file >> text)) return {};
  const std::string* none = nullptr;
  const auto* made = new std::string(text);  // never destroyed: threads may ask while the process ends
  if (!known.compare_exchange_strong(none, made)) delete made;
  return text;
}

}  // namespace

std::string machine_identity() {
  const std::string boot = boot_id();
  return boot.empty() ? "name:" + host_name() : boot;
}

Status no_descriptor_left() {
  rlimit limit{};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  return {trSystemError,
          fmt::format("no file descriptor is left for a connection (its limit is {}; see ulimit -n)", limit.rlim_cur)};
}

bool process_has_ended(pid_t pid) {
  const auto fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  // Without a descriptor left for it, a process that its parent has not waited for counts as alive.
  if (fd < 0) return errno == ESRCH || (kill(pid, 0) != 0 && errno == ESRCH);
  pollfd entry{fd, POLLIN, 0};
  const bool ended = poll(&entry, 1, 0) > 0;
  close(fd);
  return ended;
}

}  // namespace treering
