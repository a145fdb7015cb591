// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_fifos.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "communicator/communicator.h"
#include "core/log.h"
#include "gpu/memory/deferred_free.h"

namespace treering {
namespace {

// What the proofs have, and enough for most links.
constexpr uint32_t kFirstChannels = 8;
static_assert(FifoLayout::kDepth * FifoLayout::kSlotBytes == DeviceProbe::kChunkBytes);
static_assert(cuda::kMaxDeviceChannels * cuda::kMaxDeviceRanks * sizeof(cuda::PeerFifos) <= DeviceProbe::kBufferBytes);

}  // namespace

// What a rank tells all others.
struct DeviceFifos::Info {
  int32_t ordinal;  // -1: it has no device
  uint32_t multiprocessors;
  uint32_t channels;     // that it may use at most; 0: as many as it wants
  uint32_t forbids_p2p;  // 1: its GPU and others must not reach one another
  uint32_t capability;
  std::array<uint8_t, 16> uuid;
  uint64_t process;

  bool shares(const Info& other) const { return uuid == other.uuid; }
  static bool of_one_process(const std::vector<Info>& infos) {
    return std::all_of(infos.begin(), infos.end(), [&](const Info& info) { return info.process == infos[0].process; });
  }
  uint32_t sharing(const std::vector<Info>& infos) const {
    return static_cast<uint32_t>(
        std::count_if(infos.begin(), infos.end(), [&](const Info& other) { return shares(other); }));
  }
};

DeviceFifos::DeviceFifos(Communicator* communicator, Device* device, const std::vector<Info>& infos,
                         DeviceAreas::Memory memory)
    : communicator_(communicator),
      device_(device),
      rank_(communicator->rank()),
      ranks_(communicator->ranks()),
      alone_(Info::of_one_process(infos)),
      areas_(communicator, device, memory, alone_),
      more_areas_(communicator, device, memory, alone_) {
  const Info& own = infos[rank_];
  const auto on_gpu = [&](const Info& info) { return own.shares(info); };
  sharing_ = own.sharing(infos);
  first_sharing_ = static_cast<uint32_t>(std::find_if(infos.begin(), infos.end(), on_gpu) - infos.begin());
  for (const Info& info : infos) {
    most_channels_ =
        std::min(most_channels_, OccupancyBudget::most_channels(info.multiprocessors, info.sharing(infos)));
    if (info.channels > 0)
      wanted_channels_ = wanted_channels_ == 0 ? info.channels : std::min(wanted_channels_, info.channels);
    // What LL128 needs is known between GPUs of one generation alone.
    findings_.keep_lines &= device->keeps_lines(info.uuid) && info.capability == own.capability;
  }
  most_channels_ = FifoLayout::limit_by_memory(ranks_, most_channels_);
}

DeviceFifos::~DeviceFifos() {
  if (!findings_.stuck) DeferredFree::instance().free(device_, table_);
}

Status DeviceFifos::create(Communicator* communicator, Device* device, std::unique_ptr<DeviceFifos>* made,
                           std::string* why_not) {
  const uint32_t rank = communicator->rank(), ranks = communicator->ranks();
  Info own{};
  own.ordinal = -1;
  own.process = communicator->own_process();
  own.channels = static_cast<uint32_t>(communicator->config().device_blocks);
  own.forbids_p2p = communicator->config().device_p2p ? 0 : 1;
  if (device != nullptr) {
    own.ordinal = device->info().ordinal;
    own.uuid = device->info().uuid;
    own.multiprocessors = device->info().multiprocessors;
    own.capability = device->info().compute_capability;
  }
  std::vector<Info> infos(ranks);
  TR_RETURN_IF_ERROR(
      communicator->allgather_bytes(Purpose::kGpus, &own, sizeof own, reinterpret_cast<std::byte*>(infos.data())));
  if (communicator->hosts() > 1) *why_not = "the ranks are on several hosts";
  if (ranks > cuda::kMaxDeviceRanks) *why_not = fmt::format("there are more than {} ranks", cuda::kMaxDeviceRanks);
  for (const Info& info : infos) {
    if (info.ordinal < 0) {
      *why_not = fmt::format("rank {} has no GPU", &info - infos.data());
      break;
    }
    const auto of_another = [&](const Info& o) { return info.shares(o) && o.process != info.process; };
    if (std::any_of(infos.begin(), infos.end(), of_another))
      *why_not = fmt::format("rank {} shares its GPU with another process", &info - infos.data());
    if (info.forbids_p2p != 0 && info.sharing(infos) < ranks)
      *why_not = fmt::format("rank {} forbids access between GPUs (TREERING_DEVICE_P2P=0)", &info - infos.data());
  }
  if (!why_not->empty()) return {};  // all ranks see the same infos

  // One after the other on all ranks: what fails for one is of no use to the others.
  for (auto memory : {DeviceAreas::Memory::kPlain, DeviceAreas::Memory::kByDescriptor}) {
    std::string reason;
    std::unique_ptr<DeviceFifos> fifos(new DeviceFifos(communicator, device, infos, memory));
    TR_RETURN_IF_ERROR(fifos->attempt(&reason));
    if (reason.empty()) {
      if (memory == DeviceAreas::Memory::kByDescriptor && rank == 0)
        log_line(LogLevel::kInfo,
                 fmt::format("memory of GPUs is shared by file descriptors, because otherwise {}", *why_not));
      why_not->clear();
      *made = std::move(fifos);
      return {};
    }
    *why_not += (why_not->empty() ? "" : "; by file descriptors: ") + reason;
    if (fifos->alone_ || fifos->findings_.stuck) break;  // nothing is exported; or it is not the memory that fails
  }
  return {};
}

Status DeviceFifos::attempt(std::string* why_not) {
  std::unique_ptr<DeviceCopies> copies;
  Status own = DeviceCopies::create(communicator_, device_, DeviceProbe::kBufferBytes, &copies);
  const Status status = connect(copies.get(), &own, why_not);
  const bool here = copies != nullptr && copies->is_stuck();
  findings_.stuck |= here;
  if (!findings_.stuck) return status;
  // Freeing anything would wait for them, and peers' copies may still write here.
  size_t kept = DeviceProbe::kBufferBytes;
  for (DeviceAreas* areas : {&areas_, &more_areas_}) kept += areas->keep();
  if (copies != nullptr) copies->keep();
  log_line(LogLevel::kWarn,
           fmt::format("rank {}: {}; GPU {} keeps {:.1f} MiB until the process ends, which these copies may still use",
                       rank_, here ? own.message() : "copies of another rank have not ended in time",
                       device_->info().ordinal, static_cast<double>(kept) / (1 << 20)));
  return status;
}

Status DeviceFifos::connect(DeviceCopies* copies, Status* own, std::string* why_not) {
  const auto agree = [&] {
    findings_.stuck = copies != nullptr && copies->is_stuck();
    return agree_on_links(communicator_, *own, &findings_, why_not);
  };
  // Before the links are measured it is not known how many channels they need.
  channels_ = std::min(most_channels_, wanted_channels_ > 0 ? wanted_channels_ : kFirstChannels);
  first_channels_ = std::min(channels_, kFirstChannels);
  const FifoLayout first{ranks_, first_channels_};
  TR_RETURN_IF_ERROR(areas_.exchange(first.bytes(), copies, own));
  const auto place = [&](std::byte* area) {
    ProofPlace made{area + FifoLayout::word(rank_), {}};
    for (uint32_t channel = 0; channel < first_channels_; ++channel)
      made.chunks.push_back(area + first.slots(channel, rank_));
    return made;
  };
  if (own->ok()) *own = probe_device_fifos(communicator_, copies, &areas_, place, &findings_);
  TR_RETURN_IF_ERROR(agree());
  if (findings_.stuck) return {};
  if (!why_not->empty()) return areas_.release();
  if (wanted_channels_ == 0) channels_ = std::min(most_channels_, cuda::channels_to_fill(findings_.link));
  if (channels_ > first_channels_) {
    TR_RETURN_IF_ERROR(more_areas_.exchange(FifoLayout{ranks_, channels_ - first_channels_}.bytes(), copies, own));
    if (own->ok()) *own = map(&more_areas_, copies);
  }
  if (own->ok()) *own = fill_table(copies);
  TR_RETURN_IF_ERROR(agree());
  if (why_not->empty() && rank_ == first_sharing_)
    occupancy_ = std::make_unique<OccupancyBudget>(device_, sharing_, channels_);
  return {};
}

Status DeviceFifos::map(DeviceAreas* areas, DeviceCopies* copies) {
  for (uint32_t distance = 0; distance < ranks_; ++distance) {
    const uint32_t peer = (rank_ + distance) % ranks_;
    TR_RETURN_IF_ERROR(of_link(peer, areas->map(peer, copies)));
  }
  return {};
}

cuda::PeerFifos DeviceFifos::to(uint32_t channel, uint32_t peer) const {
  const bool is_first = channel < first_channels_;
  const FifoLayout layout{ranks_, is_first ? first_channels_ : channels_ - first_channels_};
  if (!is_first) channel -= first_channels_;
  const DeviceAreas& areas = is_first ? areas_ : more_areas_;
  const auto words = [](std::byte* at) { return reinterpret_cast<uint64_t*>(at); };
  std::byte *mine = areas.of(rank_), *theirs = areas.of(peer);
  cuda::PeerFifos fifos{};
  fifos.out_slots = theirs + layout.slots(channel, rank_);
  fifos.out_ll = words(theirs + layout.ll(channel, rank_));
  fifos.out_ll128 = words(theirs + layout.ll128(channel, rank_));
  fifos.out_flags = words(theirs + layout.flags(channel, rank_));
  fifos.out_consumed = words(mine + layout.consumed(channel, peer));
  fifos.in_slots = mine + layout.slots(channel, peer);
  fifos.in_ll = words(mine + layout.ll(channel, peer));
  fifos.in_ll128 = words(mine + layout.ll128(channel, peer));
  fifos.in_flags = words(mine + layout.flags(channel, peer));
  fifos.in_consumed = words(theirs + layout.consumed(channel, rank_));
  return fifos;
}

Status DeviceFifos::fill_table(DeviceCopies* copies) {
  auto* const fifos = reinterpret_cast<cuda::PeerFifos*>(copies->pinned());
  for (uint32_t channel = 0; channel < channels_; ++channel)
    for (uint32_t peer = 0; peer < ranks_; ++peer) fifos[channel * ranks_ + peer] = to(channel, peer);
  const size_t bytes = size_t{channels_} * ranks_ * sizeof(cuda::PeerFifos);
  void* table = nullptr;
  TR_RETURN_IF_ERROR(device_->allocate(bytes, &table));
  table_ = static_cast<cuda::PeerFifos*>(table);
  TR_RETURN_IF_ERROR(copies->copy(table_, fifos, bytes));
  return copies->finish();
}

}  // namespace treering
