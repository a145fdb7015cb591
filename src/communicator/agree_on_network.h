// SPDX-License-Identifier: Apache-2.0
// How the ranks of a new communicator agree on what the network between their hosts does.
#pragma once

#include <functional>

#include "communicator/parts.h"

namespace treering {

struct NetworkTerms {
  CreationTerms::Guard guard;  // of the creation, or empty
  Clock::time_point deadline;
  std::function<void()> serve;  // what others may wait for while this rank waits
};

// The first ranks of the hosts, in the order of the ring, measure the network; all take the slowest host's rate. On a
// busy machine a measurement may see more of the machine than of the network: it is repeated.
Status agree_on_network(CommunicatorParts* parts, const Plan& plan, const NetworkTerms& terms, Machine* machine);

}  // namespace treering
