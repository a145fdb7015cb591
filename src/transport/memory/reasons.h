// SPDX-License-Identifier: Apache-2.0
// Why a way between two ranks of one host does not work, in words for the log and for errors: what follows from the
// infos of the ranks, without a look at the machine.
//
//   segment             | its descriptor travels over Unix sockets: within a network namespace, to the same user
//   registered buffers  | opened through /proc: one pid namespace, a visible /proc, the right to trace the peer
//   cross-memory attach | by the peer's pid: one pid namespace, the right to trace the peer
#pragma once

#include <string>

#include "transport/peer_info.h"

namespace treering {

// Why `own` and `peer` share no segment. holder: a rank of their host that was given its descriptor; loser: one whose
// process had none left for it; nullptr: there is no such rank.
std::string why_no_segment(const PeerInfo& own, const PeerInfo& peer, const PeerInfo* holder, const PeerInfo* loser);

// Why neither can name the other by its pid; empty: they can.
std::string why_no_pid(const PeerInfo& own, const PeerInfo& peer);

// Why the peer's descriptors cannot be opened; error: errno of the attempt.
std::string why_no_regions(const PeerInfo& own, const PeerInfo& peer, int error);

// What the infos add to the kernel's refusal to reach into the peer; empty: nothing.
std::string who_they_are(const PeerInfo& own, const PeerInfo& peer);

}  // namespace treering
