// SPDX-License-Identifier: Apache-2.0
// WaitSource: what a rank can sleep on instead of polling, until a transport has something for it.
//
// Armed before the sleep: what happened since the last poll ends the next wait at once, so that nothing is missed between the
// two. Waits are bounded, as a rank may wait for more than its transports.
#pragma once

#include <cstdint>

namespace treering {

class WaitSource {
 public:
  virtual ~WaitSource() = default;
  // Whether there is nothing to sleep on yet.
  virtual bool empty() const = 0;
  // Returns when there is something new or the time is over; true: the former.
  virtual bool wait(uint32_t microseconds) = 0;
};

}  // namespace treering
