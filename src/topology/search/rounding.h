// SPDX-License-Identifier: Apache-2.0
// Rounding: a few channels with small integer shares in place of many columns with any rates. Slices go to channels in
// proportion to the shares, so the rate of a channel is its share of what the fullest arc lets all of them have.
#pragma once

#include <cstdint>
#include <vector>

#include "topology/search/packing.h"

namespace treering::search {

inline constexpr uint32_t kMaxShare = 32;

struct SharedColumn {
  Column column;
  uint32_t share = 1;
};

struct Rounded {
  std::vector<SharedColumn> channels;
  double rate = 0;  // GB/s of all channels; one of share s has rate * s / (the sum of shares)
};

// At most `max_channels` channels that carry as much as was found. `columns_are_real`: the packing was not by class.
Rounded round_packing(const Network& network, Pattern pattern, const Packing& packing, uint32_t max_channels,
                      bool columns_are_real);

}  // namespace treering::search
