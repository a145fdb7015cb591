// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_kernels.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <thread>

#include "communicator/communicator.h"
#include "core/log.h"
#include "core/types.h"
#include "gpu/bind.h"
#include "gpu/device_lanes.h"
#include "gpu/device_monitor.h"
#include "gpu/memory/deferred_free.h"

namespace treering {
namespace {

constexpr std::chrono::seconds kIdleTimeout{10};
constexpr size_t kMinSliceBytes = 32 << 10;  // of a channel: below it a call is one slice
constexpr uint32_t kMaxThreads = 512;
constexpr uint32_t kSignatureMask = 0xffffff;

size_t table_bytes(const Blocks& blocks) { return (blocks.counts.size() + blocks.offsets.size()) * sizeof(size_t); }

// Results of bool are 0 or 1: what the logical operations of bytes give.
trRedOp_t logical(trRedOp_t op) {
  if (op == trBitAnd) return trLogicalAnd;
  if (op == trBitOr) return trLogicalOr;
  return op == trBitXor ? trLogicalXor : op;
}

// Threads of a block: a unit of 16 bytes for each, within limits.
uint32_t threads_for(size_t bytes_of_block) {
  const auto units = static_cast<uint32_t>(std::min<size_t>(bytes_of_block / 16 + 1, kMaxThreads));
  return std::clamp((units + 31) / 32 * 32, 64u, kMaxThreads);
}

}  // namespace

Status DeviceKernels::create(Communicator* communicator, Device* device, std::unique_ptr<DeviceFifos> fifos,
                             std::shared_ptr<StagingMemory> memory, DeviceStream own_stream,
                             std::unique_ptr<DeviceKernels>* made) {
  std::unique_ptr<DeviceKernels> kernels(new DeviceKernels(communicator, device, std::move(fifos), std::move(memory)));
  kernels->own_stream_ = own_stream;
  void* status = nullptr;
  TR_RETURN_IF_ERROR(device->allocate_host(sizeof(cuda::DeviceStatus), &status));
  kernels->status_ = static_cast<cuda::DeviceStatus*>(status);
  TR_RETURN_IF_ERROR(kernels->order_.create());
  *made = std::move(kernels);
  return {};
}

DeviceKernels::DeviceKernels(Communicator* communicator, Device* device, std::unique_ptr<DeviceFifos> fifos,
                             std::shared_ptr<StagingMemory> memory)
    : communicator_(communicator),
      device_(device),
      fifos_(std::move(fifos)),
      memory_(std::move(memory)),
      order_(device) {}

DeviceKernels::~DeviceKernels() {
  DeviceMonitor::instance().forget(this);
  if (status_ != nullptr) reclaim();
  for (const StagingMemory::Block& block : ready_) memory_->take_back(block);
  for (const StagingMemory::Block& block : captured_) memory_->take_back(block);
  DeferredFree& deferred = DeferredFree::instance();
  for (const auto& [key, compiled] : compiled_) {
    deferred.free(device_, compiled->image);
    deferred.free(device_, compiled->scratch);
  }
  deferred.free_host(device_, status_);
}

bool DeviceKernels::end() {
  if (is_idle()) return true;
  abort();
  if (wait_until_idle(kIdleTimeout)) return true;
  log_line(LogLevel::kWarn, fmt::format("GPU {} still holds kernels of a destroyed communicator: its memory is kept",
                                        device_->info().ordinal));
  DeviceMonitor::instance().forget(this);
  memory_->write_off(lent_.size() + ready_.size() + captured_.size());
  return false;
}

// What becomes one kernel.
struct DeviceKernels::Plan {
  cuda::DeviceLaunch launch{};
  trDataType_t type = trUint8;
  cuda::DeviceProtocol protocol = cuda::DeviceProtocol::kSimple;
  uint32_t threads = 0;
  struct Range {
    const std::byte *begin, *end;
    bool written;
  };
  std::vector<Range> ranges;
  std::vector<Lent> memory;  // that the calls read

  explicit Plan(DeviceKernels* kernels) : kernels_(kernels) {}
  // Keeps the memory of calls that were not launched.
  ~Plan() { keep_memory(); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  bool fits(const Plan& next) const {
    if (launch.calls == 0) return true;
    return launch.calls < cuda::kMaxCallsOfLaunch && next.type == type && next.protocol == protocol && !depends(next);
  }
  bool depends(const Plan& next) const {
    for (const Range& a : ranges)
      for (const Range& b : next.ranges)
        if ((a.written || b.written) && a.begin < b.end && b.begin < a.end) return true;
    return false;
  }
  // Takes the one call of `next`.
  void add(Plan* next) {
    cuda::add_call(next->launch.call[0], &launch);
    type = next->type;
    protocol = next->protocol;
    threads = std::max(threads, next->threads);
    ranges.insert(ranges.end(), next->ranges.begin(), next->ranges.end());
    memory.insert(memory.end(), next->memory.begin(), next->memory.end());
    next->memory.clear();
  }
  void clear() {
    keep_memory();
    launch = {};
    threads = 0;
    ranges.clear();
  }

 private:
  void keep_memory() {
    for (const Lent& lent : memory) kernels_->memory_->take_back(lent.block);
    memory.clear();
  }
  DeviceKernels* kernels_;
};

Status DeviceKernels::launch(std::span<const Operation> operations, DeviceStream stream) {
  reclaim();
  for (const StagingMemory::Block& block : ready_) memory_->take_back(block);  // for the next lines to lend
  ready_.clear();
  Plan plan(this);
  for (const Operation& operation : operations) {
    if (operation.pairs) {
      TR_RETURN_IF_ERROR(start(&plan, stream));
      TR_RETURN_IF_ERROR(launch_transfers(operation, stream));
      continue;
    }
    Plan one(this);
    TR_RETURN_IF_ERROR(bind(operation, &one));
    if (!plan.fits(one)) TR_RETURN_IF_ERROR(start(&plan, stream));
    plan.add(&one);
  }
  return start(&plan, stream);
}

cuda::DeviceCall DeviceKernels::new_call() {
  cuda::DeviceCall call{};
  call.fifos = fifos_->table();
  call.all_channels = fifos_->channels();
  call.status = status_;
  call.rank = communicator_->rank();
  call.ranks = communicator_->ranks();
  call.depth = DeviceFifos::kDepth;
  call.slot_bytes = DeviceFifos::kSlotBytes;
  call.divisor = 1;
  call.number = ++number_;
  return call;
}

Status DeviceKernels::compile(const cuda::DeviceSelection& choice, uint32_t root, Compiled** result) {
  std::unique_ptr<Compiled>& found =
      compiled_[{choice.algorithm, choice.protocol, choice.channels, choice.pipeline_chunks, root}];
  if (found != nullptr) {
    *result = found.get();
    return {};
  }
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
    const size_t chunk = cuda::largest_device_chunk(choice.protocol, DeviceFifos::kSlotBytes, program.max_span, 1);
    made->scratch_bytes = (chunk * program.channels[0].chunks + 255) / 256 * 256;
    if (status.ok()) status = device_->allocate(made->scratch_bytes * fifos_->channels(), &made->scratch);
  }
  if (!status.ok()) {
    DeferredFree::instance().free(device_, made->image);
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
  resolved->choice = &choose(operation.collective, operation.elements(ranks) * size, resolved->element_bytes,
                             operation.blocks != nullptr)
                          .choice;
  if (resolved->choice->algorithm == nullptr)
    return {trInternalError, fmt::format("no algorithm of {} fits {} GPUs", info.name, ranks)};
  return compile(*resolved->choice, info.rooted ? operation.root : 0, &resolved->compiled);
}

// Loading a kernel and allocating may wait for kernels that run, which may wait for this rank.
Status DeviceKernels::prepare(const Operation& operation) {
  reclaim();
  const cuda::DeviceLaunch nothing{};
  StagingMemory::Block block;
  if (operation.pairs) {
    DeviceLanes lanes;
    TR_RETURN_IF_ERROR(
        DeviceLanes::plan(operation, communicator_->rank(), communicator_->ranks(), fifos_->channels(), &lanes));
    if (lanes.empty()) return {};
    TR_RETURN_IF_ERROR(memory_->lend(lanes.table_bytes(), &block));
    ready_.push_back(block);
    return device_->launch(nothing, trUint8, cuda::DeviceProtocol::kSimple, kMaxThreads, own_stream_);
  }
  Resolved resolved{};
  TR_RETURN_IF_ERROR(resolve(operation, &resolved));
  if (operation.blocks != nullptr) {
    TR_RETURN_IF_ERROR(memory_->lend(table_bytes(*operation.blocks), &block));
    ready_.push_back(block);
  }
  return device_->launch(nothing, resolved.type, resolved.choice->protocol, kMaxThreads, own_stream_);
}

Status DeviceKernels::bind(const Operation& operation, Plan* one) {
  const CollectiveInfo& info = info_of(operation.collective);
  Resolved resolved{};
  TR_RETURN_IF_ERROR(resolve(operation, &resolved));
  const size_t element_bytes = resolved.element_bytes, size = find_type(operation.type)->size;
  const Compiled& compiled = *resolved.compiled;
  cuda::DeviceCall call = new_call();
  Layout layout;
  layout.collective = &info;
  layout.rank = call.rank;
  layout.ranks = call.ranks;
  layout.root = operation.root;
  layout.count = info.reduces ? operation.count : operation.count * size;
  UnequalParts unequal;
  layout.unequal = operation.blocks == nullptr ? nullptr : &unequal;
  if (operation.blocks != nullptr)
    TR_RETURN_IF_ERROR(bind_blocks(*operation.blocks, info.reduces ? 1 : size, &unequal, one));
  if (!cuda::bind_device_call(compiled.program, layout, element_bytes, resolved.choice->protocol,
                              DeviceFifos::kSlotBytes, kMinSliceBytes, &call))
    return {trInternalError, fmt::format("messages of {} do not fit the slots", resolved.choice->algorithm->name)};
  call.first_channel = next_channel_;
  // Calls without data have no message that would tell ranks which do not make them.
  if (operation.elements(call.ranks) > 0) next_channel_ = (next_channel_ + call.channels) % fifos_->channels();
  call.programs = static_cast<const cuda::DeviceProgram*>(compiled.image);
  call.scratch = static_cast<std::byte*>(compiled.scratch);
  call.scratch_bytes = compiled.scratch_bytes;
  call.input = static_cast<const std::byte*>(operation.input);
  call.output = static_cast<std::byte*>(operation.output);
  collectives_[call.number % kNumbersKept].store(
      uint64_t{call.number} << 32 | static_cast<uint32_t>(communicator_->count_device_collective()),
      std::memory_order_release);
  // It stands for all collectives so far, as on the host (active_call.cpp).
  history_ = (history_ + signature_of(operation)) * 0x9E3779B97F4A7C15u;
  call.signature = static_cast<uint32_t>(history_ >> 32) & kSignatureMask;
  call.op = operation.type == trBool ? logical(operation.op) : operation.op;
  if (operation.op == trAvg) call.divisor = call.ranks;
  if (operation.reduction != nullptr) {
    call.op = trSum;
    call.scaled = 1;
    std::memcpy(call.scale, operation.reduction->scale.data(), sizeof call.scale);
    call.scale_at = static_cast<const std::byte*>(operation.scale_at());
  }
  one->type = resolved.type;
  one->protocol = resolved.choice->protocol;
  one->threads = threads_for(call.slicing.chunk_elements * element_bytes * compiled.program.max_span);
  const auto add_range = [&](const void* buffer, bool output) {
    if (buffer == nullptr) return;
    const auto* begin = static_cast<const std::byte*>(buffer);
    one->ranges.push_back({begin, begin + buffer_elements(operation, call.rank, call.ranks, output) * size, output});
  };
  add_range(operation.input, false);
  add_range(operation.output, true);
  if (call.scale_at != nullptr) one->ranges.push_back({call.scale_at, call.scale_at + size, false});
  for (Lent& lent : one->memory) lent = {lent.block, call.number, call.first_channel, call.channels};
  cuda::add_call(call, &one->launch);
  return {};
}

// Counts and offsets of blocks that differ, in elements of the kernel, `unit` for each of the call's.
Status DeviceKernels::bind_blocks(const Blocks& blocks, size_t unit, UnequalParts* parts, Plan* one) {
  StagingMemory::Block memory;
  TR_RETURN_IF_ERROR(memory_->lend(table_bytes(blocks), &memory));
  one->memory.push_back({memory});
  auto* const counts = reinterpret_cast<size_t*>(memory.address);
  size_t* const offsets = counts + blocks.counts.size();
  for (size_t part = 0; part < blocks.counts.size(); ++part) {
    counts[part] = blocks.counts[part] * unit;
    offsets[part] = blocks.offsets[part] * unit;
  }
  *parts = {counts, offsets, blocks.parts.largest * unit};
  return {};
}

Status DeviceKernels::launch_transfers(const Operation& operation, DeviceStream stream) {
  const uint32_t channels = fifos_->channels();
  DeviceLanes lanes;
  TR_RETURN_IF_ERROR(DeviceLanes::plan(operation, communicator_->rank(), communicator_->ranks(), channels, &lanes));
  if (lanes.empty()) return {};
  Plan plan(this);
  StagingMemory::Block memory;
  TR_RETURN_IF_ERROR(memory_->lend(lanes.table_bytes(), &memory));
  cuda::DeviceCall call = new_call();
  plan.memory.push_back({memory, call.number, 0, channels});
  call.rows = lanes.write_table(memory.address);
  call.rows_of_channel = lanes.rows_of_channel();
  call.channels = channels;
  call.signature = kTransferSignature & kSignatureMask;
  cuda::add_call(call, &plan.launch);
  plan.threads = kMaxThreads;
  return start(&plan, stream);
}

Status DeviceKernels::start(Plan* plan, DeviceStream stream) {
  cuda::DeviceLaunch& launch = plan->launch;
  if (launch.calls == 0) return {};
  const bool captured = device_->is_capturing(stream);
  for (uint32_t i = 0; i < launch.calls; ++i) launch.call[i].captured = captured;
  TR_RETURN_IF_ERROR(order_.enter(stream));
  TR_RETURN_IF_ERROR(device_->launch(launch, plan->type, plan->protocol, plan->threads, stream));
  if (captured) {
    captured_any_.store(true, std::memory_order_relaxed);  // from now on there is always something to look after
    for (const Lent& lent : plan->memory) captured_.push_back(lent.block);
  } else {
    for (uint32_t i = 0; i < launch.calls; ++i) {
      const cuda::DeviceCall& call = launch.call[i];
      for (uint32_t share = 0; share < call.channels; ++share)
        launched_[(call.first_channel + share) % call.all_channels].store(call.number, std::memory_order_relaxed);
    }
    lent_.insert(lent_.end(), plan->memory.begin(), plan->memory.end());
  }
  plan->memory.clear();
  plan->clear();
  DeviceMonitor::instance().watch(this);
  return order_.leave(stream);
}

void DeviceKernels::reclaim() {
  std::erase_if(lent_, [this](const Lent& lent) {
    for (uint32_t share = 0; share < lent.channels; ++share) {
      const uint32_t channel = (lent.first_channel + share) % fifos_->channels();
      if (static_cast<int32_t>(lent.number - __atomic_load_n(&status_->ended[channel], __ATOMIC_ACQUIRE)) > 0)
        return false;
    }
    memory_->take_back(lent.block);
    return true;
  });
}

}  // namespace treering
