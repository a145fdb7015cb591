// SPDX-License-Identifier: Apache-2.0
// StagedPath: operations on memory of a GPU through pinned memory of the host, where they run as every other (over any
// transport, with ranks that have no GPU), in the order of a CUDA stream and without a kernel that spins.
//
// What fits a piece is copied whole:
//
//   stream:   copy in | open the gate |  wait for the flag  | copy out | give the memory back
//   engine:   (wait at the gate) ........ operation, raise the flag
//
// The rest goes in pieces (pieces.h), through kDepth slots of pinned memory that all calls of the rank share, so that
// there is never more of it, and the three steps of successive pieces overlap:
//
//   copies in:    0 1 2   3   4   ...     (of slot 0, when piece 0 has been copied out of it)
//   engine:         0 1 2   3   4
//   copies out:       0 1 2   3   4
//
// Copies in and out have a stream each, between the work before and behind the call in the user's. Everything is given
// to the streams in an order that would be right in one stream: in a captured graph it is one, on memory of the graph's
// own.
//
// The engine's side is queued when the call is made, so that all ranks run their operations in the same order whatever
// the order in which their streams get there. A graph's is queued when its launch gets there, in front of calls whose
// gates are closed: from the first capture on, StreamOrder brings gates and launches into the order of calls and
// launches.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "device/device.h"
#include "gpu/memory/pieces.h"
#include "gpu/memory/staging_memory.h"
#include "gpu/stream_order.h"
#include "progress/engine.h"

namespace treering {

class StagedPath {
 public:
  StagedPath(Communicator* communicator, Device* device);
  ~StagedPath();
  StagedPath(const StagedPath&) = delete;
  StagedPath& operator=(const StagedPath&) = delete;

  const std::shared_ptr<StagingMemory>& memory() const { return memory_; }
  Status enqueue(Operation operation, DeviceStream stream);
  // Gives `launch` to the stream, on pinned copies of the operation's scalar and, with `buffers`, of its buffers.
  Status enqueue_around(Operation operation, bool buffers, DeviceStream stream,
                        const std::function<Status(const Operation&)>& launch);
  // Memory and streams for the operation are made, so that enqueue() does not wait for the device.
  Status reserve(const Operation& operation, bool buffers);
  // Waits until the streams have given all memory back. False where one is late: what it holds then stays.
  bool close();

 private:
  static constexpr size_t kDepth = 3;
  struct StagedCall;
  struct Piece;
  struct Slot {
    StagingMemory::Block input, output;
    DeviceEvent free = nullptr;  // behind the last copy out of it
    bool used = false;
  };

  Status prepare(Operation operation, std::unique_ptr<StagedCall>* call);
  Status stage_scale(StagedCall* call) const;
  Status stage(StagedCall* call, bool buffers) const;
  Status stage_buffers(StagedCall* call, Piece* piece) const;
  Status stage_transfers(StagedCall* call, Piece* piece) const;
  Status stage_pieces(const PiecePlan& plan, Slot* slots, size_t first_slot, StagedCall* call) const;
  Status copy_all(std::vector<struct StagedMove>* moves, DeviceStream stream) const;
  Status give(StagedCall* call, bool captured, DeviceStream copies_in, DeviceStream copies_out, bool* queued);
  Status give_in(Piece* piece, bool captured, DeviceStream stream, bool* queued);
  Status give_out(Piece* piece, DeviceStream stream);
  Status open_pipeline();
  Status lend_slots(StagedCall* call, Slot* slots) const;
  Status fork(DeviceStream stream);
  Status join(DeviceStream stream);
  Status queue_on_engine(Piece* piece);
  static void open_gate(void* piece);
  static void start_captured(void* piece);
  static void raise_flag(trResult_t result, void* piece);
  static void give_back(void* call);
  Status give_back_in(DeviceStream stream, std::unique_ptr<StagedCall> call);

  Communicator* communicator_;
  Device* device_;
  StreamId host_stream_;   // of calls
  StreamId graph_stream_;  // of launches of graphs
  std::shared_ptr<StagingMemory> memory_;
  std::vector<std::unique_ptr<StagedCall>> captured_;  // in graphs, which may be replayed until the end
  std::vector<std::unique_ptr<StagedCall>> reserved_;  // whose memory the next calls take
  StreamOrder order_;
  bool ordered_ = false;  // something was captured
  // Made by the first call in pieces:
  std::array<Slot, kDepth> slots_;
  size_t next_slot_ = 0;
  DeviceStream copies_in_ = nullptr, copies_out_ = nullptr;
  DeviceEvent begun_ = nullptr, all_in_ = nullptr, all_out_ = nullptr;
};

}  // namespace treering
