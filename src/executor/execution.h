// SPDX-License-Identifier: Apache-2.0
// Execution: one collective call on one rank, advanced without ever blocking.
//
// Binding joins a compiled schedule (one program a channel) with buffers, counts, type and operation. The data is cut
// into slices, which take their share of every part; channel c runs its program once for each slice s with
// s % channels == c:
//
//   part      | slice 0 | slice 1 | slice 2 | slice 3 |        slice = `chunks / parts` chunks of each part; a message
//   channel        0         1         0         1             is at most one slot of staging memory
//
// Protocols are chosen for each message by its sender, the schedule being the same: inline (in the descriptor), staged
// (through a slot), referenced (the peer reads the user's buffer) and delivered (a final value is stored straight into
// the peers' output buffers). Receivers follow what the message says, so ranks need not agree on them.
//
// A call may also be a set of lanes (layout.h), which advance independently: sends and receives between pairs.
//
// With several parts, steps whose chunks are all empty are left out; both ends of a message know the counts, and a
// subset of a schedule's messages deadlocks nowhere that the whole does not.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/expand.h"
#include "algorithms/slicing.h"
#include "core/config.h"
#include "core/status.h"
#include "executor/layout.h"
#include "executor/progress.h"
#include "executor/rank_status.h"
#include "executor/reduce/reduce.h"
#include "executor/staging_pool.h"
#include "transport/region.h"
#include "transport/connection.h"

namespace treering {

// The compiled programs of one rank, one a channel.
struct Program {
  std::vector<Schedule> channels;
  uint32_t max_span = 1;  // of all ranks' schedules: chunks must be of one size everywhere
  const Algorithm* algorithm = nullptr;
  bool input_used_once = false;  // see properties.h; allows peers to work on the buffers of an in-place call
  std::vector<uint32_t> givers;  // peers that send values to this rank which it stores unchanged
};

// Makes the connections to a peer when the first of them is used: of many ranks each exchanges messages with few.
class ConnectionMaker {
 public:
  // Adds the peer's connections to the context, of all channels.
  virtual void connect(uint32_t peer) = 0;

 protected:
  ~ConnectionMaker() = default;
};

// What an execution works with; made once for each rank of a communicator.
struct ExecutorContext {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  bool wide_partials = false;
  size_t streaming_bytes = 0;  // calls of at least this size write results with non-temporal stores
  RankStatus* status = nullptr;
  std::vector<Connection*> connections;  // [channel * ranks + peer]; nullptr: the rank itself, or not used yet
  // Where messages wait in this process, and whose; empty with mapped connections alone.
  std::vector<std::pair<uint32_t, SendQueue*>> queues;
  ConnectionMaker* maker = nullptr;       // of those that are not there; outlives the context's use
  std::atomic<uint64_t>* sent = nullptr;  // by rank: bytes of messages; nullptr: they are not counted
  std::array<StagingPool, kMaxChannels> pools;

  Connection* connection(uint32_t channel, uint32_t peer) {
    Connection* found = connections[channel * ranks + peer];
    if (found != nullptr) [[likely]]
      return found;
    maker->connect(peer);
    return connections[channel * ranks + peer];
  }
  // A message was posted. One thread at a time counts.
  void count_sent(uint32_t peer, uint64_t bytes) const {
    if (sent != nullptr) [[unlikely]]
      sent[peer].store(sent[peer].load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }
  void add_connection(uint32_t channel, uint32_t peer, Connection* connection);
  void add_queue(uint32_t peer, SendQueue* queue) { queues.emplace_back(peer, queue); }
  // nullptr: post() leaves nothing behind, or nothing was sent to the peer yet.
  const SendQueue* find_queue(uint32_t peer) const;
  // Sends what waits in this process. True when nothing waits any more, else `*peer` is one whose messages do.
  bool flush(uint32_t* peer) const { return queues.empty() || flush_queues(peer); }
  // Every wait of a rank calls this, whatever it waits for: a rank that waits for one peer must still serve the others,
  // who may be what that peer waits for.
  bool progress() const {
    uint32_t peer = 0;
    return flush(&peer);
  }
  // The same where a wait looks seldom, and for a communicator that is in no call (SendQueue).
  void serve_idle() const {
    for (const auto& [peer, queue] : queues) queue->serve_idle();
  }

 private:
  bool flush_queues(uint32_t* peer) const;
};

// Sizes of transfers that are left to the kernel to copy, where it can.
struct FetchRange {
  size_t least = kMinFetchedBytes, most = SIZE_MAX;
};

// Smaller values are copied into a slot even where the peer could read them in place: a reference must be waited for
// at the end of the call, and the copy is cheaper than that.
inline constexpr size_t kMinReferencedBytes = 4096;

// One call, as the user made it.
struct Call {
  uint64_t operation = 0;  // number on its communicator, from 1; 0: sends and receives, which are not counted
  uint32_t signature = 0;
  Layout layout;
  View input, output;
  std::span<const Lane> lanes;     // instead of layout, input and output
  bool in_place = false;           // input and output share memory
  bool segments_in_place = false;  // they have several segments, and each large one of the input is one of the output
  trDataType_t type = trFloat32;   // of the elements of messages
  size_t type_size = 0;            // of `type`
  bool wide_memory = false;        // the buffers hold float32; `type` is what it travels as
  bool rounds_input = false;       // of what travels narrow: the rank's own operand is rounded as the others' are
  trDataType_t coded = trFloat32;  // float8: float32 travels in scaled blocks of it (block_float8.h)
  trRedOp_t op = trSum;
  const void* scale = nullptr;      // an element of `type` that every input is multiplied by
  trReduceFunction user = nullptr;  // combines instead of `op`
  void* user_context = nullptr;
  size_t chunk_bytes = 0;  // largest message wanted, 0 = a slot; the same on every rank
  FetchRange fetch_range;  // of lanes
  Region input_region;     // id 0: ordinary memory
  Region output_region;

  bool is_coded() const { return coded != trFloat32; }
  // Whether messages hold elements as the buffers do, so that peers may work on the buffers.
  bool is_plain() const { return !wide_memory && !is_coded(); }
  size_t memory_size() const { return wide_memory ? sizeof(float) : type_size; }
};

// Both ends of a lane must mean the same number of elements, also where they would agree on the first messages.
inline uint32_t lane_signature(uint32_t signature, size_t count) {
  return signature ^ static_cast<uint32_t>((count + 1) * 0x9E3779B97F4A7C15u >> 32);
}

// The signature of sends and receives, which are no collective.
inline constexpr uint32_t kTransferSignature = 0x70327032;

// The sizes, in bytes, of a transfer whose two ends differ.
struct TransferSizes {
  std::optional<uint64_t> expected;  // by the receiver; none: it is in a collective, and a send came
  std::optional<uint64_t> sent;      // where the message tells it
};

// What a message tells that was not expected by a call of this signature, whose receive expected that many bytes if it is
// one. The message has a transfer's size only if it has that transfer's signature: it may be of another call.
inline std::optional<TransferSizes> sizes_of(const Message& message, uint32_t signature,
                                             const std::optional<uint64_t>& expected) {
  const auto sent_by = [&message](uint32_t of) -> std::optional<uint64_t> {
    for (const uint64_t bytes : {message.whole, uint64_t{message.bytes}})
      if (lane_signature(of, bytes) == message.signature) return bytes;
    return {};
  };
  if (expected)
    if (const auto sent = sent_by(signature); sent && *sent != *expected) return TransferSizes{expected, sent};
  if (signature != kTransferSignature)
    if (const auto sent = sent_by(kTransferSignature)) return TransferSizes{{}, sent};
  if (expected) return TransferSizes{expected, {}};
  return {};
}

// Whether peers may store results into the output while the call is under way: then no input that a rank has yet to
// read lies there.
inline bool output_is_open(const Program& program, const Call& call) {
  if (!call.output.is_contiguous() || !call.is_plain()) return false;
  return !call.in_place || (program.input_used_once && call.layout.collective->parts != Parts::kPairs);
}

// The same for a buffer of several segments, each in place: a peer knows where the operand lies that it was shown.
inline bool input_is_open(const Program& program, const Call& call) {
  return call.segments_in_place && call.is_plain() && program.input_used_once;
}

class Execution {
 public:
  // The context outlives the execution; the program and what the call refers to outlive the call.
  explicit Execution(ExecutorContext* context);

  void bind(const Program& program, const Call& call);
  // For a call of lanes.
  void bind(const Call& call);
  Progress advance();

  const Call& call() const { return call_; }
  // kFailed: why. kDiffers, a message with another signature: trInvalidUsage.
  const Status& status() const { return status_; }
  // The sizes of a failed transfer, for a call of lanes.
  const std::optional<TransferSizes>& sizes() const { return sizes_; }
  // The peer that the last kBlocked waited for, or the rank itself when it was for no peer in particular; kDiffers: who
  // sent the message.
  uint32_t peer() const { return waiting_for_; }
  uint64_t steps() const { return steps_; }

 private:
  enum class Mode : uint8_t { kInline, kStaged, kReferenced, kDelivered };
  // Where an operand of a step lies.
  enum class Place : uint8_t { kMessage, kInput, kOutput, kScratch };
  struct Operand {
    std::byte* base;  // kMessage: of the packed elements, nullptr when they must be fetched; kScratch: of the scratch
    Place place;
    bool wide;
    bool streaming;
  };
  struct Channel {
    const Schedule* schedule = nullptr;
    Expansion at;
    size_t slice = 0;   // the next, or the one at hand
    size_t slices = 0;  // run while slice < slices
    size_t stride = 1;  // from a slice to the next
    uint32_t link = 0;  // which of the connections to each peer
    const Lane* lane = nullptr;
    size_t item = 0;              // of the lane
    uint64_t staged[2] = {0, 0};  // of a lane: numbers of its last two posts that lie in slots
    bool done = true;
  };
  // What one attempt at a step found out.
  struct StepState {
    Channel* channel;
    uint32_t link;
    const LaneItem* item;  // of a lane, else nullptr
    const Step* step;
    const Expansion* at;
    size_t count;          // elements of the step's chunks
    bool wide_value;       // the value travels as float32
    bool delivered;        // the received value lies in the output already
    bool needs_fetch;      // some received payload cannot be read in place
    size_t wire_bytes;     // of the value
    int slot;              // staging slot, or StagingPool::kNone
    std::byte* reference;  // user memory that holds the value after the step, or nullptr
    const Region* reference_region;
  };

  Progress advance_channel(Channel* channel);
  void start(const Call& call);
  size_t largest_chunk(uint32_t max_span);
  size_t compute_largest_chunk(uint32_t max_span) const;
  void end_slice(Channel* channel);
  void find_extents(StepState* state);
  View::Run input_run(const StepState& state, const Extent& extent, size_t done, size_t count) const;
  View::Run output_run(const StepState& state, const Extent& extent, size_t done, size_t count) const;
  uint32_t signature_of(const StepState& state) const;
  bool gather_operands(StepState* state);
  void add_local_operand(const StepState& state);
  void add_stores(StepState* state);
  bool plan_sends(StepState* state);
  Mode choose_mode(const StepState& state, uint32_t peer, Connection* connection, std::byte** delivered_to) const;
  std::optional<size_t> output_offset(const StepState& state) const;
  std::byte* output_of(const StepState& state, Connection* connection) const;
  std::byte* operand_of(const StepState& state, uint32_t peer, Connection* connection) const;
  std::optional<UserAddress> reference_for(const StepState& state, const Connection& connection) const;
  bool is_fetched_straight(const StepState& state) const;
  bool move_data(const StepState& state);
  bool move_coded(const StepState& state);
  bool load_coded(const StepState& state, size_t source, uint32_t received, size_t done, size_t count, float* values);
  template <typename Visit>
  void visit_runs(const StepState& state, const Operand& operand, const Extent& extent, size_t done, size_t count,
                  Visit visit) const;
  size_t wire_size(size_t count, bool wide) const;
  uint8_t flags_of(const Operand& operand) const;
  bool move_run(const StepState& state, ReduceCall* call, const Extent& extent, size_t done, size_t count);
  bool fetch_payloads(const StepState& state, const Extent& extent, size_t done, size_t count);
  const void* address_of(const StepState& state, const Operand& operand, const Extent& extent, size_t done) const;
  size_t run_length(const StepState& state, const Extent& extent, size_t done) const;
  void post_sends(const StepState& state);
  Progress advance_channels();
  bool references_released();
  bool is_flushed();
  // What a step that cannot go on now means.
  Progress waits(bool moved) const {
    if (!status_.ok()) return status_.code() == trInvalidUsage ? Progress::kDiffers : Progress::kFailed;
    return moved ? Progress::kMoved : Progress::kBlocked;
  }
  void note_reference(uint32_t link, uint32_t peer);
  void fail(Status status, uint32_t peer);

  ExecutorContext* context_;
  Call call_;
  std::vector<Channel> channels_;  // or lanes
  struct LargestChunk {
    uint32_t max_span = 0;
    size_t type_size = 0, chunk_bytes = 0;
    bool coded = false, wide = false;
    size_t elements = 0;
    bool same_as(const LargestChunk& o) const {
      return max_span == o.max_span && type_size == o.type_size && chunk_bytes == o.chunk_bytes && coded == o.coded &&
             wide == o.wide;
    }
  } largest_chunk_;  // of the last call
  Slicing slicing_;
  bool streaming_ = false;
  bool elides_ = false;  // empty steps are left out
  bool wide_messages_ = false;
  bool wide_scratch_ = false;
  bool input_may_be_referenced_ = false;
  bool fetches_ = false;                         // large messages are left to the kernel to copy, where it can
  std::vector<uint64_t> reference_targets_;      // by connection: posts that the peer must have read when the call ends
  std::vector<uint32_t> referenced_;             // the connections with a target
  std::vector<std::vector<std::byte>> scratch_;  // a channel's partial results
  std::vector<std::byte> bounce_;                // parts of fetched payloads
  // The step at hand. These are members so that nothing is allocated.
  std::vector<Extent> extents_;
  std::vector<Operand> sources_;
  std::vector<Operand> destinations_;
  std::vector<const void*> source_addresses_;
  std::vector<uint8_t> source_flags_;
  std::vector<void*> destination_addresses_;
  std::vector<Mode> modes_;  // of the step's sends
  std::array<std::byte, kInlineBytes> inline_value_;
  Status status_;
  std::optional<TransferSizes> sizes_;
  uint32_t waiting_for_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace treering
