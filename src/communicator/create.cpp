// SPDX-License-Identifier: Apache-2.0
// How a communicator comes to be: ranks meet, share what memory they can, prove their links, measure, plan.
#include <fmt/format.h>
#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>

#include "bootstrap/agent.h"
#include "communicator/communicator.h"
#include "communicator/phase_times.h"
#include "core/bytes.h"
#include "core/job_shared.h"
#include "core/log.h"
#include "failure/status_message.h"
#include "peers/measure.h"
#include "peers/placement.h"

namespace treering {
namespace {

constexpr uint32_t kMaxEagerRanks = 64;
constexpr auto kStatusAge = std::chrono::milliseconds(50);
constexpr auto kLookPeriod = std::chrono::milliseconds(1);  // of a transport that waits
constexpr double kFetchUs = 0.7;                            // of a system call that copies between processes

template <typename T>
std::string as_blob(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

AreaLayout layout_of(uint32_t ranks, const Config& config, uint32_t wanted_channels, size_t staging) {
  const uint32_t channels = config.channels > 0 ? static_cast<uint32_t>(config.channels) : wanted_channels;
  return area_layout(ranks, channels, staging_of_channel(ranks, channels, staging));
}

// "rank 3 (pid 17 on b)"; without the host once all that is left to do is within it.
std::string own_name(const Membership* membership, uint32_t rank) {
  if (membership == nullptr) return fmt::format("rank {} (pid {})", rank, getpid());
  return fmt::format("rank {} (pid {} on {})", rank, getpid(), membership->peers()[rank].host_name);
}

// What the others are told, if there is memory for the words.
Status no_memory_for_creation(const Membership* membership, uint32_t rank) try {
  return {trSystemError,
          fmt::format("{} ran out of memory while the communicator was being created", own_name(membership, rank))};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// The second round of the exchange. All ranks take rank 0's measurements and plan.
struct LinkMessage {
  TransportReport report;
  std::string machine, plan;  // of rank 0, else empty
};
template <typename V>
void visit(V& v, LinkMessage& m) {
  v(m.report);
  v(m.machine);
  v(m.plan);
}

// Rank 0's message has the machine and the plan, every one has a report.
Status read_reports(const std::vector<std::string>& blobs, uint32_t ranks, Machine* machine, Plan* plan,
                    std::vector<TransportReport>* reports) {
  for (const std::string& blob : blobs) {
    LinkMessage message;
    Reader reader(blob);
    reader(message);
    if (!reader.complete() || (reports->empty() && message.machine.size() != sizeof *machine))
      return {trInternalError, "a malformed report of a rank's links"};
    if (reports->empty()) {
      std::memcpy(machine, message.machine.data(), sizeof *machine);
      TR_RETURN_IF_ERROR(unpack_plan(message.plan, ranks, plan));
    }
    reports->push_back(std::move(message.report));
  }
  return {};
}

// Ranks 0 and 1 measure together; rank 0 has the result. blobs: see unpack_infos().
Machine measure_machine(const GroupMemory& memory, const std::vector<RankInfo>& infos, uint32_t rank,
                        const std::vector<std::string>& blobs) {
  Machine machine;
  if (rank == 0) machine = measure_core();
  const bool pair_shares = memory.is_shared() && infos.size() > 1 && infos[0].in_segment && infos[1].in_segment &&
                           infos[0].location.host == infos[1].location.host;
  if (rank < 2 && pair_shares) measure_pair(rank == 0, memory.of(0), memory.of(1), &machine);
  if (rank != 0) return machine;
  std::tie(machine.hosts, machine.host_ranks) = count_hosts(infos);
  machine.cores = count_cores(blobs, machine.host_ranks);
  return machine;
}

// All ranks of the host together may watch a quarter of its memory.
size_t most_watched_bytes(const std::vector<RankInfo>& infos, uint32_t rank) {
  const auto is_here = [&](const RankInfo& other) { return other.location.host == infos[rank].location.host; };
  const auto ranks = static_cast<size_t>(std::count_if(infos.begin(), infos.end(), is_here));
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE)) / 4 / ranks;
}

// Asks again each time; what is known is at most as old as the peer took to answer.
bool ask_status(Membership* job, uint32_t peer, RankStatusSnapshot* snapshot) {
  std::string bytes;
  Clock::time_point when;
  const bool known = job->latest_status(peer, &bytes, &when);
  if (!known || Clock::now() - when > kStatusAge) job->request_status(peer);
  return known && unpack_status(bytes, snapshot);
}

}  // namespace

Status Communicator::create(uint32_t ranks, const trUniqueId& packed, uint32_t rank, const Config& config,
                            std::unique_ptr<Communicator>* result, const CreationTerms& terms) {
  const LogRank lines_have_it(rank);
  UniqueId id;
  TR_RETURN_IF_ERROR(unpack(packed, &id));
  TransportSet allowed = 0;
  TR_RETURN_IF_ERROR(parse_transports(config.transports, &allowed));
  if (Status known = check_forced_algorithms(config.algorithm); !known.ok())
    return {known.code(),
            fmt::format("TREERING_ALGO or config->algorithm is '{}': {}", config.algorithm, known.message())};
  for (const TransportRow& row : treering::transports())
    if (row.check != nullptr) TR_RETURN_IF_ERROR(row.check(config));
  std::unique_ptr<Communicator> made(new Communicator);
  made->config_ = config;
  made->context_.rank = rank;
  made->context_.ranks = ranks;
  constexpr unsigned char kPurpose[] = "treering split";
  crypto_generichash(made->split_key_.data(), made->split_key_.size(), kPurpose, sizeof kPurpose, id.secret.data(),
                     id.secret.size());
  const size_t staging = config.staging_bytes > 0 ? static_cast<size_t>(config.staging_bytes)
                                                  : default_staging(ranks, last_level_cache_bytes());
  const size_t most_bytes = std::max(layout_of(ranks, config, kChannelsOfHosts, staging).total_bytes,
                                     layout_of(ranks, config, kChannelsOfOneHost, staging).total_bytes);
  JoinRequest request{rank, ranks, config.timeout_ms, most_bytes, staging, {}, terms.deadline};
  for (const std::string& setting : agreed_settings(config)) request.settings += setting + "\n";
  request.settings += fmt::format("library=" TREERING_VERSION_STRING " ({}, rank infos of {} bytes)\n",
                                  wire_versions(allowed), sizeof(RankInfo));
  PhaseTimes times;
  CreationTerms meeting = terms;
  meeting.serve = IdleLinks::serve;
  TR_RETURN_IF_ERROR(Membership::join(id, request, &made->membership_, meeting));
  times.done("rendezvous");
  if (Status status = made->finish_creation(job_name(id), allowed, terms, &times); !status.ok()) {
    if (made->membership_) made->membership_->leave_because(status);
    // For ranks that are through with the creation and know of this one by its memory alone.
    if (made->memory_.is_mapped())
      claim_failure(&made->memory_.status()->failure, static_cast<uint32_t>(status.code()), status.message());
    return status;
  }
  *result = std::move(made);
  return {};
}

// What follows once all ranks have met.
Status Communicator::finish_creation(const std::string& job, TransportSet allowed, const CreationTerms& terms,
                                     PhaseTimes* times) try {
  const auto& peers = membership_->peers();
  const bool first_of_process = std::none_of(peers.begin(), peers.begin() + rank(), [&](const PeerPlace& peer) {
    return peer.process == peers[rank()].process;
  });
  const bool on_one_host =
      std::all_of(peers.begin(), peers.end(), [&](const PeerPlace& peer) { return peer.host == peers[0].host; });
  const size_t staging = membership_->staging_bytes();  // hosts may have caches of different sizes
  const AreaLayout layout = layout_of(ranks(), config_, on_one_host ? kChannelsOfOneHost : kChannelsOfHosts, staging);
  const bool may_share = (allowed & transports_with(&TransportRow::maps)) != 0;
  if (Status status = memory_.map(layout, rank(), membership_->take_segment(), may_share, job); !status.ok())
    return {status.code(),
            fmt::format("{}: {}", own_name(membership_.get(), rank()), status.message())};  // of this rank alone
  times->done("shared memory");
  const CreationTerms linking{terms.guard, membership_->deadline(), {}};
  TR_RETURN_IF_ERROR(link(job, allowed, linking, times));
  if (membership_) {
    membership_->end_creation();
    IdleLinks::add(this, [this] { serve_idle_links(); });
  }
  watch_->set_call_deadline(Clock::time_point::max());
  if (first_of_process) log_line(LogLevel::kInfo, fmt::format("rank {} is ready: {}", rank(), times->text()));
  return {};
} catch (const std::bad_alloc&) {
  return no_memory_for_creation(membership_.get(), rank());
}

Status Communicator::create_alone(const Config& config, std::unique_ptr<Communicator>* result) {
  std::unique_ptr<Communicator> made(new Communicator);
  made->config_ = config;
  TR_RETURN_IF_ERROR(made->memory_.map(area_layout(1, 1, staging_of_channel(1, 1, 0)), 0, -1, false, ""));
  std::vector<RankInfo> infos(1);
  infos[0].pid = static_cast<uint32_t>(getpid());
  infos[0].device = config.device;
  made->infos_ = std::make_shared<const std::vector<RankInfo>>(infos);
  made->peer_table_ = std::make_unique<PeerTable>(&made->context_, *made->infos_, 1, OpenTransports(), nullptr);
  TR_RETURN_IF_ERROR(
      made->peer_table_->settle(TransportMatrix(*made->infos_, {TransportReport()}), {}, config.transports));
  Machine machine;
  machine.llc_bytes = last_level_cache_bytes();
  machine.host_ranks = 1;
  Plan plan = flat_plan(1);
  made->prepare_executor("");
  TR_RETURN_IF_ERROR(made->plan_schedules(machine, std::move(plan)));
  *result = std::move(made);
  return {};
}

OpenTransports Communicator::open_transports(TransportSet allowed) {
  TransportSetup setup;
  setup.rank = context_.rank;
  setup.ranks = context_.ranks;
  setup.config = &config_;
  setup.layout = &memory_.layout();
  setup.max_message_bytes = StagingPool::slot_bytes_of(setup.layout->staging_bytes, context_.ranks - 1);
  setup.usual_staging_bytes = StagingPool::usual_bytes(setup.layout->staging_bytes, context_.ranks - 1);
  setup.usual_peers = usual_peers(context_.ranks);
  if ((allowed & (transports_of(Scope::kHost) | transports_of(Scope::kProcess))) != 0) {
    const auto& peers = membership_->peers();
    const auto remote = std::count_if(peers.begin(), peers.end(),
                                      [&](const PeerPlace& peer) { return peer.host != peers[context_.rank].host; });
    setup.usual_peers = std::min(setup.usual_peers, static_cast<uint32_t>(remote));
  }
  setup.distance_of = distance_of_device;
  setup.own = memory_.own();
  setup.segment = memory_.is_shared() ? memory_.segment()->base() : nullptr;
  setup.peer_info = [this](uint32_t rank) -> const PeerInfo& { return rank_info(rank); };
  const auto find_on_host = [this](uint32_t PeerInfo::*is_set) -> const PeerInfo* {
    const auto found = std::find_if(infos_->begin(), infos_->end(), [&](const RankInfo& other) {
      return other.location.host == rank_info(rank()).location.host && other.*is_set != 0;
    });
    return found == infos_->end() ? nullptr : &*found;
  };
  setup.segment_holder = [=] { return find_on_host(&PeerInfo::got_segment); };
  setup.segment_loser = [=] { return find_on_host(&PeerInfo::lost_segment); };
  setup.waits = waits_;
  setup.look = [this, next = Clock::time_point()]() mutable -> Status {
    const auto now = Clock::now();
    if (now < next) return {};
    next = now + kLookPeriod;
    IdleLinks::serve();
    return membership_ ? membership_->creation_failure() : Status();
  };
  OpenTransports opened(treering::transports().size());
  for (size_t i = 0; i < opened.size(); ++i)
    if ((allowed >> i & 1) != 0) {
      const TransportRow& row = treering::transports()[i];
      setup.introducer = introductions_.introducer(row.name);
      opened[i] = row.open(setup);
      introductions_.set_taker(row.name, opened[i]->introduction_taker());
    }
  return opened;
}

// Each transport's info follows the rank's own.
Status Communicator::exchange_infos(const std::string& job, const OpenTransports& opened, Membership::Blobs* blobs) {
  RankCores cores;
  RankInfo own = make_info(context_.rank, &cores);
  memory_.describe(&own);
  own.lost_segment = membership_->lost_segment();
  own.device = config_.device;
  const PeerPlace& place = membership_->peers()[context_.rank];
  own.location.host = place.host;
  own.location.switches =
      switch_path(config_.switches.empty() ? switches_from_slurm(place.host_name) : config_.switches);
  if (Status status = memory_.place(own.location.numa_node); !status.ok()) log_line(LogLevel::kInfo, status.message());
  std::vector<std::string> more;
  for (const auto& transport : opened) more.push_back(transport ? transport->info() : std::string());
  TR_RETURN_IF_ERROR(membership_->allgather(pack_info(own, cores, more), blobs));
  TR_RETURN_IF_ERROR(unpack_infos(job, **blobs, &infos_));
  for (uint32_t peer = 0; peer < ranks(); ++peer) {
    TR_RETURN_IF_ERROR(unpack_transport_infos((**blobs)[peer], peer, &more));
    for (size_t i = 0; i < opened.size(); ++i)
      if (opened[i] && peer != rank()) TR_RETURN_IF_ERROR(opened[i]->take_info(peer, more[i]));
  }
  return {};
}

Status Communicator::link(const std::string& job, TransportSet allowed, const CreationTerms& terms, PhaseTimes* times) {
  Membership::Blobs blobs;
  OpenTransports opened = open_transports(allowed);
  TR_RETURN_IF_ERROR(exchange_infos(job, opened, &blobs));
  times->done("infos of all ranks");
  std::map<uint32_t, Status> reasons;
  LinkMessage own;
  own.report = probe_transports(*infos_, context_.rank, opened, &reasons);
  times->done("proofs of links");
  Machine machine = measure_machine(memory_, *infos_, rank(), *blobs);
  times->done("measurement of the machine");
  if (context_.rank == 0) {
    std::vector<Location> locations;
    for (const RankInfo& other : *infos_) locations.push_back(other.location);
    own.machine = as_blob(machine);
    own.plan = pack_plan(plan_for(locations));
  }
  Writer writer;
  writer(own);
  TR_RETURN_IF_ERROR(membership_->allgather(writer.take(), &blobs));
  times->done("reports of all ranks");
  memory_.close_descriptor();
  Plan plan;
  std::vector<TransportReport> reports;
  TR_RETURN_IF_ERROR(read_reports(*blobs, ranks(), &machine, &plan, &reports));
  blobs.reset();
  peer_table_ = std::make_unique<PeerTable>(&context_, *infos_, memory_.layout().channels, std::move(opened),
                                            [job = membership_.get()](uint32_t peer, RankStatusSnapshot* snapshot) {
                                              return ask_status(job, peer, snapshot);
                                            });
  TR_RETURN_IF_ERROR(peer_table_->settle(TransportMatrix(*infos_, std::move(reports)), reasons, config_.transports));
  if (peer_table_->all_mapped()) waits_.reset();
  if (config_.link_mbps > 0) peer_table_->pace(config_.link_mbps);
  if (config_.watch_buffers) peer_table_->watch_buffers(most_watched_bytes(*infos_, rank()));
  prepare_executor(job);
  watch_->set_call_deadline(terms.deadline);
  if (!needs_job()) {  // what follows goes through memory
    membership_->dissolve();
    membership_.reset();
  } else {
    watch_events();
  }
  times->done("connections");
  if (machine.hosts > 1) {
    membership_->serve_links([this] {
      context_.serve_idle();
      IdleLinks::serve();
    });
    TR_RETURN_IF_ERROR(agree_on_network(plan, terms, &machine));
    times->done("measurement of the network");
  }
  TR_RETURN_IF_ERROR(plan_schedules(machine, std::move(plan)));
  times->done("schedules");
  return {};
}

// From here on the agent's thread may call.
void Communicator::watch_events() {
  MemberEvents events;
  events.on_verdict = [watch = watch_.get()](uint32_t code, const std::string& text) {
    watch->take_verdict(static_cast<trResult_t>(code), text);
  };
  events.on_lost = [this](const std::vector<uint32_t>& ranks, const std::string& reason) {
    watch_->note_lost(ranks, reason);
    introductions_.ended(ranks);
  };
  events.on_left = [this](uint32_t rank, const Status& cause) {
    watch_->note_left(rank, cause);
    introductions_.departed(rank);
  };
  events.on_no_descriptor = [status = context_.status](bool wait) {
    status->takes_no_connection.store(wait ? 1 : 0, std::memory_order_relaxed);
  };
  events.status = [status = context_.status] { return pack_status(*status); };
  introductions_.listen(&events);
  membership_->set_events(std::move(events));
}

void Communicator::introduce(uint32_t peer, Introduction introduction) {
  if (membership_) return membership_->introduce(peer, std::move(introduction));
  log_line(LogLevel::kError,
           fmt::format("introduction to rank {}: the ranks share memory, and have no control connections", peer));
}

Status Communicator::plan_schedules(Machine machine, Plan plan) {
  machine.channels = memory_.layout().channels;
  const bool paced = config_.link_mbps > 0;
  machine.mailbox_bytes = call_->has_mailbox() && !paced ? MailboxMemory::kMaxBytes : 0;
  machine.fetch_us = peer_table_->all_fetch() ? kFetchUs : 0;
  if (paced) machine.exchange_gbps = std::min(machine.exchange_gbps, config_.link_mbps / 8000.0);
  machine.slot_bytes = context_.pools[0].slot_bytes();
  const bool eager = peer_table_->all_mapped() && !paced && context_.ranks <= kMaxEagerRanks;
  EagerSizes sizes;
  sizes.mapped = machine.eager_bytes = eager ? EagerPath::most_bytes(context_) : 0;
  sizes.regions = std::min(sizes.mapped, EagerPath::kMaxMappedBytes);
  if (peer_table_->any_in_process()) sizes.mapped = sizes.regions;  // such peers read everything in place
  // Over links what fits into a line needs nothing of a schedule, either.
  const bool linked = !peer_table_->all_mapped() && !paced;
  sizes.linked = linked ? std::min(kInlineBytes, EagerPath::most_bytes(context_)) : 0;
  machine.streaming_bytes = machine.llc_bytes / (size_t{4} * machine.host_ranks);
  context_.streaming_bytes = machine.streaming_bytes;
  auto schedules = std::make_unique<ScheduleCache>(std::move(plan), context_.rank, machine, config_.algorithm,
                                                   static_cast<uint32_t>(config_.channels));
  selection_ = std::make_unique<CallSelection>(config_, context_.ranks, schedules.get());
  call_->set_schedules(schedules.get(), sizes);
  schedules_ = std::move(schedules);  // the last that can lack memory: see ~Communicator()
  if (context_.rank == 0)
    log_line(
        LogLevel::kInfo,
        fmt::format(
            "communicator of {} ranks{} on {} cores: {}, {} KiB of staging memory a rank; a cache line takes {:.2f} "
            "us to another rank, data is exchanged at {:.1f} GB/s",
            context_.ranks,
            machine.hosts == 1
                ? ""
                : fmt::format(" on {} hosts ({:.1f} us, {:.1f} us of work a message and {:.2f} Gbit/s between them)",
                              machine.hosts, machine.network_us, machine.network_message_us, 8 * machine.network_gbps),
            machine.cores, peer_table_->summary(), memory_.layout().staging_bytes * machine.channels >> 10,
            machine.alpha_us, machine.exchange_gbps));
  host_ranks_ = machine.host_ranks;
  wait_policy_ = wait_policy_of(machine.host_ranks, machine.cores);
  return schedules_->check();
}

void Communicator::prepare_executor(const std::string& job) {
  any_device_ = std::any_of(infos_->begin(), infos_->end(), [](const RankInfo& info) { return info.device >= 0; });
  context_.wide_partials = config_.wide_partials;
  context_.status = memory_.status();
  const AreaLayout& layout = memory_.layout();
  for (uint32_t channel = 0; channel < layout.channels; ++channel)
    context_.pools[channel] =
        StagingPool(memory_.own().staging(), channel * layout.staging_bytes, layout.staging_bytes, context_.ranks - 1);
  FailureRecord* verdict =
      memory_.is_shared() && peer_table_->host_mapped() ? memory_.failure() : &context_.status->failure;
  const auto identities = [this] {
    std::vector<PeerIdentity> all;
    for (const RankInfo& other : *infos_)
      all.push_back({other.pid, other.pid_namespace, other.location.host,
                     membership_ ? membership_->peers()[other.rank].host_name : std::string()});
    return all;
  };
  auto peers = job.empty() ? std::make_shared<const std::vector<PeerIdentity>>(identities())
                           : JobShared<std::vector<PeerIdentity>>::get(job, identities);
  Membership* const job_of_watch = needs_job() ? membership_.get() : nullptr;
  watch_ = std::make_unique<Watch>(&context_, peer_table_.get(), verdict, std::move(peers),
                                   WaitTimes{config_.timeout_ms, config_.warn_ms}, config_.name, job_of_watch,
                                   memory_.is_shared() && peer_table_->all_mapped());
  notices_ = std::make_unique<NoticeExchange>(&context_, watch_.get(), peer_table_.get(), job_of_watch,
                                              config_.timeout_ms, [this] { serve_links(); });
  Mailbox mailbox(context_.rank, peer_table_->all_mapped() ? memory_.mailboxes() : std::vector<MailboxMemory>());
  const RegionExports exports(memory_.own().exports());
  call_ = std::make_unique<ActiveCall>(&context_, watch_.get(), std::move(mailbox),
                                       CallRegions(&context_, peer_table_.get(), exports));
}

// Whether the end of a process would go unnoticed without it.
bool Communicator::needs_job() const {
  const auto elsewhere = [this](const RankInfo& other) {
    return other.pid_namespace != rank_info(rank()).pid_namespace;
  };
  return !peer_table_->all_mapped() || std::any_of(infos_->begin(), infos_->end(), elsewhere);
}

}  // namespace treering
