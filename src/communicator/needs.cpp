// SPDX-License-Identifier: Apache-2.0
#include "communicator/needs.h"

#include <algorithm>

#include "algorithms/algorithm.h"
#include "executor/staging_pool.h"
#include "peers/area.h"
#include "peers/measure.h"
#include "transport/table.h"

namespace treering {

std::vector<TransportNeeds> transport_needs(uint32_t ranks, size_t cache_bytes, uint32_t rails) {
  const size_t staging = default_staging(ranks, cache_bytes != 0 ? cache_bytes : last_level_cache_bytes());
  const AreaLayout layout = area_layout(ranks, kChannelsOfHosts, staging_of_channel(ranks, kChannelsOfHosts, staging));
  TransportSetup setup;
  setup.ranks = ranks;
  setup.layout = &layout;
  setup.max_message_bytes = StagingPool::slot_bytes_of(layout.staging_bytes, ranks - 1);
  setup.usual_staging_bytes = StagingPool::usual_bytes(layout.staging_bytes, ranks - 1);
  setup.usual_peers = usual_peers(ranks);
  std::vector<TransportNeeds> needs;
  for (const TransportRow& row : transports())
    if (row.locks != nullptr) needs.push_back({row.name, row.locks(setup, std::clamp(rails, 1u, row.most_rails))});
  return needs;
}

}  // namespace treering
