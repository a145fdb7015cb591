// Choose: algorithm, protocol and number of blocks of an operation on devices, from a model of the time.
//
//   T = S R a(protocol) + X / (rate(protocol) * blocks)
//
// with the rounds R and the exchanged bytes X of the algorithm's formula (algorithms/algorithm.h) and S slices of what
// fits a slot. The constants are assumptions of the right order for NVLink, which no measurement of this project supports yet;
// that LL moves half of the bytes and LL128 120 of 128 follows from the protocols. All ranks compute the same.
#pragma once

#include "algorithms/algorithm.h"
#include "executor/cuda/work.h"

namespace treering::cuda {

struct DeviceChoice {
  const Algorithm* algorithm = nullptr;
  DeviceProtocol protocol = DeviceProtocol::kSimple;
  uint32_t channels = 1;
  uint32_t pipeline_chunks = 1;
  double predicted_us = 0;
};

struct DeviceQuestion {
  Collective collective = Collective::kAllReduce;
  uint32_t ranks = 2;
  size_t bytes = 0;  // of the larger buffer
  size_t element_bytes = 1;
  size_t slot_bytes = 0;
  uint32_t most_channels = 1;
  bool keeps_lines = true;            // LL128 may be used
  uint32_t protocols = ~0u;           // a bit for each DeviceProtocol that may be used
  bool rank_ordered = false;          // fixed order of the operands
  const Algorithm* forced = nullptr;  // nullptr: free choice
};

// "ll", "ll128", "simple".
const char* protocol_name(DeviceProtocol protocol);

// `algorithm` is nullptr when none fits.
DeviceChoice choose_for_device(const DeviceQuestion& question);

}  // namespace treering::cuda
