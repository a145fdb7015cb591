// SPDX-License-Identifier: Apache-2.0
// What the kernel says about ranges of this process's address space.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.h"

namespace treering {

inline constexpr size_t kPageBytes = 4096;
// Name of the memfd of every region, as /proc/self/maps shows it.
inline constexpr const char* kRegionFileName = "treering-region";

// Ok when every page of the range is private, anonymous (or was moved by an earlier registration), readable and
// writable and no stack; else an error that says
// what is there.
Status check_plain_anonymous(const void* begin, size_t bytes);

// Whether every page of the range is private, anonymous, readable and writable. A stack is, too.
bool is_private_anonymous(const void* begin, size_t bytes);

// Whether all pages of the range are (still) pages of the file with this inode. Exact where the kernel answers
// PROCMAP_QUERY (Linux 6.11); before that, tells private anonymous memory from any file's at up to 65 pages.
bool range_is_of_file(const void* begin, size_t bytes, uint64_t inode);

}  // namespace treering
