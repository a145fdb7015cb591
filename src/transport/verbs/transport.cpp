// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/transport.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "core/clock.h"
#include "transport/module.h"
#include "transport/verbs/link.h"
#include "transport/verbs/locked_memory.h"
#include "transport/verbs/probe.h"

namespace treering::verbs {
namespace {

// A card gives up after its retries; a peer that has posted nothing yet answers an introduction at once.
constexpr auto kMostFinish = std::chrono::seconds(2);
constexpr uint32_t kMaxRails = 16;

// For the first peer that is not heard. Others have had that time, too, and get little more.
constexpr std::chrono::milliseconds kProofTimeout(10'000), kLaterProofTimeout(100);

PathOptions path_of(const Config& config) {
  return {static_cast<uint8_t>(config.verbs_service_level), static_cast<uint8_t>(config.verbs_traffic_class),
          static_cast<uint8_t>(config.verbs_timeout)};
}

class Verbs final : public Transport, public IntroductionTaker, private WaitSource {
 public:
  Verbs(TransportSetup setup, std::shared_ptr<Card> card, std::unique_ptr<Probe> probe, const LockedMemory& plan,
        std::unique_ptr<LockedReservation> reservation)
      : setup_(std::move(setup)),
        plan_(plan),
        reservation_(std::move(reservation)),
        card_(std::move(card)),
        probe_(std::move(probe)),
        peers_(setup_.ranks) {}
  ~Verbs() override {
    if (setup_.waits) setup_.waits->forget(card_->device->events()->fd);
    for (const auto& [peer, link] : links_) link->end_introductions();  // connections may live on
  }

  std::string info() override {
    Writer writer;
    writer(RankRails{{card_->device->rail()}, probe_->address()});
    return writer.take();
  }
  Status take_info(uint32_t peer, const std::string& info) override {
    if (info.empty()) return {};
    Reader reader(info);
    RankRails rails;
    reader(rails);
    if (!reader.complete() || rails.rails.size() > kMaxRails)
      return {trSystemError, fmt::format("rank {} gave {} bytes that name no rails; do all ranks run the same version?",
                                         peer, info.size())};
    if (rails.rails.empty()) return {};
    peers_[peer] = rails.rails.front();
    probe_->set_peer(peer, peers_[peer], rails.probe);
    return {};
  }

  Status prove(uint32_t peer) override {
    const Rail& own = card_->device->rail();
    const Rail& other = peers_[peer];
    if (other.device.empty()) return {trSystemError, "the other rank has no verbs device that it can use"};
    if (own.link_layer != other.link_layer)
      return {trSystemError,
              fmt::format("{} and {} of the other rank have different link layers", own.device, other.device)};
    const Status reached = probe_->reach(peer, Clock::now() + (is_deaf_ ? kLaterProofTimeout : proof_timeout()));
    is_deaf_ |= !reached.ok();
    return reached;
  }

  PeerConnections connect(uint32_t peer, PairAbilities) override {
    PeerConnections made;
    std::shared_ptr<VerbsLink> link;
    {
      std::lock_guard lock(mutex_);
      link = find_or_make(peer);
    }
    link->start();
    for (uint32_t channel = 0; channel < setup_.layout->channels; ++channel)
      made.channels.push_back(link->connection(channel));
    made.queue = link;
    return made;
  }

  void register_region(const Region& region) override {
    if (card_->regions->knows(region.id)) return;
    const Status added = card_->regions->add(region, room_for_regions());
    if (added.ok()) return;
    setup_.log(LogLevel::kWarn,
               fmt::format("rank {} copies what it sends from the registered buffer {}, {} KiB: {}", setup_.rank,
                           static_cast<const void*>(region.base), region.bytes >> 10, added.message()));
  }
  void end_region(uint32_t id) override { card_->regions->end(id); }

  IntroductionTaker* introduction_taker() override { return this; }
  void introduced(uint32_t peer, const std::string& bytes, int) override {
    EndPoint end;
    Reader reader(bytes);
    reader(end);
    if (!reader.complete())
      return setup_.log(LogLevel::kWarn,
                        fmt::format("rank {} sent an introduction that names no queue pair: ignored", peer));
    std::lock_guard lock(mutex_);
    if (!finished_) find_or_make(peer)->hear(end);
  }
  void connected(uint32_t, const std::string&, const Status&, int) override {}
  void departed(uint32_t peer) override {
    std::lock_guard lock(mutex_);
    departed_.insert(peer);
    if (const auto found = links_.find(peer); found != links_.end()) found->second->depart();
  }

  void abandon() override {
    std::lock_guard lock(mutex_);
    for (const auto& [peer, link] : links_) link->stop();
  }
  // All links send what they have before any of them is waited for.
  void finish() override {
    std::vector<std::shared_ptr<VerbsLink>> left;
    {
      std::lock_guard lock(mutex_);
      for (const auto& [peer, link] : links_) left.push_back(link);
    }
    const auto deadline = Clock::now() + limit();
    while (!left.empty() && Clock::now() < deadline) {
      std::erase_if(left, [](const auto& link) { return link->finish(); });
      sched_yield();
    }
    std::lock_guard lock(mutex_);
    finished_ = true;
  }

 private:
  // Memory that may be locked, less what this and other communicators will need.
  static size_t room_for_regions() {
    const size_t left = locked_limit().left();
    return left == SIZE_MAX ? left : left - std::min(left, LockedReservation::reserved());
  }

  Clock::duration limit() const {
    const std::chrono::milliseconds deadline(setup_.config->timeout_ms);
    return deadline.count() == 0 ? kMostFinish : std::min<Clock::duration>(kMostFinish, deadline);
  }
  Clock::duration proof_timeout() const {
    const std::chrono::milliseconds deadline(setup_.config->timeout_ms);
    return deadline.count() == 0 ? kProofTimeout : std::min<Clock::duration>(kProofTimeout, deadline / 2);
  }

  // With the lock.
  std::shared_ptr<VerbsLink> find_or_make(uint32_t peer) {
    auto& link = links_[peer];
    if (link) return link;
    probe_.reset();  // all proofs have been made
    if (links_.size() == 1 && setup_.waits) setup_.waits->add(card_->device->events()->fd, this);
    LinkOptions options;
    options.peer = peer;
    options.peer_name = fmt::format("rank {} (pid {})", peer, setup_.peer_info(peer).pid);
    options.channels = setup_.layout->channels;
    options.place_bytes = setup_.max_message_bytes;
    options.places = plan_.places;
    options.path = path_of(*setup_.config);
    link = VerbsLink::make(card_, std::move(options), [this, peer](const EndPoint& end) {
      Writer writer;
      writer(end);
      setup_.introducer->introduce(peer, {.bytes = writer.take()});
    });
    reservation_->use(plan_.peer_bytes);
    if (departed_.count(peer) != 0) link->depart();
    return link;
  }

  bool is_cheap_to_poll() const override { return true; }
  void arm() override {
    ibv_cq* armed = nullptr;
    void* context = nullptr;
    while (ibv_get_cq_event(card_->device->events(), &armed, &context) == 0) ibv_ack_cq_events(armed, 1);
    std::lock_guard lock(mutex_);
    for (const auto& [peer, link] : links_) link->arm();
  }

  const TransportSetup setup_;
  const LockedMemory plan_;
  const std::unique_ptr<LockedReservation> reservation_;
  const std::shared_ptr<Card> card_;
  std::unique_ptr<Probe> probe_;  // until the first link
  bool is_deaf_ = false;          // a peer was not heard in time
  std::vector<Rail> peers_;       // a device without a name: it has none
  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<VerbsLink>> links_;
  std::set<uint32_t> departed_;
  bool finished_ = false;
};

Status plan_memory(const TransportSetup& setup, LockedReservation* reservation, LockedMemory* plan) {
  raise_locked_limit();
  const LockedLimit limit = locked_limit();
  const auto planned = [&](size_t available) { return plan_locked_memory(setup, available); };
  *plan = reservation->make(limit.left(), planned);
  const std::string text =
      fmt::format("{} KiB of staging memory and {} KiB for each peer, {} KiB for {} peers", plan->staging_bytes >> 10,
                  plan->peer_bytes >> 10, plan->bytes() >> 10, plan->peers);
  if (plan->places == 0)
    return {trSystemError,
            fmt::format("it must lock {}; {}: raise that, or set TREERING_STAGING to less", text, limit.text())};
  const bool is_short = plan->places < kFifoDepth;
  if (setup.rank == 0 || is_short)
    setup.log(LogLevel::kInfo,
              fmt::format("verbs locks {}; {}{}", text, limit.text(),
                          is_short ? fmt::format(": {} places instead of {} for what a channel receives, which would "
                                                 "be {} KiB",
                                                 plan->places, kFifoDepth, planned(SIZE_MAX).bytes() >> 10)
                                   : ""));
  return {};
}

}  // namespace

Status open_transport(const TransportSetup& setup, std::unique_ptr<Transport>* made) {
  auto card = std::make_shared<Card>();
  TR_RETURN_IF_ERROR(Device::open(*setup.config, &card->device));
  LockedMemory plan;
  auto reservation = std::make_unique<LockedReservation>();
  TR_RETURN_IF_ERROR(plan_memory(setup, reservation.get(), &plan));
  card->log = setup.log;
  card->staging = std::make_unique<RegisteredStaging>(*card->device, setup.own.staging(), setup.layout->channels,
                                                      setup.layout->staging_bytes, setup.usual_staging_bytes);
  TR_RETURN_IF_ERROR(card->staging->open());
  reservation->use(plan.staging_bytes);
  card->regions = std::make_unique<RegisteredRegions>(*card->device);
  if (setup.rank == 0) {
    setup.log(LogLevel::kInfo, fmt::format("verbs uses {}", card->device->name()));
    for (const std::string& candidate : card->device->candidates())
      setup.log(LogLevel::kInfo, "verbs does not use " + candidate);
  }
  std::unique_ptr<Probe> probe;
  TR_RETURN_IF_ERROR(Probe::open(*card->device, setup.rank, path_of(*setup.config), &probe));
  *made = std::make_unique<Verbs>(setup, std::move(card), std::move(probe), plan, std::move(reservation));
  return {};
}

}  // namespace treering::verbs

extern "C" __attribute__((visibility("default"))) treering::Transport* treering_open_transport(
    const char* build, const treering::TransportSetup& setup, std::string* why_not) {
  if (build != treering::module_build()) {
    *why_not = fmt::format("libtreering is of build {}, libtreering-verbs of {}", build, treering::module_build());
    return nullptr;
  }
  std::unique_ptr<treering::Transport> made;
  if (const treering::Status opened = treering::verbs::open_transport(setup, &made); !opened.ok())
    *why_not = opened.message();
  return made.release();
}
