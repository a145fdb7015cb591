// SPDX-License-Identifier: Apache-2.0
// Subsets: new communicators that ranks of this one make of one another.
//
//   split     allgather (colour, key)   every rank knows who belongs together
//             allgather (id)            the first rank of each colour has made one
//   shrink    exchange of notices (id)  the survivors know one another; nothing of the communicator but the ranks'
//                                       status is used, so excluded ranks may be dead and the communicator may have failed
//   grow      allgather (total, id)     one rank has made the id and told it to the new ranks
//   create()                            the ranks of each subset meet as those of any new communicator
//
// A split of a communicator that has failed on every rank (it was revoked) exchanges notices, too.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "communicator/parts.h"
#include "communicator/split_info.h"

namespace treering {

class Communicator;

class Subsets {
 public:
  // `serve`: what others may wait for while this rank waits.
  Subsets(Communicator* communicator, CommunicatorParts* parts, std::function<void()> serve)
      : communicator_(communicator), parts_(parts), serve_(std::move(serve)) {}

  // This rank's part of the ranks that pass the same colour, ordered by key and rank; nothing for a negative colour.
  Status split(int color, int key, const Config& config, std::unique_ptr<Communicator>* result);
  // Makes the communicator of those ranks, in that order, which alone call it; an error on all that see another set.
  // Uses only their status, so that it works after a failure.
  Status shrink(const std::vector<uint32_t>& members, const Config& config, std::unique_ptr<Communicator>* result);
  // These ranks and new ones, `total` in all, which meet at the id that one of these gives.
  Status grow(uint32_t total, const trUniqueId* id, const Config& config, std::unique_ptr<Communicator>* result);
  // The result of the last shrink.
  const Status& shrink_failure() const { return shrink_failure_; }

 private:
  Status exchange_sealed(Purpose purpose, const char* function, const SplitInfo& own, std::vector<SplitInfo>* infos);
  Status agree_and_shrink(const std::vector<uint32_t>& members, const Config& config,
                          std::unique_ptr<Communicator>* result);
  Status agree_and_grow(uint32_t total, const trUniqueId* id, const Config& config,
                        std::unique_ptr<Communicator>* result);
  Status create_of(uint32_t ranks, const std::vector<uint32_t>& members, uint32_t giver, const trUniqueId& id,
                   const char* function, const Config& config, std::unique_ptr<Communicator>* result);

  Communicator* const communicator_;
  CommunicatorParts* const parts_;
  const std::function<void()> serve_;
  Status shrink_failure_;
};

}  // namespace treering
