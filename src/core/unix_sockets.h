// SPDX-License-Identifier: Apache-2.0
// What Unix stream sockets are used for besides bytes: names in the abstract namespace, which vanish with the last
// descriptor and leave no file; descriptors that travel with bytes (SCM_RIGHTS); who is at the other end. All of it is
// inline, because the CUDA backend uses it and does not link the library.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <deque>
#include <string_view>

namespace treering {

// The address of a name in the abstract namespace; gives its length.
inline socklen_t abstract_address(std::string_view name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());  // behind a zero byte
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// send(2), with a descriptor attached when it is >= 0. Does not raise SIGPIPE.
inline ssize_t send_with_descriptor(int socket, const void* data, size_t bytes, int descriptor, int flags) {
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
  return sendmsg(socket, &message, flags | MSG_NOSIGNAL);
}

// recv(2). Descriptors that came with the bytes are appended, and are the caller's to close; the kernel drops those for
// which there is no room, and all where `descriptors` is null.
inline ssize_t receive_with_descriptors(int socket, void* data, size_t bytes, int flags, std::deque<int>* descriptors) {
  constexpr size_t kMaxAtOnce = 4;
  iovec part{data, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxAtOnce * sizeof(int))];
  if (descriptors != nullptr) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  const ssize_t got = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; CMSG_LEN((at + 1) * sizeof(int)) <= header->cmsg_len; ++at) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + at * sizeof(int), sizeof descriptor);
      descriptors->push_back(descriptor);
    }
  }
  return got;
}

// The process at the other end of a Unix socket; pid 0: not of this pid namespace, or not known.
inline ucred peer_of(int connection) {
  ucred peer{};
  peer.uid = static_cast<uid_t>(-1);
  socklen_t bytes = sizeof peer;
  (void)getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
  return peer;
}

// Whether the process at the other end of a Unix socket belongs to the same user.
inline bool is_of_this_user(int connection) { return peer_of(connection).uid == geteuid(); }

}  // namespace treering
