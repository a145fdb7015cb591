// SPDX-License-Identifier: Apache-2.0
// Progress: how far one call of an advance() has brought a rank's call. Execution, EagerPath, Mailbox, ActiveCall and
// Communicator are advanced again and again, until it is kDone or one of the last two.
#pragma once

#include <cstdint>

namespace treering {

enum class Progress : uint8_t {
  kBlocked,  // by peer(): nothing can be done now
  kMoved,
  kDone,
  kDiffers,  // peer() is in another call, or its transfer has another size
  kFailed,   // status() says why
};

}  // namespace treering
