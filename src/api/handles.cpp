// SPDX-License-Identifier: Apache-2.0
#include "api/handles.h"

#include <fmt/format.h>
#include <pthread.h>

#include <thread>

#include "gpu/memory/deferred_free.h"
#include "progress/engine.h"

namespace treering {
namespace {

constexpr size_t kSlots = 4096;
constexpr uint64_t kSlotBits = 16;

CommunicatorSlot* slots() {
  static auto* table = new CommunicatorSlot[kSlots];
  return table;
}

thread_local std::string last_error;

// In a process that was forked: communicators stay the parent's. Their handles end here, and what they hold is left as
// it is, because to release it would tell the other ranks that this one has left.
void disown_communicators() {
  for (size_t i = 0; i < kSlots; ++i)
    if (CommunicatorSlot& slot = slots()[i]; slot.generation.load() % 2 != 0) {
      const uint64_t generation = slot.generation.fetch_add(2);
      if (slot.inherited.load() == 0) slot.inherited.store(generation);  // else it was that process's already
    }
}

bool decode(trComm_t handle, size_t* slot, uint64_t* generation) {
  auto bits = reinterpret_cast<uint64_t>(handle);
  *slot = bits & ((uint64_t{1} << kSlotBits) - 1);
  *generation = bits >> kSlotBits;
  return *slot >= 1 && *slot <= kSlots && *generation % 2 == 1;
}

Status bad_handle(trComm_t handle) {
  if (handle == nullptr) return {trInvalidArgument, "comm is NULL"};
  size_t index = 0;
  uint64_t generation = 0;
  if (decode(handle, &index, &generation) && slots()[index - 1].inherited.load() == generation)
    return {trInvalidUsage, fmt::format("comm {} belongs to the process that this one was forked from; make one after "
                                        "the fork",
                                        static_cast<void*>(handle))};
  return {trInvalidUsage, fmt::format("comm {} is not a communicator, or was destroyed", static_cast<void*>(handle))};
}

// What other ranks have open of this rank's GPU, and it of theirs, goes before the communicator, by which they tell.
void end(std::unique_ptr<Communicator> communicator, std::unique_ptr<DeviceRank> device) {
  if (device == nullptr) return communicator.reset();
  communicator->set_gpu_side(nullptr);
  device.reset();
  communicator->leave_with_memory();
  communicator.reset();
  DeferredFree::instance().collect();
}

}  // namespace

void CommunicatorSlot::set_last_error(const std::string& text) {
  std::lock_guard lock(mutex_);
  last_error_ = text;
}

std::string CommunicatorSlot::last_error() const {
  std::lock_guard lock(mutex_);
  return last_error_;
}

Status CommunicatorLease::acquire(trComm_t handle) {
  size_t index = 0;
  uint64_t generation = 0;
  if (!decode(handle, &index, &generation)) return bad_handle(handle);
  CommunicatorSlot& slot = slots()[index - 1];
  if (slot.generation.load(std::memory_order_acquire) != generation) return bad_handle(handle);
  if (slot.in_call.exchange(true))
    return {trInvalidUsage, "the communicator is in use by another thread: calls on one communicator must not overlap"};
  slot_ = &slot;
  // It may have been destroyed in between; from here on it cannot be.
  if (slot.generation.load() == generation) return {};
  release();
  return bad_handle(handle);
}

void CommunicatorLease::release() {
  if (slot_ != nullptr) slot_->in_call.store(false, std::memory_order_release);
  slot_ = nullptr;
}

Status CommunicatorPin::acquire(trComm_t handle) {
  CommunicatorSlot* slot = find_slot(handle);
  if (slot == nullptr) return bad_handle(handle);
  slot->pins.fetch_add(1);
  slot_ = slot;
  if (find_slot(handle) == slot) return {};  // a thread that destroys it from here on waits for the pin
  release();
  return bad_handle(handle);
}

void CommunicatorPin::release() {
  if (slot_ != nullptr) slot_->pins.fetch_sub(1);
  slot_ = nullptr;
}

Status add_communicator(std::unique_ptr<Communicator> communicator, trComm_t* handle) {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, disown_communicators);
  std::unique_ptr<DeviceRank> device;
  if (communicator->any_device())
    TR_RETURN_IF_ERROR(DeviceRank::create(communicator.get(), communicator->config().device, &device));
  communicator->set_gpu_side(device.get());
  for (size_t i = 0; i < kSlots; ++i) {
    CommunicatorSlot& slot = slots()[i];
    if (slot.occupied.exchange(true)) continue;
    const uint64_t generation = slot.generation.load() + 1;
    slot.communicator = std::move(communicator);
    slot.device = std::move(device);
    slot.set_last_error("");
    slot.generation.store(generation);
    *handle = reinterpret_cast<trComm_t>(generation << kSlotBits | (i + 1));
    return {};
  }
  end(std::move(communicator), std::move(device));
  return {trInvalidUsage, fmt::format("this process has {} communicators already; destroy some", kSlots)};
}

CommunicatorSlot* find_slot(trComm_t handle) {
  size_t index = 0;
  uint64_t generation = 0;
  if (!decode(handle, &index, &generation)) return nullptr;
  CommunicatorSlot& slot = slots()[index - 1];
  return slot.generation.load() == generation ? &slot : nullptr;
}

Status remove_communicator(trComm_t handle, Ending ending) {
  CommunicatorSlot* slot = find_slot(handle);
  if (slot == nullptr) return bad_handle(handle);
  size_t index = 0;
  uint64_t generation = 0;
  decode(handle, &index, &generation);
  if (!slot->generation.compare_exchange_strong(generation, generation + 1)) return bad_handle(handle);
  // From here on no call begins.
  const bool in_call = slot->in_call.exchange(true);
  if (Communicator& ended = *slot->communicator; ending == Ending::kAbort && (in_call || ended.is_needed()))
    ended.abort(ended.describe(ended.rank()) + " aborted the communicator");
  for (bool wait = in_call; wait; wait = slot->in_call.exchange(true))
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  while (slot->pins.load() != 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  if (slot->device != nullptr) slot->device->finish();
  if (slot->communicator->queued() != 0)
    slot->communicator->abort(slot->communicator->describe(slot->communicator->rank()) +
                              " destroyed its communicator while operations were under way");
  Engine::instance().forget(slot->communicator.get());
  end(std::move(slot->communicator), std::move(slot->device));
  slot->in_call.store(false);
  slot->occupied.store(false);
  return {};
}

const std::string& thread_error() { return last_error; }

trResult_t report(const Status& status) {
  if (!status.ok()) last_error = status.message();
  return status.code();
}

trResult_t report(const Status& status, CommunicatorSlot* slot) {
  if (!status.ok() && slot != nullptr) slot->set_last_error(status.message());
  return report(status);
}

}  // namespace treering
