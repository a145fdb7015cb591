// SPDX-License-Identifier: Apache-2.0
// Proofs at init that the GPUs of a communicator reach one another, with measurements (device_probe.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu/device_areas.h"
#include "gpu/device_probe.h"

namespace treering {

// What a rank found; after agree() the worst of all ranks.
struct LinkFindings {
  bool keep_lines = true;  // lines arrive whole (Device::keeps_lines)
  bool stuck = false;      // copies have not ended
  cuda::LinkFigures link;  // the slowest to any peer
  double host_gbps = 0;    // between a GPU and the host
};

// Where this rank alone writes in a peer's area: 8 bytes, and DeviceProbe::kChunkBytes at each place.
struct ProofPlace {
  std::byte* word;
  std::vector<std::byte*> chunks;
};
// This rank's links to all peers: all ranks at the same time, each beginning with another peer.
Status probe_device_fifos(Communicator* communicator, DeviceCopies* copies, DeviceAreas* areas,
                          const std::function<ProofPlace(std::byte* area)>& place, LinkFindings* findings);
// Collective. `why_not` stays empty where no rank failed.
Status agree_on_links(Communicator* communicator, const Status& own, LinkFindings* findings, std::string* why_not);
// What failed, with the link's name.
Status of_link(uint32_t peer, const Status& status);

}  // namespace treering
