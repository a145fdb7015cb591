// SPDX-License-Identifier: Apache-2.0
// Two TCP links joined by sockets over 127.0.0.1, made before they are asked for so that fork() may part the sides.
//
//   side 0, outgoing stream i ---- socket pair ----> incoming stream i, side 1        and the same the other way
//
// The shared stream, number 0, is one that side 0 has opened.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "transport/tcp/link.h"

namespace treering {

// Connected sockets: {the one that sends, the one that receives}. Buffers of `buffer_bytes`, 0: as the kernel likes.
inline std::pair<int, int> tcp_sockets(int buffer_bytes = 0) {
  const auto check = [](bool good, const char* what) {
    if (!good) throw std::runtime_error(what);
  };
  const int listener = socket(AF_INET, SOCK_STREAM, 0), sender = socket(AF_INET, SOCK_STREAM, 0);
  if (buffer_bytes > 0) {
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
    setsockopt(sender, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  check(bind(listener, name, length) == 0 && listen(listener, 1) == 0, "listen");
  check(getsockname(listener, name, &length) == 0 && connect(sender, name, length) == 0, "connect");
  const int receiver = accept(listener, nullptr, nullptr);
  check(receiver >= 0, "accept");
  close(listener);
  return {sender, receiver};
}

class TcpPair {
 public:
  explicit TcpPair(uint32_t streams, int buffer_bytes = 0) : streams_(streams) {
    for (auto& side : sides_)
      for (uint32_t i = 0; i <= streams; ++i)
        side.sockets.push_back(i > 0 || &side == sides_ ? tcp_sockets(buffer_bytes) : std::pair(-1, -1));
  }
  ~TcpPair() {
    for (int side = 0; side < 2; ++side) close_outgoing(side), close_incoming(side);
  }
  TcpPair(const TcpPair&) = delete;
  TcpPair& operator=(const TcpPair&) = delete;

  // The link of a side, made at the first call. `alone`: the other side lives in another process.
  const std::shared_ptr<TcpLink>& link(int own, TcpOptions options, bool alone = false) {
    Half& half = sides_[own];
    if (half.link) return half.link;
    if (alone) close_outgoing(1 - own), close_incoming(own);
    options.streams = streams_;
    options.keeps_shared = own == 0;
    half.source.pair = this;
    half.source.own = own;
    half.link = TcpLink::make(std::move(options), &half.source);
    for (uint32_t i = own == 0 ? 1 : 0; i <= streams_; ++i)
      half.link->deliver_incoming(i, std::exchange(sides_[1 - own].sockets[i].second, -1));
    if (own == 0) half.link->deliver_outgoing(0, {}, std::exchange(half.sockets[0].first, -1));
    return half.link;
  }
  // The socket on which a side will send stream `index`.
  int outgoing(int own, uint32_t index) const { return sides_[own].sockets[index].first; }
  // The side leaves, once its connections are gone too.
  void drop_link(int side) {
    sides_[side].link.reset();
    close_outgoing(side);  // streams that were not asked for
    if (sides_[1 - side].link) sides_[1 - side].link->deliver_departure();
  }
  // A socket that the test uses itself, or replaces.
  int& sending_socket(int side, uint32_t index) { return sides_[side].sockets[index].first; }
  int& receiving_socket(int side, uint32_t index) { return sides_[1 - side].sockets[index].second; }

 private:
  struct Source final : StreamSource {
    TcpPair* pair = nullptr;
    int own = 0;
    // Sockets of later attempts are made when they are asked for.
    void open_stream(uint32_t, PeerStreamId stream) override {
      Half &half = pair->sides_[own], &peer = pair->sides_[1 - own];
      int fd = -1;
      if (stream.attempt == 0) fd = std::exchange(half.sockets[stream.index].first, -1);
      if (fd < 0 && !peer.link) return half.link->deliver_outgoing(stream, {trInvalidUsage, "it has left"}, -1);
      if (fd < 0) {
        const auto [sender, receiver] = tcp_sockets();
        peer.link->deliver_incoming(stream, receiver);
        fd = sender;
      }
      half.link->deliver_outgoing(stream, {}, fd);
    }
  };
  struct Half {
    std::vector<std::pair<int, int>> sockets;  // of the streams that this side opens
    Source source;
    std::shared_ptr<TcpLink> link;
  };
  void close_outgoing(int side) {
    for (auto& [sender, receiver] : sides_[side].sockets)
      if (int fd = std::exchange(sender, -1); fd >= 0) close(fd);
  }
  // Those of the streams that `side` opens, at the other end.
  void close_incoming(int side) {
    for (auto& [sender, receiver] : sides_[side].sockets)
      if (int fd = std::exchange(receiver, -1); fd >= 0) close(fd);
  }

  uint32_t streams_;
  Half sides_[2];
};

}  // namespace treering
