#include "api/batch.h"

#include <algorithm>

#include "communicator/device_rank.h"
#include "communicator/pieces.h"

namespace treering {

namespace {

Status split(const Communicator& communicator, std::vector<Operation>* operations) {
  std::vector<Operation> pieces;
  for (const Operation& operation : *operations)
    TR_RETURN_IF_ERROR(for_each_piece(communicator, operation, [&](const Operation& piece) {
      pieces.push_back(piece);
      return Status();
    }));
  *operations = std::move(pieces);
  return {};
}

}  // namespace

Batch::Entry& Batch::entry(trComm_t comm, StreamId stream) {
  for (auto& entry : entries_)
    if (entry->comm == comm && entry->stream == stream) return *entry;
  entries_.push_back(std::make_unique<Entry>());
  entries_.back()->comm = comm;
  entries_.back()->stream = stream;
  return *entries_.back();
}

Status Batch::prepare(bool kept) {
  for (auto& entry : entries_) {
    TR_RETURN_IF_ERROR(entry->lease.acquire(entry->comm));
    Communicator& communicator = *entry->lease.get();
    const bool on_device = is_device_stream(entry->stream);
    // With GPUs among the ranks: what other ranks stage is not fused there.
    if (!on_device && communicator.any_device())
      TR_RETURN_IF_ERROR(split(communicator, &entry->operations));
    else if (!on_device)
      fuse(&entry->operations, static_cast<size_t>(communicator.config().fusion_bytes),
           static_cast<size_t>(communicator.config().fusion_alignment));
    if (!entry->transfers.empty()) {
      Operation& all = entry->operations.emplace_back();
      all.function = "trGroupEnd";
      all.point_to_point = all.pairs = true;
      if (on_device)
        all.letters = entry->transfers;
      else
        TR_RETURN_IF_ERROR(communicator.make_lanes(entry->transfers, all.function, &all.lanes));
      entry->transfers.clear();
    }
    if (entry->stream != 0 && !on_device)
      for (Operation& operation : entry->operations) {
        auto& task = entry->tasks.emplace_back(std::make_unique<Task>());
        task->owned = !kept;
        task->stream = entry->stream;
        task->communicator = &communicator;
        task->operation = std::move(operation);
      }
    if (on_device)
      for (const Operation& operation : entry->operations)
        TR_RETURN_IF_ERROR(communicator.device()->prepare(operation));
    entry->lease.release();
  }
  return {};
}

// One turn; true when the communicator has nothing left to do.
bool Batch::take_turn(Entry& entry, bool look, bool* moved, Status* failure) {
  Communicator& communicator = *entry.lease.get();
  Status status;
  if (!communicator.active()) {
    if (entry.next == entry.operations.size()) return true;
    status = communicator.begin(entry.operations[entry.next++]);
    *moved = true;
  }
  if (status.ok()) {
    auto progress = communicator.advance();
    *moved |= progress != Communicator::Progress::kBlocked;
    if (progress == Communicator::Progress::kFailed)
      status = communicator.failure();
    else if (progress == Communicator::Progress::kBlocked && look)
      status = communicator.look_around();
  }
  if (status.ok()) return false;
  entry.lease.slot().last_error = status.message();
  if (failure->ok()) *failure = status;
  return true;
}

Status Batch::run() {
  for (auto& entry : entries_) {
    TR_RETURN_IF_ERROR(entry->lease.acquire(entry->comm));
    if (is_device_stream(entry->stream)) {
      Status status;
      for (const Operation& operation : entry->operations)
        if (status.ok()) status = enqueue_on_device(*entry->lease.get(), operation, entry->stream);
      entry->lease.release();
      TR_RETURN_IF_ERROR(status);
    } else if (entry->stream != 0) {
      Status status = entry->lease->failure();
      for (auto& task : entry->tasks) {
        const bool owned = task->owned;  // the engine may have deleted it when enqueue() returns
        if (status.ok()) status = Engine::instance().enqueue(task.get());
        if (status.ok() && owned) (void)task.release();
      }
      entry->lease.release();
      TR_RETURN_IF_ERROR(status);
    }
  }
  Status failure = drive();
  for (auto& entry : entries_) {
    if (entry->stream != kOwnDeviceStream) continue;
    TR_RETURN_IF_ERROR(entry->lease.acquire(entry->comm));
    const Status status = entry->lease->device()->synchronize();
    if (failure.ok()) failure = status;
  }
  for (auto& entry : entries_) entry->lease.release();
  return failure;
}

Status Batch::drive() {
  size_t left = 0;
  Patience patience;
  for (auto& entry : entries_) {
    entry->done = entry->stream != 0;
    entry->next = 0;
    if (entry->done) continue;
    ++left;
    patience = entry->lease->patience();
    // What streams hold of a communicator was issued before and goes first.
    if (entry->lease->queued.load() != 0) Engine::instance().wait_idle(entry->lease.get());
  }
  Status failure;
  Backoff backoff(patience);
  for (bool look = false; left > 0;) {
    bool moved = false;
    for (auto& entry : entries_)
      if (!entry->done && take_turn(*entry, look, &moved, &failure)) {
        entry->done = true;
        --left;
      }
    if (moved) backoff.reset();
    look = !moved && backoff.pause();
  }
  return failure;
}

Status enqueue_on_device(Communicator& communicator, Operation operation, StreamId stream) {
  DeviceRank& device = *communicator.device();
  int ordinal = 0;
  DeviceStream cuda = device.own_stream();
  if (stream != kOwnDeviceStream) TR_RETURN_IF_ERROR(find_device_stream(stream, &ordinal, &cuda));
  return device.enqueue(std::move(operation), cuda);
}

Status start_on_device(Communicator& communicator, Operation operation, StreamId stream) {
  TR_RETURN_IF_ERROR(enqueue_on_device(communicator, std::move(operation), stream));
  return stream == kOwnDeviceStream ? communicator.device()->synchronize() : Status();
}

bool Batch::is_queued() const {
  for (const auto& entry : entries_)
    for (const auto& task : entry->tasks)
      if (Engine::instance().is_queued(*task)) return true;
  return false;
}

void Batch::wait() const {
  for (const auto& entry : entries_)
    for (const auto& task : entry->tasks) Engine::instance().wait(*task);
}

}  // namespace treering
