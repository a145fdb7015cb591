// SPDX-License-Identifier: Apache-2.0
// Who was late, how often, and how much time the others lost by it. No I/O.
//
// Where all ranks have a record of a call, the rank that begins last is late, and each other one has lost what it waited
// until then. Where some have none (a short call that did not wait is recorded now and then), the wait is followed from
// rank to rank, to one that did not wait itself.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "clocks.h"
#include "trace.h"

namespace treering::trace {

struct LateRank {
  size_t process = 0;
  uint32_t rank = 0;   // of the process, or of the communicator where the process has several
  size_t times = 0;    // calls
  double lost = 0;     // microseconds, by all other ranks together
  double longest = 0;  // ... of one call by one rank
  std::string worst;   // that call
};

struct Lateness {
  std::vector<LateRank> ranks;  // who cost most comes first
  double exchange = 0;          // waits that no late rank explains: data was on its way
  double unknown = 0;           // ... for ranks that have no file
};

// Waits shorter than `least` microseconds are left out.
Lateness find_late(const Trace& trace, const Clocks& clocks, double least);

}  // namespace treering::trace
