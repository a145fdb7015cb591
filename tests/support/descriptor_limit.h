// SPDX-License-Identifier: Apache-2.0
// Takes descriptors away from this process, for tests. With fewer than two left, UndefinedBehaviorSanitizer takes every object whose
// type it has not checked yet for one of another type: it reads objects by way of a pipe. What is linked with this file does without
// that check while descriptors are limited, and with all others. Those stay fatal: the sanitizer reads UBSAN_OPTIONS at its first
// report, which takes a descriptor, too; so this file has them.
//
//   limit_descriptors(n)      numbers from n on are not given away; lower ones that are free can still be
//   leave_descriptors(n)      this process can open n more
//   allow_descriptors()       as many as the process may have
#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace treering::testing {

// False: the limit stays as it was.
bool limit_descriptors(rlim_t first_forbidden);
bool leave_descriptors(size_t count);
void allow_descriptors();

}  // namespace treering::testing
