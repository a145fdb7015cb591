#include "communicator/device_kernels.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <thread>

#include "communicator/communicator.h"
#include "communicator/device_monitor.h"
#include "core/log.h"
#include "core/types.h"
#include "executor/cuda/bind.h"

namespace treering {
namespace {

constexpr std::chrono::seconds kPatience{10};
constexpr size_t kMinSliceBytes = 32 << 10;  // of a channel: below it a call is one slice
constexpr uint32_t kMostThreads = 512;
constexpr uint32_t kTransferSignature = 0x703270;
constexpr uint32_t kSignatureMask = 0xffffff;

uint32_t signature_of(const Operation& operation, uint32_t number) {
  uint64_t hash = number * 0x9E3779B97F4A7C15u + operation.count;
  hash = (hash ^ hash >> 29) * 0xBF58476D1CE4E5B9u + (static_cast<uint64_t>(operation.type) << 8) +
         (operation.reduction != nullptr ? 254 : static_cast<uint64_t>(operation.op)) +
         (static_cast<uint64_t>(operation.collective) << 16) + (static_cast<uint64_t>(operation.root) << 24);
  return static_cast<uint32_t>((hash ^ hash >> 32) * 0x94D049BB133111EBu >> 40) & kSignatureMask;
}

// Results of bool are 0 or 1: what the logical operations of bytes give.
trRedOp_t logical(trRedOp_t op) {
  return op == trBitAnd ? trLogicalAnd : op == trBitOr ? trLogicalOr : op == trBitXor ? trLogicalXor : op;
}

// Threads of a block: a unit of 16 bytes for each, within limits.
uint32_t threads_for(size_t bytes_of_block) {
  const auto units = static_cast<uint32_t>(std::min<size_t>(bytes_of_block / 16 + 1, kMostThreads));
  return std::clamp((units + 31) / 32 * 32, 64u, kMostThreads);
}

}  // namespace

Status DeviceKernels::create(Communicator* communicator, Device* device, std::unique_ptr<DeviceLinks> links,
                             std::shared_ptr<StagingMemory> memory, DeviceStream own_stream,
                             std::unique_ptr<DeviceKernels>* made) {
  std::unique_ptr<DeviceKernels> kernels(new DeviceKernels(communicator, device, std::move(links), std::move(memory)));
  kernels->own_stream_ = own_stream;
  void* status = nullptr;
  TR_RETURN_IF_ERROR(device->allocate_host(sizeof(cuda::DeviceStatus), &status));
  kernels->status_ = static_cast<cuda::DeviceStatus*>(status);
  TR_RETURN_IF_ERROR(device->create_event(&kernels->last_));
  TR_RETURN_IF_ERROR(device->create_event(&kernels->last_of_capture_));
  *made = std::move(kernels);
  return {};
}

DeviceKernels::DeviceKernels(Communicator* communicator, Device* device, std::unique_ptr<DeviceLinks> links,
                             std::shared_ptr<StagingMemory> memory)
    : communicator_(communicator), device_(device), links_(std::move(links)), memory_(std::move(memory)) {}

DeviceKernels::~DeviceKernels() {
  DeviceMonitor::instance().forget(this);
  for (const StagingMemory::Block& block : captured_lanes_) memory_->take_back(block);
  if (status_ != nullptr && !is_idle()) {
    abort();
    if (!wait_until_idle(kPatience)) {
      log_line(LogLevel::kWarn,
               fmt::format("GPU {} still holds kernels of a destroyed communicator: its memory is kept",
                           device_->info().ordinal));
      (void)links_.release();
      return;
    }
  }
  for (const auto& [key, compiled] : compiled_) {
    (void)device_->free(compiled->image);  // at the end: nobody to tell
    if (compiled->scratch != nullptr) (void)device_->free(compiled->scratch);
  }
  for (DeviceEvent event : {last_, last_of_capture_})
    if (event != nullptr) (void)device_->destroy_event(event);
  if (status_ != nullptr) (void)device_->free_host(status_);
}

Status DeviceKernels::launch(const Operation& operation, DeviceStream stream) {
  cuda::DeviceCall call{};
  call.links = links_->table();
  call.status = status_;
  call.rank = communicator_->rank();
  call.ranks = communicator_->ranks();
  call.depth = DeviceLinks::kDepth;
  call.slot_bytes = DeviceLinks::kSlotBytes;
  call.divisor = 1;
  ++number_;
  call.number = device_->is_capturing(stream) ? 0 : number_;
  if (operation.pairs) return launch_transfers(operation, stream, &call);
  return launch_collective(operation, stream, &call);
}

Status DeviceKernels::compile(const cuda::DeviceChoice& choice, uint32_t root, Compiled** result) {
  std::unique_ptr<Compiled>& found =
      compiled_[{choice.algorithm, choice.protocol, choice.channels, choice.pipeline_chunks, root}];
  if (found != nullptr) return *result = found.get(), Status();
  auto made = std::make_unique<Compiled>();
  Program& program = made->program;
  const uint32_t ranks = communicator_->ranks();
  for (uint32_t channel = 0; channel < choice.channels; ++channel)
    program.channels.push_back(choice.algorithm->build(communicator_->plan(), communicator_->rank(),
                                                       Shape{channel, choice.channels, choice.pipeline_chunks, root}));
  program.algorithm = choice.algorithm;
  program.max_span =
      choice.algorithm->work({.ranks = ranks, .bytes = 1, .pipeline_chunks = choice.pipeline_chunks}).max_span;
  const size_t bytes = cuda::program_image(program, 0).size();
  TR_RETURN_IF_ERROR(device_->allocate(bytes, &made->image));
  const std::vector<std::byte> image = cuda::program_image(program, reinterpret_cast<uint64_t>(made->image));
  Status status = device_->copy(made->image, image.data(), bytes, own_stream_);
  if (status.ok()) status = device_->synchronize(own_stream_);
  // As much scratch as the largest call needs: nothing is allocated later, when a stream may be captured.
  bool scratch = false;
  for (const Schedule& schedule : program.channels) scratch |= schedule.uses_scratch;
  if (scratch) {
    const size_t chunk = cuda::largest_device_chunk(choice.protocol, DeviceLinks::kSlotBytes, program.max_span, 1);
    made->scratch_bytes = (chunk * program.channels[0].chunks + 255) / 256 * 256;
    if (status.ok()) status = device_->allocate(made->scratch_bytes * choice.channels, &made->scratch);
  }
  if (!status.ok()) {
    (void)device_->free(made->image);
    return status;
  }
  found = std::move(made);
  *result = found.get();
  return {};
}

Status DeviceKernels::resolve(const Operation& operation, Resolved* resolved) {
  const CollectiveInfo& info = info_of(operation.collective);
  const size_t size = find_type(operation.type)->size;
  // What only moves are bytes.
  resolved->element_bytes = info.reduces ? size : 1;
  resolved->type = !info.reduces || operation.type == trBool ? trUint8 : operation.type;
  const uint32_t ranks = communicator_->ranks();
  resolved->choice = &choose(operation.collective, operation.elements(ranks) * size, resolved->element_bytes).choice;
  if (resolved->choice->algorithm == nullptr)
    return {trInternalError, fmt::format("no algorithm of {} fits {} GPUs", info.name, ranks)};
  return compile(*resolved->choice, info.rooted ? operation.root : 0, &resolved->compiled);
}

// Loading a kernel and allocating may wait for kernels that run, which may wait for this rank.
Status DeviceKernels::prepare(const Operation& operation) {
  Resolved resolved{};
  cuda::DeviceCall nothing{};
  if (operation.pairs)
    return device_->launch(nothing, trUint8, cuda::DeviceProtocol::kSimple, kMostThreads, own_stream_);
  TR_RETURN_IF_ERROR(resolve(operation, &resolved));
  return device_->launch(nothing, resolved.type, resolved.choice->protocol, kMostThreads, own_stream_);
}

Status DeviceKernels::launch_collective(const Operation& operation, DeviceStream stream, cuda::DeviceCall* call) {
  const CollectiveInfo& info = info_of(operation.collective);
  Resolved resolved{};
  TR_RETURN_IF_ERROR(resolve(operation, &resolved));
  const size_t element_bytes = resolved.element_bytes;
  const Compiled& compiled = *resolved.compiled;
  Layout layout;
  layout.collective = &info;
  layout.rank = call->rank;
  layout.ranks = call->ranks;
  layout.root = operation.root;
  layout.count = info.reduces ? operation.count : operation.count * find_type(operation.type)->size;
  if (!cuda::bind_device_call(compiled.program, layout, element_bytes, resolved.choice->protocol,
                              DeviceLinks::kSlotBytes, kMinSliceBytes, call))
    return {trInternalError, fmt::format("messages of {} do not fit the slots", resolved.choice->algorithm->name)};
  call->programs = static_cast<const cuda::DeviceProgram*>(compiled.image);
  call->scratch = static_cast<std::byte*>(compiled.scratch);
  call->scratch_bytes = compiled.scratch_bytes;
  call->input = static_cast<const std::byte*>(operation.input);
  call->output = static_cast<std::byte*>(operation.output);
  call->signature = signature_of(operation, number_);
  call->op = operation.type == trBool ? logical(operation.op) : operation.op;
  if (operation.op == trAvg) call->divisor = call->ranks;
  if (operation.reduction != nullptr) {
    call->op = trSum;
    call->scaled = 1;
    std::memcpy(call->scale, operation.reduction->scale.data(), sizeof call->scale);
    call->scale_at = static_cast<const std::byte*>(operation.scale_at());
  }
  const size_t message = call->slicing.chunk_elements * element_bytes * compiled.program.max_span;
  return start(*call, resolved.type, resolved.choice->protocol, threads_for(message), stream);
}

// Lanes of a pair are on the same channel on both sides; block b has lanes b, b + channels, ...
Status DeviceKernels::launch_transfers(const Operation& operation, DeviceStream stream, cuda::DeviceCall* call) {
  const uint32_t channels = links_->channels();
  std::vector<std::vector<cuda::DeviceLane>> blocks(channels);
  std::vector<const Transfer*> own;  // sends of this rank to itself, in order
  for (const Transfer& transfer : operation.letters)
    if (transfer.peer == call->rank && transfer.send) own.push_back(&transfer);
  size_t next_own = 0;
  for (const Transfer& transfer : operation.letters) {
    const bool to_itself = transfer.peer == call->rank;
    if (to_itself && transfer.send) continue;
    if (to_itself && (next_own >= own.size() || own[next_own]->bytes != transfer.bytes))
      return {trInvalidUsage, fmt::format("{}: rank {} receives {} bytes from itself that it does not send",
                                          operation.function, call->rank, transfer.bytes)};
    auto& lanes = blocks[(call->rank + transfer.peer) % channels];
    cuda::DeviceLane lane{};
    lane.peer = transfer.peer;
    lane.bytes = transfer.bytes;
    lane.kind = to_itself ? cuda::kCopyLane : transfer.send ? cuda::kSendLane : cuda::kReceiveLane;
    if (to_itself) lane.input = own[next_own++]->view.base();
    if (transfer.send) lane.input = transfer.view.base();
    if (!transfer.send) lane.output = transfer.view.base();
    lane.after = cuda::kNoLane;
    for (uint32_t i = 0; i < lanes.size(); ++i)
      if (lanes[i].peer == lane.peer && lanes[i].kind == lane.kind) lane.after = i;
    lanes.push_back(lane);
  }
  if (next_own != own.size())
    return {trInvalidUsage,
            fmt::format("{}: rank {} sends to itself what it does not receive", operation.function, call->rank)};
  size_t rows = 1;
  for (const auto& lanes : blocks) rows = std::max(rows, lanes.size());
  if (rows > cuda::kMaxLanesOfBlock)
    return {
        trInvalidUsage,
        fmt::format("{}: {} sends and receives of one group go through one block of rank {}'s kernel, which moves at "
                    "most {} (of ranks whose numbers differ by a multiple of {}); split the group",
                    operation.function, rows, call->rank, cuda::kMaxLanesOfBlock, channels)};
  StagingMemory::Block memory;
  TR_RETURN_IF_ERROR(memory_->lend(rows * channels * sizeof(cuda::DeviceLane), &memory));
  auto* table = reinterpret_cast<cuda::DeviceLane*>(memory.address);
  // Nothing at all, in rows that a block does not have: such a lane is over at once.
  const cuda::DeviceLane nothing{nullptr, nullptr, 0, call->rank, cuda::kCopyLane, cuda::kNoLane, 0};
  for (size_t row = 0; row < rows; ++row)
    for (uint32_t channel = 0; channel < channels; ++channel)
      table[row * channels + channel] = row < blocks[channel].size() ? blocks[channel][row] : nothing;
  call->lanes = table;
  call->lane_count = static_cast<uint32_t>(rows * channels);
  call->channels = channels;
  call->signature = kTransferSignature;
  Status status = start(*call, trUint8, cuda::DeviceProtocol::kSimple, kMostThreads, stream);
  if (!status.ok()) {
    memory_->take_back(memory);
    return status;
  }
  if (call->number == 0) {  // captured
    captured_lanes_.push_back(memory);
    return {};
  }
  struct Lent {
    std::shared_ptr<StagingMemory> from;
    StagingMemory::Block block;
  };
  auto* lent = new Lent{memory_, memory};
  return device_->call_host(
      [](void* argument) {
        std::unique_ptr<Lent> held(static_cast<Lent*>(argument));
        held->from->take_back(held->block);
      },
      lent, stream);
}

Status DeviceKernels::start(const cuda::DeviceCall& call, trDataType_t type, cuda::DeviceProtocol protocol,
                            uint32_t threads, DeviceStream stream) {
  const uint64_t capture = device_->capture_of(stream);
  if (capture != 0) return start_captured(call, type, protocol, threads, stream, capture);
  // Always: handles of streams are used again, and stand for another stream in every thread.
  TR_RETURN_IF_ERROR(device_->wait(stream, last_));
  TR_RETURN_IF_ERROR(device_->launch(call, type, protocol, threads, stream));
  for (uint32_t channel = 0; channel < call.channels; ++channel)
    launched_[channel].store(call.number, std::memory_order_relaxed);
  DeviceMonitor::instance().watch(this);
  return device_->record(last_, stream);
}

// Launches of the graph are in order with all others by nodes for `last_`; kernels of one capture, whose streams may have
// forked, by an edge.
Status DeviceKernels::start_captured(const cuda::DeviceCall& call, trDataType_t type, cuda::DeviceProtocol protocol,
                                     uint32_t threads, DeviceStream stream, uint64_t capture) {
  TR_RETURN_IF_ERROR(capture == capture_ ? device_->wait(stream, last_of_capture_)
                                         : device_->wait_external(stream, last_));
  TR_RETURN_IF_ERROR(device_->launch(call, type, protocol, threads, stream));
  captured_any_.store(true, std::memory_order_relaxed);  // from now on there is always something to look after
  DeviceMonitor::instance().watch(this);
  TR_RETURN_IF_ERROR(device_->record(last_of_capture_, stream));
  capture_ = capture;
  return device_->record_external(last_, stream);
}

void DeviceKernels::abort() { __atomic_store_n(&status_->abort, 1u, __ATOMIC_RELEASE); }

bool DeviceKernels::is_running(uint32_t* begun) const {
  bool running = false;
  *begun = 0;
  for (uint32_t channel = 0; channel < links_->channels(); ++channel) {
    const uint32_t ended = __atomic_load_n(&status_->turn_ended[channel], __ATOMIC_ACQUIRE);
    const uint32_t turn = __atomic_load_n(&status_->turn_begun[channel], __ATOMIC_ACQUIRE);
    running |= turn != ended;
    *begun += turn;
  }
  return running;
}

bool DeviceKernels::is_idle() const {
  for (uint32_t channel = 0; channel < links_->channels(); ++channel) {
    const uint32_t launched = launched_[channel].load(std::memory_order_relaxed);
    if (static_cast<int32_t>(launched - __atomic_load_n(&status_->ended[channel], __ATOMIC_ACQUIRE)) > 0) return false;
  }
  uint32_t begun = 0;
  return !is_running(&begun);
}

bool DeviceKernels::wait_until_idle(std::chrono::milliseconds timeout) const {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!is_idle()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

void DeviceKernels::find_failure() {
  const uint32_t failure = __atomic_load_n(&status_->failure, __ATOMIC_ACQUIRE);
  if (failure != static_cast<uint32_t>(cuda::DeviceFailure::kCallsDiffer) || !communicator_->verdict().ok()) return;
  uint32_t begun = 0;
  (void)is_running(&begun);
  communicator_->fail_everywhere(
      {trInvalidUsage,
       fmt::format("rank {}'s call on its GPU differs from that of rank {} (operation {}). All ranks must "
                   "make the same calls in the same order",
                   communicator_->rank(), __atomic_load_n(&status_->peer, __ATOMIC_RELAXED), begun)});
  abort();
}

bool DeviceKernels::look() {
  const auto now = std::chrono::steady_clock::now();
  const bool idle = is_idle();
  find_failure();  // of a kernel that has ended, too
  if (idle) return captured_any_.load(std::memory_order_relaxed);
  // A kernel that has not begun waits for its stream, which is nobody's fault.
  uint32_t begun = 0;
  if (!is_running(&begun) || begun != seen_begun_) {
    seen_begun_ = begun;
    since_ = now;
  }
  const int timeout_ms = communicator_->config().timeout_ms;
  if (uint32_t peer = 0; communicator_->verdict().ok() && communicator_->find_dead(&peer)) {
    communicator_->fail_everywhere(
        {trRemoteError,
         fmt::format("rank {} has died; the GPU of rank {} was in operation {}", peer, communicator_->rank(), begun)});
  } else if (timeout_ms > 0 && now - since_ >= std::chrono::milliseconds(timeout_ms)) {
    communicator_->fail_everywhere(
        {trTimeout, fmt::format("no progress within {} ms: the GPU of rank {} is in operation "
                                "{} and waits for a peer",
                                timeout_ms, communicator_->rank(), begun)});
  }
  if (!communicator_->verdict().ok()) abort();
  return true;
}

}  // namespace treering
