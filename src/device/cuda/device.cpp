// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>

#include "device/cuda/cuda_device.h"

namespace treering::cuda {
namespace {

// Kernels take their calls by value; without a large parameter space that is at most this much on every GPU.
constexpr size_t kMaxParameterBytes = 4096;
static_assert(sizeof(DeviceLaunch) <= kMaxParameterBytes);

constexpr uint32_t kMinCapability = 75;

CUdeviceptr pointer(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }
CUstream stream_of(DeviceStream stream) { return static_cast<CUstream>(stream); }
CUevent event_of(DeviceEvent event) { return static_cast<CUevent>(event); }

Status attribute(const Driver& driver, CUdevice handle, CUdevice_attribute which, const char* name, int ordinal,
                 int* value) {
  return driver.status(driver.cuDeviceGetAttribute(value, which, handle),
                       fmt::format("cuDeviceGetAttribute of the {} of GPU {}", name, ordinal));
}

Status describe(const Driver& driver, CUdevice handle, DeviceInfo* info) {
  const auto what = [&](const char* function) { return fmt::format("{} of GPU {}", function, info->ordinal); };
  char text[256] = {};
  TR_RETURN_IF_ERROR(driver.status(driver.cuDeviceGetName(text, sizeof text, handle), what("cuDeviceGetName")));
  info->name = text;
  CUuuid uuid{};
  TR_RETURN_IF_ERROR(driver.status(driver.cuDeviceGetUuid(&uuid, handle), what("cuDeviceGetUuid")));
  static_assert(sizeof uuid.bytes == sizeof info->uuid);
  std::memcpy(info->uuid.data(), uuid.bytes, sizeof uuid.bytes);
  TR_RETURN_IF_ERROR(driver.status(driver.cuDeviceGetPCIBusId(text, sizeof text, handle), what("cuDeviceGetPCIBusId")));
  info->bus_id = text;
  int multiprocessors = 0, major = 0, minor = 0;
  TR_RETURN_IF_ERROR(attribute(driver, handle, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "multiprocessors",
                               info->ordinal, &multiprocessors));
  TR_RETURN_IF_ERROR(attribute(driver, handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "compute capability",
                               info->ordinal, &major));
  TR_RETURN_IF_ERROR(attribute(driver, handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "compute capability",
                               info->ordinal, &minor));
  info->multiprocessors = static_cast<uint32_t>(multiprocessors);
  info->compute_capability = static_cast<uint32_t>(10 * major + minor);
  if (info->compute_capability < kMinCapability)
    return {trDeviceError, fmt::format("GPU {} ({}) has compute capability {}.{}; 7.5 is the least that is supported",
                                       info->ordinal, info->name, major, minor)};
  return {};
}

}  // namespace

template <class Call, class What>
Status CudaDevice::in_context(const Call& call, const What& what) const {
  const ContextGuard guard(driver_, context_);
  if (guard.result() != CUDA_SUCCESS)
    return driver_.status(guard.result(), fmt::format("cuCtxPushCurrent of {} for {}", name_, what()));
  const CUresult result = call();
  if (result == CUDA_SUCCESS) return {};
  return driver_.status(result, fmt::format("{} on {}", what(), name_));
}

CudaDevice::CudaDevice(const Driver& driver, const DeviceInfo& info, CUdevice handle, CUcontext context)
    : driver_(driver),
      info_(info),
      name_(fmt::format("GPU {}", info.ordinal)),
      handle_(handle),
      context_(context),
      imports_(driver, name_),
      shareable_(driver, name_, handle),
      kernels_(driver) {}

Status CudaDevice::open(const Driver& driver, int ordinal, CudaDevice** device) {
  DeviceInfo info;
  info.ordinal = ordinal;
  CUdevice handle = 0;
  TR_RETURN_IF_ERROR(
      driver.status(driver.cuDeviceGet(&handle, ordinal), fmt::format("cuDeviceGet of GPU {}", ordinal)));
  TR_RETURN_IF_ERROR(describe(driver, handle, &info));
  // From here on it stays: the device lives as long as the process.
  CUcontext context = nullptr;
  TR_RETURN_IF_ERROR(driver.status(driver.cuDevicePrimaryCtxRetain(&context, handle),
                                   fmt::format("cuDevicePrimaryCtxRetain of GPU {}", ordinal)));
  auto* made = new CudaDevice(driver, info, handle, context);
  DeviceStream clearing = nullptr;
  if (Status status = made->create_stream(&clearing); !status.ok()) {
    delete made;
    driver.cuDevicePrimaryCtxRelease(handle);
    return status;
  }
  made->clearing_ = stream_of(clearing);
  *device = made;
  return {};
}

// ---- memory ----

Status CudaDevice::allocate(size_t bytes, void** address) {
  CUdeviceptr at = 0;
  TR_RETURN_IF_ERROR(in_context([&] { return driver_.cuMemAlloc(&at, bytes); },
                                [&] { return fmt::format("cuMemAlloc of {} bytes", bytes); }));
  *address = reinterpret_cast<void*>(at);
  Status status = clear(*address, bytes);
  if (status.ok()) return {};
  (void)free(*address);  // the first failure is the one to tell
  *address = nullptr;
  return status;
}

Status CudaDevice::clear(void* address, size_t bytes) {
  TR_RETURN_IF_ERROR(in_context([&] { return driver_.cuMemsetD8Async(pointer(address), 0, bytes, clearing_); },
                                [&] { return fmt::format("cuMemsetD8Async of {} bytes", bytes); }));
  return in_context([&] { return driver_.cuStreamSynchronize(clearing_); },
                    [&] { return fmt::format("cuStreamSynchronize after a memset of {} bytes", bytes); });
}

Status CudaDevice::allocate_shareable(size_t bytes, void** address) {
  TR_RETURN_IF_ERROR(with_context([&] { return shareable_.allocate(bytes, address); }, "cuMemCreate"));
  Status status = clear(*address, bytes);
  if (status.ok()) return {};
  (void)free(*address);  // the first failure is the one to tell
  *address = nullptr;
  return status;
}

Status CudaDevice::free(void* address) {
  if (address == nullptr) return {};
  if (shareable_.has(address)) return with_context([&] { return shareable_.release(address); }, "cuMemUnmap");
  return in_context([&] { return driver_.cuMemFree(pointer(address)); },
                    [&] { return fmt::format("cuMemFree of {}", address); });
}

template <class Call>
Status CudaDevice::with_context(const Call& call, const char* what) const {
  Status status;
  TR_RETURN_IF_ERROR(in_context(
      [&] {
        status = call();
        return CUDA_SUCCESS;
      },
      [&] { return std::string(what); }));
  return status;
}

Status CudaDevice::export_memory(void* address, DeviceHandle* handle) {
  return with_context(
      [&] {
        return shareable_.has(address) ? shareable_.export_memory(address, handle)
                                       : imports_.export_memory(address, handle);
      },
      "cuIpcGetMemHandle");
}

Status CudaDevice::import_memory(const DeviceHandle& handle, void** address) {
  return with_context(
      [&] { return Shareable::is_handle(handle) ? shareable_.open(handle, address) : imports_.open(handle, address); },
      "cuIpcOpenMemHandle");
}

Status CudaDevice::close_memory(void* imported) {
  return with_context(
      [&] { return shareable_.has(imported) ? shareable_.release(imported) : imports_.close(imported); },
      "cuIpcCloseMemHandle");
}

Status CudaDevice::reach(Device* peer) {
  // All devices of a process are of one backend.
  const auto* other = static_cast<const CudaDevice*>(peer);
  if (other == this) return {};
  int can = 0;
  TR_RETURN_IF_ERROR(driver_.status(driver_.cuDeviceCanAccessPeer(&can, handle_, other->handle_),
                                    fmt::format("cuDeviceCanAccessPeer from {} to {}", name_, other->name_)));
  if (can == 0)
    return {trDeviceError, fmt::format("{} ({}) cannot access the memory of {} ({}): the machine has no path for it",
                                       name_, info_.bus_id, other->name_, other->info_.bus_id)};
  return in_context(
      [&] {
        const CUresult result = driver_.cuCtxEnablePeerAccess(other->context_, 0);
        return result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : result;
      },
      [&] { return fmt::format("cuCtxEnablePeerAccess to {}", other->name_); });
}

// Links with atomic operations of their own are NVLink; what cannot be asked counts as PCIe.
bool CudaDevice::keeps_lines(const std::array<uint8_t, 16>& peer_uuid) {
  if (peer_uuid == info_.uuid) return true;
  int count = 0;
  if (driver_.cuDeviceGetCount(&count) != CUDA_SUCCESS) return false;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice peer = 0;
    CUuuid uuid;
    if (driver_.cuDeviceGet(&peer, ordinal) != CUDA_SUCCESS || driver_.cuDeviceGetUuid(&uuid, peer) != CUDA_SUCCESS)
      continue;
    if (std::memcmp(uuid.bytes, peer_uuid.data(), peer_uuid.size()) != 0) continue;
    int atomics = 0;
    return driver_.cuDeviceGetP2PAttribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, handle_, peer) ==
               CUDA_SUCCESS &&
           atomics != 0;
  }
  return false;
}

Status CudaDevice::allocate_host(size_t bytes, void** address) {
  void* at = nullptr;
  TR_RETURN_IF_ERROR(in_context(
      [&] { return driver_.cuMemHostAlloc(&at, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP); },
      [&] { return fmt::format("cuMemHostAlloc of {} bytes", bytes); }));
  CUdeviceptr of_device = 0;
  Status status = in_context([&] { return driver_.cuMemHostGetDevicePointer(&of_device, at, 0); },
                             [&] { return fmt::format("cuMemHostGetDevicePointer of {}", at); });
  if (status.ok() && of_device != pointer(at))
    status = {trDeviceError, fmt::format("host memory has another address on {}: unified addressing is needed", name_)};
  if (!status.ok()) {
    (void)free_host(at);
    return status;
  }
  std::memset(at, 0, bytes);
  *address = at;
  return {};
}

Status CudaDevice::free_host(void* address) {
  if (address == nullptr) return {};
  return in_context([&] { return driver_.cuMemFreeHost(address); },
                    [&] { return fmt::format("cuMemFreeHost of {}", address); });
}

// ---- streams and events ----

Status CudaDevice::create_stream(DeviceStream* stream) {
  CUstream made = nullptr;
  TR_RETURN_IF_ERROR(in_context([&] { return driver_.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING); },
                                [] { return std::string("cuStreamCreate"); }));
  *stream = made;
  return {};
}

Status CudaDevice::destroy_stream(DeviceStream stream) {
  return in_context([&] { return driver_.cuStreamDestroy(stream_of(stream)); },
                    [] { return std::string("cuStreamDestroy"); });
}

Status CudaDevice::create_event(DeviceEvent* event) {
  CUevent made = nullptr;
  TR_RETURN_IF_ERROR(in_context([&] { return driver_.cuEventCreate(&made, CU_EVENT_DISABLE_TIMING); },
                                [] { return std::string("cuEventCreate"); }));
  *event = made;
  return {};
}

Status CudaDevice::destroy_event(DeviceEvent event) {
  return in_context([&] { return driver_.cuEventDestroy(event_of(event)); },
                    [] { return std::string("cuEventDestroy"); });
}

Status CudaDevice::record(DeviceEvent event, DeviceStream stream) {
  return in_context([&] { return driver_.cuEventRecord(event_of(event), stream_of(stream)); },
                    [] { return std::string("cuEventRecord"); });
}

Status CudaDevice::wait(DeviceStream stream, DeviceEvent event) {
  return in_context([&] { return driver_.cuStreamWaitEvent(stream_of(stream), event_of(event), 0); },
                    [] { return std::string("cuStreamWaitEvent"); });
}

Status CudaDevice::query(DeviceStream stream, bool* done) {
  *done = false;
  return in_context(
      [&] {
        const CUresult result = driver_.cuStreamQuery(stream_of(stream));
        *done = result == CUDA_SUCCESS;
        return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
      },
      [] { return std::string("cuStreamQuery"); });
}

Status CudaDevice::synchronize(DeviceStream stream) {
  return in_context([&] { return driver_.cuStreamSynchronize(stream_of(stream)); },
                    [] { return std::string("cuStreamSynchronize"); });
}

// ---- work ----

Status CudaDevice::copy(void* to, const void* from, size_t bytes, DeviceStream stream) {
  if (bytes == 0) return {};
  return in_context([&] { return driver_.cuMemcpyAsync(pointer(to), pointer(from), bytes, stream_of(stream)); },
                    [&] { return fmt::format("cuMemcpyAsync of {} bytes", bytes); });
}

Status CudaDevice::launch(const DeviceLaunch& launch, trDataType_t type, DeviceProtocol protocol, uint32_t threads,
                          DeviceStream stream) {
  if (threads == 0 || threads % 32 != 0 || threads > kMaxKernelThreads)
    return {trInvalidArgument,
            fmt::format("{} threads a block; give a multiple of 32 up to {}", threads, kMaxKernelThreads)};
  if (launch.channels > kMaxDeviceChannels)
    return {trInvalidArgument,
            fmt::format("{} channels; a kernel has at most {}", launch.channels, kMaxDeviceChannels)};
  Status found;
  TR_RETURN_IF_ERROR(in_context(
      [&] {
        CUfunction kernel = nullptr;
        found = kernels_.find(type, protocol, &kernel);
        // Without blocks the kernel is only made ready.
        if (!found.ok() || launch.channels == 0) return CUDA_SUCCESS;
        void* parameters[] = {const_cast<DeviceLaunch*>(&launch)};
        return driver_.cuLaunchKernel(kernel, launch.channels, 1, 1, threads, 1, 1, 0, stream_of(stream), parameters,
                                      nullptr);
      },
      [&] { return fmt::format("cuLaunchKernel of {} blocks of {} threads", launch.channels, threads); }));
  if (found.ok()) return {};
  return {found.code(), fmt::format("{}: {}", name_, found.message())};
}

Status CudaDevice::call_host(void (*function)(void* argument), void* argument, DeviceStream stream) {
  return in_context([&] { return driver_.cuLaunchHostFunc(stream_of(stream), function, argument); },
                    [] { return std::string("cuLaunchHostFunc"); });
}

Status CudaDevice::wait_value(const uint32_t* at, uint32_t value, DeviceStream stream) {
  // Every GPU can; one that could not would say so here (the attribute for it went with the first version of the call).
  return in_context(
      [&] { return driver_.cuStreamWaitValue32(stream_of(stream), pointer(at), value, CU_STREAM_WAIT_VALUE_GEQ); },
      [] { return std::string("cuStreamWaitValue32"); });
}

uint64_t CudaDevice::capture_of(DeviceStream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t number = 0;
  // Asking the default stream fails while another stream captures; what is given to it would not be captured.
  const Status asked = in_context(
      [&] {
#if CUDA_VERSION >= 13000
        return driver_.cuStreamGetCaptureInfo(stream_of(stream), &status, &number, nullptr, nullptr, nullptr, nullptr);
#else
        return driver_.cuStreamGetCaptureInfo(stream_of(stream), &status, &number, nullptr, nullptr, nullptr);
#endif
      },
      [] { return std::string("cuStreamGetCaptureInfo"); });
  return asked.ok() && status != CU_STREAM_CAPTURE_STATUS_NONE ? number : 0;
}

Status CudaDevice::record_external(DeviceEvent event, DeviceStream stream) {
  return in_context(
      [&] { return driver_.cuEventRecordWithFlags(event_of(event), stream_of(stream), CU_EVENT_RECORD_EXTERNAL); },
      [] { return std::string("cuEventRecordWithFlags"); });
}

Status CudaDevice::wait_external(DeviceStream stream, DeviceEvent event) {
  return in_context(
      [&] { return driver_.cuStreamWaitEvent(stream_of(stream), event_of(event), CU_EVENT_WAIT_EXTERNAL); },
      [] { return std::string("cuStreamWaitEvent"); });
}

}  // namespace treering::cuda
