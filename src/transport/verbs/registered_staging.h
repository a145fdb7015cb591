// SPDX-License-Identifier: Apache-2.0
// RegisteredStaging: the rank's staging memory, as far as it is used, as its devices read payloads from it.
//
//   channel 0: | usual part | part | part | ...      channel 1: | usual part | part | ...
//                registered   when a payload first lies there
//
// With a thousand ranks a rank has a hundred MiB of staging memory and uses one of them: what is registered is locked.
// Used by one thread at a time.
#pragma once

#include <algorithm>
#include <vector>

#include "transport/verbs/devices/device.h"

namespace treering::verbs {

class RegisteredStaging {
 public:
  // `part_bytes` at a time, of each channel's `channel_bytes`; a payload lies in one part.
  RegisteredStaging(const Devices& devices, std::byte* base, uint32_t channels, size_t channel_bytes, size_t part_bytes)
      : devices_(devices),
        base_(base),
        channel_bytes_(channel_bytes),
        part_bytes_(part_bytes),
        parts_of_channel_((channel_bytes + part_bytes - 1) / part_bytes),
        parts_(channels * parts_of_channel_) {}

  // The first part of each channel.
  Status open() {
    for (size_t part = 0; part < parts_.size(); part += parts_of_channel_) TR_RETURN_IF_ERROR(add(part));
    return {};
  }
  // The local keys for the bytes at this offset.
  Status keys(uint64_t offset, RailKeys* keys) {
    const size_t part = offset / channel_bytes_ * parts_of_channel_ + offset % channel_bytes_ / part_bytes_;
    if (!parts_[part]) TR_RETURN_IF_ERROR(add(part));
    *keys = parts_[part].local_keys();
    return {};
  }
  const std::byte* base() const { return base_; }

 private:
  Status add(size_t part) {
    const size_t in_channel = part % parts_of_channel_ * part_bytes_;
    return parts_[part].make(devices_, kAllRails, base_ + part / parts_of_channel_ * channel_bytes_ + in_channel,
                             std::min(part_bytes_, channel_bytes_ - in_channel), 0);
  }

  const Devices& devices_;
  std::byte* const base_;
  const size_t channel_bytes_, part_bytes_, parts_of_channel_;
  std::vector<RailMemory> parts_;
};

}  // namespace treering::verbs
