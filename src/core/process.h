// Other processes of this machine.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

namespace treering {

// Whether a process of this pid namespace has ended, also where its parent has not waited for it yet.
bool process_has_ended(pid_t pid);

// Whether the process at the other end of a Unix socket belongs to the same user.
inline bool is_of_this_user(int connection) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

}  // namespace treering
