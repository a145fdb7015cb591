// SPDX-License-Identifier: Apache-2.0
// Reductions: the operations that a user made on one communicator, by the values that stand for them.
#pragma once

#include <memory>
#include <unordered_map>

#include "communicator/calls/operation.h"

namespace treering {

class Reductions {
 public:
  // No other communicator of the process has the same value, nor has a later operation that of one which was removed.
  trRedOp_t add(std::shared_ptr<const Reduction> reduction);
  Status remove(trRedOp_t op);
  // An error: there is none of that value.
  Status find(trRedOp_t op, std::shared_ptr<const Reduction>* reduction) const;

 private:
  std::unordered_map<trRedOp_t, std::shared_ptr<const Reduction>> reductions_;
};

}  // namespace treering
