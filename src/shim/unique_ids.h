// SPDX-License-Identifier: Apache-2.0
// Unique ids. Without NCCL_COMM_ID an id is the C API's own. With it, every rank may make the id by itself: it
// holds the address alone, where rank 0 waits for the others and hands them the id proper.
#pragma once

#include "core/status.h"
#include "shim/include/nccl.h"

namespace treering::nccl {

Status make_id(ncclUniqueId* id);
// The C API's id behind `id`. An address blocks until rank 0 has been reached, and on rank 0 until all have come. trTimeout
// after `timeout_ms`, with the ranks that are missing; 0: it waits for ever.
Status resolve_id(const ncclUniqueId& id, int ranks, int rank, int timeout_ms, trUniqueId* resolved);

}  // namespace treering::nccl
