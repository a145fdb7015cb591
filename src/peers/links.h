// SPDX-License-Identifier: Apache-2.0
// Links: how a rank reaches each of its peers.
//
// Init settles by which transport each peer is reached, from what all ranks have proved (findings.h): in-process, shared
// memory, cross-memory attach, in that order. Ranks of different hosts use TCP, and so do ranks of one host that share
// no memory. The connections themselves are made when the first message is sent or expected, so a rank has as many as
// its schedules have peers: of n ranks some 2 log n. What a peer sends before is not lost: it lies in the FIFO in this
// rank's area, or waits with TcpStreams.
//
// The status of a peer can be read without a connection to it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "failure/watch.h"
#include "peers/findings.h"
#include "transport/paced.h"
#include "transport/tcp/link.h"
#include "transport/connection.h"

namespace treering {

// Which transports the option allows; an unknown word is an error that lists the known ones.
Status parse_transports(const std::string& text, uint8_t* allowed);

// What TCP needs of the communicator.
class TcpLinkMaker {
 public:
  // `name` is how error texts call the peer.
  virtual std::shared_ptr<TcpLink> make_tcp_link(uint32_t peer, const std::string& name) = 0;
  // What is known of a peer's status, and asks for news.
  virtual bool read_tcp_status(uint32_t peer, RankStatusSnapshot* snapshot) = 0;

 protected:
  ~TcpLinkMaker() = default;
};

class Links final : public ConnectionMaker, public StatusReader {
 public:
  // Everything that is given outlives the links.
  Links(ExecutorContext* context, const std::vector<RankCard>& cards, const AreaLayout& layout, const Segment* segment,
        AreaView own, TcpLinkMaker* tcp);

  // Settles how the peers are reached. An error: one cannot be. reasons: see prove_links().
  Status settle(const Findings& findings, const std::map<uint32_t, std::string>& reasons);
  // Slows all sends of this rank down to one link of that speed.
  void pace(int link_mbps) { paced_ = std::make_shared<PacedLink>(link_mbps); }

  void connect(uint32_t peer) override;

  const RankStatus* mapped_status(uint32_t peer) const override;
  bool read_status(uint32_t peer, RankStatusSnapshot* snapshot) const override;
  bool reads_status(uint32_t peer) const override { return kind_[peer] != Kind::kTcp; }

  // "3 x shared-memory": this rank's peers by transport.
  std::string summary() const;
  // "shm+tcp": what all ranks of the communicator use, also where this one has no peer by it.
  std::string transports() const { return transports_text(transports_); }
  // Whether some peer is a thread of this process, which reads everything in place.
  bool any_in_process() const;
  // See Findings; the last is about this rank's host.
  bool all_mapped() const { return all_mapped_; }
  bool all_fetch() const { return all_fetch_; }
  bool host_mapped() const { return host_mapped_; }

 private:
  enum class Kind : uint8_t { kSelf, kInProcess, kSharedMemory, kCma, kTcp };
  static const char* name_of(Kind kind);
  void explain_once(uint32_t peer, const std::string& reason) const;
  void add(uint32_t channel, uint32_t peer, std::unique_ptr<Connection> connection);
  std::unique_ptr<Connection> connect_mapped(uint32_t channel, uint32_t peer);

  ExecutorContext* context_;
  const std::vector<RankCard>& cards_;
  const AreaLayout& layout_;
  const Segment* segment_;
  AreaView own_;
  TcpLinkMaker* tcp_;
  std::vector<Kind> kind_;     // by rank
  std::vector<uint8_t> bits_;  // ... what else works, TransportBits
  std::shared_ptr<PacedLink> paced_;
  std::map<uint32_t, std::unique_ptr<PeerRegions>> regions_;
  std::vector<std::unique_ptr<Connection>> connections_;
  uint8_t transports_ = 0;
  bool all_mapped_ = true, all_fetch_ = true, host_mapped_ = true;
};

}  // namespace treering
