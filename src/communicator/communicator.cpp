#include "communicator/communicator.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "communicator/device_rank.h"
#include "communicator/measure.h"
#include "communicator/placement.h"
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
constexpr uint32_t kDefaultChannels = 2;  // what the algorithms want at most
constexpr size_t kMinSlot = 4 << 10;
constexpr uint32_t kMostLetterRanks = 64;
constexpr uint32_t kDefaultSpins = 20'000;
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

// Cores that the ranks may use together.
uint32_t count_cores(const std::vector<RankCard>& cards) {
  cpu_set_t all;
  CPU_ZERO(&all);
  uint32_t quota = UINT32_MAX;
  for (const RankCard& card : cards) {
    CPU_OR(&all, &all, &card.cores);
    if (card.quota_cpus != 0) quota = std::min(quota, card.quota_cpus);
  }
  return std::max(1u, std::min(quota, static_cast<uint32_t>(CPU_COUNT(&all))));
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
  uint32_t channels = config.channels > 0 ? static_cast<uint32_t>(config.channels) : kDefaultChannels;
  size_t slots = std::max<size_t>(4, 2 * (ranks - 1));
  size_t staging = config.staging_bytes > 0 ? static_cast<size_t>(config.staging_bytes) : default_staging(ranks);
  made->layout_ = std::make_unique<AreaLayout>(ranks, channels, std::max(staging / channels, slots * kMinSlot));

  Bootstrap bootstrap;
  int descriptor = -1;
  std::string settings;
  for (const std::string& setting : agreed_settings(config)) settings += setting + "\n";
  settings += fmt::format("staging memory of a channel={}\n", made->layout_->staging_bytes);
  TR_RETURN_IF_ERROR(
      bootstrap.meet(id, rank, ranks, config.timeout_ms, made->layout_->total_bytes, settings, &descriptor));
  TR_RETURN_IF_ERROR(made->share_memory(descriptor, job_name(id), (allowed & ~kCmaBit) != 0));
  TR_RETURN_IF_ERROR(made->link(&bootstrap, allowed));
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
                                           made->area_, {std::string()}));
  made->context_.connections = made->links_->connections();
  Machine machine;
  machine.llc_bytes = last_level_cache_bytes();
  Plan plan = flat_plan(1);
  TR_RETURN_IF_ERROR(made->plan_schedules(as_blob(machine) + '\0' + pack_plan(plan)));
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

Status Communicator::link(Bootstrap* bootstrap, uint8_t allowed) {
  AreaView own(area_, layout_.get());
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
  *own.nonce() = card.nonce;
  // Pages of the staging memory come from the rank's own NUMA node, whoever touches them.
  if (Status status = place_memory(area_, layout_->area_bytes, card.location.numa_node); !status.ok())
    log_line(LogLevel::kInfo, status.message());
  std::vector<std::string> blobs;
  TR_RETURN_IF_ERROR(bootstrap->allgather(as_blob(card), &blobs));
  cards_.resize(context_.ranks);
  for (uint32_t peer = 0; peer < context_.ranks; ++peer) {
    if (blobs[peer].size() != sizeof(RankCard))
      return {trInvalidUsage, fmt::format("rank {} runs another build of the library", peer)};
    std::memcpy(&cards_[peer], blobs[peer].data(), sizeof(RankCard));
  }
  std::vector<std::string> reasons;
  std::string found = Links::probe(cards_, context_.rank, *layout_, segment_.get(), allowed, &reasons);
  Machine machine = measure_core();
  bool pair_shares = segment_ && context_.ranks > 1 && cards_[0].in_segment && cards_[1].in_segment;
  if (context_.rank < 2 && pair_shares)
    measure_pair(context_.rank == 0, AreaView(segment_->base() + layout_->area_offset(0), layout_.get()),
                 AreaView(segment_->base() + layout_->area_offset(1), layout_.get()), &machine);
  std::string blob = as_blob(machine) + found;
  if (context_.rank == 0) {
    std::vector<Location> locations;
    for (const RankCard& other : cards_) locations.push_back(other.location);
    blob += pack_plan(plan_for(locations));
  }
  TR_RETURN_IF_ERROR(bootstrap->allgather(blob, &blobs));
  if (segment_) segment_->close_descriptor();  // every rank has opened it where it could
  std::vector<std::string> all_found;
  for (const std::string& other : blobs) {
    if (other.size() < sizeof machine + context_.ranks)
      return {trInternalError, "a malformed report of a rank's links"};
    all_found.push_back(other.substr(sizeof machine, context_.ranks));
  }
  links_ = std::make_unique<Links>();
  TR_RETURN_IF_ERROR(links_->connect(cards_, all_found, context_.rank, *layout_, segment_.get(), area_, reasons));
  if (config_.link_mbps > 0) links_->pace(config_.link_mbps);
  context_.connections = links_->connections();
  return plan_schedules(blobs[0]);
}

// Every rank takes rank 0's measurements and plan, so that all decide alike.
Status Communicator::plan_schedules(const std::string& blob) {
  Machine machine;
  Plan plan;
  std::memcpy(&machine, blob.data(), sizeof machine);
  TR_RETURN_IF_ERROR(unpack_plan(blob.substr(sizeof machine + context_.ranks), context_.ranks, &plan));
  machine.cores = count_cores(cards_);
  const bool paced = config_.link_mbps > 0;
  machine.mailbox_bytes = links_->all_mapped() && !paced ? MailboxMemory::kMaxBytes : 0;
  machine.fetch_us = links_->all_fetch() ? kFetchUs : 0;
  if (paced) machine.exchange_gbps = std::min(machine.exchange_gbps, config_.link_mbps / 8000.0);
  prepare_executor();
  machine.slot_bytes = context_.pools[0].slot_bytes();
  const bool letters = machine.mailbox_bytes > 0 && context_.ranks <= kMostLetterRanks;
  letter_bytes_ = machine.letter_bytes = letters ? Letters::most_bytes(context_) : 0;
  mapped_letter_bytes_ = std::min(letter_bytes_, Letters::kMostMappedBytes);
  for (const Connection* connection : context_.connections)  // threads of one process read everything in place
    if (connection != nullptr && connection->reaches_plain_memory()) letter_bytes_ = mapped_letter_bytes_;
  machine.streaming_bytes = machine.llc_bytes / (4 * context_.ranks);
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
    log_line(LogLevel::kInfo,
             fmt::format(
                 "communicator of {} ranks on {} cores: {}, {} KiB of staging memory a rank; a cache line takes {:.2f} "
                 "us to another rank, data is exchanged at {:.1f} GB/s",
                 context_.ranks, machine.cores, links_->summary(), layout_->staging_bytes * layout_->channels >> 10,
                 machine.alpha_us, machine.exchange_gbps));
  // More ranks than cores: a spinning rank would keep the one from running that it waits for.
  spins_ = context_.ranks <= machine.cores ? kDefaultSpins : 0;
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
  FailureRecord* verdict = links_->all_mapped() && segment_
                               ? &reinterpret_cast<SegmentHeader*>(segment_->base())->failure
                               : &own.status()->failure;
  std::vector<PeerIdentity> identities;
  for (const RankCard& card : cards_) identities.push_back({card.pid, card.pid_namespace});
  watch_ = std::make_unique<Watch>(&context_, verdict, std::move(identities), config_.timeout_ms, config_.name);
}

Status Communicator::attach_device() {
  const bool any = std::any_of(cards_.begin(), cards_.end(), [](const RankCard& card) { return card.device >= 0; });
  any_device_ = any;
  return any ? DeviceRank::create(this, config_.device, &device_) : Status();
}

std::function<bool()> Communicator::peers_left() const {
  if (segment_ == nullptr) return [] { return false; };  // their memory cannot be seen later
  std::vector<std::pair<const RankStatus*, uint32_t>> peers;
  for (uint32_t peer = 0; peer < ranks(); ++peer)
    if (peer != rank())
      peers.emplace_back(AreaView(segment_->base() + layout_->area_offset(peer), layout_.get()).status(),
                         cards_[peer].pid_namespace == cards_[rank()].pid_namespace ? cards_[peer].pid : 0);
  return [segment = segment_, peers = std::move(peers)] {
    return std::all_of(peers.begin(), peers.end(), [](const auto& peer) {
      if (peer.first->left.load(std::memory_order_acquire) != 0) return true;
      return peer.second != 0 && kill(static_cast<pid_t>(peer.second), 0) != 0 && errno == ESRCH;
    });
  };
}

Communicator::~Communicator() {
  const bool had_device = device_ != nullptr;
  device_.reset();
  if (area_ != nullptr) AreaView(area_, layout_.get()).status()->left.store(1, std::memory_order_release);
  if (had_device) DeviceLinks::free_retired();
}

Communicator::Progress Communicator::advance() {
  if (in_letters_) {
    switch (letters_->advance()) {
      case Letters::Progress::kBlocked:
        return Progress::kBlocked;
      case Letters::Progress::kFailed:
        (void)fail(watch_->link_failed(letters_->peer(), letters_->status()));
        return Progress::kFailed;
      case Letters::Progress::kMismatch:
        (void)fail(watch_->mismatch(letters_->peer()));
        return Progress::kFailed;
      case Letters::Progress::kDone:
        finish();
        return Progress::kDone;
    }
  }
  if (in_mailbox_) {
    switch (mailbox_.advance(call_)) {
      case Mailbox::Progress::kBlocked:
        return Progress::kBlocked;
      case Mailbox::Progress::kMismatch:
        (void)fail(watch_->mismatch(mailbox_.peer()));
        return Progress::kFailed;
      case Mailbox::Progress::kDone:
        finish();
        return Progress::kDone;
    }
  }
  switch (execution_->advance()) {
    case Execution::Progress::kBlocked:
      return Progress::kBlocked;
    case Execution::Progress::kMoved:
      return Progress::kMoved;
    case Execution::Progress::kDone:
      finish();
      return Progress::kDone;
    case Execution::Progress::kFailed:
      break;
  }
  bool differs = execution_->status().code() == trInvalidUsage;
  (void)fail(differs ? watch_->mismatch(execution_->peer())
                     : watch_->link_failed(execution_->peer(), execution_->status()));
  return Progress::kFailed;
}

void Communicator::finish() {
  if (call_.operation != 0) context_.status->completed.store(call_.operation, std::memory_order_release);
  active_ = false;
}

Status Communicator::fail(Status status) {
  active_ = false;
  if (failure_.ok()) failure_ = std::move(status);
  return failure_;
}

Status Communicator::look_around() {
  uint32_t peer = in_letters_ ? letters_->peer() : in_mailbox_ ? mailbox_.peer() : execution_->peer();
  Status status = watch_->check(peer, execution_->steps());
  return status.ok() ? status : fail(std::move(status));
}

Status Communicator::run(const Operation& operation) {
  TR_RETURN_IF_ERROR(begin(operation));
  Backoff backoff(spins_);
  for (;;) {
    switch (advance()) {
      case Progress::kDone:
        return {};
      case Progress::kFailed:
        return failure_;
      case Progress::kMoved:
        backoff.reset();
        break;
      case Progress::kBlocked:
        if (backoff.pause()) TR_RETURN_IF_ERROR(look_around());
    }
  }
}

Status Communicator::failure() const { return failure_.ok() ? watch_->verdict() : failure_; }

void Communicator::abort(const std::string& reason) {
  (void)watch_->fail({trRemoteError, reason});
  if (device_ != nullptr) device_->abort();
}

bool Communicator::is_direct(const void* input, const void* output, size_t bytes) const {
  return RegionTable::instance().find(input, bytes).id != 0 && RegionTable::instance().find(output, bytes).id != 0;
}

}  // namespace treering
