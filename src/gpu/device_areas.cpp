// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_areas.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <cstring>

#include "communicator/communicator.h"
#include "gpu/devices.h"
#include "gpu/memory/deferred_free.h"

namespace treering {

// What a rank tells all others.
struct DeviceAreas::Info {
  int32_t ordinal;  // -1: it has no area
  uint32_t reserved;
  uint64_t process;
  uint64_t address;  // in its process
  uint64_t nonce;
  DeviceHandle handle;
};

DeviceAreas::DeviceAreas(Communicator* communicator, Device* device, Memory memory, bool alone)
    : communicator_(communicator),
      device_(device),
      memory_(memory),
      alone_(alone),
      infos_(communicator->ranks()),
      areas_(communicator->ranks()),
      imported_(communicator->ranks()) {}

DeviceAreas::~DeviceAreas() {
  if (is_kept_) return;
  DeferredFree& deferred = DeferredFree::instance();
  for (uint32_t peer = 0; peer < areas_.size(); ++peer)
    if (imported_[peer])
      deferred.defer({[device = device_, area = areas_[peer]] { (void)device->close_memory(area); }, {}, {}});
  if (own_ == nullptr) return;
  const auto peers_left = communicator_->peers_left(Communicator::Whose::kAll);
  const auto others_left = communicator_->peers_left(Communicator::Whose::kOtherProcesses);
  deferred.defer({[device = device_, own = own_] { (void)device->free(own); },
                  peers_left ? peers_left : [] { return false; },  // not known
                  others_left ? [others_left] { return !others_left(); } : std::function<bool()>()});
}

size_t DeviceAreas::keep() {
  is_kept_ = true;
  return own_ == nullptr ? 0 : bytes_;
}

void DeviceAreas::close() {
  for (uint32_t peer = 0; peer < areas_.size(); ++peer)
    if (imported_[peer]) (void)device_->close_memory(areas_[peer]);  // at the end: there is no caller to tell
  imported_.assign(imported_.size(), false);
}

Status DeviceAreas::exchange(size_t bytes, DeviceCopies* copies, Status* own) {
  bytes_ = bytes;
  Info info{};
  if (own->ok()) *own = share(copies, &info);
  info.ordinal = own->ok() ? device_->info().ordinal : -1;
  info.process = communicator_->own_process();
  TR_RETURN_IF_ERROR(
      communicator_->allgather_bytes(Purpose::kGpus, &info, sizeof info, reinterpret_cast<std::byte*>(infos_.data())));
  for (const Info& other : infos_)
    if (own->ok() && other.ordinal < 0)
      *own = {trDeviceError, fmt::format("rank {} could not share its memory", &other - infos_.data())};
  return {};
}

// The area, with a nonce, for the others to open.
Status DeviceAreas::share(DeviceCopies* copies, Info* own) {
  void* area = nullptr;
  TR_RETURN_IF_ERROR(memory_ == Memory::kPlain ? device_->allocate(bytes_, &area)
                                               : device_->allocate_shareable(bytes_, &area));
  own_ = static_cast<std::byte*>(area);
  own->address = reinterpret_cast<uint64_t>(area);
  randombytes_buf(&own->nonce, sizeof own->nonce);
  std::memcpy(copies->pinned(), &own->nonce, sizeof own->nonce);
  TR_RETURN_IF_ERROR(copies->copy(area, copies->pinned(), sizeof own->nonce));
  TR_RETURN_IF_ERROR(copies->finish());
  return alone_ ? Status() : device_->export_memory(area, &own->handle);
}

Status DeviceAreas::map(uint32_t peer, DeviceCopies* copies) {
  const Info& info = infos_[peer];
  void* mapped = reinterpret_cast<void*>(static_cast<uintptr_t>(info.address));
  if (info.process == communicator_->own_process()) {
    Device* other = nullptr;
    TR_RETURN_IF_ERROR(open_device(info.ordinal, &other));
    if (other != device_) TR_RETURN_IF_ERROR(device_->reach(other));
  } else {
    TR_RETURN_IF_ERROR(device_->import_memory(info.handle, &mapped));
    imported_[peer] = true;
  }
  areas_[peer] = static_cast<std::byte*>(mapped);
  uint64_t nonce = 0;
  TR_RETURN_IF_ERROR(copies->copy(copies->pinned(), mapped, sizeof nonce));
  TR_RETURN_IF_ERROR(copies->finish());
  std::memcpy(&nonce, copies->pinned(), sizeof nonce);
  return nonce == info.nonce ? Status() : Status{trDeviceError, fmt::format("{:#x} is read, not the nonce", nonce)};
}

Status DeviceAreas::release() {
  close();
  const uint8_t closed = 1;
  std::vector<std::byte> all(areas_.size());
  TR_RETURN_IF_ERROR(communicator_->allgather_bytes(Purpose::kGpus, &closed, sizeof closed, all.data()));
  areas_.assign(areas_.size(), nullptr);
  DeferredFree::instance().free(device_, own_);
  own_ = nullptr;
  return {};
}

}  // namespace treering
