// SPDX-License-Identifier: Apache-2.0
#include "once.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>

namespace treering::perf {
namespace {

// In containers that share a network, parents may have the same pid.
unsigned long pid_namespace() {
  struct stat file {};
  return stat("/proc/self/ns/pid", &file) == 0 ? file.st_ino : 0;
}

// Where no name can be had it is taken to be the first.
bool is_first(const std::string& error) {
  const char* run = getenv(kRunVariable);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;  // a name that begins with a zero is in no file system
  const int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "treering-perf-%u-%lx-%.64s-%zx",
                              getuid(), pid_namespace(), run != nullptr ? run : std::to_string(getppid()).c_str(),
                              std::hash<std::string>()(error));
  const int held = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);  // until the process ends
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
  return held < 0 || bind(held, reinterpret_cast<const sockaddr*>(&address), bytes) == 0 || errno != EADDRINUSE;
}

}  // namespace

void print_error_once(const std::string& who, const std::string& error) {
  if (is_first(error)) fprintf(stderr, "error: %s%s\n", who.c_str(), error.c_str());
  const timespec second{1, 0};
  nanosleep(&second, nullptr);
}

}  // namespace treering::perf
