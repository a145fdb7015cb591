// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/local_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "core/forked_sockets.h"

namespace treering {
namespace {

socklen_t fill_address(const std::string& name, sockaddr_un* address) {
  std::memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());  // a leading zero byte: the abstract namespace
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Status system_error(const char* call) {
  return {trSystemError, fmt::format("{} on a Unix socket: {}", call, std::strerror(errno))};
}

}  // namespace

Status listen_local(const std::string& name, int* listener) {
  int fd = closed_in_children([] { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (fd < 0) return system_error("socket");
  sockaddr_un address;
  socklen_t length = fill_address(name, &address);
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
  socklen_t length = fill_address(name, &address);
  if (fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0) {
    *result = fd;
    return true;
  }
  *error = errno;
  if (fd >= 0) close(fd);
  return false;
}

ssize_t send_with_descriptor(int socket, const void* data, size_t bytes, int descriptor) {
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace treering
