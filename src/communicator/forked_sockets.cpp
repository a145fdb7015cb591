#include "communicator/forked_sockets.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>

namespace treering {
namespace {

// Inode by descriptor: what was closed, and whose number serves another file by now, is known by that. Untouched pages
// cost nothing.
constexpr size_t kMost = 1 << 16;
std::atomic<ino_t> inodes[kMost];
std::atomic<size_t> end_of_inodes{0};

// The forking thread may have been anywhere, so no lock is taken and nothing allocated.
void close_all() {
  for (size_t fd = 0; fd < end_of_inodes.load(); ++fd) {
    struct stat file {};
    const ino_t inode = inodes[fd].exchange(0);
    if (inode != 0 && fstat(static_cast<int>(fd), &file) == 0 && S_ISSOCK(file.st_mode) && file.st_ino == inode)
      close(static_cast<int>(fd));
  }
}

}  // namespace

int close_in_children(int fd) {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, close_all);
  struct stat file {};
  const auto at = static_cast<size_t>(fd);
  if (fd < 0 || at >= kMost || fstat(fd, &file) != 0) return fd;
  inodes[at].store(file.st_ino);
  for (size_t end = end_of_inodes.load(); end <= at && !end_of_inodes.compare_exchange_weak(end, at + 1);) {
  }
  return fd;
}

}  // namespace treering
