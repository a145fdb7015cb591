// SPDX-License-Identifier: Apache-2.0
// PeerInfo: what every rank tells all others of its process and its memory, so that they find out how to reach it.
#pragma once

#include <cstdint>

namespace treering {

struct PeerInfo {
  uint32_t pid;
  uint32_t rank;
  uint64_t pid_namespace, network_namespace, user_namespace;  // 0: not known, for want of /proc
  uint64_t process_token;                                     // differs between processes even where pids do not
  uint64_t nonce;
  uint64_t head_address, body_address;  // of this rank's area in its own address space
  int32_t segment_descriptor;
  uint32_t got_segment;   // its process was given the shared segment's descriptor
  uint32_t in_segment;    // the area lies in the shared segment
  uint32_t lost_segment;  // its process had no descriptor left for it
  uint32_t uid;           // in its user namespace
  uint64_t segment_inode;
  uint64_t machine;  // the same for all ranks that one kernel runs, whatever counts as a host
};

inline bool same_process(const PeerInfo& a, const PeerInfo& b) { return a.process_token == b.process_token; }

}  // namespace treering
