// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/draining_sockets.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "bootstrap/agent.h"

namespace treering {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(20);
// A peer that cannot be reached for so long will not be.
constexpr auto kMaxDrainTime = std::chrono::seconds(60);

}  // namespace

void DrainingSockets::add(int fd, std::chrono::milliseconds deadline) {
  const std::chrono::milliseconds longest = kMaxDrainTime;
  const auto time = deadline.count() > 0 ? std::min(deadline, longest) : longest;
  const auto now = Clock::now();
  const Entry socket = sockets_.insert(sockets_.end(), {fd, 0, 0, now + longest, time, now + time, INT_MAX});
  socket->watch = agent_->watch(fd, EPOLLIN, [this, socket](uint32_t) { read(socket); });
  look(socket);
}

void DrainingSockets::read(Entry socket) {
  char bytes[4096];
  ssize_t got = 0;
  while ((got = recv(socket->fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) continue;
  // After the peer's end nothing comes that could reset the connection: the kernel sends the rest alone.
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) end(socket);
}

void DrainingSockets::look(Entry socket) {
  int bytes = 0;
  const auto now = Clock::now();
  if (ioctl(socket->fd, SIOCOUTQ, &bytes) != 0 || bytes == 0) return end(socket);
  // A slow link is no cut one: the deadline is for a wait in which nothing moves.
  if (bytes < std::exchange(socket->left, bytes)) socket->until = std::min(now + socket->deadline, socket->last);
  if (now > socket->until) return end(socket);
  socket->timer = agent_->after(kPeriod, [this, socket] { look(socket); });
}

void DrainingSockets::end(Entry socket) {
  agent_->cancel(socket->timer);
  agent_->unwatch(socket->watch, socket->fd);
  ::close(socket->fd);
  sockets_.erase(socket);
}

}  // namespace treering
