// SPDX-License-Identifier: Apache-2.0
#include "transport/memory/transport.h"

#include <unistd.h>

#include <cerrno>
#include <map>

#include "transport/memory/mapped.h"
#include "transport/memory/reasons.h"

namespace treering {
namespace {

class MappedTransport : public Transport {
 public:
  explicit MappedTransport(TransportSetup setup) : setup_(std::move(setup)) {}

  // By the peer's nonce in the segment: a load.
  Status prove(uint32_t peer) final {
    const PeerInfo &own = setup_.peer_info(setup_.rank), &theirs = setup_.peer_info(peer);
    if (setup_.segment == nullptr || theirs.in_segment == 0)
      return {trSystemError, why_no_segment(own, theirs, setup_.segment_holder(), setup_.segment_loser())};
    const auto* nonce = static_cast<volatile uint64_t*>(area_of(peer).nonce());
    if (own.in_segment == 0 || *nonce != theirs.nonce)
      return {trSystemError, "the peer's nonce is not in the mapped segment"};
    return {};
  }
  const std::byte* mapped_head(uint32_t peer) const final { return area_of(peer).head(); }

 protected:
  AreaView area_of(uint32_t peer) const { return setup_.layout->view(setup_.segment, peer); }
  MappedEndpoint endpoint(uint32_t peer, uint32_t channel) const {
    const AreaView theirs = area_of(peer);
    return {theirs.fifo(setup_.rank, channel), setup_.own.fifo(peer, channel), theirs.staging(), theirs.open_buffers()};
  }

  const TransportSetup setup_;
};

class InProcess final : public MappedTransport {
 public:
  using MappedTransport::MappedTransport;
  PeerConnections connect(uint32_t peer, PairAbilities) override {
    PeerConnections made;
    for (uint32_t channel = 0; channel < setup_.layout->channels; ++channel)
      made.channels.push_back(connect_in_process(endpoint(peer, channel)));
    return made;
  }
};

class SharedMemory final : public MappedTransport {
 public:
  using MappedTransport::MappedTransport;

  Status prove_regions(uint32_t peer) override {
    const PeerInfo &own = setup_.peer_info(setup_.rank), &theirs = setup_.peer_info(peer);
    const int fd = own.pid_namespace == theirs.pid_namespace
                       ? open_peer_descriptor(pid_of(peer), theirs.segment_descriptor, theirs.segment_inode)
                       : -1;
    if (fd < 0) return {trSystemError, why_no_regions(own, theirs, errno)};
    close(fd);
    return {};
  }

  PeerConnections connect(uint32_t peer, PairAbilities abilities) override {
    if (abilities.maps_regions) regions_[peer] = std::make_unique<PeerRegions>(area_of(peer).exports(), pid_of(peer));
    PeerConnections made;
    for (uint32_t channel = 0; channel < setup_.layout->channels; ++channel) {
      MappedEndpoint endpoint = this->endpoint(peer, channel);
      if (abilities.maps_regions) endpoint.peer_regions = regions_[peer].get();
      if (abilities.fetches) endpoint.fetch_pid = pid_of(peer);
      made.channels.push_back(connect_shared_memory(endpoint));
    }
    return made;
  }

 private:
  int pid_of(uint32_t peer) const { return static_cast<int>(setup_.peer_info(peer).pid); }

  std::map<uint32_t, std::unique_ptr<PeerRegions>> regions_;
};

}  // namespace

std::unique_ptr<Transport> open_in_process(const TransportSetup& setup) { return std::make_unique<InProcess>(setup); }
std::unique_ptr<Transport> open_shared_memory(const TransportSetup& setup) {
  return std::make_unique<SharedMemory>(setup);
}

}  // namespace treering
