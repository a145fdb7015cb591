// SPDX-License-Identifier: Apache-2.0
// Handles: what a trComm_t is. A handle is a slot number and a generation, never a pointer to freed memory, so that use
// after destroy is an error and not a crash.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "communicator/communicator.h"
#include "gpu/device_rank.h"

namespace treering {

struct CommunicatorSlot {
  std::atomic<uint64_t> generation{0};  // odd while the slot holds a communicator
  std::atomic<bool> occupied{false};    // until its removal has ended
  std::atomic<bool> in_call{false};     // a thread is inside a call on it
  std::atomic<uint32_t> pins{0};        // CommunicatorPins
  std::atomic<uint64_t> inherited{0};   // the generation of a communicator of the process that forked this one; 0: none
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<DeviceRank> device;  // what its rank does with its GPU, or nullptr

  void set_last_error(const std::string& text);
  std::string last_error() const;

 private:
  mutable std::mutex mutex_;
  std::string last_error_;
};

// A communicator for the time of one call: no other thread may be in a call on it, and it is not destroyed meanwhile.
class CommunicatorLease {
 public:
  CommunicatorLease() = default;
  ~CommunicatorLease() { release(); }
  CommunicatorLease(const CommunicatorLease&) = delete;
  CommunicatorLease& operator=(const CommunicatorLease&) = delete;

  Status acquire(trComm_t handle);
  void release();
  Communicator* operator->() const { return slot_->communicator.get(); }  // NOLINT(clang-analyzer-core.*): held
  explicit operator bool() const { return slot_ != nullptr; }
  Communicator* get() const { return slot_->communicator.get(); }
  CommunicatorSlot& slot() const { return *slot_; }

 private:
  CommunicatorSlot* slot_ = nullptr;
};

// A communicator that is not destroyed for the time of one call, although another thread may be in a call on it, or
// begin one: for what is allowed then, such as to ask it or to abort it.
class CommunicatorPin {
 public:
  CommunicatorPin() = default;
  ~CommunicatorPin() { release(); }
  CommunicatorPin(const CommunicatorPin&) = delete;
  CommunicatorPin& operator=(const CommunicatorPin&) = delete;

  Status acquire(trComm_t handle);
  void release();
  Communicator* operator->() const { return slot_->communicator.get(); }
  Communicator* get() const { return slot_->communicator.get(); }
  CommunicatorSlot& slot() const { return *slot_; }
  // Whether a thread is inside a call.
  bool in_call() const { return slot_->in_call.load(std::memory_order_acquire); }

 private:
  CommunicatorSlot* slot_ = nullptr;
};

// Gives a new communicator a handle, and its rank what it needs of its GPU. All ranks call it.
Status add_communicator(std::unique_ptr<Communicator> communicator, trComm_t* handle);
// The slot of a live handle, without a lease (for abort and for messages), or nullptr.
CommunicatorSlot* find_slot(trComm_t handle);
// Ends the handle, waits for calls that other threads are in, and destroys the communicator. An abort makes them fail,
// and those of all ranks, unless nothing is left to do: then it is no more than a destroy.
enum class Ending { kDestroy, kAbort };
Status remove_communicator(trComm_t handle, Ending ending);

// Remembers the failure for trGetLastError() and gives its code.
trResult_t report(const Status& status);
trResult_t report(const Status& status, CommunicatorSlot* slot);
const std::string& thread_error();

}  // namespace treering
