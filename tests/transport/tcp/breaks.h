// SPDX-License-Identifier: Apache-2.0
// Two TCP links in one thread, whose streams the test may break in every way.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>

#include "transport/linked.h"
#include "transport/tcp/testing.h"

namespace treering {

enum class Break { kReset, kShutDown, kEnd };  // of both directions at once; in order; of what this end sends

class BreakablePair {
 public:
  explicit BreakablePair(uint32_t streams, TcpZeroCopy zero_copy = TcpZeroCopy::kNever, int buffer_bytes = 0,
                         std::chrono::milliseconds deadline = {})
      : buffer_bytes_(buffer_bytes) {
    for (int side = 0; side < 2; ++side) {
      sources_[side].pair = this;
      sources_[side].own = side;
      TcpOptions options = options_to(1 - side);
      options.streams = streams;
      options.fragment_bytes = 16 << 10;
      options.keeps_shared = side == 0;
      options.zero_copy = zero_copy;
      options.deadline = deadline;
      links_[side] = TcpLink::make(options, &sources_[side]);
      for (uint32_t c = 0; c < kManyChannels; ++c) connections_[side].push_back(linked(links_[side], c));
    }
  }
  ~BreakablePair() {
    for (const Socket& socket : sockets_)
      for (int fd : socket.ends) close(fd);
  }

  Linked& at(int side, uint32_t channel = 0) { return connections_[side][channel]; }
  TcpLink* link(int side) { return links_[side].get(); }
  // No side is asked for anything; both move what can be moved.
  void serve() {
    for (int side = 0; side < 2; ++side) {
      (void)at(side).flushed();
      (void)at(side)->front();
    }
  }
  // The side leaves, in order, with all that belongs to it.
  void leave(int side) {
    connections_[side].clear();
    links_[side].reset();
    left_[side] = true;
  }
  // Breaks the latest stream of that number which `opener` opened, at one of its ends; false: there is none.
  bool break_stream(int opener, uint32_t index, int end, Break how) {
    for (auto socket = sockets_.rbegin(); socket != sockets_.rend(); ++socket)
      if (socket->opener == opener && socket->index == index)
        return break_end(socket->ends[end == opener ? 0 : 1], how);
    return false;
  }
  bool break_any(uint64_t random, Break how) {
    if (sockets_.empty()) return false;
    const Socket& socket = sockets_[sockets_.size() - 1 - random % std::min<size_t>(sockets_.size(), 6)];
    return break_end(socket.ends[random >> 32 & 1], how);
  }
  size_t opened() const { return sockets_.size(); }
  // Streams that are asked for cannot be opened, or those of that number.
  Status refusal;
  std::optional<uint32_t> refused;

 private:
  struct Socket {
    int opener;
    uint32_t index;
    int ends[2];  // copies: of the opener, of the other
  };
  struct Source final : StreamSource {
    BreakablePair* pair = nullptr;
    int own = 0;
    void open_stream(uint32_t, PeerStreamId stream) override { pair->open(own, stream); }
  };
  static bool break_end(int fd, Break how) {
    if (how == Break::kShutDown) return shutdown(fd, SHUT_RDWR) == 0;
    if (how == Break::kEnd) return shutdown(fd, SHUT_WR) == 0;
    sockaddr nowhere{};
    nowhere.sa_family = AF_UNSPEC;  // as SO_LINGER and close(), which a copy of the descriptor cannot do
    return connect(fd, &nowhere, sizeof nowhere) == 0;
  }
  void open(int own, PeerStreamId stream) {
    if (!refusal.ok() && refused.value_or(stream.index) == stream.index)
      return links_[own]->deliver_outgoing(stream, refusal, -1);
    if (left_[1 - own]) return links_[own]->deliver_outgoing(stream, {trInvalidUsage, "the rank is not there"}, -1);
    const auto [sender, receiver] = tcp_sockets(buffer_bytes_);
    sockets_.push_back({own, stream.index, {dup(sender), dup(receiver)}});
    links_[1 - own]->deliver_incoming(stream, receiver);
    links_[own]->deliver_outgoing(stream, {}, sender);
  }

  int buffer_bytes_;
  Source sources_[2];
  std::vector<Socket> sockets_;
  std::shared_ptr<TcpLink> links_[2];
  std::vector<Linked> connections_[2];
  bool left_[2] = {};
};

}  // namespace treering
