// SPDX-License-Identifier: Apache-2.0
// A transport over Unix sockets, made outside of src/: what another transport has to write, and no more.
//
//   one socket for each pair of ranks and channel; on it each way   | header | payload | header | payload | ...
//   a header is a message, or how many messages of the other side have been popped
//
// The rank with the higher number introduces itself by its listener's name; the other one dials that. Payloads are
// copied when they are posted.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace treering::testing {

class UnixConnection final : public Connection {
 public:
  // Takes the socket; -1: it comes later. `staging`: of this rank.
  UnixConnection(int socket, const std::byte* staging, std::string peer_name)
      : socket_(socket), staging_(staging), peer_name_(std::move(peer_name)) {}
  ~UnixConnection() override;
  void take_socket(int socket);
  // Only flush() sends, as where a kernel never has room at the time of a post.
  void hold() { holds_ = true; }
  // Its socket ends the waits of this rank.
  void wake(std::shared_ptr<WaitSet> waits);
  // Called in every poll while there is no socket.
  void set_progress(std::function<void()> progress) { progress_ = std::move(progress); }

  bool can_post() override;
  void post(const Message& message) override;
  uint64_t released() override { return released_ = posted_; }
  const Message* front() override;
  void pop() override;
  Status fetch(const Message&, size_t, void*, size_t) override { return {trInternalError, "payloads come along"}; }
  std::optional<UserAddress> reference(const UserMemory& memory) const override {
    return UserAddress{0, reinterpret_cast<uint64_t>(memory.data)};
  }
  // Sends what can be sent; true when nothing waits.
  bool flush();
  Status health() const override { return health_; }
  const char* transport_name() const override { return "unix"; }

 private:
  struct Header {
    Message message;  // as it is: both ranks run the same build
    uint64_t popped = 0;
    bool is_message = false;
  };
  struct Received {
    Message message;
    std::string payload;
  };
  void append(const Header& header, const void* payload, size_t bytes);
  void send_queued();
  void receive();
  void lose(const std::string& why);

  int socket_;
  bool holds_ = false;
  const std::byte* staging_;
  const std::string peer_name_;
  std::function<void()> progress_;
  std::shared_ptr<WaitSet> waits_;
  std::string out_, in_;
  std::deque<Received> arrived_;
  uint64_t popped_ = 0, popped_by_peer_ = 0;
  Status health_;
};

// What waits on the sockets to one peer; ends before the connections.
class UnixQueue final : public SendQueue {
 public:
  UnixQueue() = default;
  explicit UnixQueue(UnixConnection* connection) : connections_{connection} {}
  void add(UnixConnection* connection) { connections_.push_back(connection); }

  bool flush() override {
    bool flushed = true;
    for (UnixConnection* connection : connections_) flushed &= connection->flush();
    return flushed;
  }
  Status health() const override {
    for (const UnixConnection* connection : connections_)
      if (!connection->health().ok()) return connection->health();
    return {};
  }

 private:
  std::vector<UnixConnection*> connections_;
};

std::unique_ptr<Transport> open_unix(const TransportSetup& setup);

// Its row of the table of transports.
TransportRow unix_row();
// The same between ranks that take themselves for those of several hosts, with connections that hold().
TransportRow held_unix_row();

}  // namespace treering::testing
