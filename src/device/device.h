// SPDX-License-Identifier: Apache-2.0
// Device: a GPU as this process uses it.
//
// The library knows GPUs through these two classes alone. What is behind them is a shared object of its own
// (libtreering-cuda.so: src/device/cuda), opened at run time, so that this library loads and works on machines without
// CUDA; the tests have another that keeps "device memory" in memory of the host and runs the same device code on
// threads.
//
//   DeviceBackend   the devices of this machine, whose memory an address is
//   Device          memory, streams, copies and launches of one
//
// All calls of a Device return at once, except where they say that they wait, and may be made by any thread; what has a
// stream is ordered in it. Failures name the call that failed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/status.h"
#include "device/work.h"

namespace treering {

using DeviceStream = void*;  // a cudaStream_t; nullptr: the device's default stream
using DeviceEvent = void*;

struct DeviceInfo {
  int ordinal = 0;
  std::array<uint8_t, 16> uuid{};  // the same in every process
  std::string name;
  std::string bus_id;  // "0000:17:00.0"
  uint32_t multiprocessors = 1;
  uint32_t compute_capability = 0;  // 90 is 9.0
};

// Memory of a device as another process opens it.
struct DeviceHandle {
  alignas(16) std::array<std::byte, 128> bytes{};
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  // Memory of the device, zeroed, that other processes can open. May wait for the device.
  virtual Status allocate(size_t bytes, void** address) = 0;
  // The same, of the kind that others open through a file descriptor: where the usual one cannot be exported or
  // imported.
  virtual Status allocate_shareable(size_t bytes, void** address) = 0;
  virtual Status free(void* address) = 0;  // of either kind
  virtual Status export_memory(void* address, DeviceHandle* handle) = 0;
  virtual Status import_memory(const DeviceHandle& handle, void** address) = 0;
  virtual Status close_memory(void* imported) = 0;
  // Makes the memory of another device of this process usable by kernels of this one; an error where the machine
  // cannot.
  virtual Status reach(Device* peer) = 0;
  // Whether a line of 128 bytes that a warp stores into that GPU's memory arrives whole, as the LL128 protocol needs
  // it: so over NVLink and on one GPU, not over PCIe.
  virtual bool keeps_lines(const std::array<uint8_t, 16>& peer_uuid) = 0;
  // Memory of the host that kernels use at the same address, zeroed.
  virtual Status allocate_host(size_t bytes, void** address) = 0;
  virtual Status free_host(void* address) = 0;

  virtual Status create_stream(DeviceStream* stream) = 0;  // that does not wait for the default stream
  virtual Status destroy_stream(DeviceStream stream) = 0;
  virtual Status create_event(DeviceEvent* event) = 0;
  virtual Status destroy_event(DeviceEvent event) = 0;
  virtual Status record(DeviceEvent event, DeviceStream stream) = 0;
  virtual Status wait(DeviceStream stream, DeviceEvent event) = 0;
  // Whether the stream has done everything.
  virtual Status query(DeviceStream stream, bool* done) = 0;
  // Waits until it has.
  virtual Status synchronize(DeviceStream stream) = 0;

  // Between any two places, of devices or of the host.
  virtual Status copy(void* to, const void* from, size_t bytes, DeviceStream stream) = 0;
  // Runs launch.channels blocks of `threads` threads (a multiple of 32, up to 512); with none, only loads the kernel.
  virtual Status launch(const cuda::DeviceLaunch& launch, trDataType_t type, cuda::DeviceProtocol protocol,
                        uint32_t threads, DeviceStream stream) = 0;
  // `function` is called on some thread, and must not call the device.
  virtual Status call_host(void (*function)(void* argument), void* argument, DeviceStream stream) = 0;
  // What follows in the stream begins when *at >= value (as signed difference); `at` is of allocate_host().
  virtual Status wait_value(const uint32_t* at, uint32_t value, DeviceStream stream) = 0;
  // The number of the capture into a graph that the stream is in, 0: none. What is given to it runs later, perhaps
  // often.
  virtual uint64_t capture_of(DeviceStream stream) = 0;
  bool is_capturing(DeviceStream stream) { return capture_of(stream) != 0; }
  // In a stream that is captured: every launch of the graph records the event anew, or waits for what it was recorded
  // behind when the graph was launched.
  virtual Status record_external(DeviceEvent event, DeviceStream stream) = 0;
  virtual Status wait_external(DeviceStream stream, DeviceEvent event) = 0;
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  virtual int count() const = 0;
  // The device, which lives as long as the process. Opening it takes time and memory on the device.
  virtual Status open(int ordinal, Device** device) = 0;
  // The calling thread's current device.
  virtual Status current(int* ordinal) = 0;
  // The device whose memory the address is; -1: memory of the host.
  virtual int device_of(const void* address) = 0;
  // Whether devices may use the address: memory of one, managed memory, or memory of the host that is pinned.
  virtual bool is_of_devices(const void* address) = 0;
};

// The one function of such a shared object: nullptr where there is no usable device, with the reason in `why_not`
// (terminated, at most `capacity` bytes). `version` is kDeviceInterface, for both to be of one build.
inline constexpr uint32_t kDeviceInterface = 6;
using OpenDeviceBackend = DeviceBackend* (*)(uint32_t version, char* why_not, size_t capacity);
inline constexpr const char* kOpenDeviceBackend = "treering_open_device_backend";

}  // namespace treering
