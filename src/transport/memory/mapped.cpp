// SPDX-License-Identifier: Apache-2.0
#include "transport/memory/mapped.h"

#include "transport/cma/cma.h"

namespace treering {
namespace {

class MappedConnection : public Connection {
 public:
  explicit MappedConnection(const MappedEndpoint& endpoint)
      : endpoint_(endpoint), sender_(endpoint.outgoing), receiver_(endpoint.incoming) {}

  bool can_post() final { return posted_ - released_ < kFifoDepth || posted_ - released() < kFifoDepth; }
  void post(const Message& message) final { sender_.post(posted_++, message); }
  // Payloads are read in place: one is released when it is popped.
  uint64_t released() final { return released_ = sender_.popped(posted_); }

  const Message* front() final {
    if (has_front_) return &front_;
    const FifoSlot* slot = receiver_.front();
    if (slot == nullptr) return nullptr;
    front_ = read_slot(*slot);
    if (front_.kind == PayloadKind::kStaging)
      front_.data = endpoint_.peer_staging + front_.user.offset;
    else if (front_.kind == PayloadKind::kUser)
      front_.data = map(front_.user, front_.bytes);
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

  // The peer may have entered another operation: what it shows is of this one only if it says so.
  std::byte* output_place(uint64_t operation, uint64_t offset, size_t bytes) final {
    const OpenBuffers& shown = *endpoint_.peer_buffers;
    if (shown.operation.load(std::memory_order_acquire) != operation) return nullptr;
    const uint64_t address = shown.output_address.load(std::memory_order_relaxed);
    return address == 0 ? nullptr : map(output_address(shown, address, offset), bytes);
  }
  std::byte* operand_place(const Message& operand) final {
    if (operand.kind != PayloadKind::kUser || endpoint_.peer_buffers->open_input.load(std::memory_order_relaxed) == 0)
      return nullptr;
    return static_cast<std::byte*>(const_cast<void*>(operand.data));
  }
  bool slots_outlive_sender() const final { return true; }

 protected:
  // The peer's memory in this address space, or nullptr.
  virtual std::byte* map(UserAddress address, size_t bytes) = 0;
  virtual UserAddress output_address(const OpenBuffers& shown, uint64_t address, uint64_t offset) const = 0;

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
  std::optional<UserAddress> reference(const UserMemory& memory) const override {
    return UserAddress{0, reinterpret_cast<uint64_t>(memory.data)};
  }
  const char* transport_name() const override { return "in-process"; }

 private:
  // A region of this process is known by its address here: posts never name one.
  std::byte* map(UserAddress address, size_t) override {
    return address.region == 0 ? reinterpret_cast<std::byte*>(address.offset) : nullptr;
  }
  UserAddress output_address(const OpenBuffers&, uint64_t address, uint64_t offset) const override {
    return {0, address + offset};
  }
};

class SharedMemoryConnection final : public MappedConnection {
 public:
  using MappedConnection::MappedConnection;
  std::optional<UserAddress> reference(const UserMemory& memory) const override {
    if (endpoint_.peer_regions != nullptr && memory.lies_in_region() && !memory.region->watched)
      return UserAddress{memory.region->id, static_cast<uint64_t>(memory.data - memory.region->base)};
    if (endpoint_.fetch_pid > 0 && memory.fetch_pays) return UserAddress{0, reinterpret_cast<uint64_t>(memory.data)};
    return {};
  }
  const char* transport_name() const override { return "shared-memory"; }

 private:
  std::byte* map(UserAddress address, size_t bytes) override {
    if (address.region == 0 || endpoint_.peer_regions == nullptr) return nullptr;
    return static_cast<std::byte*>(endpoint_.peer_regions->map(address.region, address.offset, bytes));
  }
  UserAddress output_address(const OpenBuffers& shown, uint64_t, uint64_t offset) const override {
    return {shown.output_region.load(std::memory_order_relaxed),
            shown.output_offset.load(std::memory_order_relaxed) + offset};
  }
};

}  // namespace

std::unique_ptr<Connection> connect_in_process(const MappedEndpoint& endpoint) {
  return std::make_unique<InProcessConnection>(endpoint);
}
std::unique_ptr<Connection> connect_shared_memory(const MappedEndpoint& endpoint) {
  return std::make_unique<SharedMemoryConnection>(endpoint);
}

}  // namespace treering
