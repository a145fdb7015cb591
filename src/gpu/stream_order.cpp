// SPDX-License-Identifier: Apache-2.0
#include "gpu/stream_order.h"

namespace treering {

StreamOrder::~StreamOrder() {
  for (DeviceEvent event : {last_, last_of_capture_})
    if (event != nullptr) (void)device_->destroy_event(event);  // at the end: there is no caller to tell
}

Status StreamOrder::create() {
  if (last_ == nullptr) TR_RETURN_IF_ERROR(device_->create_event(&last_));
  return last_of_capture_ != nullptr ? Status() : device_->create_event(&last_of_capture_);
}

Status StreamOrder::enter(DeviceStream stream) {
  const uint64_t capture = device_->capture_of(stream);
  // Always: handles of streams are used again, and stand for another stream in every thread.
  if (capture == 0) return device_->wait(stream, last_);
  return capture == capture_ ? device_->wait(stream, last_of_capture_) : device_->wait_external(stream, last_);
}

Status StreamOrder::leave(DeviceStream stream) {
  const uint64_t capture = device_->capture_of(stream);
  if (capture == 0) return device_->record(last_, stream);
  TR_RETURN_IF_ERROR(device_->record_external(last_, stream));
  capture_ = capture;
  return device_->record(last_of_capture_, stream);  // behind the node: the next one's comes after it
}

}  // namespace treering
