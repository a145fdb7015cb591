// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/devices/rail_choice.h"

#include <fmt/format.h>

namespace treering::verbs {

std::vector<size_t> choose_rails(std::vector<PortCandidate>* ports) {
  // The one that the others are compared with: the fastest of the nearest.
  const PortCandidate* best = nullptr;
  for (const PortCandidate& port : *ports) {
    if (!port.why_not.empty()) continue;
    const bool nearer = best == nullptr || port.distance < best->distance;
    if (nearer || (port.distance == best->distance && port.mbps > best->mbps)) best = &port;
  }
  std::vector<size_t> rails;
  for (size_t i = 0; i < ports->size(); ++i) {
    PortCandidate& port = (*ports)[i];
    if (!port.why_not.empty()) continue;
    if (port.distance > best->distance)
      port.why_not = fmt::format("{} is nearer to the rank's cores", best->name);
    else if (port.link_layer != best->link_layer)
      port.why_not = fmt::format("its link layer is not that of {}", best->name);
    else if (uint64_t{2} * port.mbps < best->mbps)
      port.why_not = fmt::format("at {:g} Gbit/s it is less than half as fast as {}", port.mbps / 1000.0, best->name);
    else if (rails.size() == kMaxRails)
      port.why_not = fmt::format("a rank uses {} ports at most", kMaxRails);
    else
      rails.push_back(i);
  }
  return rails;
}

}  // namespace treering::verbs
