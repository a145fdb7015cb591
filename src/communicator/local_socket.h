// Unix stream sockets in the abstract namespace: they vanish with their last descriptor and leave no file.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "core/status.h"

namespace treering {

using Clock = std::chrono::steady_clock;

Status listen_local(const std::string& name, int* listener);
// Connects until the deadline (the listener's queue may be full).
Status connect_local(const std::string& name, Clock::time_point deadline, int* fd);

// send(2), with a descriptor attached when it is >= 0. Does not raise SIGPIPE, does not block.
ssize_t send_with_descriptor(int socket, const void* data, size_t bytes, int descriptor);
// Receives exactly `bytes`; a descriptor that comes along is stored in *descriptor (when not nullptr).
Status receive_all(int socket, void* data, size_t bytes, Clock::time_point deadline, int* descriptor);
Status send_all(int socket, const void* data, size_t bytes, Clock::time_point deadline);

}  // namespace treering
