// DeviceLanes: the sends and receives of a group as rows of lanes for kernels (executor/cuda/work.h).
//
// Lanes of a pair are on the same channel on both sides. A block moves kMaxLanesOfBlock at most, so a pair's transfers go
// in rounds, `each` of them one way in a round, a launch a round. Both ends count the same transfers and take the same
// number for a round, so that what a rank waits for in a round, the other side sends in the round of that number.
#pragma once

#include <vector>

#include "communicator/operation.h"
#include "executor/cuda/work.h"

namespace treering {

struct DeviceLanes {
  // A list of lanes for each channel; those of a channel are run by one block.
  using Round = std::vector<std::vector<cuda::DeviceLane>>;
  std::vector<Round> rounds;

  // What is not sent to itself alike is an error.
  static Status plan(const Operation& operation, uint32_t rank, uint32_t ranks, uint32_t channels, DeviceLanes* made);

  static size_t rows(const Round& round);
  static size_t table_bytes(const Round& round);
  // Of all rounds.
  size_t bytes() const;
  // Writes rows x channels lanes; rows that a channel does not have do nothing.
  static void write_table(const Round& round, uint32_t rank, cuda::DeviceLane* table);
};

}  // namespace treering
