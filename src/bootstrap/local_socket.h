// SPDX-License-Identifier: Apache-2.0
// The Unix sockets through which processes of a machine reach one another; core/unix_sockets.h has what travels on them.
#pragma once

#include <cstdint>
#include <string>

#include "core/status.h"

namespace treering {

Status listen_local(const std::string& name, int* listener);
// Begins to connect; *fd is non-blocking. EAGAIN in *error: the listener's queue is full.
bool connect_local(const std::string& name, int* fd, int* error);
// The name of a process's socket.
std::string local_socket_name(uint64_t number);

}  // namespace treering
