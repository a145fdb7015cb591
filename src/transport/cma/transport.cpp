// SPDX-License-Identifier: Apache-2.0
#include "transport/cma/transport.h"

#include "transport/cma/cma.h"
#include "transport/memory/reasons.h"

namespace treering {
namespace {

class Cma final : public Transport {
 public:
  explicit Cma(TransportSetup setup) : setup_(std::move(setup)) {}

  // Reads the peer's nonce, and writes a word beside it that is 0 anyway: the write itself is the proof.
  Status prove(uint32_t peer) override {
    constexpr uint64_t kNothing = 0, kSpareWord = 2;
    const PeerInfo &own = setup_.peer_info(setup_.rank), &theirs = setup_.peer_info(peer);
    if (const std::string no_pid = why_no_pid(own, theirs); !no_pid.empty()) return {trSystemError, no_pid};
    const uint64_t address = theirs.head_address + setup_.layout->nonce_offset;
    uint64_t nonce = 0;
    Status status = cma_read(pid_of(peer), address, &nonce, sizeof nonce);
    if (status.ok()) status = cma_write(pid_of(peer), address + kSpareWord * sizeof nonce, &kNothing, sizeof kNothing);
    if (status.ok() && nonce != theirs.nonce) return {trSystemError, "the nonce differs"};
    if (const std::string who = who_they_are(own, theirs); !status.ok() && !who.empty())
      return {status.code(), status.message() + ", " + who};
    return status;
  }

  PeerConnections connect(uint32_t peer, PairAbilities) override {
    const uint64_t body = setup_.peer_info(peer).body_address;
    PeerConnections made;
    for (uint32_t channel = 0; channel < setup_.layout->channels; ++channel)
      made.channels.push_back(connect_cma({pid_of(peer), body + setup_.layout->fifo_offset_of(setup_.rank, channel),
                                           body + setup_.layout->staging_offset},
                                          setup_.own.fifo(peer, channel)));
    return made;
  }

  bool copy_head(uint32_t peer, void* copy, size_t bytes) const override {
    return cma_read(pid_of(peer), setup_.peer_info(peer).head_address, copy, bytes).ok();
  }

 private:
  int pid_of(uint32_t peer) const { return static_cast<int>(setup_.peer_info(peer).pid); }

  const TransportSetup setup_;
};

}  // namespace

std::unique_ptr<Transport> open_cma(const TransportSetup& setup) { return std::make_unique<Cma>(setup); }

}  // namespace treering
