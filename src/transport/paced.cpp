// SPDX-License-Identifier: Apache-2.0
#include "transport/paced.h"

#include <time.h>

#include <algorithm>

namespace treering {
namespace {

class PacedConnection final : public Connection {
 public:
  PacedConnection(std::unique_ptr<Connection> inner, std::shared_ptr<PacedLink> link)
      : inner_(std::move(inner)), link_(std::move(link)) {}

  bool can_post() override { return link_->has_room() && inner_->can_post(); }
  void post(const Message& message) override {
    Message stamped = message;
    const auto due = static_cast<uint32_t>(link_->carry(message.bytes));
    stamped.due_us = due == 0 ? 1 : due;
    inner_->post(stamped);
    ++posted_;
  }
  uint64_t consumed() override { return consumed_ = inner_->consumed(); }

  const Message* front() override {
    const Message* message = inner_->front();
    if (message == nullptr || message->due_us == 0) return message;
    // A difference of 32-bit times: right as long as nothing waits for half an hour.
    return static_cast<int32_t>(static_cast<uint32_t>(PacedLink::now_us()) - message->due_us) >= 0 ? message : nullptr;
  }
  void pop() override { inner_->pop(); }
  Status fetch(const Message& message, size_t offset, void* destination, size_t bytes) override {
    return inner_->fetch(message, offset, destination, bytes);
  }

  bool reaches_plain_memory() const override { return inner_->reaches_plain_memory(); }
  bool buffers() const override { return inner_->buffers(); }
  bool flushed() override { return inner_->flushed(); }
  bool fetches_plain_memory() const override { return inner_->fetches_plain_memory(); }
  bool maps_regions() const override { return inner_->maps_regions(); }
  void* map_peer(UserAddress address, size_t bytes) override { return inner_->map_peer(address, bytes); }
  Status health() const override { return inner_->health(); }
  const char* transport_name() const override { return inner_->transport_name(); }

 private:
  std::unique_ptr<Connection> inner_;
  std::shared_ptr<PacedLink> link_;
};

}  // namespace

uint64_t PacedLink::now_us() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

uint64_t PacedLink::carry(uint32_t bytes) {
  free_us_ = std::max(free_us_, static_cast<double>(now_us())) + (bytes + kHeaderBytes) * us_per_byte_;
  return static_cast<uint64_t>(free_us_);
}

std::unique_ptr<Connection> pace_connection(std::unique_ptr<Connection> connection, std::shared_ptr<PacedLink> link) {
  return std::make_unique<PacedConnection>(std::move(connection), std::move(link));
}

}  // namespace treering
