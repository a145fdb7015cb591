// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "communicator/communicator.h"
#include "core/device_protocols.h"
#include "core/log.h"
#include "gpu/memory/deferred_free.h"

namespace treering {

Status DeviceRank::create(Communicator* communicator, int ordinal, std::unique_ptr<DeviceRank>* made) {
  const LogRank lines_have_it(communicator->rank());
  std::unique_ptr<DeviceRank> rank;
  Status status;
  std::vector<ProtocolPart> protocols;
  TR_RETURN_IF_ERROR(parse_protocols(communicator->config().device_protocol, &protocols));  // the same on all ranks
  for (const ProtocolPart& part : protocols)
    if (!part.collective.empty() && find_collective(part.collective) == nullptr)
      return {trInvalidArgument,
              fmt::format("TREERING_DEVICE_PROTOCOL names '{}', which is no collective; known are "
                          "allreduce, reduce, broadcast, allgather, reduce-scatter, alltoall, gather "
                          "and scatter",
                          part.collective)};
  if (ordinal >= 0) {
    Device* device = nullptr;
    status = open_device(ordinal, &device);
    if (status.ok()) rank.reset(new DeviceRank(communicator, device));
    DeferredFree::instance().collect();
    if (status.ok()) status = device->create_stream(&rank->own_stream_);
    if (status.ok()) status = device->create_event(&rank->before_);
  }
  std::string why_not;
  if (communicator->ranks() > 1) {  // also where the device failed: the others wait for this rank
    std::unique_ptr<DeviceFifos> fifos;
    Device* usable = status.ok() && rank != nullptr ? rank->device_ : nullptr;
    Status linked = DeviceFifos::create(communicator, usable, &fifos, &why_not);
    if (status.ok()) status = linked;
    if (status.ok() && fifos != nullptr)
      status = DeviceKernels::create(communicator, usable, std::move(fifos), rank->staged_.memory(), rank->own_stream_,
                                     &rank->kernels_);
  }
  TR_RETURN_IF_ERROR(status);
  if (communicator->rank() == 0 && communicator->ranks() > 1 && rank != nullptr)
    log_line(LogLevel::kInfo, rank->kernels_ != nullptr
                                  ? fmt::format("GPUs exchange by kernels of {} blocks", rank->kernels_->channels())
                                  : fmt::format("buffers of GPUs are staged in host memory: {}", why_not));
  if (rank != nullptr) DeferredFree::instance().add_user(rank.get(), [rank = rank.get()] { return rank->is_busy(); });
  DeferredFree::instance().collect();  // that of the proofs
  *made = std::move(rank);
  return {};
}

DeviceRank::DeviceRank(Communicator* communicator, Device* device)
    : communicator_(communicator), device_(device), staged_(communicator, device) {}

DeviceRank::~DeviceRank() {
  const bool ended = kernels_ == nullptr || kernels_->end();
  DeferredFree& deferred = DeferredFree::instance();
  if (!ended) deferred.add_user(kernels_.get(), [kernels = kernels_.get()] { return !kernels->is_idle(); });
  deferred.remove_user(this);
  if (!ended) (void)kernels_.release();
  kernels_.reset();
  if (ended) deferred.defer({communicator_->tell_closed(), {}, {}});
  if (before_ != nullptr) (void)device_->destroy_event(before_);  // at the end: there is no caller to tell
  if (staged_.close() && own_stream_ != nullptr) (void)device_->destroy_stream(own_stream_);
}

namespace {

template <typename Matches>
bool any_buffer(const Operation& operation, Matches matches) {
  for (const Transfer& transfer : operation.eager_transfers)
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
  return is_memory_of_device(operation.scale_at()) ||
         any_buffer(operation, [](const void* address) { return device_backend(nullptr)->device_of(address) >= 0; });
}

bool DeviceRank::touches_host(const Operation& operation) const {
  return any_buffer(operation, [](const void* address) { return device_backend(nullptr)->device_of(address) < 0; });
}

bool DeviceRank::reads_scale_of(const Operation& operation) const {
  const void* const scale = operation.scale_at();
  return scale == nullptr || device_backend(nullptr)->device_of(scale) == device_->info().ordinal;
}

bool DeviceRank::runs_kernel(const Operation& operation) const {
  return kernels_ != nullptr && kernels_->takes(operation);
}

Status DeviceRank::prepare(const Operation& operation) {
  if (!runs_kernel(operation)) return staged_.reserve(operation, true);
  const bool host_buffers = touches_host(operation);
  if (host_buffers || !reads_scale_of(operation)) TR_RETURN_IF_ERROR(staged_.reserve(operation, host_buffers));
  return kernels_->prepare(operation);
}

Status DeviceRank::enqueue(std::span<const Operation> operations, DeviceStream stream) {
  TR_RETURN_IF_ERROR(communicator_->failure());
  const auto held = DeferredFree::instance().hold();
  const auto is_staged = [&](const Operation& each) {
    return !runs_kernel(each) || touches_host(each) || !reads_scale_of(each);
  };
  while (!operations.empty()) {
    const auto end = std::find_if(operations.begin(), operations.end(), is_staged);
    const auto kernels = static_cast<size_t>(end - operations.begin());
    if (kernels > 0) TR_RETURN_IF_ERROR(kernels_->launch(operations.first(kernels), stream));
    if (end != operations.end()) TR_RETURN_IF_ERROR(stage(*end, stream));
    operations = operations.subspan(std::min(kernels + 1, operations.size()));
  }
  return {};
}

Status DeviceRank::check_captures(DeviceStream before, DeviceStream after) {
  if (device_->capture_of(before) != device_->capture_of(after))
    return {trInvalidUsage,
            "the streams of a group's sends and receives must all be captured into the same graph, or none of them"};
  return {};
}

Status DeviceRank::order(DeviceStream before, DeviceStream after) {
  TR_RETURN_IF_ERROR(device_->record(before_, before));
  return device_->wait(after, before_);
}

Status DeviceRank::stage(const Operation& operation, DeviceStream stream) {
  if (!runs_kernel(operation)) return staged_.enqueue(operation, stream);
  // Kernels read and write pinned memory of the host as well, but not ordinary memory: such buffers are copied before
  // and after the kernel, in the same stream.
  return staged_.enqueue_around(operation, touches_host(operation), stream, [&](const Operation& pinned) {
    return kernels_->launch({&pinned, 1}, stream);
  });
}

void DeviceRank::abort() {
  if (kernels_ != nullptr) kernels_->abort();
}

void DeviceRank::find_failure() {
  if (kernels_ != nullptr) kernels_->find_failure();
}

bool DeviceRank::is_needed() const {
  // Launches of graphs are not counted: peers may be in one.
  return kernels_ != nullptr &&
         (kernels_->has_captured() || !kernels_->is_idle() || communicator_->is_awaited_by_gpus());
}

void DeviceRank::wait_idle() {
  const int timeout_ms = communicator_->config().timeout_ms;
  // Every kernel ends by the deadline; one whose stream never gets to it is not waited for longer.
  if (kernels_ != nullptr)
    (void)kernels_->wait_until_idle(std::chrono::milliseconds(timeout_ms > 0 ? timeout_ms : 1 << 30));
}

bool DeviceRank::is_busy() const {
  return communicator_->queued() != 0 || (kernels_ != nullptr && !kernels_->is_idle());
}

void DeviceRank::finish() {
  const int timeout_ms = communicator_->config().timeout_ms;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (is_busy() && communicator_->verdict().ok()) {
    if (timeout_ms > 0 && std::chrono::steady_clock::now() > end) return;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  find_failure();
}

Status DeviceRank::synchronize() {
  TR_RETURN_IF_ERROR(device_->synchronize(own_stream_));
  return communicator_->settled_failure();
}

}  // namespace treering
