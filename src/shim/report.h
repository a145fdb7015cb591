// SPDX-License-Identifier: Apache-2.0
// Report: calls and communicators in the words of the log, and in those of the C API's selection.
#pragma once

#include "shim/group.h"

namespace treering::nccl {

// False for sends and receives.
bool collective_of(Function function, trCollective_t* collective);
// Bytes of the larger buffer.
size_t bytes_of(const Call& call);
size_t type_bytes(trDataType_t type);

// COLL: the call's arguments. TUNING: what was chosen for it.
void report_call(const Call& call);
// INIT: rings, trees, and what is chosen for which size.
void report_comm(const Comm& comm, const char* function);

}  // namespace treering::nccl
