// SPDX-License-Identifier: Apache-2.0
#include "api/batch.h"

#include <algorithm>
#include <new>

#include "gpu/device_rank.h"
#include "gpu/memory/pieces.h"

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

Status find_stream(const Communicator& communicator, StreamId id, DeviceStream* stream) {
  int ordinal = 0;
  *stream = device_of(communicator)->own_stream();
  return id == kOwnDeviceStream ? Status() : find_device_stream(id, &ordinal, stream);
}

using DeviceOrder = Status (DeviceRank::*)(DeviceStream before, DeviceStream after);
Status on_both(const Communicator& communicator, StreamId before, StreamId after, DeviceOrder order) {
  DeviceStream first = nullptr, second = nullptr;
  TR_RETURN_IF_ERROR(find_stream(communicator, before, &first));
  TR_RETURN_IF_ERROR(find_stream(communicator, after, &second));
  return (device_of(communicator)->*order)(first, second);
}

}  // namespace

Batch::Line& Batch::line(trComm_t comm) {
  for (auto& line : lines_)
    if (line->comm == comm) return *line;
  lines_.push_back(std::make_unique<Line>());
  lines_.back()->comm = comm;
  return *lines_.back();
}

Batch::Entry& Batch::entry(trComm_t comm, StreamId stream) {
  Line& all = line(comm);
  for (auto& entry : all.entries)
    if (entry->stream == stream) return *entry;
  all.entries.push_back(std::make_unique<Entry>());
  all.entries.back()->stream = stream;
  return *all.entries.back();
}

// The transfers of a communicator run at once, or two ranks could wait for what the other one has on its next stream:
// those of all streams run on the first, and the others take part by waiting for it. They come behind all else of the
// communicator, because ranks may name their streams in different orders.
void Batch::distribute(Line* line) {
  const bool one = line->entries.size() == 1;
  Entry *on_host = nullptr, *on_device = nullptr;
  for (const auto& [stream, transfer] : line->transfers) {
    Entry*& first = is_device_stream(stream) ? on_device : on_host;
    Entry* entry = first;
    if (stream == 0 || entry == nullptr)
      entry = std::find_if(line->entries.begin(), line->entries.end(), [stream = stream](const auto& each) {
                return each->stream == stream;
              })->get();
    if (stream != 0 && first == nullptr) {
      if (!one) {
        line->entries.push_back(std::make_unique<Entry>());
        entry = line->entries.back().get();
        entry->stream = stream;
      }
      first = entry;
    }
    if (entry->stream != stream && std::find(entry->joined.begin(), entry->joined.end(), stream) == entry->joined.end())
      entry->joined.push_back(stream);
    entry->transfers.push_back(transfer);
  }
  line->transfers.clear();
}

Status Batch::prepare(bool kept) try {
  call_ = kept ? "trPersistentStart" : "trGroupEnd";
  for (auto& line : lines_) {
    CommunicatorLease lease;
    TR_RETURN_IF_ERROR(lease.acquire(line->comm));
    distribute(line.get());
    for (auto& entry : line->entries) TR_RETURN_IF_ERROR(prepare(*lease.get(), entry.get(), kept));
  }
  return {};
} catch (const std::bad_alloc&) {
  if (kept) throw;  // no other rank waits for what has not been started
  for (auto& line : lines_) (void)line->lease.acquire(line->comm);
  return end_without_memory();
}

Status Batch::end_without_memory() {
  Status failure = out_of_memory();
  for (auto& line : lines_)
    if (line->lease) failure = line->lease->end_without_memory(call_);
  for (auto& line : lines_) {
    if (line->lease) line->lease.slot().set_last_error(failure.message());
    line->lease.release();
  }
  return failure;
}

Status Batch::prepare(Communicator& communicator, Entry* entry, bool kept) {
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
      all.eager_transfers = entry->transfers;
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
  return {};
}

// What kernels need is there before the first of them runs, which may wait for a rank of this thread.
Status Batch::prepare_devices() {
  for (auto& line : lines_)
    for (auto& entry : line->entries) {
      if (!is_device_stream(entry->stream)) continue;
      for (const StreamId other : entry->joined)
        TR_RETURN_IF_ERROR(on_both(*line->lease.get(), other, entry->stream, &DeviceRank::check_captures));
      for (const Operation& operation : entry->operations)
        TR_RETURN_IF_ERROR(device_of(*line->lease.get())->prepare(operation));
    }
  return {};
}

// Gives an entry to its stream.
Status Batch::enqueue(Communicator& communicator, Entry* entry) {
  if (is_device_stream(entry->stream)) {
    for (const StreamId other : entry->joined)
      TR_RETURN_IF_ERROR(on_both(communicator, other, entry->stream, &DeviceRank::order));
    TR_RETURN_IF_ERROR(enqueue_on_device(communicator, entry->operations, entry->stream));
    for (const StreamId other : entry->joined)
      TR_RETURN_IF_ERROR(on_both(communicator, entry->stream, other, &DeviceRank::order));
    return {};
  }
  TR_RETURN_IF_ERROR(communicator.failure());
  for (auto& task : entry->tasks) {
    if (&task == &entry->tasks.back())
      for (const StreamId other : entry->joined) TR_RETURN_IF_ERROR(Engine::instance().order(other, entry->stream));
    const bool owned = task->owned;  // the engine may have deleted it when enqueue() returns
    TR_RETURN_IF_ERROR(Engine::instance().enqueue(task.get()));
    if (owned) (void)task.release();
  }
  for (const StreamId other : entry->joined) TR_RETURN_IF_ERROR(Engine::instance().order(entry->stream, other));
  return {};
}

// One step of what is driven here.
Status Batch::advance(Line* line, bool look, bool* moved) {
  Communicator& communicator = *line->lease.get();
  // What streams hold of the communicator was issued before and goes first.
  if (communicator.queued() != 0) return {};
  if (!communicator.active()) {
    Entry& entry = *line->entries[line->next_entry];
    *moved = true;
    if (line->next_operation == entry.operations.size()) {
      ++line->next_entry;
      line->next_operation = 0;
      return {};
    }
    TR_RETURN_IF_ERROR(communicator.begin(entry.operations[line->next_operation++]));
  }
  const auto progress = communicator.advance();
  *moved |= progress != Progress::kBlocked;
  if (progress >= Progress::kDiffers) return communicator.failure();
  return progress == Progress::kBlocked && look ? communicator.poll_failures() : Status();
}

// One turn; true when the line has nothing left to do.
bool Batch::take_turn(Line* line, bool look, bool* moved, Status* failure) {
  Status status;
  while (status.ok() && line->next_entry < line->entries.size()) {
    Entry& entry = *line->entries[line->next_entry];
    if (entry.stream == 0) {
      status = advance(line, look, moved);
      break;
    }
    status = enqueue(*line->lease.get(), &entry);
    ++line->next_entry;
    line->awaits_device |= entry.stream == kOwnDeviceStream;
    *moved = true;
  }
  if (!status.ok()) line->lease.slot().set_last_error(status.message());
  if (failure->ok()) *failure = status;
  return !status.ok() || line->next_entry == line->entries.size();
}

Status Batch::run() {
  // However this ends, the communicators are free again.
  struct Leases {
    Batch* batch;
    ~Leases() {
      for (auto& line : batch->lines_) line->lease.release();
    }
  } leases{this};
  for (auto& line : lines_) TR_RETURN_IF_ERROR(line->lease.acquire(line->comm));
  try {
    return run_leased();
  } catch (const std::bad_alloc&) {
    return end_without_memory();
  }
}

Status Batch::run_leased() {
  TR_RETURN_IF_ERROR(prepare_devices());
  Status failure = drive();
  for (auto& line : lines_) {
    if (!line->awaits_device) continue;
    const Status status = device_of(*line->lease.get())->synchronize();
    if (failure.ok()) failure = status;
  }
  return failure;
}

Status Batch::drive() {
  Backoff backoff;
  for (auto& line : lines_) {
    line->next_entry = line->next_operation = 0;
    line->done = line->awaits_device = false;
    backoff = line->lease->backoff();
  }
  // Where there are several communicators, or streams, it is not known which brings something next.
  const bool streams = lines_.size() == 1 && (lines_[0]->entries.size() > 1 || lines_[0]->lease->queued() != 0);
  if (lines_.size() > 1 || streams) backoff.sleep_on(nullptr, false);
  Status failure;
  size_t left = lines_.size();
  for (bool look = false; left > 0;) {
    bool moved = false;
    for (auto& line : lines_) {
      if (line->done || !take_turn(line.get(), look, &moved, &failure)) continue;
      line->done = true;
      if (!line->awaits_device) line->lease.release();
      --left;
    }
    if (left == 0) break;
    if (moved) backoff.reset();
    look = !moved && backoff.pause();
  }
  return failure;
}

Status enqueue_on_device(Communicator& communicator, std::span<const Operation> operations, StreamId stream) {
  DeviceStream cuda = nullptr;
  TR_RETURN_IF_ERROR(find_stream(communicator, stream, &cuda));
  return device_of(communicator)->enqueue(operations, cuda);
}

Status start_on_device(Communicator& communicator, const Operation& operation, StreamId stream) {
  TR_RETURN_IF_ERROR(enqueue_on_device(communicator, {&operation, 1}, stream));
  return stream == kOwnDeviceStream ? device_of(communicator)->synchronize() : Status();
}

bool Batch::is_queued() const {
  for (const auto& line : lines_)
    for (const auto& entry : line->entries)
      for (const auto& task : entry->tasks)
        if (Engine::instance().is_queued(*task)) return true;
  return false;
}

void Batch::wait() const {
  for (const auto& line : lines_)
    for (const auto& entry : line->entries)
      for (const auto& task : entry->tasks) Engine::instance().wait(*task);
}

}  // namespace treering
