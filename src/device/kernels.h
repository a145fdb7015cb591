// SPDX-License-Identifier: Apache-2.0
// Kernels: the types of the device code, and how a kernel of a type and a protocol is called.
//
//   TR_DEVICE_TYPES(row)   row(data type, kernels, name, storage, bits, Number, ...), as in core/data_types.h
//
// bool has no kernel of its own: its results are those of uint8 with the logical operations.
#pragma once

#include "core/data_types.h"
#include "device/interpret.h"

#define TR_DEVICE_TYPES(row) TR_DATA_TYPES(row, row, row, TR_NO_ROW)

namespace treering::cuda {

TR_DEVICE void copy_call(const DeviceCall& from, DeviceCall* to, const Thread& thread) {
  constexpr uint32_t kWords = sizeof(DeviceCall) / sizeof(uint64_t);
  static_assert(sizeof(DeviceCall) % sizeof(uint64_t) == 0);
  for (uint32_t i = thread.index(); i < kWords; i += thread.count())
    memcpy(reinterpret_cast<std::byte*>(to) + i * sizeof(uint64_t),
           reinterpret_cast<const std::byte*>(&from) + i * sizeof(uint64_t), sizeof(uint64_t));
}

template <class Number, DeviceProtocol kProtocol>
TR_DEVICE void run_block(const DeviceLaunch& launch, uint32_t block, BlockShared* shared, const Thread& thread) {
  // An element that does not fit between the flags of a line is never sent by that protocol (choose.h).
  if constexpr (kProtocol != DeviceProtocol::kLl128 || sizeof(typename Number::Storage) <= 8) {
    const uint32_t channel = launch.first_channel + block;
    TR_ROLLED
    for (uint32_t i = 0; i < launch.calls; ++i) {
      const DeviceCall& call = launch.call[i];
      if (share_of(call, channel) >= call.channels) continue;
      copy_call(call, &shared->call, thread);
      thread.barrier();
      Interpreter<Number, kProtocol>(channel, shared, thread).run();
      thread.barrier();  // the next call may have the shared memory
    }
  }
}

}  // namespace treering::cuda
