// SPDX-License-Identifier: Apache-2.0
// Unix stream sockets in the abstract namespace: they vanish with their last descriptor and leave no file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "core/status.h"

namespace treering {

Status listen_local(const std::string& name, int* listener);
// Begins to connect; *fd is non-blocking. EAGAIN in *error: the listener's queue is full.
bool connect_local(const std::string& name, int* fd, int* error);
// The name of a process's socket.
std::string local_socket_name(uint64_t number);

// send(2), with a descriptor attached when it is >= 0. Does not raise SIGPIPE, does not block.
ssize_t send_with_descriptor(int socket, const void* data, size_t bytes, int descriptor);

}  // namespace treering
