// SPDX-License-Identifier: Apache-2.0
// CudaDevice: a GPU through the CUDA driver (device/device.h has the contract).
//
// It uses the device's primary context, the one that the CUDA runtime and frameworks use, so their streams and memory
// are valid here. Each call makes that context current for its own duration and leaves the thread's as it was.
#pragma once

#include "device/cuda/context.h"
#include "device/cuda/imports.h"
#include "device/cuda/kernel_cache.h"
#include "device/cuda/shareable.h"
#include "device/device.h"

namespace treering::cuda {

class CudaDevice final : public Device {
 public:
  // Retains the primary context.
  static Status open(const Driver& driver, int ordinal, CudaDevice** device);

  const DeviceInfo& info() const override { return info_; }
  CUcontext context() const { return context_; }

  Status allocate(size_t bytes, void** address) override;
  Status allocate_shareable(size_t bytes, void** address) override;
  Status free(void* address) override;
  Status export_memory(void* address, DeviceHandle* handle) override;
  Status import_memory(const DeviceHandle& handle, void** address) override;
  Status close_memory(void* imported) override;
  Status reach(Device* peer) override;
  bool keeps_lines(const std::array<uint8_t, 16>& peer_uuid) override;
  Status allocate_host(size_t bytes, void** address) override;
  Status free_host(void* address) override;

  Status create_stream(DeviceStream* stream) override;
  Status destroy_stream(DeviceStream stream) override;
  Status create_event(DeviceEvent* event) override;
  Status destroy_event(DeviceEvent event) override;
  Status record(DeviceEvent event, DeviceStream stream) override;
  Status wait(DeviceStream stream, DeviceEvent event) override;
  Status query(DeviceStream stream, bool* done) override;
  Status synchronize(DeviceStream stream) override;

  Status copy(void* to, const void* from, size_t bytes, DeviceStream stream) override;
  Status launch(const DeviceLaunch& launch, trDataType_t type, DeviceProtocol protocol, uint32_t threads,
                DeviceStream stream) override;
  Status call_host(void (*function)(void* argument), void* argument, DeviceStream stream) override;
  Status wait_value(const uint32_t* at, uint32_t value, DeviceStream stream) override;
  uint64_t capture_of(DeviceStream stream) override;
  Status record_external(DeviceEvent event, DeviceStream stream) override;
  Status wait_external(DeviceStream stream, DeviceEvent event) override;

 private:
  CudaDevice(const Driver& driver, const DeviceInfo& info, CUdevice handle, CUcontext context);

  // Runs `call` with the context current. `what` describes it, and is called when it failed.
  template <class Call, class What>
  Status in_context(const Call& call, const What& what) const;
  Status clear(void* address, size_t bytes);
  // The same for a call that gives a Status. `what` is the function that stands for it.
  template <class Call>
  Status with_context(const Call& call, const char* what) const;

  const Driver& driver_;
  const DeviceInfo info_;
  const std::string name_;  // "GPU 0", for messages
  const CUdevice handle_;
  const CUcontext context_;
  CUstream clearing_ = nullptr;  // allocations are zeroed in it
  Imports imports_;
  Shareable shareable_;
  KernelCache kernels_;
};

}  // namespace treering::cuda
