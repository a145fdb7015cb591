// SPDX-License-Identifier: Apache-2.0
#include "peers/tcp_streams.h"

#include <fmt/format.h>
#include <unistd.h>

#include "core/log.h"

namespace treering {

TcpStreams::~TcpStreams() {
  for (const auto& [peer, link] : links_) link->finish();
  for (const auto& [peer, early] : early_)
    for (const auto& [stream, fd] : early.sockets) close(fd);
}

void TcpStreams::abandon() {
  std::lock_guard lock(mutex_);
  for (const auto& [peer, link] : links_) link->abandon();
}

std::shared_ptr<TcpLink> TcpStreams::add_link(TcpOptions options) {
  const uint32_t peer = options.peer;
  options.waits = waits_;
  auto link = TcpLink::make(std::move(options), this);
  std::lock_guard lock(mutex_);
  links_[peer] = link;
  if (const auto found = early_.find(peer); found != early_.end()) {
    for (const auto& [stream, fd] : found->second.sockets) link->deliver_incoming(stream, fd);
    if (found->second.departed) link->deliver_departure();
    early_.erase(found);
  }
  return link;
}

void TcpStreams::incoming(uint32_t source, TcpStreamId stream, int fd) {
  std::lock_guard lock(mutex_);
  if (const auto found = links_.find(source); found != links_.end()) return found->second->deliver_incoming(stream, fd);
  auto& sockets = early_[source].sockets;
  if (sockets.size() <= kMaxTcpStreams) return sockets.emplace_back(stream, fd), void();
  log_line(LogLevel::kWarn, fmt::format("rank {} opened more than {} TCP streams: closed", source, kMaxTcpStreams));
  close(fd);
}

void TcpStreams::outgoing(uint32_t peer, TcpStreamId stream, const Status& status, int fd) {
  std::lock_guard lock(mutex_);
  if (const auto found = links_.find(peer); found != links_.end())
    return found->second->deliver_outgoing(stream, status, fd);
  if (fd >= 0) close(fd);
}

void TcpStreams::departed(uint32_t peer) {
  std::lock_guard lock(mutex_);
  if (const auto found = links_.find(peer); found != links_.end()) return found->second->deliver_departure();
  early_[peer].departed = true;
}

}  // namespace treering
