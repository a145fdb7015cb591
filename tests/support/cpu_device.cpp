// SPDX-License-Identifier: Apache-2.0
#include "support/cpu_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/cpu_kernels.h"
#include "support/cpu_streams.h"

namespace treering::testing {
namespace {

constexpr uint32_t kThreadsOfBlock = 2;

struct Mapping {
  int ordinal = -1;  // -1: imported, or memory of the host
  size_t bytes = 0;
  int descriptor = -1;
  bool imported = false, shareable = false;
};
std::mutex memory_mutex;
std::map<uintptr_t, Mapping>& mappings() {
  static auto* map = new std::map<uintptr_t, Mapping>;
  return *map;
}
thread_local int current_device = 0;
std::atomic<uint64_t> launches{0};
std::atomic<uint32_t> launched_blocks{0};

std::atomic<size_t> pinned{0}, pinned_peak{0};
std::atomic<double> link_gbps{0};
std::atomic<bool> link_drops{false}, link_without_handles{false};
std::atomic<int> shareable{0};

// The device whose copies hang, and how many do.
struct Hanging {
  std::mutex mutex;
  std::condition_variable changed;
  int device = -1, copies = 0;
  void set(int of) {
    std::lock_guard lock(mutex);
    device = of;
    changed.notify_all();
  }
  void pass(int of, const Work& copy) {
    std::unique_lock lock(mutex);
    const bool hangs = device == of;
    copies += hangs;
    changed.wait(lock, [&] { return device != of; });
    lock.unlock();
    copy();
    lock.lock();
    copies -= hangs;
  }
};
Hanging& hanging() {
  static auto* state = new Hanging;  // streams of the library may outlive the test
  return *state;
}

// Kernels, and waits for the host, that have begun. A driver may wait for them before it frees memory. This one
// does, so that a call in the thread that was to end them never returns.
std::array<std::atomic<int>, kCpuDevices> running{};
constexpr std::chrono::seconds kLongestWait{30};
void wait_for_running(int device) {
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  while (running[static_cast<size_t>(device)] > 0) {
    if (std::chrono::steady_clock::now() > end) {
      std::fprintf(stderr, "memory was freed while device %d had kernels that do not end\n", device);
      std::abort();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

Status failed(const char* call) { return {trDeviceError, std::string(call) + ": " + std::strerror(errno)}; }

Status map_memory(int descriptor, size_t bytes, int ordinal, void** address) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED,
                      descriptor, 0);
  if (mapped == MAP_FAILED) return failed("mmap");
  std::lock_guard lock(memory_mutex);
  mappings()[reinterpret_cast<uintptr_t>(mapped)] = {ordinal, bytes, descriptor};
  *address = mapped;
  return {};
}
// With the mutex: what has the address, or nullptr.
const Mapping* mapping_of(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto after = mappings().upper_bound(at);
  if (after == mappings().begin()) return nullptr;
  const auto& [base, mapping] = *std::prev(after);
  return at < base + mapping.bytes ? &mapping : nullptr;
}
Status unmap_memory(void* address) {
  std::lock_guard lock(memory_mutex);
  auto found = mappings().find(reinterpret_cast<uintptr_t>(address));
  if (found == mappings().end()) return {trDeviceError, "not an allocation"};
  munmap(address, found->second.bytes);
  if (found->second.descriptor >= 0) close(found->second.descriptor);
  mappings().erase(found);
  return {};
}

struct Handle {
  int pid, descriptor;
  size_t bytes;
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int ordinal) {
    info_.ordinal = ordinal;
    info_.uuid[0] = static_cast<uint8_t>(ordinal + 1);
    info_.name = "CPU stand-in";
    info_.multiprocessors = 16;
    info_.compute_capability = 90;
  }
  const DeviceInfo& info() const override { return info_; }
  void set_capability(uint32_t capability) { info_.compute_capability = capability; }

  Status allocate(size_t bytes, void** address) override {
    const int descriptor = memfd_create("cpu-device", MFD_CLOEXEC);
    if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) return failed("memfd_create");
    return map_memory(descriptor, bytes, info_.ordinal, address);
  }
  Status allocate_shareable(size_t bytes, void** address) override {
    TR_RETURN_IF_ERROR(allocate(bytes, address));
    std::lock_guard lock(memory_mutex);
    mappings()[reinterpret_cast<uintptr_t>(*address)].shareable = true;
    ++shareable;
    return {};
  }
  Status free(void* address) override {
    wait_for_running(info_.ordinal);
    return unmap_memory(address);
  }
  Status export_memory(void* address, DeviceHandle* handle) override {
    std::lock_guard lock(memory_mutex);
    auto found = mappings().find(reinterpret_cast<uintptr_t>(address));
    if (found == mappings().end()) return {trDeviceError, "not an allocation"};
    if (link_without_handles && !found->second.shareable) return {trDeviceError, "handles are not supported"};
    const Handle made{getpid(), found->second.descriptor, found->second.bytes};
    std::memcpy(handle->bytes.data(), &made, sizeof made);
    return {};
  }
  Status import_memory(const DeviceHandle& handle, void** address) override {
    Handle from;
    std::memcpy(&from, handle.bytes.data(), sizeof from);
    const std::string path = "/proc/" + std::to_string(from.pid) + "/fd/" + std::to_string(from.descriptor);
    const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return failed("open");
    TR_RETURN_IF_ERROR(map_memory(descriptor, from.bytes, info_.ordinal, address));
    std::lock_guard lock(memory_mutex);
    mappings()[reinterpret_cast<uintptr_t>(*address)].imported = true;
    return {};
  }
  Status close_memory(void* imported) override { return free(imported); }
  Status reach(Device*) override { return {}; }
  bool keeps_lines(const std::array<uint8_t, 16>&) override { return true; }
  Status allocate_host(size_t bytes, void** address) override {
    const size_t now = pinned.fetch_add(bytes) + bytes;
    for (size_t peak = pinned_peak; peak < now && !pinned_peak.compare_exchange_weak(peak, now);) {
    }
    return map_memory(-1, bytes, -1, address);
  }
  Status free_host(void* address) override {
    for (int device = 0; device < kCpuDevices; ++device) wait_for_running(device);
    {
      std::lock_guard lock(memory_mutex);
      auto found = mappings().find(reinterpret_cast<uintptr_t>(address));
      if (found != mappings().end()) pinned.fetch_sub(found->second.bytes);
    }
    return unmap_memory(address);
  }

  Status create_stream(DeviceStream* stream) override { return *stream = new CpuStream, Status(); }
  Status destroy_stream(DeviceStream stream) override { return delete static_cast<CpuStream*>(stream), Status(); }
  // A stream may still be on its way to the event when it is destroyed.
  using EventHandle = std::shared_ptr<CpuEvent>;
  Status create_event(DeviceEvent* event) override {
    *event = new EventHandle(std::make_shared<CpuEvent>());
    return {};
  }
  Status destroy_event(DeviceEvent event) override { return delete static_cast<EventHandle*>(event), Status(); }
  Status record(DeviceEvent event, DeviceStream stream) override {
    const EventHandle& handle = *static_cast<EventHandle*>(event);
    handle->capture = capture_of(stream);
    give(stream, recorded(handle));
    return {};
  }
  Status wait(DeviceStream stream, DeviceEvent event) override {
    const EventHandle& handle = *static_cast<EventHandle*>(event);
    const uint64_t recorded_in = handle->capture, own = capture_of(stream);
    if (own != recorded_in && (own != 0 || !join_capture(recorded_in, &of(stream))))
      return {trDeviceError, "wait: the event and the stream are not of one capture"};
    give(stream, waited(handle));
    return {};
  }
  Status record_external(DeviceEvent event, DeviceStream stream) override {
    of(stream).give_at_launch([e = *static_cast<EventHandle*>(event)] { return recorded(e); });
    return {};
  }
  Status wait_external(DeviceStream stream, DeviceEvent event) override {
    of(stream).give_at_launch([e = *static_cast<EventHandle*>(event)] { return waited(e); });
    return {};
  }
  Status query(DeviceStream stream, bool* done) override { return *done = of(stream).is_done(), Status(); }
  Status synchronize(DeviceStream stream) override { return of(stream).synchronize(), Status(); }

  Status copy(void* to, const void* from, size_t bytes, DeviceStream stream) override {
    const bool to_other = is_of_other_device(to), over_link = to_other || is_of_other_device(from);
    const auto move = [=] {
      // Sleeps take 50 us and more: what is faster is not slowed down.
      if (over_link && link_gbps > 0 && bytes / link_gbps > 1e5)
        std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<int64_t>(bytes / link_gbps)));
      if (!to_other || !link_drops) std::memmove(to, from, bytes);
    };
    give(stream, [=, device = info_.ordinal] { over_link ? hanging().pass(device, move) : move(); });
    return {};
  }
  Status launch(const cuda::DeviceLaunch& launch, trDataType_t type, cuda::DeviceProtocol protocol, uint32_t,
                DeviceStream stream) override {
    if (launch.channels == 0) return {};
    launches.fetch_add(1);
    launched_blocks = launch.channels;
    run(stream, [=] { cuda::launch_on_cpu(launch, type, protocol, kThreadsOfBlock, 0); });
    return {};
  }
  Status call_host(void (*function)(void*), void* argument, DeviceStream stream) override {
    give(stream, [=] { function(argument); });
    return {};
  }
  Status wait_value(const uint32_t* at, uint32_t value, DeviceStream stream) override {
    run(stream, [=] {
      while (static_cast<int32_t>(__atomic_load_n(at, __ATOMIC_ACQUIRE) - value) < 0)
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
    return {};
  }
  uint64_t capture_of(DeviceStream stream) override {
    const ProgramGraph* graph = of(stream).captured();
    return graph == nullptr ? 0 : graph->number;
  }

  CpuStream& of(DeviceStream stream) { return stream != nullptr ? *static_cast<CpuStream*>(stream) : default_stream(); }

 private:
  static Work recorded(const EventHandle& event) {
    std::lock_guard lock(event->mutex);
    return [event, mark = ++event->recorded] { complete(*event, mark); };
  }
  static Work waited(const EventHandle& event) {
    std::lock_guard lock(event->mutex);
    return [event, mark = event->recorded] { wait_until(*event, mark); };
  }
  bool is_of_other_device(const void* address) {
    std::lock_guard lock(memory_mutex);
    const Mapping* mapping = mapping_of(address);
    return mapping != nullptr && mapping->ordinal >= 0 && (mapping->ordinal != info_.ordinal || mapping->imported);
  }
  // What a driver may wait for.
  void run(DeviceStream stream, Work work) {
    give(stream, [work = std::move(work), &count = running[static_cast<size_t>(info_.ordinal)]] {
      ++count;
      work();
      --count;
    });
  }
  void give(DeviceStream stream, Work work) { of(stream).give(std::move(work)); }
  CpuStream& default_stream() {
    std::lock_guard lock(mutex_);
    if (owner_ != getpid()) {
      (void)default_.release();  // a forked child has the object, but not its thread
      default_ = std::make_unique<CpuStream>();
      owner_ = getpid();
    }
    return *default_;
  }
  DeviceInfo info_;
  std::mutex mutex_;
  std::unique_ptr<CpuStream> default_;
  pid_t owner_ = 0;
};

class CpuBackend : public DeviceBackend {
 public:
  CpuBackend() {
    for (int i = 0; i < kCpuDevices; ++i) devices_.push_back(std::make_unique<CpuDevice>(i));
  }
  int count() const override { return kCpuDevices; }
  Status open(int ordinal, Device** device) override {
    *device = devices_[static_cast<size_t>(ordinal)].get();
    return {};
  }
  Status current(int* ordinal) override { return *ordinal = current_device, Status(); }
  int device_of(const void* address) override {
    std::lock_guard lock(memory_mutex);
    const Mapping* mapping = mapping_of(address);
    return mapping == nullptr ? -1 : mapping->ordinal;
  }
  bool is_of_devices(const void* address) override {
    std::lock_guard lock(memory_mutex);
    return mapping_of(address) != nullptr;
  }
  CpuDevice& at(int ordinal) { return *devices_[static_cast<size_t>(ordinal)]; }

 private:
  std::vector<std::unique_ptr<CpuDevice>> devices_;
};
CpuBackend& backend() {
  static auto* made = new CpuBackend;
  return *made;
}

}  // namespace

TR_EXPORT DeviceStream create_stream_of(int) { return new CpuStream; }
TR_EXPORT void destroy_stream(DeviceStream stream) { delete static_cast<CpuStream*>(stream); }
TR_EXPORT void synchronize_stream(DeviceStream stream) { static_cast<CpuStream*>(stream)->synchronize(); }
TR_EXPORT void run_in_cpu_stream(DeviceStream stream, void (*function)(void*), void* argument) {
  static_cast<CpuStream*>(stream)->give([=] { function(argument); });
}
TR_EXPORT void change_in_stream(DeviceStream stream, int* data, size_t count, void (*change)(int*, size_t)) {
  static_cast<CpuStream*>(stream)->give([=] { change(data, count); });
}
TR_EXPORT void wait_for_stream(DeviceStream stream, DeviceStream other) {
  const auto event = std::make_shared<CpuEvent>();
  auto *waiting = static_cast<CpuStream*>(stream), *before = static_cast<CpuStream*>(other);
  const ProgramGraph* graph = before->captured();
  if (graph != nullptr && waiting->captured() == nullptr) join_capture(graph->number, waiting);
  before->give([event] { complete(*event, 1); });
  waiting->give([event] { wait_until(*event, 1); });
}
TR_EXPORT void begin_capture(DeviceStream stream) {
  static std::atomic<uint64_t> number{0};
  const uint64_t own = ++number;
  std::lock_guard lock(captures_mutex);
  captures()[own] = {new ProgramGraph{own, {}}, {}};
  static_cast<CpuStream*>(stream)->capture(captures()[own].graph);
}
TR_EXPORT ProgramGraph* end_capture(DeviceStream stream) {
  ProgramGraph* graph = static_cast<CpuStream*>(stream)->captured();
  static_cast<CpuStream*>(stream)->capture(nullptr);
  std::lock_guard lock(captures_mutex);
  for (CpuStream* joined : captures()[graph->number].streams) joined->capture(nullptr);
  captures().erase(graph->number);
  return graph;
}
TR_EXPORT void launch_graph(ProgramGraph* graph, DeviceStream stream) {
  for (const auto& make : graph->work) static_cast<CpuStream*>(stream)->give(make());
}
TR_EXPORT void destroy_graph(ProgramGraph* graph) { delete graph; }
TR_EXPORT bool gpus_are_slow() { return true; }
TR_EXPORT uint64_t cpu_launches() { return launches.load(); }
TR_EXPORT uint32_t cpu_launched_blocks() { return launched_blocks.load(); }
TR_EXPORT size_t cpu_pinned_bytes() { return pinned.load(); }
TR_EXPORT size_t cpu_pinned_peak() { return pinned_peak.load(); }
TR_EXPORT void reset_cpu_pinned_peak() { pinned_peak.store(pinned.load()); }
TR_EXPORT void set_cpu_link(const CpuLink& link) {
  link_gbps = link.gbps;
  link_drops = link.drops;
  link_without_handles = link.without_handles;
  hanging().set(link.hanging);
}
TR_EXPORT void set_cpu_capability(int device, uint32_t capability) { backend().at(device).set_capability(capability); }
TR_EXPORT int cpu_hanging_copies() {
  std::lock_guard lock(hanging().mutex);
  return hanging().copies;
}
TR_EXPORT int cpu_shareable_allocations() { return shareable.load(); }
TR_EXPORT void pin_for_cpu_devices(void* address, size_t bytes) {
  std::lock_guard lock(memory_mutex);
  mappings()[reinterpret_cast<uintptr_t>(address)] = {-1, bytes};
}
TR_EXPORT void unpin_for_cpu_devices(void* address) {
  std::lock_guard lock(memory_mutex);
  mappings().erase(reinterpret_cast<uintptr_t>(address));
}
TR_EXPORT void set_cpu_device(int device) { current_device = device; }

}  // namespace treering::testing

extern "C" TR_EXPORT treering::DeviceBackend* treering_open_device_backend(uint32_t version, char*, size_t) {
  return version == treering::kDeviceInterface ? &treering::testing::backend() : nullptr;
}
