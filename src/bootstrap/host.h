// SPDX-License-Identifier: Apache-2.0
// What tells machines apart. Host: whose processes may share memory: TREERING_HOSTID, or the machine's boot and the
// kernel's namespaces of the process. Network: within which loopback addresses and abstract Unix sockets mean the same.
#pragma once

#include <cstdint>
#include <string>

namespace treering {

struct HostIdentity {
  std::string host;        // equal: maybe one memory; the proofs of transport_matrix.h decide
  uint64_t network = 0;    // equal: the same network namespace of the same kernel
  std::string name;        // for people
  std::string configured;  // TREERING_HOSTID, or empty
};

HostIdentity identify_host(const std::string& configured);

}  // namespace treering
