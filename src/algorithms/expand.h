// SPDX-License-Identifier: Apache-2.0
// Expansion: the steps of a schedule in the order in which they are executed.
//
// It unrolls the Blocks without ever storing the unrolled program, and stops between any two steps, so that a
// stepper can keep one for each collective under way. Plain integers and raw pointers: it allocates nothing
// and is fit for a CUDA kernel. Executors, verifier and printer all use it: what was verified is what runs.
//
//   blocks  | A x 1 | B C x 3, chunk stride -1 | D x 1 |
//   yields    A       B C   B' C'   B" C"         D         (' = chunk - 1 modulo chunks)
//
// There is no division per step or per peer: strides are brought into [0, n) once per block, and an offset
// that is less than n advances by an addition and a conditional subtraction.
//
//   for (Expansion at(schedule); !at.done(); at.advance()) run(at.step(), at.chunk());
#pragma once

#include "algorithms/host_device.h"
#include "algorithms/schedule.h"

namespace treering {

// What an expansion reads of a schedule.
struct ScheduleArrays {
  const Step* steps;
  const Block* blocks;
  const uint32_t* peers;
  const uint32_t* chunk_lists;
  uint32_t block_count;
  uint32_t chunks;
  uint32_t ranks;

  TR_HOST_DEVICE const ScheduleArrays* operator->() const { return this; }
};

// `Arrays`: ScheduleArrays, or a pointer to them where registers are few.
template <class Arrays>
class BasicExpansion {
 public:
  TR_HOST_DEVICE explicit BasicExpansion(const Arrays& arrays) : arrays_(arrays) { enter_block(); }

  TR_HOST_DEVICE bool done() const { return block_ == arrays_->block_count; }

  // The step as it stands in the schedule: its flags, span and counts. Its chunk and peers lack the strides.
  TR_HOST_DEVICE const Step& step() const { return arrays_->steps[step_]; }
  // Number of the step among Schedule::steps.
  TR_HOST_DEVICE uint32_t step_index() const { return step_; }
  // Number of executed steps before this one.
  TR_HOST_DEVICE uint64_t position() const { return position_; }

  // The i-th of the step's `span` chunks.
  TR_HOST_DEVICE uint32_t chunk(uint32_t i = 0) const {
    if (step().flags & kChunkList) return wrap(arrays_->chunk_lists[step().chunk + i] + chunk_offset_, arrays_->chunks);
    return wrap(step().chunk + chunk_offset_, arrays_->chunks) + i;
  }
  TR_HOST_DEVICE uint32_t receive_peer(uint32_t i) const { return peer(step().receive_first + i); }
  TR_HOST_DEVICE uint32_t send_peer(uint32_t i) const { return peer(step().send_first + i); }

  TR_HOST_DEVICE void advance() {
    ++position_;
    if (++step_ < block_end_) return;
    if (++repetition_ < arrays_->blocks[block_].count) {
      step_ = arrays_->blocks[block_].first;
      chunk_offset_ = wrap(chunk_offset_ + chunk_stride_, arrays_->chunks);
      peer_offset_ = wrap(peer_offset_ + peer_stride_, arrays_->ranks);
      return;
    }
    ++block_;
    enter_block();
  }

 private:
  // a modulo n for a < 2 n
  TR_HOST_DEVICE static uint32_t wrap(uint32_t a, uint32_t n) { return a >= n ? a - n : a; }
  TR_HOST_DEVICE static uint32_t normalised(int32_t stride, uint32_t n) {
    int64_t rest = static_cast<int64_t>(stride) % static_cast<int64_t>(n);
    return static_cast<uint32_t>(rest < 0 ? rest + n : rest);
  }
  TR_HOST_DEVICE uint32_t peer(uint32_t i) const { return wrap(arrays_->peers[i] + peer_offset_, arrays_->ranks); }

  TR_HOST_DEVICE void enter_block() {
    while (block_ < arrays_->block_count && (arrays_->blocks[block_].count == 0 || arrays_->blocks[block_].length == 0))
      ++block_;
    if (block_ == arrays_->block_count) return;
    const Block& block = arrays_->blocks[block_];
    step_ = block.first;
    block_end_ = block.first + block.length;
    repetition_ = 0;
    chunk_offset_ = 0;
    peer_offset_ = 0;
    chunk_stride_ = block.chunk_stride == 0 ? 0 : normalised(block.chunk_stride, arrays_->chunks);
    peer_stride_ = block.peer_stride == 0 ? 0 : normalised(block.peer_stride, arrays_->ranks);
  }

  Arrays arrays_;
  uint32_t block_ = 0;
  uint32_t step_ = 0;
  uint32_t block_end_ = 0;
  uint32_t repetition_ = 0;
  uint32_t chunk_offset_ = 0;
  uint32_t chunk_stride_ = 0;
  uint32_t peer_offset_ = 0;
  uint32_t peer_stride_ = 0;
  uint64_t position_ = 0;
};

class Expansion : public BasicExpansion<ScheduleArrays> {
 public:
  // The schedule must outlive the expansion and must not change.
  explicit Expansion(const Schedule& schedule)
      : BasicExpansion({schedule.steps.data(), schedule.blocks.data(), schedule.peers.data(),
                        schedule.chunk_lists.data(), static_cast<uint32_t>(schedule.blocks.size()), schedule.chunks,
                        schedule.ranks}) {}
  // An expansion of nothing is done.
  Expansion() : BasicExpansion({nullptr, nullptr, nullptr, nullptr, 0, 1, 1}) {}
};

}  // namespace treering
