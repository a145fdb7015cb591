// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "communicator/communicator.h"
#include "core/clock.h"
#include "gpu/memory/deferred_free.h"

namespace treering {
namespace {

// What a working link never takes.
constexpr std::chrono::milliseconds kCopyTimeout{10'000};
// What is measured takes less, or so long that a pause of a small part of it does not count.
constexpr std::chrono::microseconds kSpin{500};
constexpr int kPausePart = 64;
constexpr std::chrono::nanoseconds kLongestPause = std::chrono::milliseconds(10);

// The other ranks wait for this one, at most as long as the communicator's deadline: it must have told them by then.
std::chrono::milliseconds copy_timeout_of(const Config& config) {
  return config.timeout_ms > 0 ? std::min(kCopyTimeout, std::chrono::milliseconds((config.timeout_ms + 1) / 2))
                               : kCopyTimeout;
}

}  // namespace

DeviceCopies::DeviceCopies(Communicator* communicator, Device* device)
    : communicator_(communicator), device_(device), timeout_(copy_timeout_of(communicator->config())) {}

Status DeviceCopies::create(Communicator* communicator, Device* device, size_t bytes,
                            std::unique_ptr<DeviceCopies>* made) {
  std::unique_ptr<DeviceCopies> copies(new DeviceCopies(communicator, device));
  void *scratch = nullptr, *pinned = nullptr;
  TR_RETURN_IF_ERROR(device->create_stream(&copies->stream_));
  TR_RETURN_IF_ERROR(device->allocate(bytes, &scratch));
  copies->scratch_ = static_cast<std::byte*>(scratch);
  TR_RETURN_IF_ERROR(device->allocate_host(bytes, &pinned));
  copies->pinned_ = static_cast<std::byte*>(pinned);
  *made = std::move(copies);
  return {};
}

DeviceCopies::~DeviceCopies() {
  if (is_stuck_ || is_kept_) return;
  DeferredFree::instance().free_host(device_, pinned_);
  DeferredFree::instance().free(device_, scratch_);
  if (stream_ != nullptr) (void)device_->destroy_stream(stream_);
}

Status DeviceCopies::finish() {
  const auto begin = Clock::now();
  for (;;) {
    bool done = false;
    Status status = device_->query(stream_, &done);
    if (done || !status.ok()) return status;
    const auto now = Clock::now();
    if (now - begin > timeout_) {
      is_stuck_ = true;
      return {trDeviceError,
              fmt::format("copies have not ended within {} s", static_cast<double>(timeout_.count()) / 1000)};
    }
    if (now - begin < kSpin) {
      std::this_thread::yield();
      continue;
    }
    if (status = communicator_->verdict(); !status.ok()) {
      is_stuck_ = true;
      return status;
    }
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>((now - begin) / kPausePart, kLongestPause));
  }
}

}  // namespace treering
