// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/rails.h"

#include <fmt/format.h>

#include <algorithm>

namespace treering::verbs {

std::string LinkRail::path_text(bool is_connected) const {
  if (!is_connected) return device->name() + ", not connected yet";
  return fmt::format("{} to {} port {} (GID {})", device->name(), peer.device, peer.port, gid_text(peer.gid));
}

Status Rails::open(const Devices& devices, RailSet rails, const QueueSizes& sizes, uint32_t inline_bytes) {
  for (uint32_t number = 0; number < devices.size(); ++number) {
    if ((rails >> number & 1) == 0) continue;
    LinkRail rail{.number = number, .device = devices[number].get(), .pair = {}, .written = Ring<Written>(sizes.sends)};
    if (const Status made = QueuePair::create(*rail.device, sizes, inline_bytes, &rail.pair); !made.ok())
      return {made.code(), fmt::format("{}: {}", rail.device->name(), made.message())};
    all_.push_back(std::move(rail));
  }
  return {};
}

std::vector<RailEnd> Rails::ends(const Block& block) const {
  std::vector<RailEnd> ends;
  for (const LinkRail& rail : all_)
    ends.push_back({rail.number, rail.pair->number(), rail.pair->first_packet(), rail.device->rail(),
                    block.registered().remote_key(rail.number)});
  return ends;
}

Status Rails::connect(const std::vector<RailEnd>& peers, const PathOptions& path) {
  for (uint32_t i = 0; i < all_.size(); ++i) {
    LinkRail& rail = all_[i];
    const auto end =
        std::find_if(peers.begin(), peers.end(), [&](const auto& peer) { return peer.number == rail.number; });
    if (end == peers.end()) continue;
    rail.peer = end->rail;
    rail.peers_key = end->key;
    TR_RETURN_IF_ERROR(rail.pair->connect(rail.device->rail(), *end, path));
    used_.push_back(i);
    rates_.push_back(std::min(rail.device->rail().mbps, rail.peer.mbps));
  }
  return {};
}

void Rails::stop() {
  for (LinkRail& rail : all_) rail.pair->stop();
}

void Rails::arm() {
  for (LinkRail& rail : all_) rail.pair->arm();
}

std::string Rails::path_text(bool is_connected) const {
  std::string text;
  for (size_t i = 0; i < (is_connected ? used_.size() : all_.size()); ++i)
    text += (i == 0 ? "" : " and ") + all_[is_connected ? used_[i] : i].path_text(is_connected);
  return text;
}

bool Rails::is_done() const {
  return std::all_of(all_.begin(), all_.end(),
                     [](const LinkRail& rail) { return rail.pair->done() == rail.pair->posted(); });
}

}  // namespace treering::verbs
