// SPDX-License-Identifier: Apache-2.0
// DeviceCopies: copies of a GPU that are waited for until a deadline.
//
// A link may be so broken that a copy over it never ends, and work cannot be taken out of a stream again. So the copies
// have a stream of their own, which is given up then, with everything that they may still use: freeing memory of a GPU
// waits for all of its streams. Only memory of devices and pinned() may be copied: for other memory of the host the
// driver waits itself.
#pragma once

#include <chrono>
#include <memory>

#include "device/device.h"

namespace treering {

class Communicator;

class DeviceCopies {
 public:
  // `bytes`: of either buffer.
  static Status create(Communicator* communicator, Device* device, size_t bytes, std::unique_ptr<DeviceCopies>* made);
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  std::byte* scratch() const { return scratch_; }  // of the device
  std::byte* pinned() const { return pinned_; }    // of the host

  Status copy(void* to, const void* from, size_t bytes) { return device_->copy(to, from, bytes, stream_); }
  // Waits for all copies; an error when that takes too long, or when the communicator fails.
  Status finish();
  // Some copy has not ended: nothing that it uses may be freed.
  bool is_stuck() const { return is_stuck_; }
  // The copies are of another rank, which may have the same GPU.
  void keep() { is_kept_ = true; }

 private:
  DeviceCopies(Communicator* communicator, Device* device);

  Communicator* communicator_;
  Device* device_;
  std::chrono::milliseconds timeout_;
  DeviceStream stream_ = nullptr;
  std::byte *scratch_ = nullptr, *pinned_ = nullptr;
  bool is_stuck_ = false, is_kept_ = false;
};

}  // namespace treering
