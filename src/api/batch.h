// SPDX-License-Identifier: Apache-2.0
// Batch: calls that start together: those of a group, or of a persistent operation.
//
//   add() ...        prepare()                                 run(), once or many times
//   allreduce a, b   -> one fused allreduce                    -> streams: given to the engine
//   send, receive    -> one operation of lanes, at the end     -> no stream: driven here, all communicators in turn
//
// Invariant: outside of run() no communicator is leased.
//
// Calls of a batch are independent of one another, so fusing and reordering them is allowed as long as all ranks do the
// same.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "api/handles.h"
#include "progress/engine.h"

namespace treering {

class Batch {
 public:
  void add(trComm_t comm, Operation operation, StreamId stream) {
    entry(comm, stream).operations.push_back(std::move(operation));
  }
  void add_transfers(trComm_t comm, const std::vector<Transfer>& transfers, StreamId stream) {
    (void)entry(comm, stream);
    for (const Transfer& transfer : transfers) line(comm).transfers.emplace_back(stream, transfer);
  }
  bool empty() const { return lines_.empty(); }
  // Whether calls of it, or on it, were added.
  bool has(trComm_t comm) const {
    return std::any_of(lines_.begin(), lines_.end(), [comm](const auto& line) { return line->comm == comm; });
  }
  bool has(StreamId stream) const {
    const auto is_on = [stream](const auto& entry) { return entry->stream == stream; };
    return std::any_of(lines_.begin(), lines_.end(), [&](const auto& line) {
      return std::any_of(line->entries.begin(), line->entries.end(), is_on);
    });
  }

  // kept: it runs many times; else once.
  Status prepare(bool kept);
  // Blocks until what has no stream has ended; the first failure. Allocates nothing on the host's way.
  Status run();
  // Whether streams still hold something of the last run.
  bool is_queued() const;
  void wait() const;

 private:
  // The operations of one communicator on one stream, in order.
  struct Entry {
    StreamId stream;  // 0 = none
    std::vector<Operation> operations;
    std::vector<Transfer> transfers;
    std::vector<std::unique_ptr<Task>> tasks;  // with a stream
    std::vector<StreamId> joined;              // streams of whose transfers the last task is, too
  };
  // All of one communicator. Its entries go one after another, as all ranks issue its operations in the same order:
  // what is driven here ends before what comes after it is given to a stream.
  struct Line {
    trComm_t comm;
    std::vector<std::unique_ptr<Entry>> entries;
    std::vector<std::pair<StreamId, Transfer>> transfers;  // in the order of the calls, until they are prepared
    CommunicatorLease lease;                               // held from the start until the line is done
    size_t next_entry = 0;
    size_t next_operation = 0;  // of an entry that is driven here
    bool done = true;
    bool awaits_device = false;  // of the device's own stream
  };

  Line& line(trComm_t comm);
  Entry& entry(trComm_t comm, StreamId stream);
  static void distribute(Line* line);
  static Status prepare(Communicator& communicator, Entry* entry, bool kept);
  // Fails the communicators that are leased, and gives them back.
  Status end_without_memory();
  Status prepare_devices();
  static Status enqueue(Communicator& communicator, Entry* entry);
  static Status advance(Line* line, bool look, bool* moved);
  static bool take_turn(Line* line, bool look, bool* moved, Status* failure);
  Status run_leased();
  Status drive();

  std::vector<std::unique_ptr<Line>> lines_;
  const char* call_ = "";  // that starts it, for messages
};

// Gives an operation to a device's stream; with the communicator's own, waits for its end.
Status start_on_device(Communicator& communicator, const Operation& operation, StreamId stream);
Status enqueue_on_device(Communicator& communicator, std::span<const Operation> operations, StreamId stream);

// Fuses allreduces of the same type and operation, at most `bytes` together, each tensor at a multiple of `alignment`.
void fuse(std::vector<Operation>* operations, size_t bytes, size_t alignment);

}  // namespace treering
