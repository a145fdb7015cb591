// SPDX-License-Identifier: Apache-2.0
// Work: what a launch of the kernel is given: plain structs of integers and device pointers.
//
//   DeviceLaunch -> DeviceCall -> DeviceProgram   the compiled schedule of each channel (one block runs one channel)
//                              -> PeerFifos       for each (channel, peer): the FIFOs to and from it; in this GPU's own
//
// A FIFO has `depth` slots in the receiver's memory and, in the same memory, a flag word for each slot; the sender's
// memory has the number of messages that the receiver has consumed. Message k (from 0) lies in slot k % depth:
//
//     sender                                             receiver's memory
//     has room: consumed > k - depth       --- data --->  | slot 0 | slot 1 | ... |
//                                          --- flag --->  | k + 1, signature | ... |     Simple: flag behind the data
//     | consumed |  <--------------------------- consumed = k + 1
//
// The LL and LL128 protocols have buffers of their own with the flags among the data, so that no word of another
// protocol's data can be taken for a flag; they count with the same k and wait for the same `consumed`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "algorithms/collective.h"
#include "algorithms/slicing.h"
#include "treering/treering.h"

namespace treering::cuda {

enum class DeviceProtocol : uint32_t {
  kLl,      // 4 bytes of data and 4 of flag in each 8-byte word: lowest latency, half the bandwidth
  kLl128,   // 120 bytes of data and 8 of flag in each line: where lines arrive whole (NVLink, one GPU)
  kSimple,  // data, then a flag for the slot: full bandwidth
};
inline constexpr uint32_t kProtocols = 3;

inline constexpr uint32_t kMaxDeviceChannels = 32;
inline constexpr uint32_t kMaxDeviceRanks = 72;  // of one communicator whose ranks exchange by device memory
inline constexpr size_t kUnit = 16;              // every extent of a message begins at a multiple of this
// Data bytes of a message, extents padded to kUnit, that a slot of each protocol holds.
inline constexpr size_t kLlSlotBytes = 16 << 10;
inline constexpr size_t kLl128SlotBytes = 30 << 10;

inline constexpr uint64_t kLlRefresh = uint64_t{1} << 31;  // see low_latency.h

// Bytes that `bytes` bytes of data take in the LL and LL128 buffers.
TR_HOST_DEVICE constexpr size_t ll_bytes(size_t bytes) { return (bytes + 15) / 16 * 32; }
inline constexpr size_t kLineBytes = 128, kLineData = 120;
TR_HOST_DEVICE constexpr size_t ll128_bytes(size_t bytes) { return (bytes + kLineData - 1) / kLineData * kLineBytes; }

struct PeerFifos {
  // To the peer; slots, lines and flags in the peer's memory.
  std::byte* out_slots;
  uint64_t* out_ll;
  uint64_t* out_ll128;
  uint64_t* out_flags;
  const uint64_t* out_consumed;  // in this GPU's memory
  uint64_t posted;
  // From the peer; slots, lines and flags in this GPU's memory.
  const std::byte* in_slots;
  const uint64_t* in_ll;
  const uint64_t* in_ll128;
  const uint64_t* in_flags;
  uint64_t* in_consumed;  // in the peer's memory
  uint64_t received;
};

struct DeviceProgram {
  const Step* steps;
  const Block* blocks;
  const uint32_t* peers;
  const uint32_t* chunk_lists;
  uint32_t step_count, block_count, peer_count, list_count;
  uint32_t chunks;
};

// Where the parts lie in this rank's buffers; see executor/layout.h.
struct DeviceLayout {
  BlockIndex input_index, output_index;
  uint32_t ranks;
  uint64_t count;           // elements of every part, unless:
  const uint64_t* counts;   // of each part
  const uint64_t* offsets;  // ... in the buffer that has all of them

  TR_HOST_DEVICE uint64_t operator()(uint32_t part) const { return counts == nullptr ? count : counts[part]; }
  TR_HOST_DEVICE uint64_t offset(uint32_t part, BlockIndex index) const {
    if (counts == nullptr) return block_index(index, part, ranks) * count;
    return index == BlockIndex::kByPart ? offsets[part] : 0;
  }
};

// A message between this rank and one peer (or itself), one way.
struct DeviceLane {
  const std::byte* input;  // sends, and from a rank to itself
  std::byte* output;       // receives, and from a rank to itself
  uint64_t bytes;
  uint32_t peer;
  uint32_t kind;  // LaneKind
};
enum LaneKind : uint32_t { kSendLane, kReceiveLane, kCopyLane };
// Those of a pair, one way, one after another; apart from all other rows of a call.
struct DeviceRow {
  const DeviceLane* lanes;
  uint64_t count;
};
// A rank that exchanges with kMaxDeviceRanks by one channel has two for each.
inline constexpr uint32_t kMaxRowsOfBlock = 2 * kMaxDeviceRanks;

// What a kernel tells the host, in memory that both see; the first block that fails claims it.
enum class DeviceFailure : uint32_t { kNone, kAborted, kCallsDiffer };
struct DeviceStatus {
  uint32_t abort;  // by the host: every wait ends
  uint32_t failure;
  uint32_t peer;
  uint32_t failed_call;                     // its number
  uint32_t ended[kMaxDeviceChannels];       // number of the last call that ended on each channel, but those of graphs
  uint32_t call[kMaxDeviceChannels];        // number of the last call that began, those of graphs included
  uint32_t turn_begun[kMaxDeviceChannels];  // launches that began on each channel, those of graphs included
  uint32_t turn_ended[kMaxDeviceChannels];
};

struct DeviceCall {
  const DeviceProgram* programs;  // one a channel
  PeerFifos* fifos;               // [channel * ranks + peer], of all channels
  DeviceStatus* status;
  const std::byte* input;
  std::byte* output;
  std::byte* scratch;      // of all channels, also those that it does not use
  uint64_t scratch_bytes;  // of each
  DeviceLayout layout;
  Slicing slicing;
  uint32_t rank, ranks;
  uint32_t first_channel, channels;  // those that it uses; `programs` and Slicing count from the first
  uint32_t depth;                    // slots of a FIFO
  uint64_t slot_bytes;               // of the Simple protocol
  uint32_t signature;                // of the call, 24 bits: both ends of a message must have the same
  uint32_t elides;                   // steps without data are left out
  uint32_t number;                   // of the call on this rank, for the status
  uint32_t captured;                 // in a graph, which may run it often
  trRedOp_t op;
  uint32_t divisor;                 // applied to results: avg
  uint32_t scaled;                  // the input is multiplied by `scale`
  alignas(16) std::byte scale[16];  // an element
  const std::byte* scale_at;        // where the element lies instead, read by the kernel; or nullptr
  // Instead of programs, layout, input and output:
  const DeviceRow* rows;  // [row * channels + channel]
  uint32_t rows_of_channel;
  uint32_t all_channels;  // of the FIFOs; a call that begins near the end goes on at the first
};

// Calls whose kernels are the same, and of which none uses what another one writes: each block runs those that use its
// channel, in order.
inline constexpr uint32_t kMaxCallsOfLaunch = 8;
struct DeviceLaunch {
  uint32_t calls;
  uint32_t first_channel, channels;  // of all calls; block b runs channel first_channel + b
  uint32_t reserved;
  DeviceCall call[kMaxCallsOfLaunch];
};
// The call's share of the work that a channel has: its channels count 0, 1, ...
TR_HOST_DEVICE inline uint32_t share_of(const DeviceCall& call, uint32_t channel) {
  return channel >= call.first_channel ? channel - call.first_channel
                                       : channel + call.all_channels - call.first_channel;
}
inline void add_call(const DeviceCall& call, DeviceLaunch* launch) {
  uint32_t begin = call.first_channel, end = call.first_channel + call.channels;
  if (end > call.all_channels) begin = 0, end = call.all_channels;
  if (launch->calls > 0) {
    const uint32_t end_so_far = launch->first_channel + launch->channels;
    begin = begin < launch->first_channel ? begin : launch->first_channel;
    end = end > end_so_far ? end : end_so_far;
  }
  launch->first_channel = begin;
  launch->channels = end - begin;
  launch->call[launch->calls++] = call;
}
// With `channels` 0 for a call of no channels: nothing runs.
inline DeviceLaunch launch_of(const DeviceCall& call) {
  DeviceLaunch launch{};
  add_call(call, &launch);
  return launch;
}

}  // namespace treering::cuda
