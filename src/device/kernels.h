// SPDX-License-Identifier: Apache-2.0
// Kernels: the types of the device code, one row each, and how a kernel of a type and a protocol is called.
//
//   TR_DEVICE_TYPES(row)   row(data type, name as in the kernel's, Number)
//
// bool has no kernel of its own: its results are those of uint8 with the logical operations.
#pragma once

#include "device/interpret.h"

#define TR_DEVICE_TYPES(row)                                                                                       \
  row(trInt8, int8, Plain<int8_t>) row(trUint8, uint8, Plain<uint8_t>) row(trInt32, int32, Plain<int32_t>)         \
      row(trUint32, uint32, Plain<uint32_t>) row(trInt64, int64, Plain<int64_t>)                                   \
          row(trUint64, uint64, Plain<uint64_t>) row(trFloat16, float16, Float16)                                  \
              row(trFloat32, float32, Plain<float>) row(trFloat64, float64, Plain<double>)                         \
                  row(trBfloat16, bfloat16, Bfloat16) row(trFloat8e4m3, float8e4m3, Float8e4m3)                    \
                      row(trFloat8e5m2, float8e5m2, Float8e5m2) row(trComplex64, complex64, Plain<Complex<float>>) \
                          row(trComplex128, complex128, Plain<Complex<double>>)

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
