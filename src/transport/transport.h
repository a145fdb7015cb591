// SPDX-License-Identifier: Apache-2.0
// Transport: one way for the ranks of a communicator to reach one another. A folder below src/transport and a row in
// table.cpp.
//
//   open()          before the ranks have exchanged anything; info() is what the others need to know of this rank
//   take_info()     what the others gave
//   prove()         whether it works towards a peer, in fact: once for each peer, or for a sample of many
//   connect()       when the first message to a peer is sent or expected; the peer may be earlier or later
//
// The peer table (peers/peer_table.h) chooses among the transports that both ranks of a pair have proved. Each
// transport passes the conformance suite (tests/transport/conformance_test.cpp).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/log.h"
#include "core/status.h"
#include "transport/connection.h"
#include "transport/introduction.h"
#include "transport/area.h"
#include "transport/peer_info.h"
#include "transport/wait_set.h"

namespace treering {

// What a transport of one rank is opened with. What it refers to outlives the transport.
struct TransportSetup {
  uint32_t rank = 0, ranks = 1;
  const Config* config = nullptr;
  const AreaLayout* layout = nullptr;
  size_t max_message_bytes = 0;  // the longest payload; the same on all ranks
  // The part of each channel's staging memory that is used at first. The rest is used in such parts, most often never.
  size_t usual_staging_bytes = 0;
  AreaView own;                  // this rank's area
  std::byte* segment = nullptr;  // the memory that the ranks of the host share; nullptr: this rank has none
  uint32_t usual_peers = 0;      // that a rank has connections to, at most, but for rare calls
  // How far a PCI device ("0000:3b:00.0") is from the rank's cores: the lower the nearer; negative: that is not known.
  std::function<int(const std::string& pci_bus_id)> distance_of;
  // From take_info() on.
  std::function<const PeerInfo&(uint32_t rank)> peer_info;
  // A rank of this one's host that was given the segment's descriptor, or nullptr.
  std::function<const PeerInfo*()> segment_holder;
  // One of them whose process lost that descriptor; nullptr: there is none.
  std::function<const PeerInfo*()> segment_loser;
  Introducer* introducer = nullptr;  // to the same transport of other ranks
  // What a rank that waits may sleep on: a transport whose polls cost system calls adds its descriptors. One that polls
  // memory adds nothing, and is polled.
  std::shared_ptr<WaitSet> waits;
  // Each wait of a transport calls it again and again: it serves what others wait for. An error: the creation has failed,
  // and a proof ends with it.
  std::function<Status()> look = [] { return Status(); };
  // A module has no log of its own.
  void (*log)(LogLevel level, const std::string& text) = log_line;
};

// What works between two ranks besides the transport that they use, as both have proved.
struct PairAbilities {
  bool maps_regions = false;  // either can map the other's registered buffers
  bool fetches = false;       // either can read the other's memory through the kernel
};

class Transport {
 public:
  virtual ~Transport() = default;

  // What a peer needs to know to reach this rank; any length.
  virtual std::string info() { return {}; }
  virtual Status take_info(uint32_t peer, const std::string& info) { return {}; }

  // Ok, or why this rank does not reach the peer.
  virtual Status prove(uint32_t peer) = 0;
  // The same of the peer's registered buffers, where prove() was ok.
  virtual Status prove_regions(uint32_t peer) { return Status(trSystemError, "not by this transport"); }

  // The connections to the peer, one for each channel.
  virtual PeerConnections connect(uint32_t peer, PairAbilities abilities) = 0;

  // Where the head of the peer's area can be read in place; else nullptr.
  virtual const std::byte* mapped_head(uint32_t peer) const { return nullptr; }
  // Copies it where it is not mapped; false where that cannot be: the peer is gone, or !TransportRow::reads_heads.
  virtual bool copy_head(uint32_t peer, void* copy, size_t bytes) const { return false; }

  // Messages of this rank may refer to the region from now on (Connection::reference). Called before each use, so it is
  // cheap for a region that is known. Where it cannot be registered it says why, once, and its payloads go through slots.
  virtual Status register_region(const Region& region) {
    (void)region;
    return {};
  }
  // The region is about to end, or its pages are gone already (RegionWatcher). Any thread.
  virtual void end_region(uint32_t id) { (void)id; }

  // Takes introductions where it uses them.
  virtual IntroductionTaker* introduction_taker() { return nullptr; }
  // The communicator has failed: what is under way is of no use any more, and the end waits for nothing. More than once.
  virtual void abandon() {}
  // After that, again and again: whether what was under way uses the user's memory no more. It does not wait, and says so
  // within a second.
  virtual bool is_abandoned() { return true; }
  // Before the rank leaves: nothing will be posted or read any more. A transport whose messages do not outlive it waits
  // until they have arrived, for a bounded time.
  virtual void finish() {}
  // Nor does another thread of the transport make introductions once this returns: before the rank leaves, always.
  virtual void end_introductions() {}
};

// Which ranks it may reach.
enum class Scope : uint8_t { kProcess, kHost, kAnywhere };

// What a rank locks in memory (pins).
struct LockedMemory {
  uint32_t rails = 1;        // devices that the rank uses: each locks all of the memory, and each counts
  size_t staging_bytes = 0;  // by all rails together
  size_t peer_bytes = 0;     // ... for each peer
  uint32_t peers = 0;        // that a rank usually has, at most
  uint32_t places = 0;       // for messages of a channel of a peer; 0: not even the fewest can be had

  size_t bytes() const { return staging_bytes + peers * peer_bytes; }
};

struct TransportRow {
  const char* name;
  const char* short_name;  // options take either; tools print this one
  uint32_t wire_version;   // the ranks must have the same
  Scope scope;
  bool cheap_proof;                       // prove() is made for every peer of the host, else for some of many
  bool maps;                              // mapped_head(), mailboxes and final values work
  bool fetches;                           // it reads the plain memory of peers
  bool reads_heads;                       // mapped_head() or copy_head(); without them a rank's status is asked for
  bool only_named;                        // taken only where the option names it
  bool registers;                         // messages refer to regions that register_region() was given
  Status (*check)(const Config& config);  // of its options; nullptr: it has none
  std::unique_ptr<Transport> (*open)(const TransportSetup& setup);
  // With so many rails, where as much can be locked as is wanted, without a device; nullptr: nothing.
  LockedMemory (*locks)(const TransportSetup& setup, uint32_t rails) = nullptr;
  uint32_t most_rails = 1;
};

}  // namespace treering
