// SPDX-License-Identifier: Apache-2.0
#include "self_faults.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "say.h"
#include "support/descriptor_limit.h"

#if defined(__SANITIZE_THREAD__)
// These use descriptors of the library in another thread than its own, on purpose: it may be closing them.
extern "C" __attribute__((visibility("default"), used)) const char* __tsan_default_suppressions() {
  return "race:faults::shut_down_sockets\nrace:faults::close_sockets\n";
}
#endif

namespace faults {

namespace {

template <typename Use>
int for_each_socket(const Use& use) {
  int used = 0;
  for_each_entry("/proc/self/fd", [&](int descriptor, const char* target) {
    if (std::strncmp(target, "socket:", 7) == 0) used += use(descriptor) == 0;
  });
  return used;
}

bool is_connected_tcp(int descriptor) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  return getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
         (peer.ss_family == AF_INET || peer.ss_family == AF_INET6);
}

bool set_limit(__rlimit_resource resource, rlim_t most) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return false;
  limit.rlim_cur = std::min(most, limit.rlim_max);
  return setrlimit(resource, &limit) == 0;
}

}  // namespace

int close_sockets() {
  return for_each_socket([](int descriptor) { return close(descriptor); });
}

int shut_down_sockets() {
  return for_each_socket(
      [](int descriptor) { return is_connected_tcp(descriptor) ? shutdown(descriptor, SHUT_RDWR) : -1; });
}

// A connect() to no address ends a connection with a reset and leaves the descriptor its owner's. ThreadSanitizer does not
// see it: the owner may use the descriptor so much later that a report has no stack which a suppression would match.
int reset_sockets() {
  return for_each_socket([](int descriptor) {
    const sockaddr none{AF_UNSPEC, {}};
    return is_connected_tcp(descriptor) ? static_cast<int>(syscall(SYS_connect, descriptor, &none, sizeof none)) : -1;
  });
}

bool leave_child() {
  constexpr unsigned kLives = 12;  // seconds
  const pid_t child = fork();
  if (child != 0) return child > 0;
  setsid();  // what ends the group of its parent leaves it
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(fd);
  alarm(kLives);
  for (;;) pause();
}

bool forbid_descriptors() {
  int highest = 0;
  for_each_entry("/proc/self/fd", [&](int descriptor, const char*) { highest = std::max(highest, descriptor); });
  return treering::testing::limit_descriptors(static_cast<rlim_t>(highest) + 1);  // gaps below it stay usable
}

bool forbid_memory() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  if (file == nullptr || std::fscanf(file, "%lu", &pages) != 1) pages = 0;
  if (file != nullptr) std::fclose(file);
  return pages != 0 && set_limit(RLIMIT_AS, pages * 4096 + (256 << 10));
}

void allow_all() {
  treering::testing::allow_descriptors();
  set_limit(RLIMIT_AS, RLIM_INFINITY);
}

}  // namespace faults
