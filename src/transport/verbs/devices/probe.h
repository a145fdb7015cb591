// SPDX-License-Identifier: Apache-2.0
// Probe: whether the ports of two ranks reach each other, tried with datagrams before any queue pair is connected. Wrong
// GIDs, VLANs and firewalls show here, while another transport can still be taken.
//
//   reach(b) on rank a   "a, has not heard b" ------>  rank b hears a
//                        <------ "b, has heard a"      in its own reach(a), or while it tries another peer
//
// Both ranks of a pair try each other at about the same time. Each finds out by itself whether it hears the other; a
// transport works for the pair when both do. A rank has a probe for each rail, and tries them all at once. Datagrams may be lost: they are repeated, and once more after the end, as
// the peer may need them still.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/clock.h"
#include "transport/verbs/devices/device.h"

namespace treering::verbs {

class Probe {
 public:
  static Status open(const Device& device, uint32_t rank, const PathOptions& path, std::unique_ptr<Probe>* opened);
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  // Where this rank's probe is.
  ProbeAddress address() const;
  // Where those of the peers are; before reach().
  void set_peer(uint32_t peer, const Rail& rail, const ProbeAddress& address);
  // Tries a peer until it has been heard, or the deadline. `attempt` is of this peer alone.
  struct Attempt {
    Clock::time_point deadline;
    Clock::time_point next{};
    int afterwards = 0;  // datagrams that were sent after it was heard
    bool is_over = false;
    Status result;  // then; ok: it was heard
  };
  void advance(uint32_t peer, Attempt* attempt);
  // The same until it is over.
  Status reach(uint32_t peer, Clock::time_point deadline);

 private:
  struct Peer {
    Rail rail;
    ProbeAddress address;
    ibv_ah* handle = nullptr;
    bool heard = false;
  };
  Probe(const Device& device, uint32_t rank, const PathOptions& path) : device_(device), rank_(rank), path_(path) {}
  Status make_queue_pair();
  Status post_receive(uint32_t slot);
  Status send(uint32_t peer);
  Status poll();
  Status step(uint32_t peer, Attempt* attempt);
  Status not_heard(uint32_t peer);
  Status take(uint32_t slot);

  const Device& device_;
  const uint32_t rank_;
  const PathOptions path_;
  uint32_t key_ = 0;
  ibv_cq* completions_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::vector<std::byte> memory_;  // slots of receives, then one of sends
  RegisteredMemory registered_;
  std::map<uint32_t, Peer> peers_;
  uint32_t under_way_ = 0;  // sends
  Status failure_;          // of the queue pair: nothing is sent any more
};

}  // namespace treering::verbs
