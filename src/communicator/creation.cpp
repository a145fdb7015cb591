// SPDX-License-Identifier: Apache-2.0
#include "communicator/creation.h"

#include <fmt/format.h>
#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>

#include "bootstrap/agent.h"
#include "communicator/agree_on_network.h"
#include "communicator/idle_links.h"
#include "communicator/make_schedules.h"
#include "communicator/recording.h"
#include "core/bytes.h"
#include "core/job_shared.h"
#include "core/log.h"
#include "failure/status_message.h"
#include "peers/measure.h"
#include "peers/placement.h"

namespace treering {
namespace {

constexpr auto kStatusAge = std::chrono::milliseconds(50);
constexpr auto kLookPeriod = std::chrono::milliseconds(1);  // of a transport that waits

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

Creation::Creation(CommunicatorParts* parts, const Config& config, LinkService service)
    : parts_(parts), service_(std::move(service)) {
  parts_->config = config;
}

Status Creation::run(uint32_t ranks, const trUniqueId& packed, uint32_t rank, const CreationTerms& terms) {
  const LogRank lines_have_it(rank);
  UniqueId id;
  TR_RETURN_IF_ERROR(unpack(packed, &id));
  TR_RETURN_IF_ERROR(check_config());
  parts_->context.rank = rank;
  parts_->context.ranks = ranks;
  guard_ = terms.guard;
  job_ = job_name(id);
  constexpr unsigned char kPurpose[] = "treering split";
  crypto_generichash(parts_->split_key.data(), parts_->split_key.size(), kPurpose, sizeof kPurpose, id.secret.data(),
                     id.secret.size());
  TR_RETURN_IF_ERROR(meet(id, terms));
  const Status status = connect();
  if (status.ok()) return status;
  if (parts_->membership) parts_->membership->leave_because(status);
  // For ranks that are through with the creation and know of this one by its memory alone.
  if (parts_->memory.is_mapped())
    claim_failure(&parts_->memory.status()->failure, static_cast<uint32_t>(status.code()), status.message());
  return status;
}

Status Creation::check_config() {
  const Config& config = parts_->config;
  TR_RETURN_IF_ERROR(parse_transports(config.transports, &allowed_));
  if (Status known = check_forced_algorithms(config.algorithm); !known.ok())
    return {known.code(),
            fmt::format("TREERING_ALGO or config->algorithm is '{}': {}", config.algorithm, known.message())};
  for (const TransportRow& row : transports())
    if (row.check != nullptr) TR_RETURN_IF_ERROR(row.check(config));
  return {};
}

Status Creation::meet(const UniqueId& id, const CreationTerms& terms) {
  const Config& config = parts_->config;
  const uint32_t ranks = parts_->context.ranks;
  const size_t staging = config.staging_bytes > 0 ? static_cast<size_t>(config.staging_bytes)
                                                  : default_staging(ranks, last_level_cache_bytes());
  const size_t most_bytes = std::max(layout_of(ranks, config, kChannelsOfHosts, staging).total_bytes,
                                     layout_of(ranks, config, kChannelsOfOneHost, staging).total_bytes);
  JoinRequest request{parts_->context.rank, ranks, config.timeout_ms, most_bytes, staging, {}, terms.deadline};
  for (const std::string& setting : agreed_settings(config)) request.settings += setting + "\n";
  request.settings += fmt::format("library=" TREERING_VERSION_STRING " ({}, rank infos of {} bytes)\n",
                                  wire_versions(allowed_), sizeof(RankInfo));
  CreationTerms meeting = terms;
  meeting.serve = IdleLinks::serve;
  TR_RETURN_IF_ERROR(Membership::join(id, request, &parts_->membership, meeting));
  times_.done("rendezvous");
  return {};
}

// What follows once all ranks have met.
Status Creation::connect() try {
  const auto& peers = parts_->membership->peers();
  const uint32_t rank = parts_->context.rank, ranks = parts_->context.ranks;
  const bool first_of_process = std::none_of(
      peers.begin(), peers.begin() + rank, [&](const PeerPlace& peer) { return peer.process == peers[rank].process; });
  const bool on_one_host =
      std::all_of(peers.begin(), peers.end(), [&](const PeerPlace& peer) { return peer.host == peers[0].host; });
  const size_t staging = parts_->membership->staging_bytes();  // hosts may have caches of different sizes
  const AreaLayout layout =
      layout_of(ranks, parts_->config, on_one_host ? kChannelsOfOneHost : kChannelsOfHosts, staging);
  const bool may_share = (allowed_ & transports_with(&TransportRow::maps)) != 0;
  if (Status status = parts_->memory.map(layout, rank, parts_->membership->take_segment(), may_share, job_);
      !status.ok())
    return {status.code(),
            fmt::format("{}: {}", own_name(parts_->membership.get(), rank), status.message())};  // of this rank alone
  times_.done("shared memory");
  TR_RETURN_IF_ERROR(link());
  if (parts_->membership) {
    parts_->membership->end_creation();
    service_.start();
  }
  parts_->watch->set_call_deadline(Clock::time_point::max());
  start_recording(parts_, job_);
  if (first_of_process) log_line(LogLevel::kInfo, fmt::format("rank {} is ready: {}", rank, times_.text()));
  return {};
} catch (const std::bad_alloc&) {
  return no_memory_for_creation(parts_->membership.get(), parts_->context.rank);
}

Status Creation::run_alone() {
  TR_RETURN_IF_ERROR(parts_->memory.map(area_layout(1, 1, staging_of_channel(1, 1, 0)), 0, -1, false, ""));
  std::vector<RankInfo> infos(1);
  infos[0].pid = static_cast<uint32_t>(getpid());
  infos[0].device = parts_->config.device;
  parts_->infos = std::make_shared<const std::vector<RankInfo>>(infos);
  parts_->peer_table = std::make_unique<PeerTable>(&parts_->context, *parts_->infos, 1, OpenTransports(), nullptr);
  TR_RETURN_IF_ERROR(
      parts_->peer_table->settle(TransportMatrix(*parts_->infos, {TransportReport()}), {}, parts_->config.transports));
  Machine machine;
  machine.llc_bytes = last_level_cache_bytes();
  machine.host_ranks = 1;
  prepare_calls();
  TR_RETURN_IF_ERROR(make_schedules(parts_, machine, flat_plan(1)));
  start_recording(parts_, job_);
  return {};
}

// The transports keep it: what it refers to are the parts.
TransportSetup Creation::transport_setup() {
  CommunicatorParts* const parts = parts_;
  const uint32_t rank = parts->context.rank, ranks = parts->context.ranks;
  TransportSetup setup;
  setup.rank = rank;
  setup.ranks = ranks;
  setup.config = &parts->config;
  setup.layout = &parts->memory.layout();
  setup.max_message_bytes = StagingPool::slot_bytes_of(setup.layout->staging_bytes, ranks - 1);
  setup.usual_staging_bytes = StagingPool::usual_bytes(setup.layout->staging_bytes, ranks - 1);
  setup.usual_peers = usual_peers(ranks);
  if ((allowed_ & (transports_of(Scope::kHost) | transports_of(Scope::kProcess))) != 0) {
    const auto& peers = parts->membership->peers();
    const auto remote =
        std::count_if(peers.begin(), peers.end(), [&](const PeerPlace& peer) { return peer.host != peers[rank].host; });
    setup.usual_peers = std::min(setup.usual_peers, static_cast<uint32_t>(remote));
  }
  setup.distance_of = distance_of_device;
  setup.own = parts->memory.own();
  setup.segment = parts->memory.is_shared() ? parts->memory.segment()->base() : nullptr;
  setup.peer_info = [parts](uint32_t peer) -> const PeerInfo& { return parts->info(peer); };
  const auto find_on_host = [parts](uint32_t PeerInfo::*is_set) -> const PeerInfo* {
    const auto found = std::find_if(parts->infos->begin(), parts->infos->end(), [&](const RankInfo& other) {
      return other.location.host == parts->info(parts->context.rank).location.host && other.*is_set != 0;
    });
    return found == parts->infos->end() ? nullptr : &*found;
  };
  setup.segment_holder = [=] { return find_on_host(&PeerInfo::got_segment); };
  setup.segment_loser = [=] { return find_on_host(&PeerInfo::lost_segment); };
  setup.waits = parts->waits;
  setup.look = [parts, next = Clock::time_point()]() mutable -> Status {
    const auto now = Clock::now();
    if (now < next) return {};
    next = now + kLookPeriod;
    IdleLinks::serve();
    return parts->membership ? parts->membership->creation_failure() : Status();
  };
  return setup;
}

OpenTransports Creation::open_transports() {
  TransportSetup setup = transport_setup();
  OpenTransports opened(transports().size());
  for (size_t i = 0; i < opened.size(); ++i)
    if ((allowed_ >> i & 1) != 0) {
      const TransportRow& row = transports()[i];
      setup.introducer = parts_->introductions.introducer(row.name);
      opened[i] = row.open(setup);
      parts_->introductions.set_taker(row.name, opened[i]->introduction_taker());
    }
  return opened;
}

// Each transport's info follows the rank's own.
Status Creation::exchange_infos(const OpenTransports& opened, Membership::Blobs* blobs) {
  const uint32_t rank = parts_->context.rank;
  RankCores cores;
  RankInfo own = make_info(rank, &cores);
  parts_->memory.describe(&own);
  own.lost_segment = parts_->membership->lost_segment();
  own.device = parts_->config.device;
  const PeerPlace& place = parts_->membership->peers()[rank];
  own.location.host = place.host;
  own.location.switches =
      switch_path(parts_->config.switches.empty() ? switches_from_slurm(place.host_name) : parts_->config.switches);
  if (Status status = parts_->memory.place(own.location.numa_node); !status.ok())
    log_line(LogLevel::kInfo, status.message());
  std::vector<std::string> more;
  for (const auto& transport : opened) more.push_back(transport ? transport->info() : std::string());
  TR_RETURN_IF_ERROR(parts_->membership->allgather(pack_info(own, cores, more), blobs));
  TR_RETURN_IF_ERROR(unpack_infos(job_, **blobs, &parts_->infos));
  for (uint32_t peer = 0; peer < parts_->context.ranks; ++peer) {
    TR_RETURN_IF_ERROR(unpack_transport_infos((**blobs)[peer], peer, &more));
    for (size_t i = 0; i < opened.size(); ++i)
      if (opened[i] && peer != rank) TR_RETURN_IF_ERROR(opened[i]->take_info(peer, more[i]));
  }
  times_.done("infos of all ranks");
  return {};
}

// Which transports reach whom, and rank 0's machine and plan: the same on all ranks.
Status Creation::agree_on_links(OpenTransports opened, Membership::Blobs blobs, Machine* machine, Plan* plan) {
  const uint32_t rank = parts_->context.rank;
  std::map<uint32_t, Status> reasons;
  LinkMessage own;
  own.report = probe_transports(*parts_->infos, rank, opened, &reasons);
  times_.done("proofs of links");
  *machine = measure_machine(parts_->memory, *parts_->infos, rank, *blobs);
  times_.done("measurement of the machine");
  if (rank == 0) {
    std::vector<Location> locations;
    for (const RankInfo& other : *parts_->infos) locations.push_back(other.location);
    own.machine = as_blob(*machine);
    own.plan = pack_plan(plan_for(locations));
  }
  Writer writer;
  writer(own);
  TR_RETURN_IF_ERROR(parts_->membership->allgather(writer.take(), &blobs));
  times_.done("reports of all ranks");
  parts_->memory.close_descriptor();
  std::vector<TransportReport> reports;
  TR_RETURN_IF_ERROR(read_reports(*blobs, parts_->context.ranks, machine, plan, &reports));
  blobs.reset();
  parts_->peer_table =
      std::make_unique<PeerTable>(&parts_->context, *parts_->infos, parts_->memory.layout().channels, std::move(opened),
                                  [job = parts_->membership.get()](uint32_t peer, RankStatusSnapshot* snapshot) {
                                    return ask_status(job, peer, snapshot);
                                  });
  return parts_->peer_table->settle(TransportMatrix(*parts_->infos, std::move(reports)), reasons,
                                    parts_->config.transports);
}

Status Creation::link() {
  const Clock::time_point deadline = parts_->membership->deadline();
  Membership::Blobs blobs;
  OpenTransports opened = open_transports();
  TR_RETURN_IF_ERROR(exchange_infos(opened, &blobs));
  Machine machine;
  Plan plan;
  TR_RETURN_IF_ERROR(agree_on_links(std::move(opened), std::move(blobs), &machine, &plan));
  PeerTable& peers = *parts_->peer_table;
  const Config& config = parts_->config;
  if (peers.all_mapped()) parts_->waits.reset();
  if (config.link_mbps > 0) peers.pace(config.link_mbps);
  if (config.watch_buffers) peers.watch_buffers(most_watched_bytes(*parts_->infos, parts_->context.rank));
  prepare_calls();
  parts_->watch->set_call_deadline(deadline);
  if (!parts_->needs_membership()) {  // what follows goes through memory
    parts_->membership->dissolve();
    parts_->membership.reset();
  } else {
    watch_events();
  }
  times_.done("connections");
  if (machine.hosts > 1) {
    parts_->membership->serve_links([parts = parts_] {
      parts->context.serve_idle();
      IdleLinks::serve();
    });
    TR_RETURN_IF_ERROR(agree_on_network(parts_, plan, {guard_, deadline, service_.serve}, &machine));
    times_.done("measurement of the network");
  }
  TR_RETURN_IF_ERROR(make_schedules(parts_, machine, std::move(plan)));
  times_.done("schedules");
  return {};
}

// From here on the agent's thread may call.
void Creation::watch_events() {
  MemberEvents events;
  events.on_verdict = [watch = parts_->watch.get()](uint32_t code, const std::string& text) {
    watch->take_verdict(static_cast<trResult_t>(code), text);
  };
  events.on_lost = [parts = parts_](const std::vector<uint32_t>& ranks, const std::string& reason) {
    parts->watch->note_lost(ranks, reason);
    parts->introductions.ended(ranks);
  };
  events.on_left = [parts = parts_](uint32_t rank, const Status& cause) {
    parts->watch->note_left(rank, cause);
    parts->introductions.departed(rank);
  };
  events.on_no_descriptor = [status = parts_->context.status](bool wait) {
    status->takes_no_connection.store(wait ? 1 : 0, std::memory_order_relaxed);
  };
  events.status = [status = parts_->context.status] { return pack_status(*status); };
  parts_->introductions.listen(&events);
  parts_->membership->set_events(std::move(events));
}

void Creation::prepare_calls() {
  CommunicatorParts& parts = *parts_;
  ExecutorContext* const context = &parts.context;
  PeerTable* const peers = parts.peer_table.get();
  parts.any_device =
      std::any_of(parts.infos->begin(), parts.infos->end(), [](const RankInfo& info) { return info.device >= 0; });
  context->wide_partials = parts.config.wide_partials;
  context->status = parts.memory.status();
  const AreaLayout& layout = parts.memory.layout();
  for (uint32_t channel = 0; channel < layout.channels; ++channel)
    context->pools[channel] = StagingPool(parts.memory.own().staging(), channel * layout.staging_bytes,
                                          layout.staging_bytes, context->ranks - 1);
  FailureRecord* verdict =
      parts.memory.is_shared() && peers->host_mapped() ? parts.memory.failure() : &context->status->failure;
  const auto identities = [&parts] {
    std::vector<PeerIdentity> all;
    for (const RankInfo& other : *parts.infos)
      all.push_back({other.pid, other.pid_namespace, other.location.host,
                     parts.membership ? parts.membership->peers()[other.rank].host_name : std::string()});
    return all;
  };
  auto shared_identities = job_.empty() ? std::make_shared<const std::vector<PeerIdentity>>(identities())
                                        : JobShared<std::vector<PeerIdentity>>::get(job_, identities);
  Membership* const membership = parts.needs_membership() ? parts.membership.get() : nullptr;
  parts.watch = std::make_unique<Watch>(context, peers, verdict, std::move(shared_identities),
                                        WaitTimes{parts.config.timeout_ms, parts.config.warn_ms}, parts.config.name,
                                        membership, parts.memory.is_shared() && peers->all_mapped());
  parts.notices = std::make_unique<NoticeExchange>(context, parts.watch.get(), peers, membership,
                                                   parts.config.timeout_ms, service_.serve);
  Mailbox mailbox(context->rank, peers->all_mapped() ? parts.memory.mailboxes() : std::vector<MailboxMemory>());
  const RegionExports exports(parts.memory.own().exports());
  parts.call = std::make_unique<ActiveCall>(context, parts.watch.get(), std::move(mailbox),
                                            CallRegions(context, peers, exports));
}

}  // namespace treering
