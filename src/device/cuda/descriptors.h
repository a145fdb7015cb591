// SPDX-License-Identifier: Apache-2.0
// Descriptors: file descriptors for other processes of this user. The exporting process has a thread that listens on an
// abstract Unix socket with a random name; who knows a descriptor's 128-bit ticket gets it (SCM_RIGHTS). Tickets travel
// as device handles do: through the job's own, authenticated exchange.
//
// The descriptors of a GPU's memory are of a device's file: opening them anew through /proc would give an empty one,
// and copying them out of the other process (pidfd_getfd) needs the right to trace it.
#pragma once

#include <array>
#include <cstdint>

#include "core/status.h"

namespace treering::cuda {

struct DescriptorTicket {
  std::array<uint8_t, 16> socket;  // part of its name
  std::array<uint8_t, 16> secret;
};

// The descriptor becomes the server's, which closes it with forget_descriptor().
Status offer_descriptor(int descriptor, DescriptorTicket* ticket);
void forget_descriptor(const DescriptorTicket& ticket);
// A descriptor of the caller's own; waits a few seconds at most.
Status fetch_descriptor(const DescriptorTicket& ticket, int* descriptor);

}  // namespace treering::cuda
