// SPDX-License-Identifier: Apache-2.0
// RankInfo: what every rank tells all others while a communicator is created, and what follows from all infos together.
#pragma once

#include <sched.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/membership.h"
#include "topology/location.h"
#include "transport/peer_info.h"

namespace treering {

struct RankInfo : PeerInfo {
  int32_t device;  // the rank's GPU, or -1
  Location location;
};

// What a rank tells beside its info, for count_cores(); it is not kept.
struct RankCores {
  cpu_set_t all;        // that the calling thread may run on
  uint32_t quota_cpus;  // of the rank's cgroup; 0 = no limit
};

// The infos of all ranks. The ranks of a process share them.
using RankInfos = std::shared_ptr<const std::vector<RankInfo>>;

// The info of this process and thread, with a new nonce; what concerns the rank's area is left open.
RankInfo make_info(uint32_t rank, RankCores* cores);

// How a rank gives its info to the others, with those of its transports, by row of the table.
std::string pack_info(const RankInfo& info, const RankCores& cores, const std::vector<std::string>& of_transports);
Status unpack_transport_infos(const std::string& blob, uint32_t rank, std::vector<std::string>* of_transports);
// The infos of all ranks as they came from an exchange. `job` names the communicator.
Status unpack_infos(const std::string& job, const std::vector<std::string>& blobs, RankInfos* infos);

// Hosts, and the ranks of the largest.
std::pair<uint32_t, uint32_t> count_hosts(const std::vector<RankInfo>& infos);

// How many cores a host's ranks may use together, of the host that has the fewest for its ranks. "Hosts" of one machine
// (containers, network namespaces) share its cores.
uint32_t count_cores(const std::vector<std::string>& blobs, uint32_t host_ranks);

}  // namespace treering
