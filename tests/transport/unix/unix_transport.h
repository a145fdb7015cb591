// SPDX-License-Identifier: Apache-2.0
// A transport over Unix sockets, made outside of src/: what another transport has to write, and no more.
//
//   one socket for each pair of ranks and channel; on it each way   | header | payload | header | payload | ...
//   a header is a message, or how many messages of the other side have been popped
//
// The rank with the lower number dials the other's abstract address, which its card names. Payloads are copied when they are posted.
#pragma once

#include <deque>
#include <map>
#include <string>

#include "transport/transport.h"

namespace treering::testing {

class UnixConnection final : public Connection {
 public:
  // Takes the socket; -1: it comes later. `staging`: of this rank.
  UnixConnection(int socket, const std::byte* staging, std::string peer_name)
      : socket_(socket), staging_(staging), peer_name_(std::move(peer_name)) {}
  ~UnixConnection() override;
  void take_socket(int socket) { socket_ = socket; }
  // Called in every poll while there is no socket.
  void set_progress(std::function<void()> progress) { progress_ = std::move(progress); }

  bool can_post() override;
  void post(const Message& message) override;
  uint64_t consumed() override { return consumed_ = posted_; }
  const Message* front() override;
  void pop() override;
  Status fetch(const Message&, size_t, void*, size_t) override { return {trInternalError, "payloads come along"}; }
  bool reaches_plain_memory() const override { return true; }
  bool buffers() const override { return true; }
  bool flushed() override;
  bool maps_regions() const override { return false; }
  void* map_peer(UserAddress, size_t) override { return nullptr; }
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
  const std::byte* staging_;
  const std::string peer_name_;
  std::function<void()> progress_;
  std::string out_, in_;
  std::deque<Received> arrived_;
  uint64_t popped_ = 0, popped_by_peer_ = 0;
  Status health_;
};

std::unique_ptr<Transport> open_unix(const TransportSetup& setup);

// Its row of the table of transports.
TransportRow unix_row();

}  // namespace treering::testing
