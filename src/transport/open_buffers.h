// SPDX-License-Identifier: Apache-2.0
// OpenBuffers: where peers may store final values of the operation that a rank is in. It is first in the head of the
// rank's area, where transports that map it look.
//
// Written by the rank alone; `operation` is stored last. A reader that needs the fields of operation k checks
// `operation == k` first: the owner cannot leave operation k while a peer still has to send it something.
#pragma once

#include <atomic>
#include <cstdint>

namespace treering {

struct OpenBuffers {
  std::atomic<uint64_t> operation;       // number of the operation that the rank entered last, from 1
  std::atomic<uint64_t> output_address;  // of the receive buffer; 0: peers may not store results there
  std::atomic<uint64_t> output_offset;   // of the receive buffer in output_region, for ranks that map it
  std::atomic<uint32_t> output_region;   // 0: in none
  std::atomic<uint32_t> open_input;      // 1: peers may store results where they found this rank's operands
};

}  // namespace treering
