#include "communicator/tcp_streams.h"

#include <fmt/format.h>
#include <unistd.h>

#include "core/log.h"

namespace treering {

std::shared_ptr<TcpLink> TcpStreams::add_link(TcpOptions options) {
  const uint32_t peer = options.peer;
  options.waits = waits_;
  return links_[peer] = TcpLink::make(std::move(options), this);
}

TcpLink* TcpStreams::find(uint32_t peer) const {
  const auto found = links_.find(peer);
  return found == links_.end() ? nullptr : found->second.get();
}

void TcpStreams::incoming(uint32_t source, uint32_t index, int fd) {
  if (TcpLink* link = find(source)) return link->deliver_incoming(index, fd);
  log_line(LogLevel::kWarn, fmt::format("rank {} opened a TCP stream, but is reached otherwise: closed", source));
  close(fd);
}

void TcpStreams::outgoing(uint32_t peer, uint32_t index, const Status& status, int fd) {
  if (TcpLink* link = find(peer)) return link->deliver_outgoing(index, status, fd);
  if (fd >= 0) close(fd);
}

void TcpStreams::departed(uint32_t peer) {
  if (TcpLink* link = find(peer)) link->deliver_departure();
}

}  // namespace treering
