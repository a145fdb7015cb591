// SPDX-License-Identifier: Apache-2.0
#include "transport/paced.h"

#include <time.h>

#include <algorithm>
#include <cstring>

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

  // As many messages are under way as without the link, those that wait for it included.
  bool can_post() override {
    link_->flush();
    return link_->has_room() && posted_ - inner_->posted() < kFifoDepth && inner_->can_post();
  }
  void post(const Message& message) override {
    ++posted_;
    link_->carry(inner_.get(), message);
  }
  uint64_t released() override {
    link_->flush();
    return released_ = inner_->released();
  }

  const Message* front() override {
    link_->flush();
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
  std::byte* operand_place(const Message& operand) override { return inner_->operand_place(operand); }
  bool slots_outlive_sender() const override { return inner_->slots_outlive_sender(); }
  Status health() const override { return inner_->health(); }
  const char* transport_name() const override { return inner_->transport_name(); }

 private:
  std::unique_ptr<Connection> inner_;
  std::shared_ptr<PacedLink> link_;
};

}  // namespace

bool PacedLink::has_room() const { return free_us_ <= now_us() + kAheadUs; }

void PacedLink::carry(Connection* connection, const Message& message) {
  free_us_ = std::max(free_us_, now_us()) + (message.bytes + kHeaderBytes) * us_per_byte_;
  Waiting& waiting = waiting_.emplace_back();
  waiting.connection = connection;
  waiting.message = message;
  waiting.due_us = free_us_;
  if (message.kind == PayloadKind::kInline && message.bytes > 0)
    std::memcpy(waiting.inline_data.data(), message.data, message.bytes);
}

bool PacedLink::flush() {
  while (!waiting_.empty() && waiting_.front().due_us <= now_us() && waiting_.front().connection->can_post()) {
    Waiting& first = waiting_.front();
    if (first.message.kind == PayloadKind::kInline) first.message.data = first.inline_data.data();
    first.connection->post(first.message);
    waiting_.pop_front();
  }
  return waiting_.empty();
}

Status PacedLink::health() const { return waiting_.empty() ? Status() : waiting_.front().connection->health(); }

std::unique_ptr<Connection> pace_connection(std::unique_ptr<Connection> connection, std::shared_ptr<PacedLink> link) {
  return std::make_unique<PacedConnection>(std::move(connection), std::move(link));
}

}  // namespace treering
