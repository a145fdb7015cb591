// SPDX-License-Identifier: Apache-2.0
// Serves metrics to the programs of this host.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/open_file.h"
#include "core/status.h"

namespace treering {

// A socket that listens on the loopback interface alone. A forked child does not have it.
Status listen_on_loopback(uint32_t port, OpenFile* socket);
// Answers one request after the other, until the program closes the socket.
void serve_metrics(const OpenFile& socket, const std::function<std::string()>& make_metrics);

}  // namespace treering
