#include "communicator/device_links.h"

#include <fmt/format.h>
#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "communicator/communicator.h"
#include "communicator/devices.h"

namespace treering {
namespace {

// Blocks of a rank: enough to fill a link of a GPU to its peers, few enough to leave the GPU to the computation.
constexpr uint32_t kWantedChannels = 8;
constexpr size_t kHeaderBytes = 256;

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
  return area + kHeaderBytes + entry(channel, peer) * kDepth * sizeof(uint64_t);
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

  std::unique_ptr<DeviceLinks> links(new DeviceLinks(device, stream, rank, ranks, channels));
  void* area = nullptr;
  Status status = device->allocate(links->area_bytes(), &area);
  links->area_ = static_cast<std::byte*>(area);
  links->peers_left_ = communicator->peers_left();
  randombytes_buf(&own.nonce, sizeof own.nonce);
  own.address = reinterpret_cast<uint64_t>(area);
  if (status.ok()) status = device->copy(area, &own.nonce, sizeof own.nonce, stream);
  if (status.ok()) status = device->synchronize(stream);
  if (status.ok()) status = device->export_memory(area, &own.handle);
  if (!status.ok()) own.ordinal = -1;
  TR_RETURN_IF_ERROR(exchange());
  if (status.ok()) status = links->prove(cards);
  if (status.ok()) status = links->fill_table();
  // Whether it worked for all.
  struct Outcome {
    uint32_t failed;
    uint32_t keeps_lines;
    char text[248];
  } outcome{!status.ok(), 1, {}};
  for (const Card& card : cards) outcome.keeps_lines &= device->keeps_lines(card.uuid) ? 1 : 0;
  std::strncpy(outcome.text, status.message().c_str(), sizeof outcome.text - 1);
  std::vector<Outcome> outcomes(ranks);
  TR_RETURN_IF_ERROR(
      communicator->allgather_bytes(&outcome, sizeof outcome, reinterpret_cast<std::byte*>(outcomes.data())));
  for (const Outcome& other : outcomes) links->keep_lines_ &= other.keeps_lines != 0;
  for (const Outcome& other : outcomes)
    if (other.failed != 0 && why_not->empty())
      *why_not = fmt::format("rank {}: {}", &other - outcomes.data(), other.text);
  if (why_not->empty()) *made = std::move(links);
  return {};
}

// Each rank reads the nonce of every other from its memory.
Status DeviceLinks::prove(const std::vector<Card>& cards) {
  for (uint32_t peer = 0; peer < ranks_; ++peer) {
    const Card& card = cards[peer];
    if (card.ordinal < 0) return {trDeviceError, fmt::format("rank {} could not share its memory", peer)};
    if (peer == rank_ || card.process == cards[rank_].process) {
      Device* other = nullptr;
      TR_RETURN_IF_ERROR(open_device(card.ordinal, &other));
      if (other != device_) TR_RETURN_IF_ERROR(device_->reach(other));
      areas_[peer] = reinterpret_cast<std::byte*>(static_cast<uintptr_t>(card.address));
    } else {
      void* mapped = nullptr;
      TR_RETURN_IF_ERROR(device_->import_memory(card.handle, &mapped));
      areas_[peer] = static_cast<std::byte*>(mapped);
      imported_[peer] = true;
    }
    uint64_t nonce = 0;
    TR_RETURN_IF_ERROR(device_->copy(&nonce, areas_[peer], sizeof nonce, stream_));
    TR_RETURN_IF_ERROR(device_->synchronize(stream_));
    if (nonce != card.nonce)
      return {trDeviceError, fmt::format("the memory of rank {}'s GPU reads {:#x}, not its nonce", peer, nonce)};
  }
  return {};
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
