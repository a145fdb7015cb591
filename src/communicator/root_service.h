// RootService: the meeting point of a communicator's ranks, in a background thread of the process that made its id.
//
//   rank 0 --hello--> |      |                 every rank sends a hello (authenticated with the job's secret) and then
//   rank 1 --hello--> | root | --all blobs-->  takes part in any number of rounds; in each the root collects one blob
//   rank 2 --hello--> |      |                 of every rank and sends all of them, in rank order, to everyone.
//
// With the first round's answer travels the descriptor of a memfd that all ranks can map. A failure of any rank (it
// died, it disagrees, its time is up) ends the service with the same error for all. One poll loop, no blocking call:
// a connection that does not speak, or does not know the secret, costs nobody anything.
#pragma once

#include "communicator/unique_id.h"

namespace treering {

// Starts to listen, and serves in a detached thread until all ranks have met and left, or failed.
Status start_root_service(const UniqueId& id);

}  // namespace treering
