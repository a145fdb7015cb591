// SPDX-License-Identifier: Apache-2.0
#include "api/common.h"
#include "gpu/device_rank.h"
#include "gpu/memory/pieces.h"

namespace treering {
namespace {

// What an entry point does with a failed call: kept for trGetLastError(), and the open group will start nothing.
template <typename Body>
trResult_t submitted(CommunicatorLease& lease, const char* call, Body body) {
  return guarded(nullptr, [&] {
    Status status;
    try {
      status = body();
    } catch (const std::bad_alloc&) {
      if (!lease) throw;
      status = lease->run_out_of_memory(call);
    }
    if (status.ok()) return status;
    if (lease) lease.slot().set_last_error(status.message());
    if (Group::current().open()) Group::current().add_failure(status);
    return status;
  });
}

Status run(CommunicatorLease& lease, const Operation& operation) {
  // Acquired: what the engine did to the communicator in the last of them is seen here.
  if (lease->queued() != 0) Engine::instance().wait_idle(lease.get());
  return for_each_piece(*lease.get(), operation, [&](const Operation& piece) { return lease->run(piece); });
}

Status start(CommunicatorLease& lease, const Operation& operation, StreamId stream) {
  if (is_device_stream(stream)) return start_on_device(*lease.get(), operation, stream);
  if (stream != 0) {
    TR_RETURN_IF_ERROR(lease->failure());
    return for_each_piece(*lease.get(), operation, [&](const Operation& piece) {
      return Engine::instance().enqueue(stream, lease.get(), piece);
    });
  }
  return run(lease, operation);
}

// Where an operation goes: to the device if its stream is one of the device's, or, with a NULL stream, if a buffer is.
Status choose_stream(CommunicatorLease& lease, const Operation& operation, trStream_t stream, StreamId* chosen) {
  *chosen = stream_id(stream);
  DeviceRank* device = device_of(*lease.get());
  if (is_device_stream(*chosen)) {
    int ordinal = 0;
    DeviceStream cuda = nullptr;
    TR_RETURN_IF_ERROR(find_device_stream(*chosen, &ordinal, &cuda));
    if (device == nullptr)
      return {trInvalidUsage, "stream is a CUDA stream, but the communicator has no GPU: set trConfig_t::device"};
    if (ordinal == device->device()->info().ordinal) return {};
    return {trInvalidUsage, fmt::format("stream is of GPU {}, but the communicator's is {}", ordinal,
                                        device->device()->info().ordinal)};
  }
  if (device == nullptr || !device->touches_device(operation)) return {};
  if (stream != nullptr)
    return {trInvalidUsage,
            "a buffer, or the operation's scalar, is memory of a GPU, but stream is the host's: give a stream of "
            "trStreamFromCuda, or NULL"};
  *chosen = kOwnDeviceStream;
  return {};
}

Status check_stream(trStream_t stream) {
  if (stream == nullptr || is_device_stream(stream_id(stream))) return {};
  return Engine::instance().check_stream(stream_id(stream));
}

}  // namespace

trResult_t submit(trComm_t comm, Operation operation, trStream_t stream) {
  CommunicatorLease lease;
  return submitted(lease, operation.function, [&]() -> Status {
    TR_RETURN_IF_ERROR(lease.acquire(comm));
    TR_RETURN_IF_ERROR(lease->check(&operation));
    TR_RETURN_IF_ERROR(check_stream(stream));
    StreamId chosen = 0;
    TR_RETURN_IF_ERROR(choose_stream(lease, operation, stream, &chosen));
    if (Group& group = Group::current(); group.open()) {
      group.batch().add(comm, std::move(operation), chosen);
      return {};
    }
    return start(lease, operation, chosen);
  });
}

trResult_t submit_prepared(trComm_t comm, Operation operation, trStream_t stream, const PrepareTransfers& prepare) {
  CommunicatorLease lease;
  return submitted(lease, operation.function, [&]() -> Status {
    TR_RETURN_IF_ERROR(lease.acquire(comm));
    TR_RETURN_IF_ERROR(check_stream(stream));
    std::vector<Transfer> transfers = std::exchange(lease->spare_transfers, {});
    transfers.clear();
    operation.pairs = true;
    TR_RETURN_IF_ERROR(prepare(*lease.get(), &transfers));
    Group& group = Group::current();
    operation.eager_transfers = std::move(transfers);
    StreamId chosen = 0;
    TR_RETURN_IF_ERROR(choose_stream(lease, operation, stream, &chosen));
    if (group.open() && operation.point_to_point) {
      group.batch().add_transfers(comm, operation.eager_transfers, chosen);
      return {};
    }
    const bool eager = is_device_stream(chosen) || lease->are_eager(operation.eager_transfers);
    if (!eager) {
      transfers = std::exchange(operation.eager_transfers, {});
      TR_RETURN_IF_ERROR(lease->make_lanes(transfers, operation.function, &operation.lanes));
    }
    if (group.open()) {
      group.batch().add(comm, std::move(operation), chosen);
      return {};
    }
    if (chosen != 0) return start(lease, operation, chosen);
    const Status status = run(lease, operation);
    // NOLINTNEXTLINE(bugprone-use-after-move): without eager messages it was assigned again above
    lease->spare_transfers = std::move(eager ? operation.eager_transfers : transfers);
    return status;
  });
}

}  // namespace treering
