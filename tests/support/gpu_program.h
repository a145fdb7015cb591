// SPDX-License-Identifier: Apache-2.0
// What a CUDA program does itself, beside the library: streams, its own work in them, graphs. Tests of communicators on
// GPUs are written against these functions and the C API alone, and run on two machines:
//
//   cpu_device.cpp    the stand-in, a shared object in place of libtreering-cuda.so
//   gpu_program.cpp   the CUDA driver, or the driver without a GPU that TREERING_CUDA_DRIVER names
#pragma once

#include "device/device.h"

namespace treering::testing {

DeviceStream create_stream_of(int device);
// Waits for its end.
void destroy_stream(DeviceStream stream);
void synchronize_stream(DeviceStream stream);
// What follows in the stream comes behind what is in the other. Where that is captured, the stream is from then on,
// too.
void wait_for_stream(DeviceStream stream, DeviceStream other);
// As a kernel of the program that reads and writes memory of the stream's device: runs in the order of the stream.
void change_in_stream(DeviceStream stream, int* data, size_t count, void (*change)(int*, size_t));

// Between the two, what is given to the stream goes into a graph, which can be launched any number of times.
struct ProgramGraph;
void begin_capture(DeviceStream stream);
ProgramGraph* end_capture(DeviceStream stream);
void launch_graph(ProgramGraph* graph, DeviceStream stream);
void destroy_graph(ProgramGraph* graph);

// Whether kernels run on a CPU, or under a tool that makes a GPU slow (TREERING_GPU_SHORT): less is to be done then.
bool gpus_are_slow();

}  // namespace treering::testing
