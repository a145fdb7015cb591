// SPDX-License-Identifier: Apache-2.0
#include "transport/memory/mapped.h"

#include "transport/cma/cma.h"

namespace treering {
namespace {

class MappedConnection : public Connection {
 public:
  explicit MappedConnection(const MappedEndpoint& endpoint)
      : endpoint_(endpoint), sender_(endpoint.outgoing), receiver_(endpoint.incoming) {}

  bool can_post() final { return posted_ - consumed_ < kFifoDepth || posted_ - consumed() < kFifoDepth; }
  void post(const Message& message) final { sender_.post(posted_++, message); }
  uint64_t consumed() final { return consumed_ = sender_.consumed(posted_); }

  const Message* front() final {
    if (has_front_) return &front_;
    const FifoLine* line = receiver_.front();
    if (line == nullptr) return nullptr;
    front_ = read_line(*line);
    if (front_.kind == PayloadKind::kStaging)
      front_.data = endpoint_.peer_staging + front_.user.offset;
    else if (front_.kind == PayloadKind::kUser)
      front_.data = map_peer(front_.user, front_.bytes);
    has_front_ = true;
    return &front_;
  }
  void pop() final {
    has_front_ = false;
    receiver_.pop(front_.kind != PayloadKind::kInline);
  }
  Status fetch(const Message& message, size_t offset, void* destination, size_t bytes) final {
    if (message.user.region == 0 && endpoint_.fetch_pid > 0)
      return cma_read(endpoint_.fetch_pid, message.user.offset + offset, destination, bytes);
    return {trSystemError,
            "the peer refers to a registered buffer that this process cannot map (is /proc mounted, and "
            "may it open the peer's descriptors?); use ordinary buffers"};
  }

 protected:
  MappedEndpoint endpoint_;

 private:
  FifoSender sender_;
  FifoReceiver receiver_;
  Message front_;
  bool has_front_ = false;
};

class InProcessConnection final : public MappedConnection {
 public:
  using MappedConnection::MappedConnection;
  bool reaches_plain_memory() const override { return true; }
  bool maps_regions() const override { return true; }
  // A region of this process is known by its address here: posts never name one.
  void* map_peer(UserAddress address, size_t) override {
    return address.region == 0 ? reinterpret_cast<void*>(address.offset) : nullptr;
  }
  const char* transport_name() const override { return "in-process"; }
};

class SharedMemoryConnection final : public MappedConnection {
 public:
  using MappedConnection::MappedConnection;
  bool reaches_plain_memory() const override { return false; }
  bool fetches_plain_memory() const override { return endpoint_.fetch_pid > 0; }
  bool maps_regions() const override { return endpoint_.peer_regions != nullptr; }
  void* map_peer(UserAddress address, size_t bytes) override {
    if (address.region == 0 || endpoint_.peer_regions == nullptr) return nullptr;
    return endpoint_.peer_regions->map(address.region, address.offset, bytes);
  }
  const char* transport_name() const override { return "shared-memory"; }
};

}  // namespace

std::unique_ptr<Connection> connect_in_process(const MappedEndpoint& endpoint) {
  return std::make_unique<InProcessConnection>(endpoint);
}
std::unique_ptr<Connection> connect_shared_memory(const MappedEndpoint& endpoint) {
  return std::make_unique<SharedMemoryConnection>(endpoint);
}

}  // namespace treering
