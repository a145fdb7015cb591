// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/kernel.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>

#include "core/tcp_sockets.h"

namespace treering {
namespace {
constexpr int kUsualLongestMs = 120'000;  // the kernel's own
}  // namespace

void prepare_stream(int fd, uint32_t most_unsent, const TcpTimeouts& timeouts) {
  const int on = 1;
  const auto unsent = static_cast<int>(most_unsent);
  const auto timeout_ms = static_cast<unsigned>(timeouts.kernel.count());
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
  set_keepalive(fd, false);  // one on which nothing is sent outlives an outage
  // Without this one a stream ends after 15 attempts, which are seconds now.
  if (setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms) == 0)
    (void)set_longest_resend(fd, 1000);
}

// A closed socket whose attempts have reached the longest time between two gets no further ones.
void leave_to_kernel(int fd) { (void)set_longest_resend(fd, kUsualLongestMs); }

void throw_away(int fd) {
  const linger none{1, 0};
  (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

bool look_at_stream(int fd, uint64_t given, TcpStall::Facts* facts) {
  tcp_info info;
  socklen_t length = sizeof info;
  const int left = unacknowledged_bytes(fd);
  if (left < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
      length < offsetof(tcp_info, tcpi_last_ack_recv) + sizeof info.tcpi_last_ack_recv)
    return false;
  facts->under_way = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
  facts->acknowledged = given - static_cast<uint64_t>(left);
  facts->since_answer = std::chrono::milliseconds(info.tcpi_last_ack_recv);
  return true;
}

int unacknowledged_bytes(int fd) {
  int bytes = 0;
  return ioctl(fd, SIOCOUTQ, &bytes) == 0 ? bytes : -1;
}

StreamEnd find_end(int fd, int* error) {
  char byte;
  const ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  *error = got < 0 ? errno : 0;
  if (got > 0) return StreamEnd::kSomethingThere;
  if (got == 0) return StreamEnd::kClosed;
  const bool none = *error == EAGAIN || *error == EWOULDBLOCK || *error == EINTR;
  return none ? StreamEnd::kNone : StreamEnd::kBroken;
}

}  // namespace treering
