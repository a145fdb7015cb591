#include "api/common.h"

namespace treering {
namespace {

// What an entry point does with a failed call: kept for trGetLastError(), and the open group will start nothing.
template <typename Body>
trResult_t submitted(CommunicatorLease& lease, Body body) {
  return guarded(nullptr, [&] {
    Status status = body();
    if (status.ok()) return status;
    if (lease) lease.slot().last_error = status.message();
    if (Group::current().open()) Group::current().add_failure(status);
    return status;
  });
}

Status run(CommunicatorLease& lease, const Operation& operation) {
  if (lease->queued.load(std::memory_order_relaxed) != 0) Engine::instance().wait_idle(lease.get());
  return lease->run(operation);
}

Status start(CommunicatorLease& lease, Operation operation, StreamId stream) {
  if (stream != 0) {
    TR_RETURN_IF_ERROR(lease->failure());
    return Engine::instance().enqueue(stream, lease.get(), std::move(operation));
  }
  return run(lease, operation);
}

Status check_stream(trStream_t stream) {
  if (stream == nullptr || Engine::instance().knows(stream_id(stream))) return {};
  return {trInvalidUsage, "stream is not a stream of trStreamCreate, or was destroyed"};
}

}  // namespace

trResult_t submit(trComm_t comm, Operation operation, trStream_t stream) {
  CommunicatorLease lease;
  return submitted(lease, [&]() -> Status {
    TR_RETURN_IF_ERROR(lease.acquire(comm));
    TR_RETURN_IF_ERROR(lease->check(&operation));
    TR_RETURN_IF_ERROR(check_stream(stream));
    if (Group& group = Group::current(); group.open())
      return group.batch().add(comm, std::move(operation), stream_id(stream)), Status();
    return start(lease, std::move(operation), stream_id(stream));
  });
}

trResult_t submit_prepared(trComm_t comm, Operation operation, trStream_t stream, const PrepareTransfers& prepare) {
  CommunicatorLease lease;
  return submitted(lease, [&]() -> Status {
    TR_RETURN_IF_ERROR(lease.acquire(comm));
    TR_RETURN_IF_ERROR(check_stream(stream));
    std::vector<Transfer> transfers = std::exchange(lease->spare_transfers, {});
    transfers.clear();
    operation.pairs = true;
    TR_RETURN_IF_ERROR(prepare(*lease.get(), &transfers));
    Group& group = Group::current();
    if (group.open() && operation.point_to_point)
      return group.batch().add_transfers(comm, transfers, stream_id(stream)), Status();
    const bool letters = lease->are_letters(transfers);
    if (letters)
      operation.letters = std::move(transfers);
    else
      TR_RETURN_IF_ERROR(lease->make_lanes(transfers, operation.function, &operation.lanes));
    if (group.open()) return group.batch().add(comm, std::move(operation), stream_id(stream)), Status();
    if (stream != nullptr) return start(lease, std::move(operation), stream_id(stream));
    const Status status = run(lease, operation);
    lease->spare_transfers = std::move(letters ? operation.letters : transfers);
    return status;
  });
}

}  // namespace treering
