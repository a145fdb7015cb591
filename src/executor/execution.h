// Execution: one collective call on one rank, advanced without ever blocking.
//
// Binding joins a compiled schedule (one program a channel) with buffers, count, type and operation. The buffer is
// cut into slices; channel c runs its program once for each slice s with s % channels == c:
//
//   buffer    | slice 0 | slice 1 | slice 2 | slice 3 |        slice = `chunks` chunks; a message is at most one
//   channel        0         1         0         1             slot of staging memory
//
// Protocols are chosen for each message by its sender, the schedule being the same: inline (in the descriptor), staged
// (through a slot), referenced (the peer reads the user's buffer) and delivered (a final value is stored straight into
// the peers' output buffers). Receivers follow what the message says, so ranks need not agree on them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "algorithms/expand.h"
#include "core/status.h"
#include "executor/reduce.h"
#include "executor/staging_pool.h"
#include "transport/region.h"
#include "transport/transport.h"

namespace treering {

inline constexpr uint32_t kMaxChannels = 4;

// The compiled programs of one rank, one a channel.
struct Program {
  std::vector<Schedule> channels;
  bool input_used_once = false;  // see properties.h; allows references to the input of an in-place call
};

// What an execution works with; made once for each rank of a communicator.
struct ExecutorContext {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  bool wide_partials = false;
  size_t streaming_bytes = 0;  // calls of at least this size write results with non-temporal stores
  RankStatus* status = nullptr;
  std::vector<Connection*> connections;  // [channel * ranks + peer]; nullptr for the rank itself
  std::array<StagingPool, kMaxChannels> pools;

  Connection* connection(uint32_t channel, uint32_t peer) const { return connections[channel * ranks + peer]; }
};

// One call, as the user made it.
struct Call {
  uint64_t operation = 0;  // number on its communicator, from 1
  uint32_t signature = 0;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  size_t count = 0;
  size_t type_size = 0;
  trDataType_t type = trFloat32;
  trRedOp_t op = trSum;
  size_t chunk_bytes = 0;  // largest message wanted, 0 = a slot; the same on every rank
  Region input_region;     // id 0: ordinary memory
  Region output_region;
};

class Execution {
 public:
  enum class Progress { kBlocked, kMoved, kDone, kFailed };

  // The context outlives the execution; the program outlives the call.
  explicit Execution(ExecutorContext* context);

  void bind(const Program& program, const Call& call);
  Progress advance();

  const Call& call() const { return call_; }
  // kFailed: why. A message with another signature gives trInvalidUsage; `peer()` is who sent it.
  const Status& status() const { return status_; }
  // The peer that the last kBlocked waited for, or the rank itself when it was for nobody in particular.
  uint32_t peer() const { return waiting_for_; }
  uint64_t steps() const { return steps_; }

 private:
  enum class Mode : uint8_t { kInline, kStaged, kReferenced, kDelivered };
  struct Channel {
    const Schedule* schedule = nullptr;
    Expansion at{nullptr, nullptr, 0, nullptr, nullptr, 1, 1};
    size_t slice = 0;
    bool done = true;
  };
  // What one attempt at a step found out; a member's arrays, so that nothing is allocated.
  struct StepState {
    uint32_t channel_index;
    const Step* step;
    const Expansion* at;
    size_t begin, count;            // elements of the step's chunks
    bool wide_value;                // the value travels as float32
    bool delivered;                 // the received value lies in the output already
    bool needs_fetch;               // some received payload cannot be read in place
    size_t wire_bytes;              // of the value
    int slot;                       // staging slot, or StagingPool::kNone
    std::byte* reference;           // user memory that holds the value after the step, or nullptr
    const Region* reference_region;
    uint64_t wide_sources, wide_destinations, streaming;
    size_t source_count, destination_count;
    bool streamed;
  };

  Progress advance_channel(uint32_t index);
  void set_extent(StepState* state, const Channel& channel) const;
  bool gather_operands(StepState* state);
  bool add_local_operand(StepState* state);
  void add_source(StepState* state, const void* data, bool wide);
  void add_destination(StepState* state, void* data, bool wide, bool streaming);
  void add_stores(StepState* state);
  bool plan_sends(StepState* state);
  Mode choose_mode(const StepState& state, Connection* connection, std::byte** delivered_to) const;
  bool may_reference(const StepState& state, const Connection& connection) const;
  bool move_data(StepState* state);
  bool fetch_and_reduce(StepState* state, ReduceCall* reduce_call);
  void post_sends(const StepState& state);
  bool references_consumed();
  void note_reference(uint32_t channel, uint32_t peer);
  void fail(Status status, uint32_t peer);
  std::byte* scratch(uint32_t channel, uint32_t chunk);

  ExecutorContext* context_;
  Call call_;
  std::array<Channel, kMaxChannels> channels_;
  uint32_t channel_count_ = 0;
  size_t slices_ = 0;
  size_t chunk_elements_ = 0;
  size_t slice_elements_ = 0;
  bool streaming_ = false;
  bool in_place_ = false;
  bool input_may_be_referenced_ = false;
  bool may_deliver_ = false;
  std::vector<uint64_t> reference_targets_;  // by connection: posts that the peer must have read when the call ends
  std::vector<uint32_t> referenced_;         // the connections with a target
  std::vector<std::vector<std::byte>> scratch_;  // a channel's partial results
  size_t scratch_element_bytes_ = 0;
  std::vector<std::byte> bounce_;  // parts of fetched payloads
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
  std::vector<Mode> modes_;  // of the step's sends
  std::array<std::byte, kInlineBytes> inline_value_;
  Status status_;
  uint32_t waiting_for_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace treering
