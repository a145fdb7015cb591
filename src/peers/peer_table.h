// SPDX-License-Identifier: Apache-2.0
// PeerTable: how a rank reaches each of its peers.
//
// Init settles by which transport each peer is reached, from what all ranks have proved (transport_matrix.h): the first
// of the table (transport/table.h) that works between both. The connections themselves are made when the first message
// is sent or expected, so a rank has as many as its schedules have peers: of n ranks some 2 log n. What a peer sends
// before is not lost: each transport keeps it.
//
// The status of a peer can be read without a connection to it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "failure/watch.h"
#include "peers/transport_matrix.h"
#include "peers/watched_buffers.h"
#include "transport/paced.h"

namespace treering {

class PeerTable final : public ConnectionMaker, public StatusReader, private RegionWatcher {
 public:
  // What is known of the status of a peer whose memory no transport reads; asks for news.
  using AskStatus = std::function<bool(uint32_t peer, RankStatusSnapshot* snapshot)>;

  // Everything that is given outlives the table.
  PeerTable(ExecutorContext* context, const std::vector<RankInfo>& infos, uint32_t channels, OpenTransports opened,
            AskStatus ask);
  ~PeerTable();
  PeerTable(const PeerTable&) = delete;
  PeerTable& operator=(const PeerTable&) = delete;

  // Settles how the peers are reached. An error: one cannot be. reasons: see probe_transports(). allowed: the option's text,
  // for that error.
  Status settle(const TransportMatrix& matrix, const std::map<uint32_t, Status>& reasons, const std::string& allowed);
  // Slows all sends of this rank down to one link of that speed.
  void pace(int link_mbps) { paced_ = std::make_shared<PacedLink>(link_mbps); }

  void connect(uint32_t peer) override;
  // A call's buffers lie in it: see Transport.
  void register_region(const Region& region);
  // Other buffers that calls use again are registered, too (watched_buffers.h).
  void watch_buffers(size_t most_bytes);
  // Those of the call at hand; nullptr: none is watched.
  WatchedBuffers* watched_buffers() { return watched_.get(); }

  const RankStatus* mapped_status(uint32_t peer) const override;
  bool read_status(uint32_t peer, RankStatusSnapshot* snapshot) const override;
  bool reads_status(uint32_t peer) const override { return used_[peer] == 0 || row_of(used_[peer]).reads_heads; }

  // The communicator has failed; what is under way is over once is_abandoned(). Or the rank leaves in order.
  void abandon();
  bool is_abandoned();
  void finish();
  // Before it leaves, also where neither was called.
  void end_introductions();

  // "3 x shared-memory": this rank's peers by transport.
  std::string summary() const;
  // By which one a peer is reached.
  const char* transport_name(uint32_t peer) const;
  // "shm+tcp": what all ranks of the communicator use, also where this one has no peer by it.
  std::string transports() const { return transports_text(transports_); }
  // Whether some peer is a thread of this process, which reads everything in place.
  bool any_in_process() const;
  // See TransportMatrix; the last is about this rank's host.
  bool all_mapped() const { return all_mapped_; }
  bool all_fetch() const { return all_fetch_; }
  bool host_mapped() const { return host_mapped_; }

 private:
  void end_region(uint32_t id) override;
  Transport& transport_of(uint32_t peer) const;
  void explain(uint32_t peer, const std::string& reason) const;
  Status unreachable(uint32_t peer, const Status& reason, bool is_late, const std::string& allowed) const;

  ExecutorContext* context_;
  const std::vector<RankInfo>& infos_;
  const uint32_t channels_;
  const AskStatus ask_;
  std::vector<TransportSet> used_;   // by rank: the transport; 0: the rank itself
  std::vector<TransportSet> works_;  // ... and what else works, with kRegionsBit
  std::shared_ptr<PacedLink> paced_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<std::shared_ptr<SendQueue>> queues_;
  std::vector<Transport*> registering_;  // those that peers are reached by and that register regions
  OpenTransports opened_;                // ends before the connections, which may still need what it was given
  std::unique_ptr<WatchedBuffers> watched_;
  TransportSet transports_ = 0;
  bool all_mapped_ = true, all_fetch_ = true, host_mapped_ = true;
};

}  // namespace treering
