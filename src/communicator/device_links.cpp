#include "communicator/device_links.h"

#include <fmt/format.h>
#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "communicator/communicator.h"
#include "communicator/devices.h"
#include "core/log.h"

namespace treering {
namespace {

// Blocks of a rank: enough to fill a link of a GPU to its peers, few enough to leave the GPU to the computation.
constexpr uint32_t kWantedChannels = 8;
// The own nonce, then a word for each peer to write to.
constexpr size_t kNonceBytes = 64;

struct RetiredArea {
  Device* device;
  void* address;
  std::function<bool()> peers_left;
};
std::mutex& retired_mutex() {
  static std::mutex mutex;
  return mutex;
}
std::vector<RetiredArea>& retired() {
  static auto* areas = new std::vector<RetiredArea>;
  return *areas;
}

constexpr size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

// What a rank tells all others.
struct DeviceLinks::Card {
  int32_t ordinal;  // -1: it has no device, or no area
  uint32_t multiprocessors;
  uint32_t channels;  // that it may use at most; 0: as many as it wants
  uint32_t reserved;
  std::array<uint8_t, 16> uuid;
  uint64_t process;
  uint64_t address;  // of the area, in its process
  uint64_t nonce;
  DeviceHandle handle;
};

DeviceLinks::DeviceLinks(Device* device, DeviceStream stream, uint32_t rank, uint32_t ranks, uint32_t channels)
    : device_(device),
      stream_(stream),
      rank_(rank),
      ranks_(ranks),
      channels_(channels),
      areas_(ranks),
      imported_(ranks) {}

DeviceLinks::~DeviceLinks() {
  for (uint32_t peer = 0; peer < ranks_; ++peer)
    if (imported_[peer]) (void)device_->close_memory(areas_[peer]);  // at the end: nobody to tell
  if (table_ != nullptr) (void)device_->free(table_);
  if (area_ == nullptr) return;
  std::lock_guard lock(retired_mutex());
  retired().push_back({device_, area_, std::move(peers_left_)});
}

void DeviceLinks::free_retired() {
  std::lock_guard lock(retired_mutex());
  std::erase_if(retired(), [](const RetiredArea& area) {
    if (!area.peers_left()) return false;
    (void)area.device->free(area.address);
    return true;
  });
}

std::byte* DeviceLinks::flags(std::byte* area, uint32_t channel, uint32_t peer) const {
  return area + round_up(kNonceBytes + ranks_ * sizeof(uint64_t)) + entry(channel, peer) * kDepth * sizeof(uint64_t);
}
std::byte* DeviceLinks::consumed(std::byte* area, uint32_t channel, uint32_t peer) const {
  return flags(area, channels_, 0) + entry(channel, peer) * sizeof(uint64_t);
}
std::byte* DeviceLinks::ll(std::byte* area, uint32_t channel, uint32_t peer) const {
  const auto start = static_cast<size_t>(consumed(area, channels_, 0) - area);
  return area + round_up(start) + entry(channel, peer) * kDepth * cuda::ll_bytes(cuda::kLlSlotBytes);
}
std::byte* DeviceLinks::ll128(std::byte* area, uint32_t channel, uint32_t peer) const {
  return ll(area, channels_, 0) + entry(channel, peer) * kDepth * cuda::ll128_bytes(cuda::kLl128SlotBytes);
}
std::byte* DeviceLinks::slots(std::byte* area, uint32_t channel, uint32_t peer) const {
  return ll128(area, channels_, 0) + entry(channel, peer) * kDepth * kSlotBytes;
}
size_t DeviceLinks::area_bytes() const {
  std::byte* const start = nullptr;
  return reinterpret_cast<uintptr_t>(slots(start, channels_, 0));
}

Status DeviceLinks::create(Communicator* communicator, Device* device, DeviceStream stream,
                           std::unique_ptr<DeviceLinks>* made, std::string* why_not) {
  const uint32_t rank = communicator->rank(), ranks = communicator->ranks();
  const auto blocks = static_cast<uint32_t>(communicator->config().device_blocks);
  Card own{};
  own.ordinal = -1;
  own.process = communicator->own_process();
  own.channels = blocks;
  if (device != nullptr) {
    own.ordinal = device->info().ordinal;
    own.uuid = device->info().uuid;
    own.multiprocessors = device->info().multiprocessors;
  }
  std::vector<Card> cards(ranks);
  const auto exchange = [&] {
    return communicator->allgather_bytes(&own, sizeof own, reinterpret_cast<std::byte*>(cards.data()));
  };
  TR_RETURN_IF_ERROR(exchange());
  uint32_t channels = kWantedChannels;
  if (communicator->hosts() > 1) *why_not = "the ranks are on several hosts";
  if (ranks > cuda::kMaxDeviceRanks) *why_not = fmt::format("there are more than {} ranks", cuda::kMaxDeviceRanks);
  for (const Card& card : cards) {
    if (card.ordinal < 0) {
      *why_not = fmt::format("rank {} has no GPU", &card - cards.data());
      break;
    }
    const auto shares = [&](const Card& other) { return other.uuid == card.uuid; };
    const auto sharing = static_cast<uint32_t>(std::count_if(cards.begin(), cards.end(), shares));
    if (std::any_of(cards.begin(), cards.end(), [&](const Card& o) { return shares(o) && o.process != card.process; }))
      *why_not = fmt::format("rank {} shares its GPU with another process", &card - cards.data());
    // All blocks of the ranks on one GPU are resident together.
    channels = std::min(channels, std::max(card.multiprocessors / sharing, 1u));
    if (card.channels > 0) channels = std::min(channels, card.channels);
  }
  if (!why_not->empty()) return {};  // all ranks see the same cards

  // One after the other on all ranks: what fails for one is of no use to the others.
  const bool alone = std::all_of(cards.begin(), cards.end(), [&](const Card& c) { return c.process == own.process; });
  for (Memory memory : {Memory::kPlain, Memory::kByDescriptor}) {
    std::string reason;
    std::unique_ptr<DeviceLinks> links(new DeviceLinks(device, stream, rank, ranks, channels));
    links->alone_ = alone;
    TR_RETURN_IF_ERROR(links->attempt(communicator, memory, own, &reason));
    if (reason.empty()) {
      if (memory == Memory::kByDescriptor && rank == 0)
        log_line(LogLevel::kInfo,
                 fmt::format("memory of GPUs is shared by file descriptors, because otherwise {}", *why_not));
      why_not->clear();
      *made = std::move(links);
      return {};
    }
    *why_not += (why_not->empty() ? "" : "; by file descriptors: ") + reason;
    if (alone) break;  // nothing is exported
  }
  return {};
}

// What each rank found.
struct DeviceLinks::Outcome {
  uint32_t failed;
  uint32_t keeps_lines;
  double latency_us, gbps, host_gbps;
  char text[224];
};

Status DeviceLinks::attempt(Communicator* communicator, Memory memory, Card own, std::string* why_not) {
  std::vector<Card> cards(ranks_);
  Status status = share(memory, &own);
  if (!status.ok()) own.ordinal = -1;
  peers_left_ = communicator->peers_left();
  TR_RETURN_IF_ERROR(communicator->allgather_bytes(&own, sizeof own, reinterpret_cast<std::byte*>(cards.data())));
  if (status.ok()) status = prove(cards);
  if (status.ok()) status = fill_table();
  Outcome outcome{!status.ok(), 1, link_.latency_us, link_.gbps, host_gbps_, {}};
  for (const Card& card : cards) outcome.keeps_lines &= device_->keeps_lines(card.uuid) ? 1 : 0;
  std::strncpy(outcome.text, status.message().c_str(), sizeof outcome.text - 1);
  std::vector<Outcome> outcomes(ranks_);
  TR_RETURN_IF_ERROR(
      communicator->allgather_bytes(&outcome, sizeof outcome, reinterpret_cast<std::byte*>(outcomes.data())));
  // All ranks go by the worst figures of any.
  for (const Outcome& other : outcomes) {
    keep_lines_ &= other.keeps_lines != 0;
    link_.latency_us = std::max(link_.latency_us, other.latency_us);
    link_.gbps = std::min(link_.gbps, other.gbps);
    host_gbps_ = std::min(host_gbps_, other.host_gbps);
    if (other.failed != 0 && why_not->empty())
      *why_not = fmt::format("rank {}: {}", &other - outcomes.data(), other.text);
  }
  return {};
}

// The area, with a nonce, for the others to open.
Status DeviceLinks::share(Memory memory, Card* own) {
  void* area = nullptr;
  TR_RETURN_IF_ERROR(memory == Memory::kPlain ? device_->allocate(area_bytes(), &area)
                                              : device_->allocate_shareable(area_bytes(), &area));
  area_ = static_cast<std::byte*>(area);
  own->address = reinterpret_cast<uint64_t>(area);
  randombytes_buf(&own->nonce, sizeof own->nonce);
  TR_RETURN_IF_ERROR(device_->copy(area, &own->nonce, sizeof own->nonce, stream_));
  TR_RETURN_IF_ERROR(device_->synchronize(stream_));
  return alone_ ? Status() : device_->export_memory(area, &own->handle);
}

Status DeviceLinks::map(const Card& card, uint32_t peer, uint64_t own_process) {
  if (peer == rank_ || card.process == own_process) {
    Device* other = nullptr;
    TR_RETURN_IF_ERROR(open_device(card.ordinal, &other));
    if (other != device_) TR_RETURN_IF_ERROR(device_->reach(other));
    areas_[peer] = reinterpret_cast<std::byte*>(static_cast<uintptr_t>(card.address));
    return {};
  }
  void* mapped = nullptr;
  TR_RETURN_IF_ERROR(device_->import_memory(card.handle, &mapped));
  areas_[peer] = static_cast<std::byte*>(mapped);
  imported_[peer] = true;
  return {};
}

// Each rank reads the nonce of every other from its memory, writes one of its own there, and measures: all at the same time,
// each beginning with another peer.
Status DeviceLinks::prove(const std::vector<Card>& cards) {
  for (uint32_t peer = 0; peer < ranks_; ++peer)
    if (cards[peer].ordinal < 0) return {trDeviceError, fmt::format("rank {} could not share its memory", peer)};
  std::unique_ptr<DeviceProbe> probe;
  TR_RETURN_IF_ERROR(DeviceProbe::create(device_, stream_, kDepth * kSlotBytes, &probe));
  host_gbps_ = probe->host_gbps();
  std::string text;
  for (uint32_t distance = 0; distance < ranks_; ++distance) {
    const uint32_t peer = (rank_ + distance) % ranks_;
    TR_RETURN_IF_ERROR(map(cards[peer], peer, cards[rank_].process));
    uint64_t nonce = 0;
    TR_RETURN_IF_ERROR(device_->copy(&nonce, areas_[peer], sizeof nonce, stream_));
    TR_RETURN_IF_ERROR(device_->synchronize(stream_));
    if (nonce != cards[peer].nonce)
      return {trDeviceError, fmt::format("the memory of rank {}'s GPU reads {:#x}, not its nonce", peer, nonce)};
    if (peer == rank_) continue;
    cuda::LinkFigures figures;
    TR_RETURN_IF_ERROR(measure(probe.get(), peer, &figures));
    text += fmt::format("{} rank {} {:.2f} us {:.1f} GB/s", text.empty() ? "" : ",", peer, figures.latency_us,
                        figures.gbps);
    link_.latency_us = std::max(link_.latency_us, figures.latency_us);
    link_.gbps = link_.measured ? std::min(link_.gbps, figures.gbps) : figures.gbps;
    link_.measured = true;
  }
  log_line(LogLevel::kInfo, fmt::format("GPU {} of rank {} reaches by copies:{}; the host {:.1f} GB/s",
                                        device_->info().ordinal, rank_, text, host_gbps_));
  return {};
}

Status DeviceLinks::measure(DeviceProbe* probe, uint32_t peer, cuda::LinkFigures* figures) {
  std::vector<std::byte*> chunks;  // what only this rank writes
  for (uint32_t channel = 0; channel < channels_; ++channel) chunks.push_back(slots(areas_[peer], channel, rank_));
  Status status = probe->measure(areas_[peer] + kNonceBytes + rank_ * sizeof(uint64_t), chunks, figures);
  if (status.ok() || status.code() != trDeviceError) return status;
  return {status.code(), fmt::format("in the memory of rank {}'s GPU, {}", peer, status.message())};
}

Status DeviceLinks::fill_table() {
  std::vector<cuda::Link> links(size_t{channels_} * ranks_);
  for (uint32_t channel = 0; channel < channels_; ++channel)
    for (uint32_t peer = 0; peer < ranks_; ++peer) {
      std::byte *mine = area_, *theirs = areas_[peer];
      cuda::Link& link = links[entry(channel, peer)];
      link = {};
      link.out_slots = slots(theirs, channel, rank_);
      link.out_ll = reinterpret_cast<uint64_t*>(ll(theirs, channel, rank_));
      link.out_ll128 = reinterpret_cast<uint64_t*>(ll128(theirs, channel, rank_));
      link.out_flags = reinterpret_cast<uint64_t*>(flags(theirs, channel, rank_));
      link.out_consumed = reinterpret_cast<uint64_t*>(consumed(mine, channel, peer));
      link.in_slots = slots(mine, channel, peer);
      link.in_ll = reinterpret_cast<uint64_t*>(ll(mine, channel, peer));
      link.in_ll128 = reinterpret_cast<uint64_t*>(ll128(mine, channel, peer));
      link.in_flags = reinterpret_cast<uint64_t*>(flags(mine, channel, peer));
      link.in_consumed = reinterpret_cast<uint64_t*>(consumed(theirs, channel, rank_));
    }
  void* table = nullptr;
  TR_RETURN_IF_ERROR(device_->allocate(links.size() * sizeof(cuda::Link), &table));
  table_ = static_cast<cuda::Link*>(table);
  TR_RETURN_IF_ERROR(device_->copy(table_, links.data(), links.size() * sizeof(cuda::Link), stream_));
  return device_->synchronize(stream_);
}

}  // namespace treering
