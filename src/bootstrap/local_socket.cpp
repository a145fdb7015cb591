// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local_socket.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/forked_sockets.h"
#include "core/unix_sockets.h"

namespace treering {
namespace {

Status system_error(const char* call) {
  return {trSystemError, fmt::format("{} on a Unix socket: {}", call, std::strerror(errno))};
}

}  // namespace

Status listen_local(const std::string& name, int* listener) {
  int fd = closed_in_children([] { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (fd < 0) return system_error("socket");
  sockaddr_un address;
  socklen_t length = abstract_address(name, &address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd, 4096) != 0) {
    Status status = system_error("bind or listen");
    close(fd);
    return status;
  }
  *listener = fd;
  return {};
}

std::string local_socket_name(uint64_t number) { return fmt::format("treering-{:016x}", number); }

bool connect_local(const std::string& name, int* result, int* error) {
  int fd = closed_in_children([] { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  sockaddr_un address;
  socklen_t length = abstract_address(name, &address);
  if (fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0) {
    *result = fd;
    return true;
  }
  *error = errno;
  if (fd >= 0) close(fd);
  return false;
}

}  // namespace treering
