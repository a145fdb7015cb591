// SPDX-License-Identifier: Apache-2.0
#include "transport/region.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/address_space.h"

namespace treering {
namespace {

constexpr size_t kMaxBytes = SIZE_MAX / 64;

uint64_t round_up(uint64_t value) { return (value + kPageBytes - 1) / kPageBytes * kPageBytes; }

// A memfd of `bytes` bytes, never executable, closed on exec.
Status make_memfd(size_t bytes, int* descriptor, uint64_t* inode) {
  int fd = memfd_create(kRegionFileName, MFD_CLOEXEC);
  if (fd < 0) return {trSystemError, fmt::format("memfd_create: {}", std::strerror(errno))};
  struct stat info {};
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 || fstat(fd, &info) != 0) {
    Status status(trSystemError, fmt::format("ftruncate of a memfd to {} bytes: {}", bytes, std::strerror(errno)));
    close(fd);
    return status;
  }
  *descriptor = fd;
  *inode = info.st_ino;
  return {};
}

}  // namespace

RegionTable& RegionTable::instance() {
  // Never destroyed: threads may still use it while the process ends.
  static RegionTable* const table = [] {
    auto* made = new RegionTable;
    // Another thread that is inside at a fork is not in the child, which would wait for it.
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] {
                     instance().inherit_all();
                     instance().mutex_.unlock();
                   });
    return made;
  }();
  return *table;
}

// In a process that was forked, with the mutex. What watched belongs to the process that forked it.
void RegionTable::inherit_all() {
  for (Region& region : regions_) region.inherited = true;
  watchers_.clear();
}

void RegionTable::watch(RegionWatcher* watcher) {
  std::lock_guard lock(mutex_);
  watchers_.push_back(watcher);
}

void RegionTable::forget(RegionWatcher* watcher) {
  std::lock_guard lock(mutex_);
  std::erase(watchers_, watcher);
}

void RegionTable::add(Region region) {
  region.id = next_id_++;
  regions_.push_back(region);
  live_.store(regions_.size(), std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
}

// Before its pages move or are given back.
void RegionTable::tell_end(uint32_t id) {
  for (RegionWatcher* watcher : watchers_) watcher->end_region(id);
}

void RegionTable::drop(size_t index) {
  tell_end(regions_[index].id);
  remove(index);
}

void RegionTable::remove(size_t index) {
  close(regions_[index].descriptor);
  regions_.erase(regions_.begin() + static_cast<std::ptrdiff_t>(index));
  live_.store(regions_.size(), std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
}

Status RegionTable::allocate(size_t bytes, void** pointer) {
  Region region;
  if (bytes > kMaxBytes) return {trInvalidArgument, fmt::format("size is {}: more than any memory holds", bytes)};
  region.bytes = round_up(std::max<size_t>(bytes, 1));
  TR_RETURN_IF_ERROR(make_memfd(region.bytes, &region.descriptor, &region.inode));
  void* base = mmap(nullptr, region.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region.descriptor, 0);
  if (base == MAP_FAILED) {
    Status status(trSystemError, fmt::format("mmap of {} bytes: {}", region.bytes, std::strerror(errno)));
    close(region.descriptor);
    return status;
  }
  region.base = static_cast<std::byte*>(base);
  std::lock_guard lock(mutex_);
  add(region);
  *pointer = base;
  return {};
}

Status RegionTable::release(void* pointer) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < regions_.size(); ++i) {
    Region& region = regions_[i];
    if (region.base != pointer || region.moved) continue;
    tell_end(region.id);
    // A peer may hold its mapping until the communicator ends: give the pages back now. Those of a process that forked
    // this one are still in use there.
    if (!region.inherited)
      (void)fallocate(region.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                      static_cast<off_t>(region.bytes));
    munmap(region.base, region.bytes);
    remove(i);
    return {};
  }
  return {trInvalidArgument, fmt::format("{} is not memory of trMemAlloc (or was freed already)", pointer)};
}

Status RegionTable::move_in_place(void* buffer, size_t bytes, uint32_t* id) {
  *id = 0;
  const auto address = reinterpret_cast<uint64_t>(buffer);
  if (bytes > kMaxBytes || address > UINT64_MAX - kPageBytes - bytes)
    return {trInvalidArgument,
            fmt::format("the buffer {} of {} bytes ends behind the end of any memory; give its size in bytes", buffer,
                        bytes)};
  const uint64_t begin = round_up(address);
  const uint64_t end = (address + bytes) / kPageBytes * kPageBytes;
  if (end <= begin) return {};  // no whole page: nothing to gain, and messages this small are copied anyway
  auto* base = reinterpret_cast<std::byte*>(begin);
  std::lock_guard lock(mutex_);
  bool covered = false;
  TR_RETURN_IF_ERROR(end_overlapped(base, end - begin, &covered));
  if (covered) return {};
  TR_RETURN_IF_ERROR(check_plain_anonymous(base, end - begin));
  Region region;
  region.base = base;
  region.bytes = end - begin;
  region.moved = true;
  TR_RETURN_IF_ERROR(make_memfd(region.bytes, &region.descriptor, &region.inode));
  void* copy = mmap(nullptr, region.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region.descriptor, 0);
  void* placed = MAP_FAILED;
  if (copy != MAP_FAILED) {
    std::memcpy(copy, base, region.bytes);
    munmap(copy, region.bytes);
    placed = mmap(base, region.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, region.descriptor, 0);
  }
  if (placed == MAP_FAILED) {
    Status status(trSystemError,
                  fmt::format("mmap of {} bytes to move a buffer: {}", region.bytes, std::strerror(errno)));
    close(region.descriptor);
    return status;
  }
  *id = next_id_;
  add(region);
  return {};
}

// With the mutex. Registrations that the range overlaps end, because its pages are about to move: their
// memory was freed and given out again. *covered: the whole range is in a region already.
Status RegionTable::end_overlapped(std::byte* base, size_t bytes, bool* covered) {
  for (size_t i = regions_.size(); i-- > 0;) {
    const Region& region = regions_[i];
    if (base >= region.base + region.bytes || region.base >= base + bytes) continue;
    bool inside = base >= region.base && base + bytes <= region.base + region.bytes;
    if (inside && (!region.moved || range_is_of_file(base, bytes, region.inode))) {
      *covered = true;
      return {};
    }
    if (!region.moved)
      return {trInvalidArgument, fmt::format("the buffer {} of {} bytes lies partly in memory of trMemAlloc",
                                             static_cast<void*>(base), bytes)};
    drop(i);
  }
  return {};
}

Status RegionTable::end_registration(uint32_t id) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < regions_.size(); ++i) {
    if (regions_[i].id != id) continue;
    if (!regions_[i].moved) return {trInvalidArgument, fmt::format("handle {:#x} is of trMemAlloc", id)};
    drop(i);  // the pages stay where they are: they belong to the user, who may have freed them already
    return {};
  }
  if (id == 0 || id >= next_id_)
    return {trInvalidArgument, fmt::format("handle {:#x} is none that trCommRegister gave", id)};
  return {};  // the memory was freed, which ended the registration
}

Region RegionTable::find(const void* buffer, size_t bytes) {
  if (empty()) return {};
  auto* begin = static_cast<const std::byte*>(buffer);
  auto* middle = begin + bytes / 2;
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < regions_.size(); ++i) {
    const Region& region = regions_[i];
    if (middle < region.base || middle >= region.base + region.bytes) continue;
    if (!region.moved) return region;
    auto* first = std::max(begin, static_cast<const std::byte*>(region.base));
    auto* last = std::min(begin + bytes, static_cast<const std::byte*>(region.base + region.bytes));
    if (range_is_of_file(first, static_cast<size_t>(last - first), region.inode)) return region;
    drop(i);
    return {};
  }
  return {};
}

bool RegionTable::is_live(uint32_t id) {
  std::lock_guard lock(mutex_);
  return std::any_of(regions_.begin(), regions_.end(), [id](const Region& region) { return region.id == id; });
}

uint32_t RegionTable::take_id() { return kNotOfTable | ids_taken_.fetch_add(1, std::memory_order_relaxed); }

bool RegionExports::publish(const Region& region) {
  refresh();
  RegionExport& entry = table_[region.id % kMaxExports];
  uint32_t present = entry.id.load(std::memory_order_relaxed);
  if (present == region.id) return true;
  if (present != 0) return false;
  entry.descriptor.store(region.descriptor, std::memory_order_relaxed);
  entry.inode.store(region.inode, std::memory_order_relaxed);
  entry.bytes.store(region.bytes, std::memory_order_relaxed);
  entry.id.store(region.id, std::memory_order_release);
  return true;
}

void RegionExports::refresh() {
  uint64_t generation = RegionTable::instance().generation();
  if (generation == seen_generation_) return;
  seen_generation_ = generation;
  for (uint32_t i = 0; i < kMaxExports; ++i) {
    uint32_t id = table_[i].id.load(std::memory_order_relaxed);
    if (id != 0 && !RegionTable::instance().is_live(id)) table_[i].id.store(0, std::memory_order_release);
  }
}

int open_peer_descriptor(int pid, int descriptor, uint64_t inode) {
  int fd = ::open(fmt::format("/proc/{}/fd/{}", pid, descriptor).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return -1;
  struct stat info {};
  if (fstat(fd, &info) == 0 && info.st_ino == inode) return fd;
  close(fd);
  errno = ESTALE;
  return -1;
}

PeerRegions::~PeerRegions() {
  for (const Mapping& mapping : mappings_)
    if (mapping.base != nullptr) munmap(mapping.base, mapping.bytes);
}

void* PeerRegions::map(uint32_t id, uint64_t offset, size_t bytes) {
  const Mapping* mapping = find_or_map(id);
  if (mapping->base == nullptr || offset > mapping->bytes || bytes > mapping->bytes - offset) return nullptr;
  return mapping->base + offset;
}

const PeerRegions::Mapping* PeerRegions::find_or_map(uint32_t id) {
  for (const Mapping& mapping : mappings_)
    if (mapping.id == id) return &mapping;
  drop_ended();
  const RegionExport& entry = table_[id % kMaxExports];
  Mapping mapping{id, nullptr, 0};
  if (entry.id.load(std::memory_order_acquire) == id) {
    int fd = open_peer_descriptor(pid_, entry.descriptor.load(std::memory_order_relaxed),
                                  entry.inode.load(std::memory_order_relaxed));
    mapping.bytes = entry.bytes.load(std::memory_order_relaxed);
    if (fd >= 0) {
      void* base = mmap(nullptr, mapping.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
      if (base != MAP_FAILED) mapping.base = static_cast<std::byte*>(base);
      close(fd);
    }
  }
  mappings_.push_back(mapping);
  return &mappings_.back();
}

void PeerRegions::drop_ended() {
  std::erase_if(mappings_, [this](const Mapping& mapping) {
    if (table_[mapping.id % kMaxExports].id.load(std::memory_order_acquire) == mapping.id) return false;
    if (mapping.base != nullptr) munmap(mapping.base, mapping.bytes);
    return true;
  });
}

}  // namespace treering
