// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/transport.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <vector>

#include "core/clock.h"
#include "transport/module.h"
#include "transport/verbs/end_check.h"
#include "transport/verbs/links.h"
#include "transport/verbs/locked_memory.h"
#include "transport/verbs/devices/probe.h"

namespace treering::verbs {
namespace {

// A card gives up after its retries; a peer that has posted nothing yet answers an introduction at once.
constexpr auto kMinFinish = std::chrono::seconds(2);
// ... and a lost packet is sent again so often.
constexpr int kResendsAtFinish = 3;

// For the first peer that is not heard. Others have had that time, too, and get little more.
constexpr std::chrono::milliseconds kProofTimeout(10'000), kLaterProofTimeout(100);
// For the other rails, once a peer is heard by one.
constexpr std::chrono::milliseconds kOtherRailsTimeout(2'000);

PathOptions path_of(const Config& config) {
  return {static_cast<uint8_t>(config.verbs_service_level), static_cast<uint8_t>(config.verbs_traffic_class),
          config.verbs_timeout > 0 ? static_cast<uint8_t>(config.verbs_timeout)
                                   : PathOptions::timeout_for(std::chrono::milliseconds(config.timeout_ms))};
}

class Verbs final : public Transport, public IntroductionTaker, private WaitSource {
 public:
  Verbs(TransportSetup setup, std::shared_ptr<Card> card, std::vector<std::unique_ptr<Probe>> probes,
        const LockedMemory& plan, std::unique_ptr<LockedReservation> reservation)
      : setup_(std::move(setup)),
        plan_(plan),
        reservation_(std::move(reservation)),
        card_(std::move(card)),
        probes_(std::move(probes)),
        peers_(setup_.ranks),
        links_([this](uint32_t peer) { return make_link(peer); }) {}
  ~Verbs() override {
    links_.end();
    if (setup_.waits)
      for (const auto& device : card_->devices) setup_.waits->forget(device->events()->fd);
  }

  std::string info() override {
    RankRails rails;
    for (size_t rail = 0; rail < probes_.size(); ++rail)
      rails.rails.push_back({card_->devices[rail]->rail(), probes_[rail]->address()});
    Writer writer;
    writer(rails);
    return writer.take();
  }
  Status take_info(uint32_t peer, const std::string& info) override {
    if (info.empty()) return {};
    Reader reader(info);
    RankRails rails;
    reader(rails);
    const bool is_possible = std::all_of(rails.rails.begin(), rails.rails.end(),
                                         [](const ProbedRail& rail) { return verbs::is_possible(rail.rail); });
    if (!reader.complete() || rails.rails.size() > kMaxRails || !is_possible)
      return {trSystemError, fmt::format("rank {} gave {} bytes that name no rails; do all ranks run the same version?",
                                         peer, info.size())};
    Peer& known = peers_[peer];
    for (uint32_t rail = 0; rail < rails.rails.size(); ++rail) {
      known.rails.push_back(rails.rails[rail].rail);
      if (rail < probes_.size()) probes_[rail]->set_peer(peer, rails.rails[rail].rail, rails.rails[rail].probe);
    }
    return {};
  }

  Status prove(uint32_t peer) override {
    Peer& other = peers_[peer];
    const Rail& own = card_->devices.front()->rail();
    if (other.rails.empty()) return {trSystemError, "the other rank has no verbs device that it can use"};
    if (own.link_layer != other.rails.front().link_layer)
      return {trSystemError, fmt::format("{} and {} of the other rank have different link layers", own.device,
                                         other.rails.front().device)};
    Status why_not;
    other.proved = reach(peer, &why_not);
    if (other.proved == 0) return why_not;
    heard_ |= other.proved;
    if (!why_not.ok())
      setup_.log(LogLevel::kInfo,
                 fmt::format("rank {} uses fewer rails towards rank {}: {}", setup_.rank, peer, why_not.message()));
    return {};
  }

  PeerConnections connect(uint32_t peer, PairAbilities) override {
    PeerConnections made;
    const std::shared_ptr<VerbsLink> link = links_.find_or_make(peer);
    link->start();
    for (uint32_t channel = 0; channel < setup_.layout->channels; ++channel)
      made.channels.push_back(link->connection(channel));
    made.queue = link;
    return made;
  }

  Status register_region(const Region& region) override {
    return card_->regions->knows(region.id) ? Status() : card_->regions->add(region, room_for_regions());
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
    links_.introduced(peer, std::move(end));
  }
  void connected(uint32_t, const std::string&, const Status&, int) override {}
  void departed(uint32_t peer) override { links_.departed(peer); }

  void abandon() override { links_.stop(); }
  // All links send what they have before any of them is waited for.
  void finish() override {
    std::vector<std::shared_ptr<VerbsLink>> left = links_.all();
    const auto deadline = Clock::now() + limit();
    while (!left.empty() && Clock::now() < deadline) {
      std::erase_if(left, [](const auto& link) { return link->finish(); });
      (void)setup_.look();
      sched_yield();
    }
    links_.ignore_introductions();
  }
  void end_introductions() override { links_.end(); }

 private:
  // Memory that may be locked, less what this and other communicators will need.
  static size_t room_for_regions() {
    const size_t left = locked_limit().left();
    return left == SIZE_MAX ? left : left - std::min(left, LockedReservation::reserved());
  }

  Clock::duration limit() const {
    const std::chrono::milliseconds deadline(setup_.config->timeout_ms);
    const PathOptions path = path_of(*setup_.config);
    const std::chrono::duration<double> resends(path.survived_seconds() * (kResendsAtFinish + 1) / path.retries);
    const auto limit = std::max<Clock::duration>(kMinFinish, std::chrono::duration_cast<Clock::duration>(resends));
    return deadline.count() == 0 ? limit : std::min<Clock::duration>(limit, deadline);
  }
  Clock::duration proof_timeout() const {
    const std::chrono::milliseconds deadline(setup_.config->timeout_ms);
    return deadline.count() == 0 ? kProofTimeout : std::min<Clock::duration>(kProofTimeout, deadline / 2);
  }

  // Rails that both ranks have.
  RailSet common(uint32_t peer) const { return (1u << std::min(card_->devices.size(), peers_[peer].rails.size())) - 1; }
  // Tries all rails at once. Those by which the peer was heard; of the others why not.
  RailSet reach(uint32_t peer, Status* why_not) {
    const RailSet rails = common(peer);
    const Clock::time_point begin = Clock::now();
    std::array<Probe::Attempt, kMaxRails> attempts;
    for (uint32_t rail = 0; rail < kMaxRails; ++rail)
      attempts[rail].deadline = begin + ((deaf_ >> rail & 1) != 0 ? kLaterProofTimeout : proof_timeout());
    RailSet reached = 0;
    for (RailSet over = 0; over != rails;) {
      for (uint32_t rail = 0; rail < probes_.size(); ++rail) {
        if ((rails >> rail & 1) == 0) continue;
        probes_[rail]->advance(peer, &attempts[rail]);
        if (!attempts[rail].is_over || (over >> rail & 1) != 0) continue;
        over |= 1u << rail;
        if (attempts[rail].result.ok()) {
          reached |= 1u << rail;
          for (auto& attempt : attempts)
            attempt.deadline = std::min(attempt.deadline, Clock::now() + kOtherRailsTimeout);
        } else {
          deaf_ |= 1u << rail;
          *why_not = joined(*why_not, attempts[rail].result);
        }
      }
      if (Status failed = setup_.look(); !failed.ok()) {
        *why_not = joined(*why_not, failed);
        return 0;
      }
      sched_yield();
    }
    return reached;
  }
  // Where ranks are many, some pairs are not proved. They leave out rails by which this rank heard no peer.
  RailSet rails_towards(uint32_t peer) const {
    if (peers_[peer].proved != 0) return peers_[peer].proved;
    const RailSet rails = common(peer);
    return (rails & heard_) != 0 ? rails & heard_ : rails;
  }

  // Before the first link. The set calls arm() from then on.
  void begin_links() {
    probes_.clear();  // all proofs have been made
    if (!setup_.waits) return;
    for (auto device = card_->devices.rbegin(); device != card_->devices.rend(); ++device) {
      const bool is_last = std::next(device) == card_->devices.rend();
      setup_.waits->add((*device)->events()->fd, is_last ? static_cast<WaitSource*>(this) : &other_rails_);
    }
  }
  // Any thread.
  std::shared_ptr<VerbsLink> make_link(uint32_t peer) {
    std::call_once(begun_, [this] { begin_links(); });
    LinkOptions options;
    options.peer = peer;
    options.peer_name = fmt::format("rank {} (pid {})", peer, setup_.peer_info(peer).pid);
    options.channels = setup_.layout->channels;
    options.place_bytes = setup_.max_message_bytes;
    options.places = plan_.places;
    options.path = path_of(*setup_.config);
    options.rails = rails_towards(peer);
    auto link = VerbsLink::make(card_, std::move(options), [this, peer](const EndPoint& end) {
      Writer writer;
      writer(end);
      setup_.introducer->introduce(peer, {.bytes = writer.take()});
    });
    reservation_->use(plan_.peer_bytes);
    return link;
  }

  bool is_cheap_to_poll() const override { return true; }
  // All rails.
  void arm() override {
    ibv_cq* armed = nullptr;
    void* context = nullptr;
    for (const auto& device : card_->devices)
      while (ibv_get_cq_event(device->events(), &armed, &context) == 0) ibv_ack_cq_events(armed, 1);
    links_.arm();
  }

  const TransportSetup setup_;
  const LockedMemory plan_;
  const std::unique_ptr<LockedReservation> reservation_;
  const std::shared_ptr<Card> card_;
  struct OtherRails final : WaitSource {
    bool is_cheap_to_poll() const override { return true; }
    void arm() override {}  // with the first
  } other_rails_;
  struct Peer {
    std::vector<Rail> rails;  // none: it has no device
    RailSet proved = 0;
  };
  std::vector<std::unique_ptr<Probe>> probes_;  // by rail; until the first link
  RailSet deaf_ = 0, heard_ = 0;                // by which a peer was not heard in time; was heard
  std::vector<Peer> peers_;
  std::once_flag begun_;
  Links links_;  // it ends first: its thread uses the others
};

Status plan_memory(const TransportSetup& setup, uint32_t rails, LockedReservation* reservation, LockedMemory* plan) {
  raise_locked_limit();
  const LockedLimit limit = locked_limit();
  const auto planned = [&](size_t available) { return plan_locked_memory(setup, rails, available); };
  *plan = reservation->make(limit.left(), planned);
  const std::string text =
      fmt::format("{} KiB of staging memory and {} KiB for each peer, {} KiB for {} peers{}", plan->staging_bytes >> 10,
                  plan->peer_bytes >> 10, plan->bytes() >> 10, plan->peers,
                  plan->rails == 1 ? "" : fmt::format(", by {} rails together", plan->rails));
  if (plan->places == 0)
    return {trSystemError,
            fmt::format("it must lock {}; {}: raise that, or set TREERING_STAGING to less", text, limit.text())};
  std::string less;
  if (plan->places < kFifoDepth)
    less = fmt::format(": {} places instead of {} for what a channel receives", plan->places, kFifoDepth);
  if (plan->rails < rails) less += fmt::format(": by {} of {} rails", plan->rails, rails);
  if (!less.empty()) less += fmt::format(", all would be {} KiB", planned(SIZE_MAX).bytes() >> 10);
  if (setup.rank == 0 || !less.empty())
    setup.log(LogLevel::kInfo, fmt::format("verbs locks {}; {}{}", text, limit.text(), less));
  return {};
}

}  // namespace

Status open_transport(const TransportSetup& setup, std::unique_ptr<Transport>* made) {
  auto card = std::make_shared<Card>();
  std::vector<std::string> rejected;
  TR_RETURN_IF_ERROR(open_devices(*setup.config, setup.distance_of, &card->devices, &rejected));
  LockedMemory plan;
  auto reservation = std::make_unique<LockedReservation>();
  TR_RETURN_IF_ERROR(plan_memory(setup, static_cast<uint32_t>(card->devices.size()), reservation.get(), &plan));
  for (; card->devices.size() > plan.rails; card->devices.pop_back())
    rejected.push_back(fmt::format("{}: it would lock more memory than there may be", card->devices.back()->name()));
  card->log = setup.log;
  card->staging = std::make_unique<RegisteredStaging>(card->devices, setup.own.staging(), setup.layout->channels,
                                                      setup.layout->staging_bytes, setup.usual_staging_bytes);
  TR_RETURN_IF_ERROR(card->staging->open());
  reservation->use(plan.staging_bytes);
  card->regions = std::make_unique<RegisteredRegions>(card->devices);
  if (setup.rank == 0) {
    for (const auto& device : card->devices) setup.log(LogLevel::kInfo, "verbs uses " + device->name());
    const PathOptions path = path_of(*setup.config);
    setup.log(LogLevel::kInfo, fmt::format("verbs survives a link that is down for less than {:.2g} s "
                                           "(TREERING_VERBS_TIMEOUT is {}{})",
                                           path.survived_seconds(), path.timeout,
                                           setup.config->verbs_timeout > 0 ? "" : ", from TREERING_TIMEOUT"));
    for (const std::string& port : rejected) setup.log(LogLevel::kInfo, "verbs does not use " + port);
  }
  std::vector<std::unique_ptr<Probe>> probes(card->devices.size());
  for (size_t rail = 0; rail < probes.size(); ++rail)
    TR_RETURN_IF_ERROR(Probe::open(*card->devices[rail], setup.rank, path_of(*setup.config), &probes[rail]));
  *made = std::make_unique<Verbs>(setup, std::move(card), std::move(probes), plan, std::move(reservation));
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
