#include "communicator/device_rank.h"

#include <fmt/format.h>

#include <atomic>

#include "communicator/communicator.h"
#include "core/log.h"
#include "core/types.h"

namespace treering {
namespace {

// A stream that has not passed by then is stuck in something that is not ours.
constexpr std::chrono::seconds kPatience{10};

}  // namespace

struct DeviceRank::StagedCall {
  struct Move {
    void* to;
    const void* from;
    size_t bytes;
  };
  Communicator* communicator = nullptr;
  std::shared_ptr<StagingMemory> memory;  // outlives the communicator where a stream is late
  StreamId host_stream = 0;
  Operation operation;  // on the staging memory
  std::vector<Move> before, after;
  std::vector<StagingMemory::Block> blocks;
  std::atomic<uint32_t>* flag = nullptr;  // in the first block
  EventId gate = 0;

  ~StagedCall() {
    for (const StagingMemory::Block& block : blocks) memory->take_back(block);
  }
  Status lend(size_t bytes, std::byte** address) {
    StagingMemory::Block block;
    TR_RETURN_IF_ERROR(memory->lend(bytes, &block));
    blocks.push_back(block);
    *address = block.address;
    return {};
  }
};

Status DeviceRank::create(Communicator* communicator, int ordinal, std::unique_ptr<DeviceRank>* made) {
  std::unique_ptr<DeviceRank> rank;
  Status status;
  if (ordinal >= 0) {
    Device* device = nullptr;
    status = open_device(ordinal, &device);
    if (status.ok()) rank.reset(new DeviceRank(communicator, device));
    if (status.ok()) status = device->create_stream(&rank->own_stream_);
  }
  std::string why_not;
  if (communicator->ranks() > 1) {  // also where the device failed: the others wait for this rank
    std::unique_ptr<DeviceLinks> links;
    Device* usable = status.ok() && rank != nullptr ? rank->device_ : nullptr;
    Status linked =
        DeviceLinks::create(communicator, usable, usable == nullptr ? nullptr : rank->own_stream_, &links, &why_not);
    if (status.ok()) status = linked;
    if (status.ok() && links != nullptr)
      status = DeviceKernels::create(communicator, usable, std::move(links), rank->memory_, rank->own_stream_,
                                     &rank->kernels_);
  }
  TR_RETURN_IF_ERROR(status);
  if (communicator->rank() == 0 && communicator->ranks() > 1 && rank != nullptr)
    log_line(LogLevel::kInfo, rank->kernels_ != nullptr
                                  ? fmt::format("GPUs exchange by kernels of {} blocks", rank->kernels_->channels())
                                  : fmt::format("buffers of GPUs are staged in host memory: {}", why_not));
  *made = std::move(rank);
  return {};
}

DeviceRank::DeviceRank(Communicator* communicator, Device* device)
    : communicator_(communicator),
      device_(device),
      host_stream_(Engine::instance().create_stream()),
      memory_(std::make_shared<StagingMemory>(device)) {}

DeviceRank::~DeviceRank() {
  kernels_.reset();
  captured_.clear();
  if (!memory_->wait_until_idle(kPatience)) {
    // What the streams still hold refers to the memory, which they keep, and to the engine's stream, which therefore stays.
    log_line(LogLevel::kWarn, fmt::format("a CUDA stream of GPU {} still holds operations of a destroyed communicator",
                                          device_->info().ordinal));
    return;
  }
  (void)Engine::instance().destroy_stream(host_stream_);  // its failures were the communicator's
  if (own_stream_ != nullptr) (void)device_->destroy_stream(own_stream_);
}

namespace {

template <typename Matches>
bool any_buffer(const Operation& operation, Matches matches) {
  for (const Transfer& transfer : operation.letters)
    if (transfer.bytes > 0 && matches(transfer.view.base())) return true;
  return (operation.input != nullptr && matches(operation.input)) ||
         (operation.output != nullptr && matches(operation.output));
}

}  // namespace

bool DeviceRank::is_memory_of_device(const void* address) {
  DeviceBackend* backend = device_backend(nullptr);
  return address != nullptr && backend != nullptr && backend->device_of(address) >= 0;
}

bool DeviceRank::touches_device(const Operation& operation) const {
  return any_buffer(operation, [](const void* address) { return device_backend(nullptr)->device_of(address) >= 0; });
}

bool DeviceRank::touches_host(const Operation& operation) const {
  return any_buffer(operation, [](const void* address) { return device_backend(nullptr)->device_of(address) < 0; });
}

Status DeviceRank::stage(Operation operation, StagedCall* call) {
  call->communicator = communicator_;
  call->memory = memory_;
  call->host_stream = host_stream_;
  call->operation = std::move(operation);
  std::byte* flag = nullptr;
  TR_RETURN_IF_ERROR(call->lend(sizeof(uint32_t), &flag));
  call->flag = reinterpret_cast<std::atomic<uint32_t>*>(flag);
  call->flag->store(0);
  return call->operation.pairs ? stage_transfers(call) : stage_buffers(call);
}

Status DeviceRank::stage_buffers(StagedCall* call) {
  Operation& operation = call->operation;
  const size_t size = find_type(operation.type)->size;
  const uint32_t rank = communicator_->rank(), ranks = communicator_->ranks();
  const size_t in = operation.input == nullptr ? 0 : buffer_elements(operation, rank, ranks, false) * size;
  const size_t out = operation.output == nullptr ? 0 : buffer_elements(operation, rank, ranks, true) * size;
  auto* input = static_cast<std::byte*>(const_cast<void*>(operation.input));
  auto* output = static_cast<std::byte*>(operation.output);
  std::byte* staged = nullptr;
  if (operation.in_place && in > 0 && out > 0) {  // one buffer: both, whole
    std::byte* const first = std::min(input, output);
    const size_t bytes = static_cast<size_t>(std::max(input + in, output + out) - first);
    TR_RETURN_IF_ERROR(call->lend(bytes, &staged));
    call->before.push_back({staged, first, bytes});
    call->after.push_back({output, staged + (output - first), out});
    operation.input = staged + (input - first);
    operation.output = staged + (output - first);
    return {};
  }
  if (in > 0) {
    TR_RETURN_IF_ERROR(call->lend(in, &staged));
    call->before.push_back({staged, input, in});
    operation.input = staged;
  }
  if (out > 0) {
    TR_RETURN_IF_ERROR(call->lend(out, &staged));
    // Between the blocks of a v-variant lies what is to stay.
    if (operation.blocks != nullptr) call->before.push_back({staged, output, out});
    call->after.push_back({output, staged, out});
    operation.output = staged;
  }
  return {};
}

Status DeviceRank::stage_transfers(StagedCall* call) {
  Operation& operation = call->operation;
  std::byte* staged = nullptr;
  const auto stage_in = [&](View* view, size_t bytes) -> Status {
    if (bytes == 0 || view->base() == nullptr) return {};
    TR_RETURN_IF_ERROR(call->lend(bytes, &staged));
    call->before.push_back({staged, view->base(), bytes});
    *view = View(staged);
    return {};
  };
  const auto stage_out = [&](View* view, size_t bytes) -> Status {
    if (bytes == 0 || view->base() == nullptr) return {};
    TR_RETURN_IF_ERROR(call->lend(bytes, &staged));
    call->after.push_back({view->base(), staged, bytes});
    *view = View(staged);
    return {};
  };
  for (Transfer& transfer : operation.letters)
    TR_RETURN_IF_ERROR(transfer.send ? stage_in(&transfer.view, transfer.bytes)
                                     : stage_out(&transfer.view, transfer.bytes));
  return {};
}

Status DeviceRank::prepare(const Operation& operation) {
  return kernels_ != nullptr && kernels_->takes(operation) ? kernels_->prepare(operation) : Status();
}

Status DeviceRank::enqueue(Operation operation, DeviceStream stream) {
  TR_RETURN_IF_ERROR(communicator_->failure());
  if (kernels_ == nullptr || !kernels_->takes(operation)) return enqueue_staged(std::move(operation), stream);
  // Kernels read and write pinned memory of the host as well, but not ordinary memory: such buffers are staged around the
  // kernel, in the same stream.
  return enqueue_kernel(std::move(operation), stream);
}

Status DeviceRank::enqueue_staged(Operation operation, DeviceStream stream) {
  auto call = std::make_unique<StagedCall>();
  TR_RETURN_IF_ERROR(stage(std::move(operation), call.get()));
  Operation& staged = call->operation;
  if (staged.pairs && !communicator_->are_letters(staged.letters)) {
    TR_RETURN_IF_ERROR(communicator_->make_lanes(staged.letters, staged.function, &staged.lanes));
    staged.letters.clear();
  }
  for (const StagedCall::Move& move : call->before)
    TR_RETURN_IF_ERROR(device_->copy(move.to, move.from, move.bytes, stream));
  const bool captured = device_->is_capturing(stream);
  if (captured) {
    TR_RETURN_IF_ERROR(device_->call_host(start_captured, call.get(), stream));
  } else {
    TR_RETURN_IF_ERROR(queue_on_engine(call.get()));
    // From here on the engine holds the call: it ends by the communicator's deadline, and the call is given back by the
    // stream alone.
    Status status = device_->call_host(open_gate, call.get(), stream);
    if (!status.ok()) {
      open_gate(call.get());
      (void)call.release();
      return status;
    }
  }
  StagedCall* held = call.get();
  if (captured)
    captured_.push_back(std::move(call));
  else
    (void)call.release();
  TR_RETURN_IF_ERROR(device_->wait_value(reinterpret_cast<const uint32_t*>(held->flag), 1, stream));
  for (const StagedCall::Move& move : held->after)
    TR_RETURN_IF_ERROR(device_->copy(move.to, move.from, move.bytes, stream));
  return captured ? Status() : device_->call_host(give_back, held, stream);
}

Status DeviceRank::queue_on_engine(StagedCall* call) {
  Engine& engine = Engine::instance();
  call->gate = engine.create_event();
  TR_RETURN_IF_ERROR(engine.expect(call->gate));
  TR_RETURN_IF_ERROR(engine.wait_event(host_stream_, call->gate));
  Status status = engine.enqueue(host_stream_, communicator_, call->operation);
  if (status.ok()) status = engine.add_callback(host_stream_, raise_flag, call);
  if (!status.ok()) (void)engine.destroy_event(call->gate);  // the stream must not wait for it
  return status;
}

void DeviceRank::open_gate(void* argument) {
  auto* call = static_cast<StagedCall*>(argument);
  (void)Engine::instance().destroy_event(call->gate);  // what waits for an event that is gone goes on
}

// A graph is replayed: every time the operation is queued anew.
void DeviceRank::start_captured(void* argument) {
  auto* call = static_cast<StagedCall*>(argument);
  call->flag->store(0);
  Engine& engine = Engine::instance();
  if (!engine.enqueue(call->host_stream, call->communicator, call->operation).ok() ||
      !engine.add_callback(call->host_stream, raise_flag, call).ok())
    raise_flag(trInternalError, call);
}

// Also after a failure: the stream goes on, and the communicator says what happened.
void DeviceRank::raise_flag(trResult_t, void* argument) {
  static_cast<StagedCall*>(argument)->flag->store(1, std::memory_order_release);
}

void DeviceRank::give_back(void* argument) { delete static_cast<StagedCall*>(argument); }

// Buffers of the host become copies in pinned memory before and after the kernel.
Status DeviceRank::enqueue_kernel(Operation operation, DeviceStream stream) {
  if (!touches_host(operation)) return kernels_->launch(operation, stream);
  auto call = std::make_unique<StagedCall>();
  TR_RETURN_IF_ERROR(stage(std::move(operation), call.get()));
  for (const StagedCall::Move& move : call->before)
    TR_RETURN_IF_ERROR(device_->copy(move.to, move.from, move.bytes, stream));
  TR_RETURN_IF_ERROR(kernels_->launch(call->operation, stream));
  StagedCall* held = call.release();
  for (const StagedCall::Move& move : held->after)
    TR_RETURN_IF_ERROR(device_->copy(move.to, move.from, move.bytes, stream));
  if (!device_->is_capturing(stream)) return device_->call_host(give_back, held, stream);
  captured_.emplace_back(held);
  return {};
}

void DeviceRank::abort() {
  if (kernels_ != nullptr) kernels_->abort();
}

void DeviceRank::wait_idle() {
  const int timeout_ms = communicator_->config().timeout_ms;
  // Every kernel ends by the deadline; one whose stream never gets to it is not waited for longer.
  if (kernels_ != nullptr)
    (void)kernels_->wait_until_idle(std::chrono::milliseconds(timeout_ms > 0 ? timeout_ms : 1 << 30));
}

Status DeviceRank::synchronize() {
  TR_RETURN_IF_ERROR(device_->synchronize(own_stream_));
  return communicator_->failure();
}

}  // namespace treering
