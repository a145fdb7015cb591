// SPDX-License-Identifier: Apache-2.0
// Schedule: what one rank does on one channel of a collective, as steps on abstract chunks.
//
// A schedule knows no size, pointer, data type or operation; those enter when it is bound to a call. The same
// schedule is executed on the host (and later by the CUDA kernel), verified for all ranks, simulated and printed,
// always through expand() (expand.h).
//
//   input   |  0  |  1  |  2  |  3  |     `chunks` chunks of one slice of the user's data; the executor runs the
//   output  |  0  |  1  |  2  |  3  |     whole program once for each slice, slices in order.
//   scratch |  0  |  1  |  2  |  3  |     private, a place for every chunk; holds partial results
//
// The data of a collective is one part or several (collective.h: the block of each rank, or of each pair of ranks);
// chunk c belongs to part c / (chunks / parts), and a slice takes its share of every part. What a rank has of the parts
// in its input and output buffers, and where, is the executor's business (layout.h).
//
// One step, in this order and as one atomic act:
//   1. waits until each peer of its receive list has a message at the head of its FIFO, and each peer of its send
//      list has room in its FIFO;
//   2. value = the received messages (in list order) with the local operand, if any, inserted at
//      `local_position`; with kReduce they are combined left to right, else there is exactly one of them;
//   3. stores the value (kStore: output, kStoreScratch: scratch) and sends it to every peer of the send list.
//
// Invariants (the verifier checks them): FIFOs are point to point, in order, one per (sender, receiver, channel);
// there is no wildcard receive; so one simulated order settles deadlock for every order, and passing at the FIFO depth
// that the schedule names (fifo_depth) settles every greater depth, and every number of slices.
// The output only ever holds results (every kStore step is kFinal, every output chunk is stored once); partial sums
// live in the scratch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace treering {

enum StepFlags : uint16_t {
  kReceive = 1 << 0,       // receive one message from each peer of the receive list
  kReduce = 1 << 1,        // combine two or more operands
  kStore = 1 << 2,         // store the value into the output chunk
  kSend = 1 << 3,          // send the value to each peer of the send list
  kInput = 1 << 4,         // local operand: the chunk of the input
  kOutput = 1 << 5,        // local operand: the chunk of the output (something stored earlier)
  kScratch = 1 << 6,       // local operand: the chunk of the scratch
  kStoreScratch = 1 << 7,  // store the value into the scratch chunk
  kFinal = 1 << 8,         // the value is the collective's result. With kReduce: a finishing operation (the division of
                           // avg) is applied here. With kSend: every receiver stores it unchanged at the same chunk of
                           // its output, so a transport may place it there directly.
  kChunkList =
      1 << 9,  // the step covers the `span` chunks Schedule::chunk_lists[chunk ...] instead of consecutive ones
};

struct Step {
  uint16_t flags = 0;
  uint16_t span = 1;           // consecutive chunks that the step (and its message) covers
  uint32_t chunk = 0;          // the first of them (kChunkList: index of the first in Schedule::chunk_lists)
  uint16_t receive_count = 0;  // peers of the receive list, Schedule::peers[receive_first ...]
  uint16_t send_count = 0;     // peers of the send list, Schedule::peers[send_first ...]
  uint32_t receive_first = 0;
  uint32_t send_first = 0;
  uint16_t local_position = 0;  // number of received operands that are combined before the local operand
  uint16_t reserved = 0;
};
static_assert(sizeof(Step) == 24);

// A run of consecutive steps that is executed `count` times; in repetition k every chunk number is advanced by
// k * chunk_stride (modulo the number of chunks) and every peer by k * peer_stride (modulo the number of ranks).
// Blocks are flat: they follow one another, cover every step once, and never nest.
struct Block {
  uint32_t first = 0;
  uint32_t length = 0;
  uint32_t count = 1;
  int32_t chunk_stride = 0;
  int32_t peer_stride = 0;
};

struct Schedule {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  uint32_t chunks = 1;      // chunks of one slice, a multiple of `parts`
  uint32_t parts = 1;       // parts of the data, see collective.h
  uint32_t max_span = 1;    // largest Step::span: the largest message is max_span chunks
  uint32_t fifo_depth = 1;  // messages that every FIFO must be able to hold, else the schedule may deadlock
  bool uses_scratch = false;
  std::vector<Step> steps;
  std::vector<Block> blocks;
  std::vector<uint32_t> peers;        // the receive and send lists of all steps, as ranks
  std::vector<uint32_t> chunk_lists;  // the chunks of steps with kChunkList
};

}  // namespace treering
