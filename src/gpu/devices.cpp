// SPDX-License-Identifier: Apache-2.0
#include "gpu/devices.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <map>
#include <mutex>

#include "core/log.h"
#include "core/shared_object.h"
#include "device/cuda/driver_name.h"

namespace treering {
namespace {

constexpr StreamId kDeviceStreamBit = StreamId{1} << 62;
constexpr const char* kLibrary = "libtreering-cuda.so.0";

struct Backend {
  DeviceBackend* backend = nullptr;
  std::string why_not;
};

std::atomic<DeviceBackend*> opened{nullptr};

Backend open_backend() {
  Backend made;
  std::string why_not;
  void* library = open_shared_object(kLibrary, "TREERING_DEVICE_LIBRARY", Elsewhere::kWhereTheSystemLooks, &why_not);
  if (library == nullptr) {
    made.why_not = fmt::format("the library was built or installed without CUDA support: {}", why_not);
    return made;
  }
  auto open = reinterpret_cast<OpenDeviceBackend>(dlsym(library, kOpenDeviceBackend));
  if (open == nullptr) {
    made.why_not = fmt::format("{} has no {}", kLibrary, kOpenDeviceBackend);
    return made;
  }
  char text[512] = "";
  made.backend = open(kDeviceInterface, text, sizeof text);
  if (made.backend == nullptr) made.why_not = text;
  return made;
}

// What the CUDA driver shows, whether or not this library can use it. The driver stays: it may have started threads.
int count_of_driver() {
  void* library = dlopen(cuda::driver_path(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return 0;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
  const auto get_count = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDeviceGetCount"));
  int count = 0;
  if (init == nullptr || get_count == nullptr || init(0) != 0 || get_count(&count) != 0) return 0;
  return count;
}

struct NamedStream {
  int ordinal;
  DeviceStream stream;
  bool operator<(const NamedStream& other) const {
    return ordinal != other.ordinal ? ordinal < other.ordinal : stream < other.stream;
  }
};
std::mutex& names_mutex() {
  static std::mutex mutex;
  return mutex;
}
Status unknown_stream() { return {trInvalidUsage, "stream is NULL, not one of trStreamFromCuda, or was destroyed"}; }
std::map<StreamId, NamedStream>& names() {
  static auto* map = new std::map<StreamId, NamedStream>;
  return *map;
}

}  // namespace

DeviceBackend* device_backend(std::string* why_not) {
  static const Backend backend = open_backend();
  opened.store(backend.backend, std::memory_order_release);
  if (backend.backend == nullptr && why_not != nullptr) *why_not = backend.why_not;
  return backend.backend;
}

std::function<bool(const void* page)> pages_of_gpus() {
  DeviceBackend* backend = opened.load(std::memory_order_acquire);
  if (backend == nullptr) return {};
  return [backend](const void* page) { return backend->is_of_devices(page); };
}

Status open_device(int ordinal, Device** device) {
  std::string why_not;
  DeviceBackend* backend = device_backend(&why_not);
  if (backend == nullptr) return {trDeviceError, fmt::format("GPU {} cannot be used: {}", ordinal, why_not)};
  if (ordinal < 0 || ordinal >= backend->count())
    return {trInvalidArgument,
            fmt::format("device is {}; this process sees {} GPUs, from 0", ordinal, backend->count())};
  return backend->open(ordinal, device);
}

Status count_devices(int* count) {
  std::string why_not;
  DeviceBackend* backend = device_backend(&why_not);
  *count = backend == nullptr ? 0 : backend->count();
  if (backend != nullptr) return {};
  static const int shown = count_of_driver();
  if (shown == 0) return {};
  return {trDeviceError, fmt::format("the CUDA driver shows {} GPU(s), which cannot be used: {}", shown, why_not)};
}

StreamId name_device_stream(int ordinal, DeviceStream stream) {
  static StreamId next = kDeviceStreamBit;
  static auto* ids = new std::map<NamedStream, StreamId>;
  std::lock_guard lock(names_mutex());
  const NamedStream named{ordinal, stream};
  StreamId& id = (*ids)[named];
  if (id == 0) id = next++;
  names()[id] = named;
  return id;
}

bool is_device_stream(StreamId id) { return (id & kDeviceStreamBit) != 0; }

Status find_device_stream(StreamId id, int* ordinal, DeviceStream* stream) {
  std::lock_guard lock(names_mutex());
  auto found = names().find(id);
  if (found == names().end()) return unknown_stream();
  *ordinal = found->second.ordinal;
  *stream = found->second.stream;
  return {};
}

Status drop_device_stream(StreamId id) {
  std::lock_guard lock(names_mutex());
  return names().erase(id) == 0 ? unknown_stream() : Status();
}

}  // namespace treering
