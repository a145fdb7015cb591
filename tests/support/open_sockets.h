// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>

namespace treering::testing {

// By what /proc says: another thread may close one meanwhile, which fstat() would race with.
inline size_t sockets_of_this_process() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code is_gone;
    count += std::filesystem::read_symlink(entry.path(), is_gone).string().rfind("socket:", 0) == 0;
  }
  return count;
}

}  // namespace treering::testing
