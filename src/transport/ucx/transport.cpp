// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/clock.h"
#include "transport/module.h"
#include "transport/ucx/hub.h"

namespace treering::ucx {
namespace {

// A rank that leaves waits no longer for peers that do not look.
constexpr auto kMaxFinish = std::chrono::seconds(2);
// For the first peer that is not heard. Others have had that time, too, and get little more: what the lower rank of two
// has to open the connection (link.cpp), and then some.
constexpr std::chrono::milliseconds kProofTimeout(30'000), kLaterProofTimeout(600);

class Ucx final : public Transport, public IntroductionTaker, private WaitSource {
 public:
  Ucx(const TransportSetup& setup, std::shared_ptr<Hub> hub)
      : waits_(setup.waits), timeout_(setup.config->timeout_ms), hub_(std::move(hub)) {}
  ~Ucx() override {
    if (is_waited_for_) waits_->forget(hub_->descriptor());
  }

  std::string info() override { return hub_->info(); }
  Status take_info(uint32_t peer, const std::string& info) override { return hub_->take_info(peer, info); }
  Status prove(uint32_t peer) override {
    const Status reached = hub_->reach(peer, Clock::now() + (is_deaf_ ? kLaterProofTimeout : proof_timeout()));
    is_deaf_ |= !reached.ok();
    return reached;
  }

  PeerConnections connect(uint32_t peer, PairAbilities) override {
    if (!is_waited_for_ && waits_ && hub_->descriptor() >= 0) {
      waits_->add(hub_->descriptor(), this);
      is_waited_for_ = true;
    }
    return hub_->connect(peer);
  }

  IntroductionTaker* introduction_taker() override { return this; }
  void introduced(uint32_t, const std::string&, int) override {}
  void connected(uint32_t, const std::string&, const Status&, int) override {}
  void departed(uint32_t peer) override { hub_->depart(peer); }

  void abandon() override { hub_->stop(); }
  bool is_abandoned() override { return hub_->has_stopped(); }
  void finish() override { hub_->finish(Clock::now() + most(kMaxFinish, timeout_)); }

 private:
  static Clock::duration most(Clock::duration limit, std::chrono::milliseconds deadline) {
    return deadline.count() == 0 ? limit : std::min<Clock::duration>(limit, deadline);
  }
  Clock::duration proof_timeout() const { return most(kProofTimeout, timeout_ / 2); }
  void arm() override { hub_->arm(); }

  const std::shared_ptr<WaitSet> waits_;
  const std::chrono::milliseconds timeout_;  // of the communicator; 0: none
  const std::shared_ptr<Hub> hub_;           // connections may outlive this
  bool is_deaf_ = false;                     // a peer was not heard in time
  bool is_waited_for_ = false;
};

}  // namespace

Status open_transport(const TransportSetup& setup, std::unique_ptr<Transport>* made) {
  HubOptions options;
  options.rank = setup.rank;
  options.ranks = setup.ranks;
  options.channels = setup.layout->channels;
  options.place_bytes = setup.max_message_bytes;
  options.staging = setup.own.staging();
  options.peer_name = [peer_info = setup.peer_info](uint32_t peer) {
    return fmt::format("rank {} (pid {})", peer, peer_info(peer).pid);
  };
  options.look = setup.look;
  options.log = setup.log;
  std::shared_ptr<Hub> hub;
  TR_RETURN_IF_ERROR(Hub::open(std::move(options), &hub));
  if (setup.rank == 0) setup.log(LogLevel::kInfo, fmt::format("ucx is UCX {}", ucp_get_version_string()));
  *made = std::make_unique<Ucx>(setup, std::move(hub));
  return {};
}

}  // namespace treering::ucx

extern "C" __attribute__((visibility("default"))) treering::Transport* treering_open_transport(
    const char* build, const treering::TransportSetup& setup, std::string* why_not) {
  if (build != treering::module_build()) {
    *why_not = fmt::format("libtreering is of build {}, libtreering-ucx of {}", build, treering::module_build());
    return nullptr;
  }
  std::unique_ptr<treering::Transport> made;
  if (const treering::Status opened = treering::ucx::open_transport(setup, &made); !opened.ok())
    *why_not = opened.message();
  return made.release();
}
