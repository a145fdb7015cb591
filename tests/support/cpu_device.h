// SPDX-License-Identifier: Apache-2.0
// A stand-in for GPUs: the shared object that the library opens in place of libtreering-cuda.so when
// TREERING_DEVICE_LIBRARY names it. "Device memory" is memory of the host that other processes can map, streams are
// threads, kernels are the CUDA executor's device code on threads. It has the functions of gpu_program.h, and these,
// which no GPU has.
#pragma once

#include "support/gpu_program.h"

namespace treering::testing {

inline constexpr int kCpuDevices = 6;

// As a kernel of the program: runs in the order of the stream.
void run_in_cpu_stream(DeviceStream stream, void (*function)(void*), void* argument);

// Kernels launched so far, by all devices, and the blocks of the last.
uint64_t cpu_launches();
uint32_t cpu_launched_blocks();

// Pins memory of the program's own (cudaHostRegister).
void pin_for_cpu_devices(void* address, size_t bytes);
void unpin_for_cpu_devices(void* address);
// The library's pinned memory at the moment, and the most since the last call of reset_cpu_pinned_peak().
size_t cpu_pinned_bytes();
size_t cpu_pinned_peak();
void reset_cpu_pinned_peak();

// What the link between devices is like, as copies from one to another see it.
struct CpuLink {
  double gbps = 0;               // 0: as fast as memory
  bool drops = false;            // nothing that is written arrives
  bool without_handles = false;  // memory that is not "shareable" cannot be exported
  int hanging = -1;              // copies of this device do not end before set_cpu_link() says otherwise
};
void set_cpu_link(const CpuLink& link);
// As DeviceInfo has it, for communicators to come.
void set_cpu_capability(int device, uint32_t capability);
// Those that do not end.
int cpu_hanging_copies();
// Made so far in this process.
int cpu_shareable_allocations();

// The device that a new communicator or allocation of the calling thread is for.
void set_cpu_device(int device);

}  // namespace treering::testing
