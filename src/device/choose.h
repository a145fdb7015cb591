// SPDX-License-Identifier: Apache-2.0
// Choose: algorithm, protocol and number of blocks of an operation on devices, from a model of the time.
//
//   T = S R (gpu(protocol) + trips(protocol) * latency) + X / min(rate(protocol) * blocks, 2 link * share(protocol))
//
// with the rounds R and the exchanged bytes X of the algorithm's formula (algorithms/algorithm.h) and S slices of what
// fits a slot. Latency and rate of the link are measured when a communicator is created; what happens on a GPU is an
// assumption of the right order, which no measurement of this project supports yet. That LL moves half of the bytes and
// LL128 120 of 128 follows from the protocols. All ranks compute the same.
#pragma once

#include "algorithms/algorithm.h"
#include "device/work.h"

namespace treering::cuda {

// The slowest link between two devices.
struct LinkFigures {
  bool measured = false;
  double latency_us = 0;  // one way, more than in a device's own memory
  double gbps = 0;
};

struct DeviceSelection {
  const Algorithm* algorithm = nullptr;
  DeviceProtocol protocol = DeviceProtocol::kSimple;
  uint32_t channels = 1;
  uint32_t pipeline_chunks = 1;
  double predicted_us = 0;
};

struct DeviceSelectionInput {
  Collective collective = Collective::kAllReduce;
  uint32_t ranks = 2;
  size_t bytes = 0;  // of the larger buffer
  size_t element_bytes = 1;
  size_t slot_bytes = 0;
  uint32_t most_channels = 1;
  bool keeps_lines = true;    // LL128 may be used
  uint32_t protocols = ~0u;   // a bit for each DeviceProtocol that may be used
  bool rank_ordered = false;  // fixed order of the operands
  bool unequal = false;       // blocks of different sizes
  LinkFigures link;
  const Algorithm* forced = nullptr;  // nullptr: free choice
};

// Largest chunk, in elements, so that `max_span` chunks are a message of at most `message_bytes` bytes that fits a slot
// of the protocol with all its extents padded; 0 when none does, and another protocol or algorithm has to be taken.
size_t largest_device_chunk(DeviceProtocol protocol, size_t message_bytes, uint32_t max_span, size_t element_bytes);

// "ll", "ll128", "simple".
const char* protocol_name(DeviceProtocol protocol);

// Blocks that fill the link both ways, at least 8: what a block does was never measured. At most kMaxDeviceChannels.
uint32_t channels_to_fill(const LinkFigures& link);

// `algorithm` is nullptr when none fits.
DeviceSelection choose_for_device(const DeviceSelectionInput& input);

// A send or receive of so many bytes.
double transfer_us(const LinkFigures& link, size_t bytes, uint32_t channels);

// The same operation through memory of the host (gpu/staged_path.h), where it takes `host_us`.
struct StagedInput {
  size_t bytes = 0;  // of the larger buffer
  size_t piece_bytes = 1;
  double host_gbps = 1;  // of copies, each way
  double host_us = 0;
};
double staged_us(const StagedInput& input);
// Whether kernels are so slow, by what was measured, that the host is the better way. In doubt they are not.
bool is_staged_better(const LinkFigures& link, double kernel_us, double staged_us);

}  // namespace treering::cuda
