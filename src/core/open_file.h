// SPDX-License-Identifier: Apache-2.0
// A descriptor of the library, which the program may close, as daemons close all that they do not know, and whose number
// another file may get then.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

namespace treering {

// Its calls may be made in a forked child.
struct OpenFile {
  int fd = -1;
  dev_t device = 0, special = 0;
  ino_t inode = 0;

  OpenFile() = default;
  explicit OpenFile(int descriptor) {
    struct stat file {};
    if (descriptor < 0 || fstat(descriptor, &file) != 0) return;
    fd = descriptor, device = file.st_dev, special = file.st_rdev, inode = file.st_ino;
  }
  // Whether the number is still of this file. All that have no inode of their own (eventfd, epoll; userfaultfd before
  // Linux 5.12) are taken for one.
  bool is_same() const {
    const OpenFile now(fd);
    return now.fd >= 0 && now.device == device && now.special == special && now.inode == inode;
  }
  void close_if_same() const {
    if (is_same()) close(fd);
  }
};

}  // namespace treering
