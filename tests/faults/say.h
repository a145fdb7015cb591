// SPDX-License-Identifier: Apache-2.0
// What a rank of the fault injection says: whole lines, in the order of CLOCK_MONOTONIC, without an allocation (there
// may be no memory left), and what the process holds: sockets, descriptors, threads, mappings.
#pragma once

#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace faults {

inline double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// SECONDS RANK WORD REST
__attribute__((format(printf, 2, 3))) inline void say(int rank, const char* format, ...) {
  static std::mutex mutex;
  char line[8192];
  const int head = std::snprintf(line, sizeof line, "%.6f %d ", now(), rank);
  va_list arguments;
  va_start(arguments, format);
  const int rest = std::vsnprintf(line + head, sizeof line - static_cast<size_t>(head) - 1, format, arguments);
  va_end(arguments);
  size_t length = std::min(static_cast<size_t>(head + rest), sizeof line - 2);
  for (size_t i = 0; i < length; ++i)
    if (line[i] == '\n') line[i] = ' ';
  line[length++] = '\n';
  std::lock_guard lock(mutex);
  for (size_t done = 0; done < length;) {
    const ssize_t written = write(STDOUT_FILENO, line + done, length - done);
    if (written <= 0) return;  // the driver has gone
    done += static_cast<size_t>(written);
  }
}

// Calls use(number, target) for each entry of a directory of the process.
template <typename Use>
void for_each_entry(const char* directory, const Use& use) {
  DIR* entries = opendir(directory);
  if (entries == nullptr) return;  // there is no descriptor left
  for (const dirent* entry; (entry = readdir(entries)) != nullptr;) {
    if (entry->d_name[0] == '.') continue;
    char path[300], target[256] = "";
    std::snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
    if (const ssize_t length = readlink(path, target, sizeof target - 1); length > 0) target[length] = '\0';
    const int number = std::atoi(entry->d_name);
    if (number != dirfd(entries) || std::strcmp(directory, "/proc/self/fd") != 0) use(number, target);
  }
  closedir(entries);
}

struct Holdings {
  int sockets = 0, memfds = 0, descriptors = 0, threads = 0, mapped = 0;
};

inline Holdings holdings() {
  Holdings held;
  for_each_entry("/proc/self/fd", [&](int, const char* target) {
    ++held.descriptors;
    held.sockets += std::strncmp(target, "socket:", 7) == 0;
    held.memfds += std::strncmp(target, "/memfd:", 7) == 0;
  });
  for_each_entry("/proc/self/task", [&](int, const char*) { ++held.threads; });
  if (FILE* maps = std::fopen("/proc/self/maps", "r")) {
    char line[512];
    while (std::fgets(line, sizeof line, maps) != nullptr) held.mapped += std::strstr(line, "/memfd:") != nullptr;
    std::fclose(maps);
  }
  return held;
}

// The library goes on to end what UCX could not end at once (transport/ucx/stuck_hubs.h), for some seconds.
inline bool ends_stuck_hubs() {
  bool found = false;
  for_each_entry("/proc/self/task", [&](int thread, const char*) {
    char path[64], name[32] = "";
    std::snprintf(path, sizeof path, "/proc/self/task/%d/comm", thread);
    if (FILE* comm = std::fopen(path, "r")) {
      found |= std::fgets(name, sizeof name, comm) != nullptr && std::strcmp(name, "treering-ucx\n") == 0;
      std::fclose(comm);
    }
  });
  return found;
}

constexpr int kKeptDescriptors = 4;  // by the library until the process ends (MOST_LEFT of judge.py)

// Connections end, and the library's threads let go, in the background: they get 8 seconds. `roots`: ranks of
// rendezvous roots that stay, with two sockets for each, and a memfd.
inline void say_what_is_left(int rank, const Holdings& at_start, int roots) {
  constexpr double kTimeout = 8;
  for (const double until = now() + kTimeout; ends_stuck_hubs() && now() < until;) usleep(20'000);
  Holdings held = holdings();
  const int sockets = 2 * roots, memfds = roots > 0;
  for (const double until = now() + kTimeout; now() < until; usleep(20'000), held = holdings())
    if (held.sockets <= at_start.sockets + sockets && held.memfds <= at_start.memfds + memfds && held.mapped == 0 &&
        held.descriptors <= at_start.descriptors + kKeptDescriptors + sockets)
      break;
  say(rank, "left sockets=%d memfds=%d descriptors=%d threads=%d mapped=%d", held.sockets - at_start.sockets,
      held.memfds - at_start.memfds, held.descriptors - at_start.descriptors, held.threads - at_start.threads,
      held.mapped);
}

}  // namespace faults
