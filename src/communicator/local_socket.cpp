#include "communicator/local_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

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

// Waits for `events`; false when the deadline has passed.
bool wait_for(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left < 0) return false;
    pollfd entry{fd, events, 0};
    int ready = poll(&entry, 1, static_cast<int>(std::min<long>(left + 1, 1000)));
    if (ready > 0) return true;
  }
}

}  // namespace

Status listen_local(const std::string& name, int* listener) {
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
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

Status connect_local(const std::string& name, Clock::time_point deadline, int* result) {
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return system_error("socket");
  sockaddr_un address;
  socklen_t length = fill_address(name, &address);
  while (connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno == EAGAIN && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      continue;
    }
    Status status =
        errno == ECONNREFUSED
            ? Status(trRemoteError,
                     "nobody listens for this unique id on this machine: the process that made it has ended, "
                     "all its ranks have met already, or it was made on another machine")
            : system_error("connect");
    close(fd);
    return status;
  }
  *result = fd;
  return {};
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

Status send_all(int socket, const void* data, size_t bytes, Clock::time_point deadline) {
  auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t sent = send_with_descriptor(socket, next, bytes, -1);
    if (sent > 0) {
      next += sent;
      bytes -= static_cast<size_t>(sent);
    } else if (errno != EAGAIN && errno != EINTR) {
      return {trRemoteError, fmt::format("the meeting point of the communicator is gone: {}", std::strerror(errno))};
    } else if (!wait_for(socket, POLLOUT, deadline)) {
      return {trTimeout, "the deadline passed while sending to the meeting point of the communicator"};
    }
  }
  return {};
}

Status receive_all(int socket, void* data, size_t bytes, Clock::time_point deadline, int* descriptor) {
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    iovec part{next, bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    if (descriptor != nullptr) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
    }
    ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got > 0) {
      for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header))
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
          std::memcpy(descriptor, CMSG_DATA(header), sizeof *descriptor);
      next += got;
      bytes -= static_cast<size_t>(got);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return {trRemoteError,
              "the meeting point of the communicator is gone: the process that made the unique id has "
              "ended"};
    } else if (!wait_for(socket, POLLIN, deadline)) {
      return {trTimeout, "the deadline passed while waiting for the other ranks to arrive"};
    }
  }
  return {};
}

}  // namespace treering
