// SPDX-License-Identifier: Apache-2.0
#include "transport/cma/cma.h"

#include <fmt/format.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>

namespace treering {
namespace {

using VmCall = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

// Transfers may be partial; each turn makes progress or ends in an error.
Status transfer(VmCall call, const char* name, int pid, uint64_t address, std::byte* local_memory, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    iovec local{local_memory + done, bytes - done};
    iovec remote{reinterpret_cast<void*>(address + done), bytes - done};
    ssize_t moved = call(pid, &local, 1, &remote, 1, 0);
    if (moved <= 0)
      return {errno == ESRCH ? trRemoteError : trSystemError,
              fmt::format("{} of {} bytes with process {}: {}{}", name, bytes, pid, std::strerror(errno),
                          errno == EPERM ? " (Yama's ptrace_scope, a seccomp filter or another user forbid it)" : "")};
    done += static_cast<size_t>(moved);
  }
  return {};
}

class CmaConnection final : public Connection {
 public:
  CmaConnection(const CmaAddress& peer, Fifo* incoming) : peer_(peer), incoming_(incoming), receiver_(incoming) {}

  bool can_post() override {
    if (!health_.ok()) return false;
    return posted_ - released_ < kFifoDepth || posted_ - released() < kFifoDepth;
  }

  // The slot first, then, in a call of its own, its turn: the receiver must never see the turn before the rest.
  void post(const Message& message) override {
    FifoSlot slot;
    fill_slot(&slot, message);
    uint64_t target = peer_.fifo + offsetof(Fifo, slots) + posted_ % kFifoDepth * sizeof(FifoSlot);
    constexpr size_t kTurn = sizeof(slot.turn);
    auto* bytes = reinterpret_cast<const std::byte*>(&slot);
    auto turn = static_cast<uint32_t>(posted_ + 1);
    note(cma_write(peer_.pid, target + kTurn, bytes + kTurn, sizeof slot - kTurn));
    if (health_.ok()) note(cma_write(peer_.pid, target, &turn, sizeof turn));
    ++posted_;
  }

  uint64_t released() override {
    uint32_t low = incoming_->acknowledged.load(std::memory_order_acquire);
    return released_ = posted_ - (static_cast<uint32_t>(posted_) - low);
  }

  const Message* front() override {
    const FifoSlot* slot = receiver_.front();
    if (slot == nullptr) return nullptr;
    front_ = read_slot(*slot);
    return &front_;
  }
  void pop() override {
    receiver_.pop(true);
    ++popped_;
    if (front_.kind == PayloadKind::kInline && popped_ % kTellEvery != 0) return;
    note(cma_write(peer_.pid, peer_.fifo + offsetof(Fifo, acknowledged), &popped_, sizeof popped_));
  }

  Status fetch(const Message& message, size_t offset, void* destination, size_t bytes) override {
    uint64_t base = message.kind == PayloadKind::kStaging ? peer_.staging : 0;
    Status status = cma_read(peer_.pid, base + message.user.offset + offset, destination, bytes);
    note(status);
    return status;
  }

  std::optional<UserAddress> reference(const UserMemory& memory) const override {
    return UserAddress{0, reinterpret_cast<uint64_t>(memory.data)};
  }

  Status health() const override { return health_; }
  const char* transport_name() const override { return "cma"; }

 private:
  void note(Status status) {
    if (health_.ok() && !status.ok()) health_ = std::move(status);
  }

  CmaAddress peer_;
  Fifo* incoming_;
  FifoReceiver receiver_;
  uint32_t popped_ = 0;
  Message front_;
  Status health_;
};

}  // namespace

Status cma_read(int pid, uint64_t address, void* destination, size_t bytes) {
  return transfer(&process_vm_readv, "process_vm_readv", pid, address, static_cast<std::byte*>(destination), bytes);
}
Status cma_write(int pid, uint64_t address, const void* source, size_t bytes) {
  return transfer(&process_vm_writev, "process_vm_writev", pid, address,
                  static_cast<std::byte*>(const_cast<void*>(source)), bytes);
}

std::unique_ptr<Connection> connect_cma(const CmaAddress& peer, Fifo* incoming) {
  return std::make_unique<CmaConnection>(peer, incoming);
}

}  // namespace treering
