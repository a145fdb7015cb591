// SPDX-License-Identifier: Apache-2.0
// Creation: how a communicator comes to be. Its ranks
//
//   meet                     the rendezvous: who takes part, on which hosts
//   share memory             where they can
//   open transports          those that the settings allow; exchange what each says of itself
//   prove links              each pair finds out which transports reach the other
//   measure                  the machine, and the network between hosts
//   plan                     rank 0's plan and measurements give all the same schedules
//
// An error is the same on all ranks, or is told to the others.
#pragma once

#include <functional>
#include <string>

#include "communicator/parts.h"
#include "communicator/phase_times.h"
#include "peers/peer_table.h"

namespace treering {

// The communicator's work on its links while it is in no call.
struct LinkService {
  std::function<void()> serve;  // to be called in waits
  std::function<void()> start;  // the creation is over: from now on it is called by other communicators' waits, too
};

class Creation {
 public:
  // Makes `parts`, which are empty. After an error they are what had been made until then.
  Creation(CommunicatorParts* parts, const Config& config, LinkService service);
  // This rank's part, with all other ranks.
  Status run(uint32_t ranks, const trUniqueId& id, uint32_t rank, const CreationTerms& terms);
  // A communicator of one rank: it meets no other rank and shares nothing.
  Status run_alone();

 private:
  Status check_config();
  Status meet(const UniqueId& id, const CreationTerms& terms);
  Status connect();
  TransportSetup transport_setup();
  OpenTransports open_transports();
  Status exchange_infos(const OpenTransports& opened, Membership::Blobs* blobs);
  Status agree_on_links(OpenTransports opened, Membership::Blobs blobs, Machine* machine, Plan* plan);
  Status link();
  void watch_events();
  void prepare_calls();

  CommunicatorParts* const parts_;
  const LinkService service_;
  std::string job_;  // its name; empty: the rank is alone
  TransportSet allowed_ = 0;
  CreationTerms::Guard guard_;
  PhaseTimes times_;
};

}  // namespace treering
