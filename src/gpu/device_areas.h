// SPDX-License-Identifier: Apache-2.0
// DeviceAreas: for each rank of a communicator a block of its GPU's memory, which all ranks map: by pointer in the same
// process, else opened from a handle.
//
//   exchange()  allocates the own area and tells where it is     collective
//   map()       opens a peer's, and reads its nonce there
//   release()   closes the peers' and frees the own              collective
//
// Areas that are not released stay until all peers have left (deferred_free.h). An area begins with a nonce.
#pragma once

#include <functional>
#include <vector>

#include "gpu/device_copies.h"

namespace treering {

class DeviceAreas {
 public:
  // How an area is shared between processes: by the driver's own handles, or, where those do not work, by descriptors.
  enum class Memory { kPlain, kByDescriptor };
  // `alone`: all ranks are of this process; nothing is exported then.
  DeviceAreas(Communicator* communicator, Device* device, Memory memory, bool alone);
  ~DeviceAreas();
  DeviceAreas(const DeviceAreas&) = delete;
  DeviceAreas& operator=(const DeviceAreas&) = delete;

  static constexpr size_t kNonceBytes = 64;

  // `own`: this rank's failure; a rank that has one tells the others only that. Afterwards it is set where any rank
  // failed.
  Status exchange(size_t bytes, DeviceCopies* copies, Status* own);
  Status map(uint32_t peer, DeviceCopies* copies);
  Status release();
  // Nothing is ever freed: copies that have not ended may use it. Gives the bytes of the own.
  size_t keep();

  std::byte* of(uint32_t rank) const { return areas_[rank]; }

 private:
  struct Info;
  Status share(DeviceCopies* copies, Info* own);
  void close();

  Communicator* communicator_;
  Device* device_;
  Memory memory_;
  bool alone_, is_kept_ = false;
  size_t bytes_ = 0;
  std::byte* own_ = nullptr;
  std::vector<Info> infos_;
  std::vector<std::byte*> areas_;  // of all ranks, as this device sees them
  std::vector<bool> imported_;
};

}  // namespace treering
