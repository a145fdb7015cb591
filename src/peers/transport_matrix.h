// SPDX-License-Identifier: Apache-2.0
// TransportMatrix: which transports work between the ranks of a communicator, as each rank has proved and reported it.
//
//   report of rank a   | towards other hosts | within its host | exceptions: rank, transports | complete? |
//
// A proof that is cheap (a nonce in the segment: a load) is made towards every rank of the host. One that takes system
// calls (cross-memory attach, opening descriptors, or whatever it is between hosts) is made for every pair while there
// are few ranks. With more than kMaxProved it is made for the ranks at the distances 1, 2, 4, ... both ways around,
// which are the pairs that trees and rings use: the number of proofs grows with log n, a report stays short, and a rank
// that cannot reach others, or that others cannot reach, is still found by each of those.
//
// A transport works for a pair when both ends have found so. Every rank has all reports, so all conclude the same.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "peers/rank_info.h"
#include "transport/table.h"

namespace treering {

// What works, as bits: transports, and that registered buffers can be mapped. A transport within a process counts where
// it would work, were both ranks in one process.
inline constexpr TransportSet kRegionsBit = TransportSet{1} << kMaxTransports;
inline constexpr uint32_t kMaxProved = 64;  // ranks of a host

struct TransportException {
  uint32_t rank = 0;
  TransportSet bits = 0;
};
struct TransportReport {
  TransportSet remote = 0;                     // what works towards the ranks of other hosts,
  TransportSet local = 0;                      // and of its own, but for
  std::vector<TransportException> exceptions;  // by rank
  bool complete = true;                        // every pair of the host was proved
  std::vector<uint32_t> late;                  // peers, by rank: a network did not do in time what a proof needs
};
// clang-format off
template <typename V> void visit(V& v, TransportException& m) { v(m.rank); v(m.bits); }
template <typename V> void visit(V& v, TransportReport& m) { v(m.remote); v(m.local); v(m.exceptions); v(m.complete); v(m.late); }
// clang-format on

// The opened transports of a rank, by row of the table; nullptr: not allowed.
using OpenTransports = std::vector<std::unique_ptr<Transport>>;

// Proves what works towards the peers. reasons[peer]: why transports do not that are preferred to what does.
TransportReport probe_transports(const std::vector<RankInfo>& infos, uint32_t rank, const OpenTransports& opened,
                                 std::map<uint32_t, Status>* reasons);

// Why a pair has no transport, as a code and in words, by this rank's own reason (ok: it has none) and whether what the
// peer tried may work later. A timeout wins.
std::pair<trResult_t, std::string> join_reasons(const Status& own, bool peer_is_late);

class TransportMatrix {
 public:
  TransportMatrix(const std::vector<RankInfo>& infos, std::vector<TransportReport> reports);

  // What works between two ranks.
  TransportSet between(uint32_t a, uint32_t b) const { return found(a, b) & found(b, a); }
  // Whether what a rank tried towards a peer may work later.
  bool is_late(uint32_t rank, uint32_t peer) const;
  // Whether every pair of ranks shares memory; ... of the ranks of a rank's host.
  bool all_mapped() const { return hosts_.size() == 1 && hosts_.begin()->second.mapped; }
  bool host_mapped(uint32_t rank) const { return hosts_.at(infos_[rank].location.host).mapped; }
  // Whether every pair can leave payloads in the sender's plain memory, for threads or the kernel to copy.
  bool all_fetch() const { return hosts_.size() == 1 && hosts_.begin()->second.fetches; }

  // The transports that pairs of ranks use; the same on all ranks.
  TransportSet transports() const { return transports_; }

 private:
  struct Host {
    std::vector<uint32_t> ranks;
    bool mapped = true, fetches = true;
  };
  TransportSet found(uint32_t a, uint32_t b) const;
  void summarise(Host* host);
  void summarise_hosts();

  const std::vector<RankInfo>& infos_;
  std::vector<TransportReport> reports_;
  std::vector<TransportSet> denied_;  // by rank: what some rank has found not to work towards it
  std::map<uint64_t, Host> hosts_;
  TransportSet transports_ = 0;
};

}  // namespace treering
