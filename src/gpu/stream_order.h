// SPDX-License-Identifier: Apache-2.0
// StreamOrder: brings what a communicator gives to streams and to graphs into the order in which calls and launches of
// graphs were made, whatever the streams.
//
//   call          stream   wait for `last` | work | record `last`
//   graph         stream   the same as nodes for events, which every launch resolves anew
//
// Inside a capture, whose streams may have forked, one unit of work waits for the one before by an edge.
#pragma once

#include "device/device.h"

namespace treering {

class StreamOrder {
 public:
  explicit StreamOrder(Device* device) : device_(device) {}
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // Before the first use; does nothing the second time.
  Status create();
  Status enter(DeviceStream stream);
  Status leave(DeviceStream stream);

 private:
  Device* device_;
  DeviceEvent last_ = nullptr;
  DeviceEvent last_of_capture_ = nullptr;  // of the capture with that number
  uint64_t capture_ = 0;
};

}  // namespace treering
