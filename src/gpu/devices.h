// SPDX-License-Identifier: Apache-2.0
// Devices: the GPUs of this process, and the CUDA streams that callers have named.
//
// The shared object behind device/device.h is opened when a communicator first asks for a device: the path in
// TREERING_DEVICE_LIBRARY, else libtreering-cuda.so.0 beside this library, else by that name.
#pragma once

#include <functional>
#include <string>

#include "device/device.h"
#include "progress/engine.h"

namespace treering {

// nullptr where no device can be used; then `why_not` says why.
DeviceBackend* device_backend(std::string* why_not);
// Says which pages are pinned for GPUs; empty where no device was opened.
std::function<bool(const void* page)> pages_of_gpus();
Status open_device(int ordinal, Device** device);
// How many devices there are; an error where the CUDA driver shows some that cannot be used, as with a driver that is
// too old.
Status count_devices(int* count);

// A stream of a device as a StreamId. Ids of device streams and of the engine's streams differ.
StreamId name_device_stream(int ordinal, DeviceStream stream);  // the same id for the same stream
bool is_device_stream(StreamId id);
Status find_device_stream(StreamId id, int* ordinal, DeviceStream* stream);
Status drop_device_stream(StreamId id);

// Stands for the communicator's own stream on its device: the call blocks.
inline constexpr StreamId kOwnDeviceStream = ~StreamId{0};

}  // namespace treering
