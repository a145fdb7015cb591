// SPDX-License-Identifier: Apache-2.0
// This process and others of this machine.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <string>

#include "core/status.h"

namespace treering {

// One boot of one kernel; "" where /proc does not show it. Once known it stays, also where no descriptor is left to
// read it again.
std::string boot_id();

// That this process can open no connection: it is at its own limit, which is nothing that another one has done.
Status no_descriptor_left();

// Whether a process of this pid namespace has ended, also where its parent has not waited for it yet.
bool process_has_ended(pid_t pid);

// The process at the other end of a Unix socket; pid 0: not of this pid namespace, or not known.
inline ucred peer_of(int connection) {
  ucred peer{};
  peer.uid = static_cast<uid_t>(-1);
  socklen_t bytes = sizeof peer;
  (void)getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
  return peer;
}

// Whether the process at the other end of a Unix socket belongs to the same user.
inline bool is_of_this_user(int connection) { return peer_of(connection).uid == geteuid(); }

}  // namespace treering
