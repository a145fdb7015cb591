// SPDX-License-Identifier: Apache-2.0
// A connection together with the queue in which its messages wait, for tests that look at both.
#pragma once

#include <memory>
#include <utility>

#include "transport/connection.h"
#include "transport/tcp/link.h"

namespace treering {

struct Linked : std::unique_ptr<Connection> {
  Linked() = default;
  Linked(std::unique_ptr<Connection> connection, std::shared_ptr<SendQueue> waits = nullptr)
      : std::unique_ptr<Connection>(std::move(connection)), queue(std::move(waits)) {}
  void reset() {
    std::unique_ptr<Connection>::reset();
    queue.reset();
  }
  bool flushed() const { return queue == nullptr || queue->flush(); }

  std::shared_ptr<SendQueue> queue;
};

inline Linked linked(const std::shared_ptr<TcpLink>& link, uint32_t channel) {
  return {link->connection(channel), link};
}

}  // namespace treering
