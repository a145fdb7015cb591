// SPDX-License-Identifier: Apache-2.0
// TcpStreams: the TCP links of one rank, fed with sockets by its membership.
//
//   link --open_stream(peer, stream)-> membership --agent connects, authenticates--> on_outgoing --> link
//                                      peer's agent accepts, authenticates         --> on_incoming --> peer's link
//
// A link is made when the rank first has to do with the peer. What comes for it before is kept: sockets that the peer has
// opened, and that it has left.
//
// Invariant: the links outlive the membership's events, which come on the agent's thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "bootstrap/membership.h"
#include "transport/tcp/link.h"

namespace treering {

class TcpStreams final : public StreamSource {
 public:
  explicit TcpStreams(Membership* membership) : membership_(membership) {}
  ~TcpStreams() override;

  void open_stream(uint32_t peer, TcpStreamId stream) override { membership_->open_stream(peer, stream); }

  // One for a peer, from the thread that uses it.
  std::shared_ptr<TcpLink> add_link(TcpOptions options);

  // Of a communicator that has failed: TcpLink::abandon().
  void abandon();

  // On which a rank that waits can sleep.
  const std::shared_ptr<TcpWaitSet>& waits() const { return waits_; }

  // Events of the membership.
  void incoming(uint32_t source, TcpStreamId stream, int fd);
  void outgoing(uint32_t peer, TcpStreamId stream, const Status& status, int fd);
  void departed(uint32_t peer);

 private:
  struct Early {
    std::vector<std::pair<TcpStreamId, int>> sockets;
    bool departed = false;
  };

  Membership* membership_;
  std::shared_ptr<TcpWaitSet> waits_ = std::make_shared<TcpWaitSet>();
  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<TcpLink>> links_;
  std::map<uint32_t, Early> early_;  // of peers without a link
};

}  // namespace treering
