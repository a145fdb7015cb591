// What the kernel says about ranges of this process's address space.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.h"

namespace treering {

inline constexpr size_t kPageBytes = 4096;

// Ok when every page of the range is private, anonymous, readable and writable and no stack; else an error that says
// what is there.
Status check_plain_anonymous(const void* begin, size_t bytes);

// Whether the page at `address` is (still) a page of the file with this inode. Exact where the kernel answers
// PROCMAP_QUERY (Linux 6.11); before that, tells private anonymous memory from any file's.
bool page_is_of_file(const void* address, uint64_t inode);

}  // namespace treering
