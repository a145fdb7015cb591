// SPDX-License-Identifier: Apache-2.0
// Interpreter: one block runs one channel of a bound schedule, step by step, as the host's executor does
// (executor/execution.h); the order of steps, the extents and the meaning of the flags are shared with it.
//
//   each step:  a peer's thread waits for its message, or for room towards it
//               barrier   all threads combine the extents   barrier
//               the same threads tell the peers: the flag of a slot, and what was consumed
#pragma once

#include "device/low_latency.h"

namespace treering::cuda {

// A program that fits is copied here when a block starts: steps are read in order, and again for every slice. Rows
// of lanes are copied, too, and the next lane of each row: they lie in memory of the host.
inline constexpr uint32_t kCachedBytes = 8 << 10;
struct CurrentLane {
  DeviceRow rest;  // that lane and those behind it
  DeviceLane lane;
  uint64_t done;  // bytes
};
static_assert(kMaxRowsOfBlock * sizeof(CurrentLane) <= kCachedBytes);

// What the threads of a block share.
struct BlockShared {
  DeviceCall call;  // that is run
  PeerFifos fifos[kMaxDeviceRanks];
  const std::byte* messages_in[kMaxDeviceRanks];
  std::byte* messages_out[kMaxDeviceRanks];
  uint64_t in_flags[kMaxDeviceRanks];
  uint64_t out_flags[kMaxDeviceRanks];
  uint64_t first_in[kMaxDeviceRanks], first_out[kMaxDeviceRanks];  // of the call: messages that tell its signature
  // A wait was ended, or the calls differ: `stopped` is set before the first barrier of a step and read behind it,
  // `failed` between the two and read behind the second, so that all threads see the same and leave together.
  uint32_t stopped;
  uint32_t failed;
  uint32_t chosen;  // the row that moves next
  ScheduleArrays arrays;
  DeviceLayout layout;
  alignas(16) std::byte program[kCachedBytes];
};

inline constexpr uint64_t kTurnMask = (uint64_t{1} << 40) - 1;
// The flag word of a slot: number of the message, from 1, and the signature of the call.
TR_DEVICE uint64_t slot_flag(uint64_t message, uint32_t signature) {
  return ((message + 1) & kTurnMask) | uint64_t{signature} << 40;
}

template <class Number, DeviceProtocol kProtocol>
class Interpreter {
 public:
  // Runs a channel of those that the call uses, which is in `shared`.
  TR_DEVICE Interpreter(uint32_t channel, BlockShared* shared, const Thread& thread)
      : call_(shared->call),
        shared_(*shared),
        thread_(thread),
        channel_(channel),
        share_(share_of(shared->call, channel)) {}

  TR_DEVICE void run() {
    start();
    if (call_.rows != nullptr)
      run_lanes();
    else
      run_channel();
    thread_.barrier();
    for (uint32_t peer = thread_.index(); peer < call_.ranks; peer += thread_.count()) {
      PeerFifos& fifos = call_.fifos[channel_ * call_.ranks + peer];
      fifos.posted = shared_.fifos[peer].posted;
      fifos.received = shared_.fifos[peer].received;
    }
    thread_.barrier();
    if (thread_.index() != 0) return;
    store_flag(&call_.status->turn_ended[channel_], turn(shared_.fifos[call_.rank].posted));
    if (call_.captured == 0) store_flag(&call_.status->ended[channel_], call_.number);
  }

 private:
  static constexpr bool kSimple = kProtocol == DeviceProtocol::kSimple;
  using Storage = typename Number::Storage;
  using Steps = BasicExpansion<const ScheduleArrays*>;

  static TR_DEVICE uint32_t turn(uint64_t launches) { return static_cast<uint32_t>(launches); }

  TR_DEVICE void start() {
    for (uint32_t peer = thread_.index(); peer < call_.ranks; peer += thread_.count()) {
      shared_.fifos[peer] = call_.fifos[channel_ * call_.ranks + peer];
      // The FIFOs to itself carry nothing: they count the launches.
      shared_.first_in[peer] = shared_.fifos[peer].received;
      shared_.first_out[peer] = shared_.fifos[peer].posted;
      if (peer != call_.rank) continue;
      store_flag(&call_.status->call[channel_], call_.number);
      store_flag(&call_.status->turn_begun[channel_], turn(++shared_.fifos[peer].posted));
    }
    if (thread_.index() == 0) {
      // Behind a call that failed nothing moves: the counters of its FIFOs are anywhere.
      shared_.stopped = load_flag(&call_.status->abort) | load_flag(&call_.status->failure);
      shared_.failed = 0;
      shared_.chosen = 0;
      if (call_.scaled != 0 && call_.scale_at != nullptr)
        for (uint32_t i = 0; i < sizeof(Storage); ++i) shared_.call.scale[i] = call_.scale_at[i];
    }
  }

  // ---- a channel of a schedule ----

  TR_DEVICE void run_channel() {
    cache_program();
    thread_.barrier();
    for (uint64_t slice = share_; slice < call_.slicing.slices; slice += call_.channels)
      for (Steps at(&shared_.arrays); !at.done(); at.advance())
        if (!run_step(at, slice)) return;
  }

  template <class T>
  TR_DEVICE void cache(const T** array, uint32_t count, uint32_t* used) {
    const uint32_t bytes = count * static_cast<uint32_t>(sizeof(T));
    if (*used + bytes > kCachedBytes) return;
    auto* to = reinterpret_cast<T*>(shared_.program + *used);
    for (uint32_t i = thread_.index(); i < count; i += thread_.count()) to[i] = (*array)[i];
    *array = to;
    *used += (bytes + 15) / 16 * 16;
  }
  TR_DEVICE void cache_program() {
    uint32_t used = 0;
    DeviceLayout layout = call_.layout;
    if (layout.counts != nullptr) {
      cache(&layout.counts, layout.ranks, &used);
      cache(&layout.offsets, layout.ranks, &used);
    }
    DeviceProgram program = call_.programs[share_];
    cache(&program.steps, program.step_count, &used);
    cache(&program.blocks, program.block_count, &used);
    cache(&program.peers, program.peer_count, &used);
    cache(&program.chunk_lists, program.list_count, &used);
    if (thread_.index() != 0) return;
    shared_.layout = layout;
    shared_.arrays = {program.steps,       program.blocks, program.peers, program.chunk_lists,
                      program.block_count, program.chunks, call_.ranks};
  }

  // False when the block has to end.
  TR_DEVICE bool run_step(const Steps& at, uint64_t slice) {
    const Step& step = at.step();
    if (call_.elides != 0) {
      ExtentWalk walk(call_.slicing, slice, at, shared_.layout);
      Extent extent;
      if (!walk.next(&extent)) return true;
    }
    wait_for_peers(at, step);
    thread_.barrier();
    if (shared_.stopped != 0) return false;
    if (!move_extents(at, step, slice)) {
      store_shared(&shared_.failed, 1);
      report(DeviceFailure::kAborted, call_.rank);
    }
    thread_.lose_time();
    thread_.barrier();
    if (shared_.failed != 0) return false;
    tell_peers(at, step);
    return true;
  }

  // A peer's FIFOs are always in the hands of the same thread, which knows their counters without a barrier.
  TR_DEVICE bool is_mine(uint32_t peer) const { return peer % thread_.count() == thread_.index(); }

  TR_DEVICE void wait_for_peers(const Steps& at, const Step& step) {
    for (uint32_t i = 0; i < step.receive_count; ++i)
      if (const uint32_t peer = at.receive_peer(i); is_mine(peer)) wait_message(peer, i);
    for (uint32_t i = 0; i < step.send_count; ++i)
      if (const uint32_t peer = at.send_peer(i); is_mine(peer)) wait_room(peer, i);
  }

  TR_DEVICE void wait_message(uint32_t peer, uint32_t i) {
    const PeerFifos& fifos = shared_.fifos[peer];
    const uint64_t slot = fifos.received % call_.depth;
    shared_.in_flags[i] = fifos.received + 1;
    if constexpr (kProtocol == DeviceProtocol::kLl) {
      shared_.messages_in[i] = reinterpret_cast<const std::byte*>(fifos.in_ll) + slot * ll_bytes(kLlSlotBytes);
    } else if constexpr (kProtocol == DeviceProtocol::kLl128) {
      shared_.messages_in[i] = reinterpret_cast<const std::byte*>(fifos.in_ll128) + slot * ll128_bytes(kLl128SlotBytes);
    } else {
      shared_.messages_in[i] = fifos.in_slots + slot * call_.slot_bytes;
      SpinWait spin(call_.status);
      while (!has_message(fifos, peer))
        if (!spin.wait()) return stop(DeviceFailure::kAborted, peer);
    }
  }

  // Whether the next message is there; one of another call ends the block.
  TR_DEVICE bool has_message(const PeerFifos& fifos, uint32_t peer) {
    const uint64_t flag = load_acquire(fifos.in_flags + fifos.received % call_.depth);
    if ((flag & kTurnMask) != ((fifos.received + 1) & kTurnMask)) return false;
    if (flag != slot_flag(fifos.received, call_.signature)) stop(DeviceFailure::kCallsDiffer, peer);
    return true;
  }

  // Without data between flags there is nothing to wait for: a receiver may have consumed a message that is yet to
  // come.
  TR_DEVICE bool has_room(const PeerFifos& fifos) const {
    return fifos.posted < load_acquire(fifos.out_consumed) + call_.depth;
  }

  TR_DEVICE void wait_room(uint32_t peer, uint32_t i) {
    const PeerFifos& fifos = shared_.fifos[peer];
    const uint64_t slot = fifos.posted % call_.depth;
    shared_.out_flags[i] = fifos.posted + 1;
    if constexpr (kProtocol == DeviceProtocol::kLl) {
      shared_.messages_out[i] = reinterpret_cast<std::byte*>(fifos.out_ll) + slot * ll_bytes(kLlSlotBytes);
    } else if constexpr (kProtocol == DeviceProtocol::kLl128) {
      shared_.messages_out[i] = reinterpret_cast<std::byte*>(fifos.out_ll128) + slot * ll128_bytes(kLl128SlotBytes);
    } else {
      shared_.messages_out[i] = fifos.out_slots + slot * call_.slot_bytes;
    }
    SpinWait spin(call_.status);
    while (!has_room(fifos))
      if (!spin.wait()) return stop(DeviceFailure::kAborted, peer);
    if constexpr (!kSimple)
      if (fifos.posted == shared_.first_out[peer])
        store_pair(fifos.out_flags + slot, slot_flag(fifos.posted, call_.signature));  // nothing is ordered by it
  }

  // LL and LL128 wait for no flag of a slot. Behind the first message of a call its sender's signature is looked at: it
  // was sent before the data.
  TR_DEVICE void check_signature(uint32_t peer) {
    const PeerFifos& fifos = shared_.fifos[peer];
    if (fifos.received != shared_.first_in[peer]) return;
    SpinWait spin(call_.status);
    while (!has_message(fifos, peer))
      if (!spin.wait()) return stop(DeviceFailure::kAborted, peer);
  }

  TR_DEVICE Arithmetic<Number> arithmetic_of(const Step& step) const {
    const bool result = (step.flags & kFinal) != 0 && (step.flags & kReduce) != 0;
    return {call_.op, result ? call_.divisor : 1, call_.scaled != 0 && (step.flags & kInput) != 0,
            reinterpret_cast<const Storage*>(call_.scale)};
  }

  TR_DEVICE bool move_extents(const Steps& at, const Step& step, uint64_t slice) {
    const Arithmetic<Number> how = arithmetic_of(step);
    ExtentOperands operands;
    operands.messages_in = shared_.messages_in;
    operands.messages_out = shared_.messages_out;
    operands.message_offset = 0;
    operands.receives = step.receive_count;
    operands.sends = step.send_count;
    operands.local_position = step.local_position;
    std::byte* const scratch = call_.scratch == nullptr ? nullptr : call_.scratch + channel_ * call_.scratch_bytes;
    size_t first_unit = 0;
    const DeviceLayout& layout = shared_.layout;
    ExtentWalk walk(call_.slicing, slice, at, layout);
    for (Extent extent; walk.next(&extent);) {
      const uint16_t flags = step.flags;
      const size_t in_scratch = extent.scratch * sizeof(Storage);
      const size_t in_output = (layout.offset(extent.part, layout.output_index) + extent.begin) * sizeof(Storage);
      operands.count = extent.count;
      operands.local = nullptr;
      if ((flags & kInput) != 0)
        operands.local =
            call_.input + (layout.offset(extent.part, layout.input_index) + extent.begin) * sizeof(Storage);
      if ((flags & kOutput) != 0) operands.local = call_.output + in_output;
      if ((flags & kScratch) != 0) operands.local = scratch + in_scratch;
      operands.stores[0] = (flags & kStore) != 0 ? call_.output + in_output : nullptr;
      operands.stores[1] = (flags & kStoreScratch) != 0 ? scratch + in_scratch : nullptr;
      if constexpr (kSimple) {
        move_extent<Number>(operands, how, thread_);
        operands.message_offset += (extent.count * sizeof(Storage) + kUnit - 1) / kUnit * kUnit;
      } else {
        using Flagged = std::conditional_t<kProtocol == DeviceProtocol::kLl, Ll, Ll128>;
        const FlaggedMessages flagged{shared_.in_flags, shared_.out_flags, call_.status};
        if (!move_flagged<Number, Flagged>(operands, how, flagged, first_unit, thread_)) return false;
        first_unit += (extent.count * sizeof(Storage) + Flagged::kUnitData - 1) / Flagged::kUnitData;
      }
    }
    for (uint32_t d = 0; d < step.send_count; ++d)
      refresh_slot(shared_.fifos[at.send_peer(d)], kProtocol == DeviceProtocol::kLl ? first_unit : 0);
    return true;
  }

  // See low_latency.h: now and then a message, of whatever protocol, fills its slot of LL, so that nothing there gets
  // too old. The slot is free as the message's own is.
  TR_DEVICE void refresh_slot(const PeerFifos& fifos, size_t first_unit) {
    if (fifos.posted % kLlRefresh >= call_.depth) return;
    constexpr size_t kUnits = kLlSlotBytes / Ll::kUnitData;
    const uint64_t nothing[2] = {};
    uint64_t* const slot = fifos.out_ll + fifos.posted % call_.depth * (ll_bytes(kLlSlotBytes) / sizeof(uint64_t));
    for (size_t unit = first_unit + thread_.index(); unit < kUnits; unit += thread_.count())
      write_ll(slot + unit * Ll::kUnitWords, static_cast<uint32_t>(fifos.posted + 1), nothing);
  }

  // Behind a barrier: all threads have read, and written.
  TR_DEVICE void tell_peers(const Steps& at, const Step& step) {
    for (uint32_t i = 0; i < step.receive_count; ++i)
      if (const uint32_t peer = at.receive_peer(i); is_mine(peer)) {
        if constexpr (!kSimple) check_signature(peer);
        consumed(&shared_.fifos[peer]);
      }
    for (uint32_t i = 0; i < step.send_count; ++i)
      if (const uint32_t peer = at.send_peer(i); is_mine(peer)) posted(&shared_.fifos[peer]);
  }
  TR_DEVICE void consumed(PeerFifos* fifos) { store_release(fifos->in_consumed, ++fifos->received); }
  TR_DEVICE void posted(PeerFifos* fifos) {
    if constexpr (kSimple)
      store_release(fifos->out_flags + fifos->posted % call_.depth, slot_flag(fifos->posted, call_.signature));
    ++fifos->posted;
  }

  TR_DEVICE void stop(DeviceFailure failure, uint32_t peer) {
    store_shared(&shared_.stopped, 1);
    report(failure, peer);
  }
  // An end by the host is no news where a failure was found, which may be why the host made it.
  TR_DEVICE void report(DeviceFailure failure, uint32_t peer) {
    if (failure == DeviceFailure::kAborted && load_flag(&call_.status->failure) != 0) return;
    store_flag(&call_.status->peer, peer);
    store_flag(&call_.status->failed_call, call_.number);
    store_flag(&call_.status->failure, static_cast<uint32_t>(failure));
  }

  // ---- lanes: bytes, by the Simple protocol ----

  // Rows advance in any order, whichever can: neither side of two ranks that send to each other waits for the other.
  TR_DEVICE void run_lanes() {
    for (uint32_t r = thread_.index(); r < call_.rows_of_channel; r += thread_.count())
      begin_lane(call_.rows[share_ + r * call_.channels], &row(r));
    thread_.barrier();
    for (;;) {
      if (thread_.index() == 0) shared_.chosen = choose_row();
      thread_.barrier();
      if (shared_.stopped != 0 || shared_.chosen == call_.rows_of_channel) return;
      move_lane(&row(shared_.chosen));
      thread_.barrier();
    }
  }

  TR_DEVICE CurrentLane& row(uint32_t at) const { return reinterpret_cast<CurrentLane*>(shared_.program)[at]; }
  static TR_DEVICE void begin_lane(const DeviceRow& rest, CurrentLane* current) {
    current->rest = rest;
    current->done = 0;
    if (rest.count != 0) current->lane = *rest.lanes;
  }

  // A row that can move, or the number of rows when all are at their ends.
  TR_DEVICE uint32_t choose_row() {
    const uint32_t rows = call_.rows_of_channel;
    SpinWait spin(call_.status);
    for (uint32_t at = shared_.chosen < rows ? shared_.chosen : 0;;) {
      bool all_done = true;
      for (uint32_t i = 0; i < rows; ++i) {
        at = at + 1 < rows ? at + 1 : 0;
        if (row(at).rest.count == 0) continue;
        all_done = false;
        const DeviceLane& lane = row(at).lane;
        const PeerFifos& fifos = shared_.fifos[lane.peer];
        const bool ready =
            lane.kind == kCopyLane || (lane.kind == kSendLane ? has_room(fifos) : has_message(fifos, lane.peer));
        if (ready || shared_.stopped != 0) return at;
      }
      if (all_done) return rows;
      if (!spin.wait()) {
        stop(DeviceFailure::kAborted, call_.rank);
        return rows;
      }
    }
  }

  // The next message of a lane. One of 0 bytes is a message too.
  TR_DEVICE void move_lane(CurrentLane* current) {
    const DeviceLane& lane = current->lane;
    const uint64_t done = current->done;
    const uint64_t rest = lane.bytes - done;
    PeerFifos& fifos = shared_.fifos[lane.peer];
    ExtentOperands operands{};
    operands.messages_in = shared_.messages_in;
    operands.messages_out = shared_.messages_out;
    operands.count = rest < call_.slot_bytes ? rest : call_.slot_bytes;
    if (thread_.index() == 0) {
      shared_.messages_in[0] =
          lane.kind == kReceiveLane ? fifos.in_slots + fifos.received % call_.depth * call_.slot_bytes : nullptr;
      shared_.messages_out[0] =
          lane.kind == kSendLane ? fifos.out_slots + fifos.posted % call_.depth * call_.slot_bytes : nullptr;
    }
    operands.receives = lane.kind == kReceiveLane;
    operands.sends = lane.kind == kSendLane;
    operands.local = lane.kind == kReceiveLane ? nullptr : lane.input + done;
    operands.stores[0] = lane.kind == kSendLane ? nullptr : lane.output + done;
    thread_.barrier();
    move_extent<Plain<uint8_t>>(operands, {trSum, 1, false, nullptr}, thread_);
    if (lane.kind == kSendLane) refresh_slot(fifos, 0);
    thread_.lose_time();
    thread_.barrier();
    if (thread_.index() != 0) return;
    if (lane.kind == kReceiveLane) consumed(&fifos);
    if (lane.kind == kSendLane) posted(&fifos);
    current->done = done + operands.count;
    if (current->done == lane.bytes) begin_lane({current->rest.lanes + 1, current->rest.count - 1}, current);
  }

  const DeviceCall& call_;
  BlockShared& shared_;
  const Thread& thread_;
  const uint32_t channel_, share_;
};

}  // namespace treering::cuda
