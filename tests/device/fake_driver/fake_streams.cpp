// SPDX-License-Identifier: Apache-2.0
// The fake driver's streams, events, modules, launches and graphs.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "device/cpu_kernels.h"
#include "device/fake_driver/fake_state.h"
#include "device/kernels.h"

using namespace treering::cuda;

struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;
};
struct CUevent_st {
  // Streams may still be on their way to it when it is destroyed.
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
  std::weak_ptr<Capture> capture;  // the one that it was recorded in
  bool is_captured = false;
};
struct CUmod_st {
  int device;
};
struct CUfunc_st {
  int device;
  trDataType_t type;
  DeviceProtocol protocol;
};
struct CUgraph_st {
  std::vector<Maker> work;
};
struct CUgraphExec_st {
  std::vector<Maker> work;
};

namespace {

constexpr std::chrono::seconds kLongestDrain{30};
std::mutex all_mutex;
std::vector<CUstream_st*>& all_streams() {
  static auto* all = new std::vector<CUstream_st*>;
  return *all;
}

}  // namespace

void treering::cuda::drain_streams(int device) {
  std::lock_guard lock(all_mutex);
  for (CUstream_st* stream : all_streams())
    if ((device < 0 || stream->device == device) && !stream->drain_for(kLongestDrain)) {
      std::fprintf(stderr, "memory was freed while device %d had work that does not end\n", stream->device);
      std::abort();
    }
}

CUstream_st::CUstream_st(int of) : device(of), thread_([this] { serve(); }) {
  std::lock_guard lock(all_mutex);
  all_streams().push_back(this);
}

CUstream_st::~CUstream_st() {
  {
    std::lock_guard lock(all_mutex);
    std::erase(all_streams(), this);
  }
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CUstream_st::put(std::function<void()> work) {
  if (capture != nullptr) return capture->work.push_back([work = std::move(work)] { return work; });
  {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void CUstream_st::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return work_.empty() && !busy_; });
}

bool CUstream_st::drain_for(std::chrono::seconds most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, most, [this] { return work_.empty() && !busy_; });
}

bool CUstream_st::is_drained() {
  std::lock_guard lock(mutex_);
  return work_.empty() && !busy_;
}

void CUstream_st::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !work_.empty() || ending_; });
    if (work_.empty()) return;
    const auto work = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    lock.unlock();
    work();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

namespace {

constexpr uint32_t kThreadsOfBlock = 2;  // instead of what a launch says
constexpr uint32_t kFatbinMagic = 0xba55ed50;

// "treering_<name>_<protocol>"
bool parse_kernel(const std::string& name, CUfunc_st* function) {
  const std::string prefix = "treering_";
  const size_t last = name.rfind('_');
  if (name.rfind(prefix, 0) != 0 || last <= prefix.size()) return false;
  const std::string type = name.substr(prefix.size(), last - prefix.size()), protocol = name.substr(last + 1);
  if (protocol == "ll")
    function->protocol = DeviceProtocol::kLl;
  else if (protocol == "ll128")
    function->protocol = DeviceProtocol::kLl128;
  else if (protocol == "simple")
    function->protocol = DeviceProtocol::kSimple;
  else
    return false;
#define TR_ROW(code, row, ...) \
  if (type == #row) return function->type = code, true;
  TR_DEVICE_TYPES(TR_ROW)
#undef TR_ROW
  return false;
}

std::function<void()> recorded(const std::shared_ptr<EventState>& event) {
  std::lock_guard lock(event->mutex);
  return [event, turn = ++event->recorded] {
    std::lock_guard reached(event->mutex);
    event->reached = std::max(event->reached, turn);
    event->changed.notify_all();
  };
}
std::function<void()> waited(const std::shared_ptr<EventState>& event) {
  std::lock_guard lock(event->mutex);
  return [event, turn = event->recorded] {
    std::unique_lock waiting(event->mutex);
    event->changed.wait(waiting, [&] { return event->reached >= turn; });
  };
}

}  // namespace

namespace treering::cuda {

CUstream find_stream(CUstream stream) {
  static std::mutex mutex;
  static std::map<int, CUstream> defaults;
  const int device = current_device();
  if (stream != nullptr) return stream->device == device ? stream : nullptr;
  std::lock_guard lock(mutex);
  CUstream& made = defaults[device];
  if (made == nullptr) made = new CUstream_st(device);
  return made;
}

}  // namespace treering::cuda

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  TR_ENTER_CONTEXT(cuStreamCreate);
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *stream = new CUstream_st(current_device());
  ++fake().streams;
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream stream) {
  TR_ENTER_STREAM(cuStreamDestroy, stream);
  delete stream;
  --fake().streams;
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
  TR_ENTER_STREAM(cuStreamSynchronize, stream);
  stream->drain();
  return CUDA_SUCCESS;
}
CUresult cuStreamQuery(CUstream stream) {
  TR_ENTER_STREAM(cuStreamQuery, stream);
  return stream->is_drained() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult cuEventCreate(CUevent* event, unsigned flags) {
  TR_ENTER_CONTEXT(cuEventCreate);
  if (flags != CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_VALUE;
  *event = new CUevent_st();
  ++fake().events;
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) {
  TR_ENTER(cuEventDestroy);
  delete event;
  --fake().events;
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  TR_ENTER_STREAM(cuEventRecord, stream);
  event->capture = stream->capture;
  event->is_captured = stream->capture != nullptr;
  stream->put(recorded(event->state));
  return CUDA_SUCCESS;
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  TR_ENTER_STREAM(cuEventRecordWithFlags, stream);
  if (flags != CU_EVENT_RECORD_EXTERNAL || stream->capture == nullptr) return CUDA_ERROR_INVALID_VALUE;
  stream->put_at_launch([state = event->state] { return recorded(state); });
  return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  TR_ENTER_STREAM(cuStreamWaitEvent, stream);
  if (flags == CU_EVENT_WAIT_EXTERNAL) {
    if (stream->capture == nullptr) return CUDA_ERROR_INVALID_VALUE;
    stream->put_at_launch([state = event->state] { return waited(state); });
    return CUDA_SUCCESS;
  }
  const auto recorded_in = event->capture.lock();
  if (event->is_captured && recorded_in == nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  if (recorded_in != nullptr && stream->capture == nullptr) {
    stream->capture = recorded_in;
    recorded_in->streams.push_back(stream);
  }
  if (recorded_in != stream->capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  stream->put(waited(event->state));
  return CUDA_SUCCESS;
}
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  TR_ENTER_STREAM(cuStreamWaitValue32, stream);
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
  stream->put([at = reinterpret_cast<const uint32_t*>(address), value] {
    while (static_cast<int32_t>(__atomic_load_n(at, __ATOMIC_ACQUIRE) - value) < 0)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  });
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) {
  TR_ENTER_STREAM(cuMemsetD8Async, stream);
  if (!is_usable(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  stream->put([=] { std::memset(reinterpret_cast<void*>(address), value, bytes); });
  return CUDA_SUCCESS;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  TR_ENTER_STREAM(cuMemcpyAsync, stream);
  if (!is_usable(to, bytes) || !is_usable(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  stream->put([=] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
  // As a driver does: the thread waits for a copy within the host, and so for all that comes before it in the stream.
  if (is_of_host(to) && is_of_host(from) && stream->capture == nullptr) stream->drain();
  return CUDA_SUCCESS;
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* argument) {
  TR_ENTER_STREAM(cuLaunchHostFunc, stream);
  stream->put([=] { function(argument); });
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  TR_ENTER_CONTEXT(cuModuleLoadData);
  if (*static_cast<const uint32_t*>(image) != kFatbinMagic) return CUDA_ERROR_INVALID_IMAGE;
  *module = new CUmod_st{current_device()};
  ++fake().modules;
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) {
  TR_ENTER_CONTEXT(cuModuleUnload);
  delete module;
  --fake().modules;
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  TR_ENTER_CONTEXT(cuModuleGetFunction);
  auto made = std::make_unique<CUfunc_st>();
  made->device = module->device;
  if (!parse_kernel(name, made.get())) return CUDA_ERROR_NOT_FOUND;
  *function = made.release();
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  TR_ENTER_CONTEXT(cuFuncGetAttribute);
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) return CUDA_ERROR_INVALID_VALUE;
  *value = fake().kernel_threads;
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty,
                        unsigned tz, unsigned shared_bytes, CUstream stream, void** parameters, void** extra) {
  TR_ENTER_STREAM(cuLaunchKernel, stream);
  DeviceLaunch launch;
  std::memcpy(&launch, parameters[0], sizeof launch);
  if (function->device != current_device()) return CUDA_ERROR_INVALID_HANDLE;
  if (blocks == 0 || blocks != launch.channels || threads > 512 || y * z * ty * tz != 1 || shared_bytes != 0 ||
      extra != nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  stream->put([launch, f = *function] { launch_on_cpu(launch, f.type, f.protocol, kThreadsOfBlock, 0); });
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 13000
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* number, CUgraph*,
                                const CUgraphNode**, const CUgraphEdgeData**, size_t*) {
#else
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* number, CUgraph*,
                                const CUgraphNode**, size_t*) {
#endif
  TR_ENTER_STREAM(cuStreamGetCaptureInfo, stream);
  *status = stream->capture != nullptr ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  *number = stream->capture != nullptr ? stream->capture->number : 0;
  return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  TR_ENTER_STREAM(cuStreamBeginCapture, stream);
  static std::atomic<uint64_t> captures{0};
  stream->capture = std::make_shared<Capture>(Capture{++captures, {}, {stream}});
  return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  TR_ENTER_STREAM(cuStreamEndCapture, stream);
  const auto ended = stream->capture;
  if (ended == nullptr || ended->streams[0] != stream) return CUDA_ERROR_ILLEGAL_STATE;
  *graph = new CUgraph_st{std::move(ended->work)};
  for (CUstream joined : ended->streams) joined->capture = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec* made, CUgraph graph, unsigned long long) {
  TR_ENTER_CONTEXT(cuGraphInstantiate);
  *made = new CUgraphExec_st{graph->work};
  return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  TR_ENTER_STREAM(cuGraphLaunch, stream);
  for (const auto& make : graph->work) stream->put(make());
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) {
  TR_ENTER(cuGraphDestroy);
  delete graph;
  return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec graph) {
  TR_ENTER(cuGraphExecDestroy);
  delete graph;
  return CUDA_SUCCESS;
}

}  // extern "C"
