// How a communicator comes to be: ranks meet, share what memory they can, prove their links, measure, plan.
#include <fmt/format.h>
#include <sched.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "communicator/communicator.h"
#include "communicator/device_rank.h"
#include "communicator/measure.h"
#include "communicator/placement.h"
#include "communicator/status_message.h"
#include "core/log.h"
#include "core/types.h"
#include "topology/place.h"

namespace treering {
namespace {

// Staging memory of a rank: all ranks' together fill a quarter of the last-level cache, within limits; slots never fall
// below a few KiB however many ranks there are. Measured with two-shot at 16 MiB and up on 4 ranks and 105 MiB of cache:
// 2 MiB a rank 20 ms, 6.5 MiB 15.5 ms, 16 MiB 17.5 ms for 64 MiB.
constexpr size_t kLeastStaging = 2 << 20;
constexpr size_t kMostStaging = 8 << 20;
// What the algorithms want at most, on one host and on several.
constexpr uint32_t kChannelsOfOneHost = 2;
constexpr uint32_t kChannelsOfHosts = 4;
constexpr size_t kMinSlot = 4 << 10;
constexpr uint32_t kMostLetterRanks = 64;
constexpr uint32_t kDefaultSpins = 20'000;
constexpr auto kStatusAge = std::chrono::milliseconds(50);
constexpr double kFetchUs = 0.7;  // of a system call that copies between processes

template <typename T>
std::string as_blob(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

uint64_t pid_namespace() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

// Names this process among all of the job, also where pids repeat (pid namespaces). A forked child gets a new one.
uint64_t process_token() {
  static std::mutex mutex;
  static pid_t owner = 0;
  static uint64_t token = 0;
  std::lock_guard lock(mutex);
  if (owner != getpid()) {
    owner = getpid();
    randombytes_buf(&token, sizeof token);
  }
  return token;
}

// How many cores a host's ranks may use together, of the host that has the fewest for its ranks. "Hosts" of one machine
// (containers, network namespaces) share its cores.
uint32_t count_cores(const std::vector<RankCard>& cards, uint32_t host_ranks) {
  struct Cores {
    cpu_set_t all;
    uint32_t quota = UINT32_MAX;
    uint32_t ranks = 0;
  };
  std::map<uint64_t, Cores> machines;
  for (const RankCard& card : cards) {
    Cores& cores = machines[card.machine];
    if (cores.ranks++ == 0) CPU_ZERO(&cores.all);
    CPU_OR(&cores.all, &cores.all, &card.cores);
    if (card.quota_cpus != 0) cores.quota = std::min(cores.quota, card.quota_cpus);
  }
  uint32_t least = UINT32_MAX;
  for (const auto& [machine, cores] : machines) {
    const auto count = std::min(cores.quota, static_cast<uint32_t>(CPU_COUNT(&cores.all)));
    least = std::min(least, count * host_ranks / std::max(cores.ranks, host_ranks));
  }
  return std::max(1u, least);
}

// Hosts, and the ranks of the largest.
std::pair<uint32_t, uint32_t> count_hosts(const std::vector<RankCard>& cards) {
  std::map<uint64_t, uint32_t> ranks;
  uint32_t most = 0;
  for (const RankCard& card : cards) most = std::max(most, ++ranks[card.location.host]);
  return {static_cast<uint32_t>(ranks.size()), most};
}

// The ranks must have the same: it is compared with the other settings.
size_t default_staging(uint32_t ranks) {
  return std::clamp<size_t>(last_level_cache_bytes() / 4 / ranks, kLeastStaging, kMostStaging);
}

}  // namespace

Status Communicator::create(uint32_t ranks, const trUniqueId& packed, uint32_t rank, const Config& config,
                            std::unique_ptr<Communicator>* result) {
  UniqueId id;
  TR_RETURN_IF_ERROR(unpack(packed, &id));
  uint8_t allowed = 0;
  TR_RETURN_IF_ERROR(parse_transports(config.transports, &allowed));
  TR_RETURN_IF_ERROR(check_forced_algorithms(config.algorithm));
  std::unique_ptr<Communicator> made(new Communicator);
  made->config_ = config;
  made->context_.rank = rank;
  made->context_.ranks = ranks;
  const size_t slots = std::max<size_t>(4, 2 * (ranks - 1));
  const size_t staging = config.staging_bytes > 0 ? static_cast<size_t>(config.staging_bytes) : default_staging(ranks);
  const auto layout = [&](uint32_t wanted) {
    const uint32_t channels = config.channels > 0 ? static_cast<uint32_t>(config.channels) : wanted;
    return std::make_unique<AreaLayout>(ranks, channels, std::max(staging / channels, slots * kMinSlot));
  };
  made->layout_ = layout(kChannelsOfHosts);
  const auto one_host = layout(kChannelsOfOneHost);
  JoinRequest request{rank, ranks, config.timeout_ms, std::max(made->layout_->total_bytes, one_host->total_bytes), {}};
  for (const std::string& setting : agreed_settings(config)) request.settings += setting + "\n";
  request.settings += fmt::format("staging memory={}\n", staging);
  TR_RETURN_IF_ERROR(Membership::join(id, request, &made->membership_));
  const auto& peers = made->membership_->peers();
  if (std::all_of(peers.begin(), peers.end(), [&](const PeerPlace& peer) { return peer.host == peers[0].host; }))
    made->layout_ = layout(kChannelsOfOneHost);
  const bool shares = (allowed & (kInProcessBit | kSharedMemoryBit)) != 0;
  TR_RETURN_IF_ERROR(made->share_memory(made->membership_->take_segment(), job_name(id), shares));
  TR_RETURN_IF_ERROR(made->link(allowed));
  TR_RETURN_IF_ERROR(made->attach_device());
  *result = std::move(made);
  return {};
}

Status Communicator::create_alone(const Config& config, std::unique_ptr<Communicator>* result) {
  std::unique_ptr<Communicator> made(new Communicator);
  made->config_ = config;
  made->layout_ = std::make_unique<AreaLayout>(1, 1, 4 * kMinSlot);
  TR_RETURN_IF_ERROR(made->share_memory(-1, "", false));
  made->cards_.resize(1);
  made->cards_[0].pid = static_cast<uint32_t>(getpid());
  made->cards_[0].device = config.device;
  made->links_ = std::make_unique<Links>();
  TR_RETURN_IF_ERROR(made->links_->connect(made->cards_, {std::string(1, '\0')}, 0, *made->layout_, nullptr,
                                           made->area_, {std::string()}, nullptr));
  made->context_.set_connections(made->links_->connections());
  Machine machine;
  machine.llc_bytes = last_level_cache_bytes();
  machine.host_ranks = 1;
  Plan plan = flat_plan(1);
  made->prepare_executor();
  TR_RETURN_IF_ERROR(made->plan_schedules(machine, std::move(plan)));
  TR_RETURN_IF_ERROR(made->attach_device());
  *result = std::move(made);
  return {};
}

Status Communicator::share_memory(int descriptor, const std::string& job, bool allowed) {
  if (descriptor >= 0 && !allowed) {
    close(descriptor);
    descriptor = -1;
  }
  if (descriptor >= 0)
    if (Status status = Segment::map_shared(job, descriptor, layout_->total_bytes, &segment_); !status.ok())
      log_line(LogLevel::kWarn, "shared memory cannot be used: " + status.message());
  if (segment_) {
    area_ = segment_->base() + layout_->area_offset(context_.rank);
  } else {
    TR_RETURN_IF_ERROR(Segment::map_private(layout_->area_bytes, &private_area_));
    area_ = private_area_->base();
  }
  return {};
}

RankCard Communicator::make_card() {
  RankCard card{};
  card.pid = static_cast<uint32_t>(getpid());
  card.rank = context_.rank;
  card.pid_namespace = pid_namespace();
  card.process_token = process_token();
  randombytes_buf(&card.nonce, sizeof card.nonce);
  card.area_address = reinterpret_cast<uint64_t>(area_);
  card.segment_descriptor = segment_ ? segment_->descriptor() : -1;
  card.segment_inode = segment_ ? segment_->inode() : 0;
  card.in_segment = segment_ != nullptr;
  if (sched_getaffinity(0, sizeof card.cores, &card.cores) != 0) CPU_ZERO(&card.cores);
  card.device = config_.device;
  card.location = locate_rank(&card.quota_cpus);
  card.machine = card.location.host;
  card.location.host = membership_->peers()[context_.rank].host;
  return card;
}

Status Communicator::exchange_cards() {
  const RankCard card = make_card();
  *AreaView(area_, layout_.get()).nonce() = card.nonce;
  // Pages of the staging memory come from the rank's own NUMA node, whoever touches them.
  if (Status status = place_memory(area_, layout_->area_bytes, card.location.numa_node); !status.ok())
    log_line(LogLevel::kInfo, status.message());
  std::vector<std::string> blobs;
  TR_RETURN_IF_ERROR(membership_->allgather(as_blob(card), &blobs));
  cards_.resize(context_.ranks);
  for (uint32_t peer = 0; peer < context_.ranks; ++peer) {
    if (blobs[peer].size() != sizeof(RankCard))
      return {trInvalidUsage, fmt::format("rank {} runs another build of the library", peer)};
    std::memcpy(&cards_[peer], blobs[peer].data(), sizeof(RankCard));
  }
  return {};
}

Status Communicator::link(uint8_t allowed) {
  TR_RETURN_IF_ERROR(exchange_cards());
  std::vector<std::string> reasons, blobs;
  std::string found = Links::probe(cards_, context_.rank, *layout_, segment_.get(), allowed, &reasons);
  Machine machine = measure_core();
  bool pair_shares = segment_ && context_.ranks > 1 && cards_[0].in_segment && cards_[1].in_segment &&
                     cards_[0].location.host == cards_[1].location.host;
  if (context_.rank < 2 && pair_shares)
    measure_pair(context_.rank == 0, AreaView(segment_->base() + layout_->area_offset(0), layout_.get()),
                 AreaView(segment_->base() + layout_->area_offset(1), layout_.get()), &machine);
  std::string blob = as_blob(machine) + found;
  if (context_.rank == 0) {
    std::vector<Location> locations;
    for (const RankCard& other : cards_) locations.push_back(other.location);
    blob += pack_plan(plan_for(locations));
  }
  TR_RETURN_IF_ERROR(membership_->allgather(blob, &blobs));
  if (segment_) segment_->close_descriptor();  // every rank has opened it where it could
  std::vector<std::string> all_found;
  for (const std::string& other : blobs) {
    if (other.size() < sizeof machine + context_.ranks)
      return {trInternalError, "a malformed report of a rank's links"};
    all_found.push_back(other.substr(sizeof machine, context_.ranks));
  }
  links_ = std::make_unique<Links>();
  streams_ = std::make_unique<TcpStreams>(membership_.get());
  TR_RETURN_IF_ERROR(links_->connect(cards_, all_found, context_.rank, *layout_, segment_.get(), area_, reasons, this));
  if (config_.link_mbps > 0) links_->pace(config_.link_mbps);
  context_.set_connections(links_->connections());
  // Every rank takes rank 0's measurements and plan, so that all decide alike.
  Plan plan;
  std::memcpy(&machine, blobs[0].data(), sizeof machine);
  TR_RETURN_IF_ERROR(unpack_plan(blobs[0].substr(sizeof machine + context_.ranks), context_.ranks, &plan));
  prepare_executor();
  if (links_->all_mapped())
    membership_.reset();  // what follows goes through memory
  else
    watch_events();
  std::tie(machine.hosts, machine.host_ranks) = count_hosts(cards_);
  if (machine.hosts > 1) TR_RETURN_IF_ERROR(agree_on_network(plan, &machine));
  return plan_schedules(machine, std::move(plan));
}

std::shared_ptr<TcpLink> Communicator::make_tcp_link(uint32_t peer, const std::string& name) {
  TcpOptions options;
  options.peer = peer;
  options.peer_name = name;
  options.channels = layout_->channels;
  options.streams = static_cast<uint32_t>(config_.tcp_streams);
  options.staging = AreaView(area_, layout_.get()).staging();
  // Asks again each time; what is known is at most as old as the peer took to answer.
  options.read_status = [membership = membership_.get(), peer](RankStatusSnapshot* snapshot) {
    std::string bytes;
    Clock::time_point when;
    const bool known = membership->latest_status(peer, &bytes, &when);
    if (!known || Clock::now() - when > kStatusAge) membership->request_status(peer);
    return known && unpack_status(bytes, snapshot);
  };
  return streams_->add_link(std::move(options));
}

// From here on the agent's thread may call.
void Communicator::watch_events() {
  MemberEvents events;
  events.on_verdict = [watch = watch_.get()](uint32_t code, const std::string& text) {
    watch->take_verdict(static_cast<trResult_t>(code), text);
  };
  events.on_lost = [watch = watch_.get()](const std::vector<uint32_t>& ranks, const std::string& reason) {
    watch->note_lost(ranks, reason);
  };
  events.on_left = [watch = watch_.get(), streams = streams_.get()](uint32_t rank) {
    watch->note_left(rank);
    streams->departed(rank);
  };
  events.status = [status = context_.status] { return pack_status(*status); };
  events.on_incoming = [streams = streams_.get()](uint32_t source, uint32_t index, int fd) {
    streams->incoming(source, index, fd);
  };
  events.on_outgoing = [streams = streams_.get()](uint32_t peer, uint32_t index, const Status& status, int fd) {
    streams->outgoing(peer, index, status, fd);
  };
  membership_->set_events(std::move(events));
}

// The first ranks of the hosts, in the order of the ring, measure the network; all take the slowest host's rate.
Status Communicator::agree_on_network(const Plan& plan, Machine* machine) {
  std::vector<uint32_t> leaders;
  std::set<uint64_t> seen;
  for (uint32_t rank : plan.ring)
    if (seen.insert(cards_[rank].location.host).second) leaders.push_back(rank);
  NetworkMeasurement own;
  if (const auto at = std::find(leaders.begin(), leaders.end(), context_.rank); at != leaders.end()) {
    const size_t i = static_cast<size_t>(at - leaders.begin()), h = leaders.size();
    const auto patience =
        config_.timeout_ms > 0 ? std::chrono::milliseconds(config_.timeout_ms) : std::chrono::hours(1);
    TR_RETURN_IF_ERROR(measure_network(context_.connection(0, leaders[(i + 1) % h]),
                                       context_.connection(0, leaders[(i + h - 1) % h]), i == 0,
                                       static_cast<uint32_t>(h), Clock::now() + patience, &own));
  }
  std::vector<std::string> blobs;
  TR_RETURN_IF_ERROR(membership_->allgather(as_blob(own), &blobs));
  double gbps = 0;
  for (const std::string& blob : blobs) {
    NetworkMeasurement of_rank;
    if (blob.size() != sizeof of_rank) return {trInternalError, "a malformed measurement of the network"};
    std::memcpy(&of_rank, blob.data(), sizeof of_rank);
    if (of_rank.latency_us > 0) machine->network_us = of_rank.latency_us;
    if (of_rank.gbps > 0) gbps = gbps == 0 ? of_rank.gbps : std::min(gbps, of_rank.gbps);
  }
  if (gbps > 0) machine->network_gbps = gbps;
  return {};
}

Status Communicator::plan_schedules(Machine machine, Plan plan) {
  machine.cores = count_cores(cards_, machine.host_ranks);
  machine.channels = layout_->channels;
  const bool paced = config_.link_mbps > 0;
  machine.mailbox_bytes = links_->all_mapped() && segment_ && !paced ? MailboxMemory::kMaxBytes : 0;
  machine.fetch_us = links_->all_fetch() ? kFetchUs : 0;
  if (paced) machine.exchange_gbps = std::min(machine.exchange_gbps, config_.link_mbps / 8000.0);
  machine.slot_bytes = context_.pools[0].slot_bytes();
  const bool letters = links_->all_mapped() && !paced && context_.ranks <= kMostLetterRanks;
  letter_bytes_ = machine.letter_bytes = letters ? Letters::most_bytes(context_) : 0;
  mapped_letter_bytes_ = std::min(letter_bytes_, Letters::kMostMappedBytes);
  for (const Connection* connection : context_.connections)  // threads of one process read everything in place
    if (connection != nullptr && connection->reaches_plain_memory()) letter_bytes_ = mapped_letter_bytes_;
  machine.streaming_bytes = machine.llc_bytes / (4 * machine.host_ranks);
  context_.streaming_bytes = machine.streaming_bytes;
  if (!config_.wire.empty()) {
    wire_ = std::make_shared<Compression>();
    wire_->wire = config_.wire == "fp16"       ? trFloat16
                  : config_.wire == "bf16"     ? trBfloat16
                  : config_.wire == "fp8-e4m3" ? trFloat8e4m3
                                               : trFloat8e5m2;
  }
  schedules_ = std::make_unique<ScheduleCache>(std::move(plan), context_.rank, machine, config_.algorithm,
                                               static_cast<uint32_t>(config_.channels));
  if (context_.rank == 0)
    log_line(
        LogLevel::kInfo,
        fmt::format(
            "communicator of {} ranks{} on {} cores: {}, {} KiB of staging memory a rank; a cache line takes {:.2f} "
            "us to another rank, data is exchanged at {:.1f} GB/s",
            context_.ranks,
            machine.hosts == 1 ? ""
                               : fmt::format(" on {} hosts ({:.1f} us and {:.2f} Gbit/s between them)", machine.hosts,
                                             machine.network_us, 8 * machine.network_gbps),
            machine.cores, links_->summary(), layout_->staging_bytes * layout_->channels >> 10, machine.alpha_us,
            machine.exchange_gbps));
  // More ranks than cores: a spinning rank would keep the one from running that it waits for.
  host_ranks_ = machine.host_ranks;
  spins_ = machine.host_ranks <= machine.cores ? kDefaultSpins : 0;
  return schedules_->check();
}

void Communicator::prepare_executor() {
  AreaView own(area_, layout_.get());
  context_.wide_partials = config_.wide_partials;
  context_.status = own.status();
  for (uint32_t channel = 0; channel < layout_->channels; ++channel)
    context_.pools[channel] =
        StagingPool(own.staging(), channel * layout_->staging_bytes, layout_->staging_bytes, context_.ranks - 1);
  exports_ = RegionExports(own.exports());
  execution_ = std::make_unique<Execution>(&context_);
  letters_ = std::make_unique<Letters>(&context_);
  if (links_->all_mapped() && segment_) {
    std::vector<MailboxMemory> boxes;
    for (uint32_t peer = 0; peer < context_.ranks; ++peer)
      boxes.push_back(AreaView(segment_->base() + layout_->area_offset(peer), layout_.get()).mailbox());
    mailbox_ = Mailbox(context_.rank, std::move(boxes));
  }
  FailureRecord* verdict = segment_ && links_->host_mapped()
                               ? &reinterpret_cast<SegmentHeader*>(segment_->base())->failure
                               : &own.status()->failure;
  std::vector<PeerIdentity> identities;
  for (const RankCard& card : cards_)
    identities.push_back({card.pid, card.pid_namespace, card.location.host == cards_[context_.rank].location.host,
                          membership_ ? membership_->peers()[card.rank].host_name : std::string()});
  watch_ = std::make_unique<Watch>(&context_, verdict, std::move(identities), config_.timeout_ms, config_.name,
                                   links_->all_mapped() ? nullptr : membership_.get());
}

}  // namespace treering
