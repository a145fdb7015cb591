// SPDX-License-Identifier: Apache-2.0
// LinkConnection: the connection of one channel, where one link carries the messages of all channels to a peer. It keeps
// the link alive. What a transport answers by itself (how messages refer to memory, what is fetched, its name) is left
// to its own class.
#pragma once

#include <memory>
#include <utility>

#include "transport/connection.h"

namespace treering {

template <typename Link>
class LinkConnection : public Connection {
 public:
  LinkConnection(std::shared_ptr<Link> link, uint32_t channel) : link_(std::move(link)), channel_(channel) {}

  bool can_post() final { return link_->can_post(channel_); }
  void post(const Message& message) final {
    ++posted_;
    link_->post(channel_, message);
  }
  uint64_t released() final { return released_ = link_->released(channel_); }
  const Message* front() final { return link_->front(channel_); }
  void pop() final { link_->pop(channel_); }
  Status health() const final { return link_->health(); }

 protected:
  const Link& link() const { return *link_; }
  Link& link() { return *link_; }

 private:
  const std::shared_ptr<Link> link_;
  const uint32_t channel_;
};

}  // namespace treering
