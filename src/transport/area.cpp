// SPDX-License-Identifier: Apache-2.0
#include "transport/area.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

namespace treering {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLine = 64;
size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// The shared mappings of this process by job name.
std::mutex registry_mutex;
std::map<std::string, std::weak_ptr<Segment>>& registry() {
  static auto* segments = new std::map<std::string, std::weak_ptr<Segment>>;
  return *segments;
}

}  // namespace

AreaLayout::AreaLayout(uint32_t ranks_, uint32_t channels_, size_t staging_bytes_, const AreaSizes& sizes)
    : ranks(ranks_), channels(channels_), staging_bytes(round_up(staging_bytes_, kPage)) {
  nonce_offset = round_up(sizes.status, kLine);
  head_bytes = nonce_offset + kLine;
  mailbox_offset = round_up(kMaxExports * sizeof(RegionExport), kLine);
  fifo_offset = round_up(mailbox_offset + sizes.mailbox, kPage);
  staging_offset = round_up(fifo_offset + size_t{ranks} * channels * sizeof(Fifo), kPage);
  body_bytes = staging_offset + channels * staging_bytes;
  private_bytes = round_up(head_bytes, kPage) + body_bytes;
  heads_offset = round_up(sizes.segment_header, kPage);
  bodies_offset = round_up(heads_offset + ranks * head_bytes, kPage);
  total_bytes = bodies_offset + ranks * body_bytes;
}

AreaView AreaLayout::view(std::byte* base, uint32_t rank) const {
  return {base + heads_offset + rank * head_bytes, base + bodies_offset + rank * body_bytes, this};
}

AreaView AreaLayout::private_view(std::byte* base) const { return {base, base + round_up(head_bytes, kPage), this}; }

Segment::~Segment() {
  close_descriptor();
  if (base_ != nullptr) munmap(base_, bytes_);
}

void Segment::close_descriptor() {
  if (int descriptor = descriptor_.exchange(-1); descriptor >= 0) close(descriptor);
}

Status Segment::map_shared(const std::string& job, int descriptor, size_t bytes, std::shared_ptr<Segment>* segment) {
  std::lock_guard lock(registry_mutex);
  std::erase_if(registry(), [](const auto& entry) { return entry.second.expired(); });
  if (auto found = registry()[job].lock()) {
    close(descriptor);
    *segment = found;
    return {};
  }
  std::shared_ptr<Segment> made(new Segment);
  made->descriptor_ = descriptor;
  struct stat info {};
  if (fstat(descriptor, &info) != 0) return {trSystemError, fmt::format("fstat: {}", std::strerror(errno))};
  made->inode_ = info.st_ino;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED)
    return {trSystemError, fmt::format("mmap of {} bytes of shared memory: {}", bytes, std::strerror(errno))};
  made->base_ = static_cast<std::byte*>(base);
  made->bytes_ = bytes;
  registry()[job] = made;
  *segment = made;
  return {};
}

Status Segment::map_private(size_t bytes, std::shared_ptr<Segment>* segment) {
  std::shared_ptr<Segment> made(new Segment);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return {trSystemError, fmt::format("mmap of {} bytes of private memory: {}", bytes, std::strerror(errno))};
  made->base_ = static_cast<std::byte*>(base);
  made->bytes_ = bytes;
  *segment = made;
  return {};
}

}  // namespace treering
