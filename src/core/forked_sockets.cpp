// SPDX-License-Identifier: Apache-2.0
#include "core/forked_sockets.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <unordered_map>

namespace treering {
namespace {

class ForkedSockets {
 public:
  // Never destroyed: a process may fork while it ends.
  static ForkedSockets& instance() {
    static auto* all = new ForkedSockets;
    return *all;
  }

  int make(const std::function<int()>& make) {
    std::lock_guard lock(mutex_);  // no fork between the two
    const int fd = make();
    const int error = errno;
    if (struct stat file{}; fd >= 0 && fstat(fd, &file) == 0) inodes_[fd] = file.st_ino;
    errno = error;
    return fd;
  }

 private:
  ForkedSockets() {
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] {
                     instance().close_all();
                     instance().mutex_.unlock();
                   });
  }

  void close_all() {
    struct stat file {};
    for (const auto& [fd, inode] : inodes_)
      if (fstat(fd, &file) == 0 && S_ISSOCK(file.st_mode) && file.st_ino == inode) close(fd);
    inodes_.clear();
  }

  std::mutex mutex_;
  // By descriptor. One that was closed since, and whose number serves another file, has another inode.
  std::unordered_map<int, ino_t> inodes_;
};

}  // namespace

int closed_in_children(const std::function<int()>& make) { return ForkedSockets::instance().make(make); }

}  // namespace treering
