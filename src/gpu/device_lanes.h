// SPDX-License-Identifier: Apache-2.0
// DeviceLanes: the sends and receives of a group as rows of lanes for a kernel (device/work.h).
//
//   channel 0   to rank 2:    | lane | lane | lane |        a row has the transfers of a pair one way, in their order; the block
//               from rank 2:  | lane | lane |               of the channel moves whichever row can
//   channel 1   to rank 1:    | lane |
//
// Rows of a pair are on the same channel on both sides.
#pragma once

#include <vector>

#include "communicator/calls/operation.h"
#include "device/work.h"

namespace treering {

class DeviceLanes {
 public:
  // What is not sent to itself alike is an error.
  static Status plan(const Operation& operation, uint32_t rank, uint32_t ranks, uint32_t channels, DeviceLanes* made);

  bool empty() const { return lanes_ == 0; }
  uint32_t rows_of_channel() const { return rows_of_channel_; }
  // The table has rows_of_channel() x channels rows, and behind them the lanes. It is used where it is written.
  size_t table_bytes() const;
  const cuda::DeviceRow* write_table(std::byte* table) const;

 private:
  using Row = std::vector<cuda::DeviceLane>;
  std::vector<std::vector<Row>> channels_;
  uint32_t rows_of_channel_ = 0;
  size_t lanes_ = 0;
};

}  // namespace treering
