#include "core/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace treering {

bool process_has_ended(pid_t pid) {
  const auto fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  // Without a descriptor left for it, a process that its parent has not waited for counts as alive.
  if (fd < 0) return errno == ESRCH || (kill(pid, 0) != 0 && errno == ESRCH);
  pollfd entry{fd, POLLIN, 0};
  const bool ended = poll(&entry, 1, 0) > 0;
  close(fd);
  return ended;
}

}  // namespace treering
