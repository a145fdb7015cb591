// SPDX-License-Identifier: Apache-2.0
// The structures of DLPack's interface, which its specification fixes.
#pragma once

#include <cstdint>

namespace treering::python::dlpack {

inline constexpr int kCpu = 1;
inline constexpr int kCuda = 2;
inline constexpr int kCudaHost = 3;
inline constexpr int kCudaManaged = 13;
// A bit of ManagedTensorVersioned::flags.
inline constexpr uint64_t kReadOnly = 1;

struct Device {
  int32_t type;
  int32_t id;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; nullptr: C-contiguous
  uint64_t byte_offset;
};

// In capsules of the name "dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

// In capsules of the name "dltensor_versioned".
struct ManagedTensorVersioned {
  struct {
    uint32_t major;
    uint32_t minor;
  } version;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;
  Tensor tensor;
};

}  // namespace treering::python::dlpack
