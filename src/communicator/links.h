// Links: how each pair of ranks of a communicator reaches one another, proved at init.
//
// Each rank shows its area and a nonce; each pair then tries, in order, in-process, shared memory (the nonce is read
// through the mapping), cross-memory attach (the nonce is read through the kernel). Both sides must have succeeded:
// they exchange what they found and take the first transport that works both ways. Ranks of different hosts use TCP, and
// so do ranks of one host that share no memory.
#pragma once

#include <sched.h>

#include <memory>
#include <string>
#include <vector>

#include "communicator/area.h"
#include "core/config.h"
#include "topology/location.h"
#include "transport/tcp.h"
#include "transport/transport.h"

namespace treering {

// What every rank tells all others before the proofs.
struct RankCard {
  uint32_t pid;
  uint32_t rank;
  uint64_t pid_namespace;
  uint64_t process_token;  // differs between processes even where pids do not
  uint64_t nonce;
  uint64_t area_address;  // of this rank's area in its own address space
  int32_t segment_descriptor;
  uint32_t in_segment;  // the area lies in the shared segment
  uint64_t segment_inode;
  uint64_t machine;     // the same for all ranks that one kernel runs, whatever counts as a host
  cpu_set_t cores;      // that the calling thread may run on
  uint32_t quota_cpus;  // of the rank's cgroup; 0 = no limit
  int32_t device;       // the rank's GPU, or -1
  Location location;
};

enum TransportBit : uint8_t { kInProcessBit = 1, kSharedMemoryBit = 2, kCmaBit = 4, kRegionsBit = 8, kTcpBit = 16 };

// Which transports the option allows; an unknown word is an error that lists the known ones.
Status parse_transports(const std::string& text, uint8_t* allowed);

class TcpLinkMaker {
 public:
  // `name` is how error texts call the peer.
  virtual std::shared_ptr<TcpLink> make_tcp_link(uint32_t peer, const std::string& name) = 0;

 protected:
  ~TcpLinkMaker() = default;
};

class Links {
 public:
  // Proves what works towards every peer: one byte of TransportBits a rank.
  static std::string probe(const std::vector<RankCard>& cards, uint32_t rank, const AreaLayout& layout,
                           const Segment* segment, uint8_t allowed, std::vector<std::string>* reasons);
  // Builds the connections from what all ranks found.
  Status connect(const std::vector<RankCard>& cards, const std::vector<std::string>& found, uint32_t rank,
                 const AreaLayout& layout, const Segment* segment, std::byte* own_area,
                 const std::vector<std::string>& reasons, TcpLinkMaker* tcp);

  // Slows all sends of this rank down to one link of that speed.
  void pace(int link_mbps);
  // [channel * ranks + peer]
  std::vector<Connection*> connections() const;
  // "3 x shared-memory": this rank's peers by transport.
  std::string summary() const;
  // True when every pair of ranks shares memory: the mailbox and the common verdict can be used.
  bool all_mapped() const { return all_mapped_; }
  // The same of the ranks of this rank's host.
  bool host_mapped() const { return host_mapped_; }
  // Whether every pair can leave payloads in the sender's plain memory, for threads or the kernel to copy.
  bool all_fetch() const { return all_fetch_; }

 private:
  std::vector<std::unique_ptr<PeerRegions>> regions_;
  std::vector<std::unique_ptr<Connection>> connections_;
  bool all_mapped_ = true;
  bool host_mapped_ = true;
  bool all_fetch_ = true;
};

}  // namespace treering
