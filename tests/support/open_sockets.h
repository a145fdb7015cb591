// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cstddef>

namespace treering::testing {

inline size_t sockets_of_this_process() {
  constexpr int kMaxDescriptors = 1024;
  size_t count = 0;
  for (int fd = 0; fd < kMaxDescriptors; ++fd) {
    struct stat info {};
    count += fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode);
  }
  return count;
}

}  // namespace treering::testing
