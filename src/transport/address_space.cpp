// SPDX-License-Identifier: Apache-2.0
#include "transport/address_space.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

namespace treering {
namespace {

// Linux 6.11's struct procmap_query (fs/proc), which older headers lack.
struct ProcmapQuery {
  uint64_t size, query_flags, query_addr, vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
  uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
  uint64_t vma_name_addr, build_id_addr;
};
constexpr unsigned long kProcmapQuery = _IOWR('f', 17, ProcmapQuery);

struct MapLine {
  uint64_t begin, end, inode;
  char permissions[8];
  char name[256];
};

bool parse_line(const char* text, MapLine* line) {
  line->name[0] = '\0';
  return std::sscanf(text, "%lx-%lx %7s %*x %*s %lu %255[^\n]", &line->begin, &line->end, line->permissions,
                     &line->inode, line->name) >= 4;
}

bool overlaps_own_stack(uint64_t begin, uint64_t end) {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return false;
  void* base = nullptr;
  size_t size = 0;
  pthread_attr_getstack(&attributes, &base, &size);
  pthread_attr_destroy(&attributes);
  uint64_t low = reinterpret_cast<uint64_t>(base);
  return begin < low + size && low < end;
}

Status refuse(const MapLine& line, const char* what) {
  return {trInvalidArgument,
          fmt::format("the buffer lies in {} (mapping {:x}-{:x} {} {}), which cannot be registered; use memory from "
                      "malloc, new, a private anonymous mmap, or trMemAlloc",
                      what, line.begin, line.end, line.permissions, line.name)};
}

Status check_line(const MapLine& line, bool guard_below) {
  if (std::strncmp(line.name, "[stack", 6) == 0) return refuse(line, "a stack");
  // Pages of an ended registration are ordinary memory of the user's that happens to be shareable.
  bool was_moved = std::strstr(line.name, kRegionFileName) != nullptr;
  if (!was_moved && (line.inode != 0 || line.permissions[3] != 'p')) return refuse(line, "a file or shared mapping");
  if (std::strncmp(line.permissions, "rw", 2) != 0) return refuse(line, "memory that is not readable and writable");
  // A thread's stack is an anonymous mapping with a guard page right below it.
  if (guard_below) return refuse(line, "what looks like a thread's stack (a guard page lies below it)");
  return {};
}

// A file of /proc/self, kept open. It shows the process that opened it, so a forked child opens its own.
class OwnProcFile {
 public:
  explicit OwnProcFile(const char* path) : path_(path) {}
  int descriptor() {
    std::lock_guard lock(mutex_);
    if (owner_ == getpid()) return descriptor_;
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = open(path_, O_RDONLY | O_CLOEXEC);
    owner_ = getpid();
    return descriptor_;
  }

 private:
  const char* path_;
  std::mutex mutex_;
  pid_t owner_ = 0;
  int descriptor_ = -1;
};

OwnProcFile& own_maps() {
  static OwnProcFile maps("/proc/self/maps");
  return maps;
}

}  // namespace

Status check_plain_anonymous(const void* begin_pointer, size_t bytes) {
  uint64_t begin = reinterpret_cast<uint64_t>(begin_pointer), end = begin + bytes, covered = begin;
  if (overlaps_own_stack(begin, end))
    return {trInvalidArgument, fmt::format("the buffer {} lies in the calling thread's stack, which cannot be "
                                           "registered; use malloc or trMemAlloc",
                                           begin_pointer)};
  std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"), &std::fclose);
  if (!maps) return {trSystemError, fmt::format("open /proc/self/maps: {}", std::strerror(errno))};
  char text[1024];
  MapLine line{}, previous{};
  while (std::fgets(text, sizeof text, maps.get()) != nullptr) {
    if (!parse_line(text, &line)) continue;
    if (line.end > begin && line.begin < end) {
      bool guard_below = previous.end == line.begin && std::strncmp(previous.permissions, "---p", 4) == 0 &&
                         previous.inode == 0 && previous.end - previous.begin <= 16 * kPageBytes;
      TR_RETURN_IF_ERROR(check_line(line, guard_below));
      if (line.begin > covered) break;
      covered = line.end;
    }
    previous = line;
  }
  if (covered < end)
    return {trInvalidArgument,
            fmt::format("the buffer {} of {} bytes is not mapped from {:x} on", begin_pointer, bytes, covered)};
  return {};
}

bool is_private_anonymous(const void* begin_pointer, size_t bytes) {
  constexpr uint64_t kReadable = 1, kWritable = 2, kShared = 8;  // PROCMAP_QUERY_VMA_*
  const uint64_t begin = reinterpret_cast<uint64_t>(begin_pointer), end = begin + bytes;
  uint64_t at = begin;
  while (at < end) {
    ProcmapQuery query{};
    query.size = sizeof query;
    query.query_addr = at;
    if (ioctl(own_maps().descriptor(), kProcmapQuery, &query) != 0) break;
    if (query.inode != 0 || (query.vma_flags & (kReadable | kWritable | kShared)) != (kReadable | kWritable))
      return false;
    at = query.vma_end;
  }
  if (at >= end) return true;
  if (errno == ENOENT) return false;
  // A kernel that does not answer.
  std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"), &std::fclose);
  char text[1024];
  MapLine line{};
  for (at = begin; maps && at < end && std::fgets(text, sizeof text, maps.get()) != nullptr;) {
    if (!parse_line(text, &line) || line.end <= at) continue;
    if (line.begin > at || line.inode != 0 || std::strncmp(line.permissions, "rw", 2) != 0 ||
        line.permissions[3] != 'p')
      return false;
    at = line.end;
  }
  return at >= end;
}

bool range_is_of_file(const void* begin_pointer, size_t bytes, uint64_t inode) {
  static OwnProcFile pagemap("/proc/self/pagemap");
  uint64_t begin = reinterpret_cast<uint64_t>(begin_pointer), end = begin + bytes, at = begin;
  while (at < end) {
    ProcmapQuery query{};
    query.size = sizeof query;
    query.query_addr = at;
    if (ioctl(own_maps().descriptor(), kProcmapQuery, &query) != 0) {
      if (errno == ENOENT) return false;
      break;
    }
    if (query.inode != inode) return false;
    at = query.vma_end;
  }
  if (at >= end) return true;
  // Bit 61 of a pagemap entry: the page is file-backed or shared.
  constexpr uint64_t kSamples = 64;
  uint64_t first = begin / kPageBytes, last = (end - 1) / kPageBytes;
  for (uint64_t i = 0; i <= kSamples; ++i) {
    uint64_t entry = 0, page = first + (last - first) * i / kSamples;
    if (pread(pagemap.descriptor(), &entry, sizeof entry, static_cast<off_t>(page * sizeof entry)) != sizeof entry ||
        (entry >> 61 & 1) == 0)
      return false;
  }
  return true;
}

}  // namespace treering
