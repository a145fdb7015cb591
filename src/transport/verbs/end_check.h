// SPDX-License-Identifier: Apache-2.0
// Whether an introduction can be used: what a peer says of its end is given to devices, and written to. No I/O.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/status.h"
#include "transport/verbs/wire.h"

namespace treering::verbs {

inline constexpr uint32_t kMaxQueuePair = 0xffffff, kMaxPacket = 0xffffff;
inline constexpr uint8_t kMaxMtu = 5;  // 4096 bytes
inline constexpr size_t kMaxDeviceName = 64;

// Whether a rank may say that of one of its rails.
inline bool is_possible(const Rail& rail) {
  return rail.mtu > 0 && rail.mtu <= kMaxMtu && !rail.device.empty() && rail.device.size() <= kMaxDeviceName;
}

// `own`: of a rank that is asked to connect itself to `peer`.
inline Status check_end(const EndPoint& peer, const EndPoint& own) {
  const auto refuse = [](std::string why) { return Status(trSystemError, std::move(why)); };
  if (peer.channels != own.channels || peer.place_bytes != own.place_bytes || peer.places < kMinPlaces ||
      peer.places > kFifoDepth)
    return refuse(fmt::format("it has {} channels and {} places of {} bytes, this rank {} and {} of {}", peer.channels,
                              peer.places, peer.place_bytes, own.channels, own.places, own.place_bytes));
  const BlockLayout layout{peer.channels, peer.place_bytes, peer.places};
  if (peer.block == 0 || peer.block > UINT64_MAX - layout.bytes())
    return refuse(fmt::format("its block of {} bytes cannot be at {:#x}", layout.bytes(), peer.block));
  if (peer.rails.empty() || peer.rails.size() > kMaxRails)
    return refuse(fmt::format("it has {} rails; 1 to {} are possible", peer.rails.size(), kMaxRails));
  bool is_common = false;
  for (size_t i = 0; i < peer.rails.size(); ++i) {
    const RailEnd& end = peer.rails[i];
    if (end.number >= kMaxRails || (i > 0 && end.number <= peer.rails[i - 1].number))
      return refuse(fmt::format("its rail {} cannot have the number {}", i, end.number));
    if (end.queue_pair == 0 || end.queue_pair > kMaxQueuePair || end.first_packet > kMaxPacket ||
        !is_possible(end.rail))
      return refuse(
          fmt::format("its rail {} cannot have queue pair {:#x}, packet {:#x}, MTU {} and a device with a name "
                      "of {} letters",
                      end.number, end.queue_pair, end.first_packet, end.rail.mtu, end.rail.device.size()));
    const auto mine = std::find_if(own.rails.begin(), own.rails.end(),
                                   [&](const RailEnd& rail) { return rail.number == end.number; });
    if (mine == own.rails.end()) continue;
    is_common = true;
    if (mine->rail.link_layer != end.rail.link_layer)
      return refuse(fmt::format("its rail {}, {}, has the link layer {}, and {} of this rank {}", end.number,
                                end.rail.device, end.rail.link_layer, mine->rail.device, mine->rail.link_layer));
  }
  return is_common ? Status() : refuse("it reaches this rank by none of the rails by which this rank reaches it");
}

}  // namespace treering::verbs
