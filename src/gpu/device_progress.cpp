// SPDX-License-Identifier: Apache-2.0
// What a communicator's kernels have done, and what is made of those that fail or do not end.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <thread>

#include "communicator/communicator.h"
#include "gpu/device_kernels.h"

namespace treering {

void DeviceKernels::abort() { __atomic_store_n(&status_->abort, 1u, __ATOMIC_RELEASE); }

bool DeviceKernels::is_running(uint32_t* begun, uint32_t* call) const {
  bool running = false;
  *begun = *call = 0;
  for (uint32_t channel = 0; channel < fifos_->channels(); ++channel) {
    const uint32_t ended = __atomic_load_n(&status_->turn_ended[channel], __ATOMIC_ACQUIRE);
    const uint32_t turn = __atomic_load_n(&status_->turn_begun[channel], __ATOMIC_ACQUIRE);
    *begun += turn;
    if (turn == ended) continue;
    const uint32_t number = __atomic_load_n(&status_->call[channel], __ATOMIC_RELAXED);
    if (!running || static_cast<int32_t>(number - *call) < 0) *call = number;
    running = true;
  }
  return running;
}

bool DeviceKernels::is_idle() const {
  for (uint32_t channel = 0; channel < fifos_->channels(); ++channel) {
    const uint32_t launched = launched_[channel].load(std::memory_order_relaxed);
    if (static_cast<int32_t>(launched - __atomic_load_n(&status_->ended[channel], __ATOMIC_ACQUIRE)) > 0) return false;
  }
  uint32_t begun = 0, call = 0;
  return !is_running(&begun, &call);
}

bool DeviceKernels::wait_until_idle(std::chrono::milliseconds timeout) const {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!is_idle()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

void DeviceKernels::find_failure() {
  const uint32_t failure = __atomic_load_n(&status_->failure, __ATOMIC_ACQUIRE);
  if (failure != static_cast<uint32_t>(cuda::DeviceFailure::kCallsDiffer) || !communicator_->verdict().ok()) return;
  communicator_->fail_everywhere(  // the kernels end now: no deadline of theirs runs
      {trInvalidUsage, fmt::format("rank {}'s call {} on its GPU differs from that of rank {}, or one before it does. "
                                   "All ranks must make the same calls in the same order",
                                   communicator_->rank(), __atomic_load_n(&status_->failed_call, __ATOMIC_RELAXED),
                                   __atomic_load_n(&status_->peer, __ATOMIC_RELAXED))});
  abort();
}

uint64_t DeviceKernels::collective_of(uint32_t call) const {
  const uint64_t kept = collectives_[call % kNumbersKept].load(std::memory_order_acquire);
  const auto number = static_cast<uint32_t>(kept >> 32);
  if (number == call) return static_cast<uint32_t>(kept);
  // In the place of one that was given long ago is another: who has not given that one may be behind.
  return static_cast<int32_t>(number - call) > 0 ? communicator_->device_collectives() : 0;
}

// Perhaps without having made the call.
std::string DeviceKernels::who_has_left() const {
  std::string text;
  for (uint32_t rank = 0; rank < communicator_->ranks(); ++rank)
    if (communicator_->has_left(rank))
      text += fmt::format("; {} has destroyed its communicator", communicator_->describe(rank));
  return text;
}

bool DeviceKernels::look() {
  const auto now = std::chrono::steady_clock::now();
  const bool idle = is_idle();
  find_failure();  // of a kernel that has ended, too
  if (idle) return captured_any_.load(std::memory_order_relaxed);
  // A kernel that has not begun waits for its stream: no rank is at fault.
  uint32_t begun = 0, call = 0;
  if (!is_running(&begun, &call) || begun != seen_begun_) {
    seen_begun_ = begun;
    since_ = now;
  }
  const std::chrono::milliseconds timeout(communicator_->config().timeout_ms);
  std::optional<Clock::time_point> deadline;  // of the wait: the kernels are let go when the failure is decided
  if (timeout.count() > 0) deadline = since_ + timeout;
  std::string late;
  if (deadline && now >= *deadline - Watch::time_for_answers(timeout))
    late = communicator_->late_gpus(collective_of(call));
  if (uint32_t peer = 0; communicator_->verdict().ok() && communicator_->find_dead(&peer)) {
    communicator_->fail_everywhere(
        {trRemoteError, fmt::format("{} has died; the GPU of rank {} was in its call {}", communicator_->describe(peer),
                                    communicator_->rank(), call)},
        deadline);
  } else if (deadline && now >= *deadline) {
    communicator_->fail_everywhere(
        {trTimeout,
         fmt::format("no progress within {:g} s in call {} of the GPU of rank {}: {}{}", seconds(timeout), call,
                     communicator_->rank(), late.empty() ? "it waits for a peer" : late, who_has_left())},
        deadline);
  }
  if (!communicator_->verdict().ok()) abort();
  return true;
}

}  // namespace treering
