// SPDX-License-Identifier: Apache-2.0
// Takes memory away from a thread, for tests: what is linked with this file has its own operator new, which the library uses, too. Not with
// sanitizers, which have theirs.
#pragma once

namespace treering::testing {

struct Memory {
  bool fails_next = false, fails_always = false;
  long fails_at = -1;  // the allocation of this number
  long allocations = 0, failures = 0;
};
// The calling thread's.
Memory& memory();

}  // namespace treering::testing
