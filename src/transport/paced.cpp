// SPDX-License-Identifier: Apache-2.0
#include "transport/paced.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace treering {
namespace {

constexpr double kAheadUs = 20'000;
constexpr uint32_t kHeaderBytes = 64;

double now_us() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1000;
}

class PacedConnection final : public Connection {
 public:
  PacedConnection(std::unique_ptr<Connection> inner, std::shared_ptr<PacedLink> link)
      : inner_(std::move(inner)), link_(std::move(link)) {}

  bool can_post() override {
    send_due();
    return link_->has_room() && posted_ - inner_->posted() < kFifoDepth && inner_->can_post();
  }
  void post(const Message& message) override {
    Waiting& waiting = waiting_[posted_++ % kFifoDepth];
    waiting.message = message;
    waiting.due_us = link_->carry(message.bytes);
    if (message.kind == PayloadKind::kInline && message.bytes > 0)
      std::memcpy(waiting.inline_data.data(), message.data, message.bytes);
  }
  uint64_t released() override {
    send_due();
    return released_ = inner_->released();
  }
  // Posts below what the link has carried; true when nothing waits.
  bool send_due() {
    while (inner_->posted() < posted_) {
      Waiting& first = waiting_[inner_->posted() % kFifoDepth];
      if (first.due_us > now_us() || !inner_->can_post()) return false;
      if (first.message.kind == PayloadKind::kInline) first.message.data = first.inline_data.data();
      inner_->post(first.message);
    }
    return true;
  }

  const Message* front() override {
    send_due();
    return inner_->front();
  }
  void pop() override { inner_->pop(); }
  Status fetch(const Message& message, size_t offset, void* destination, size_t bytes) override {
    return inner_->fetch(message, offset, destination, bytes);
  }

  std::optional<UserAddress> reference(const UserMemory& memory) const override { return inner_->reference(memory); }
  std::byte* output_place(uint64_t operation, uint64_t offset, size_t bytes) override {
    return inner_->output_place(operation, offset, bytes);
  }
  void show_output(uint64_t operation, const UserMemory& output) override { inner_->show_output(operation, output); }
  std::byte* operand_place(const Message& operand) override { return inner_->operand_place(operand); }
  bool slots_outlive_sender() const override { return inner_->slots_outlive_sender(); }
  Status health() const override { return inner_->health(); }
  const char* transport_name() const override { return inner_->transport_name(); }

 private:
  struct Waiting {
    Message message;
    double due_us = 0;
    std::array<std::byte, kInlineBytes> inline_data;
  };

  std::unique_ptr<Connection> inner_;
  std::shared_ptr<PacedLink> link_;
  std::array<Waiting, kFifoDepth> waiting_;  // message k at k % kFifoDepth
};

// What waits for the link, and behind it what the transport could not send yet. Ends before the connections do.
class PacedQueue final : public SendQueue {
 public:
  explicit PacedQueue(std::shared_ptr<SendQueue> inner) : inner_(std::move(inner)) {}
  void add(PacedConnection* connection) { connections_.push_back(connection); }

  bool flush() override {
    bool flushed = true;
    for (PacedConnection* connection : connections_) flushed &= connection->send_due();
    return (inner_ == nullptr || inner_->flush()) && flushed;
  }
  void serve_idle() override {
    for (PacedConnection* connection : connections_) (void)connection->send_due();
    if (inner_ != nullptr) inner_->serve_idle();
  }
  Status health() const override { return connections_.empty() ? Status() : connections_[0]->health(); }
  std::optional<std::chrono::steady_clock::time_point> away_since() const override {
    return inner_ == nullptr ? std::nullopt : inner_->away_since();
  }

 private:
  std::shared_ptr<SendQueue> inner_;
  std::vector<PacedConnection*> connections_;
};

}  // namespace

bool PacedLink::has_room() const { return free_us_ <= now_us() + kAheadUs; }

double PacedLink::carry(uint32_t bytes) {
  return free_us_ = std::max(free_us_, now_us()) + (bytes + kHeaderBytes) * us_per_byte_;
}

PeerConnections pace(PeerConnections connections, const std::shared_ptr<PacedLink>& link) {
  auto queue = std::make_shared<PacedQueue>(std::move(connections.queue));
  PeerConnections paced;
  for (std::unique_ptr<Connection>& inner : connections.channels) {
    auto connection = std::make_unique<PacedConnection>(std::move(inner), link);
    queue->add(connection.get());
    paced.channels.push_back(std::move(connection));
  }
  paced.queue = std::move(queue);
  return paced;
}

}  // namespace treering
