// SPDX-License-Identifier: Apache-2.0
// Findings: which transports work between the ranks of a communicator, as each rank has proved and reported it.
//
//   report of rank a   | towards other hosts | within its host | exceptions: rank, transports | complete? |
//
// Shared memory is proved towards every rank of the host, by its nonce in the segment: a load each. What takes system
// calls (cross-memory attach, opening descriptors) is proved for every pair while a host has few ranks. With more than
// kMaxProved it is proved for the ranks at the distances 1, 2, 4, ... both ways around the host, which are the pairs
// that trees and rings use: the number of proofs grows with log n, a report stays short, and a rank that cannot reach
// others, or that others cannot reach, is still found by each of those.
//
// A transport works for a pair when both ends have found so. Every rank has all reports, so all conclude the same.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "peers/area.h"
#include "peers/rank_card.h"

namespace treering {

// kInProcessBit: it would do, were both in one process.
enum TransportBit : uint8_t { kInProcessBit = 1, kSharedMemoryBit = 2, kCmaBit = 4, kRegionsBit = 8, kTcpBit = 16 };
// The transports, the one that is preferred first. Options take either name; tools print the short one.
struct TransportName {
  TransportBit bit;
  const char* name;
  const char* short_name;
};
inline constexpr TransportName kTransportNames[] = {{kInProcessBit, "in-process", "in-process"},
                                                    {kSharedMemoryBit, "shared-memory", "shm"},
                                                    {kCmaBit, "cma", "cma"},
                                                    {kTcpBit, "tcp", "tcp"}};
inline constexpr uint32_t kMaxProved = 64;  // ranks of a host

struct LinkException {
  uint32_t rank = 0;
  uint8_t bits = 0;
};
struct LinkReport {
  uint8_t remote = 0;                     // TransportBits towards the ranks of other hosts,
  uint8_t local = 0;                      // and of its own, but for
  std::vector<LinkException> exceptions;  // by rank
  bool complete = true;                   // every pair was proved
};
// clang-format off
template <typename V> void visit(V& v, LinkException& m) { v(m.rank); v(m.bits); }
template <typename V> void visit(V& v, LinkReport& m) { v(m.remote); v(m.local); v(m.exceptions); v(m.complete); }
// clang-format on

// Which of the transports that work for two ranks carries what they exchange; 0: none does.
uint8_t transport_of(uint8_t bits);
// "shm+tcp": the transports among `bits`, those of one machine first; "none" without any.
std::string transports_text(uint8_t bits);

// Proves what works towards the peers. reasons[peer]: why shared memory or CMA does not.
LinkReport prove_links(const std::vector<RankCard>& cards, uint32_t rank, const AreaLayout& layout,
                       const Segment* segment, uint8_t allowed, std::map<uint32_t, std::string>* reasons);

class Findings {
 public:
  Findings(const std::vector<RankCard>& cards, std::vector<LinkReport> reports);

  // What works between two ranks.
  uint8_t between(uint32_t a, uint32_t b) const { return found(a, b) & found(b, a); }
  // Whether every pair of ranks shares memory; ... of the ranks of a rank's host.
  bool all_mapped() const { return hosts_.size() == 1 && hosts_.begin()->second.mapped; }
  bool host_mapped(uint32_t rank) const { return hosts_.at(cards_[rank].location.host).mapped; }
  // Whether every pair can leave payloads in the sender's plain memory, for threads or the kernel to copy.
  bool all_fetch() const { return hosts_.size() == 1 && hosts_.begin()->second.fetches; }

  // The transports that pairs of ranks use: TransportBits, the same on all ranks.
  uint8_t transports() const { return transports_; }

 private:
  struct Host {
    std::vector<uint32_t> ranks;
    bool mapped = true, fetches = true;
  };
  uint8_t found(uint32_t a, uint32_t b) const;
  void summarise(Host* host);

  const std::vector<RankCard>& cards_;
  std::vector<LinkReport> reports_;
  std::vector<uint8_t> denied_;  // by rank: what some rank has found not to work towards it
  std::map<uint64_t, Host> hosts_;
  uint8_t transports_ = 0;
};

}  // namespace treering
