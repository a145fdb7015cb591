// SPDX-License-Identifier: Apache-2.0
// Regions: user memory that other processes can map.
//
// A region is a memfd mapped in its owner, made by trMemAlloc() or by moving the pages of ordinary anonymous memory
// in place (trCommRegister()). A peer maps it on first use by opening the owner's descriptor through /proc, so that
// registration is local, sends nothing, and costs a peer no descriptor.
//
//   owner                                     peer
//   RegionTable   (all regions of a process)
//     '--> RegionWatcher: a region ends
//   RegionExports (those that one communicator's rank shows) --in shared memory--> PeerRegions (mappings made so far)
//
// Invariant: an exported entry is valid while its id is in it; ids are never used twice in a process, so a mapping
// that a peer still holds for an older id is never taken for a newer region.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/status.h"

namespace treering {

struct Region {
  uint32_t id = 0;  // 0 = none
  std::byte* base = nullptr;
  size_t bytes = 0;
  int descriptor = -1;
  uint64_t inode = 0;
  bool moved = false;      // the user's own memory, moved in place: the user may unmap it at any time
  bool inherited = false;  // made by the process that forked this one: its pages are that one's and its peers'
  bool watched = false;    // none of the table: ordinary memory, which no peer maps, until its pages change
};

// Is told, by any thread, that the pages of a region are about to move or be given back, or (where the user unmapped
// them) are gone. It does not call the table.
class RegionWatcher {
 public:
  virtual void end_region(uint32_t id) = 0;

 protected:
  ~RegionWatcher() = default;
};

class RegionTable {
 public:
  static RegionTable& instance();

  void watch(RegionWatcher* watcher);
  // Once it returns, the watcher is not called any more.
  void forget(RegionWatcher* watcher);

  Status allocate(size_t bytes, void** pointer);
  // For an inherited region it drops this process's mapping alone.
  Status release(void* pointer);
  // Moves the whole pages inside [buffer, buffer + bytes); `*id` is 0 when the memory is in a region already.
  Status move_in_place(void* buffer, size_t bytes, uint32_t* id);
  Status end_registration(uint32_t id);

  // The region that holds most of [buffer, buffer + bytes), or one with id 0. Drops regions whose pages the user has
  // unmapped meanwhile.
  Region find(const void* buffer, size_t bytes);
  bool is_live(uint32_t id);
  // For a region that is none of the table: exports have places by ids of the table, so these are numbered apart.
  uint32_t take_id();
  // Changes whenever a region is made or ends.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  // Without a lock: whether there is any region at all.
  bool empty() const { return live_.load(std::memory_order_acquire) == 0; }

 private:
  Status end_overlapped(std::byte* base, size_t bytes, bool* covered);
  void add(Region region);
  void tell_end(uint32_t id);
  void drop(size_t index);
  void remove(size_t index);
  void inherit_all();

  std::mutex mutex_;
  std::vector<Region> regions_;
  std::vector<RegionWatcher*> watchers_;
  static constexpr uint32_t kNotOfTable = 1U << 31;  // bit of an id
  uint32_t next_id_ = 1;
  std::atomic<uint32_t> ids_taken_{0};
  std::atomic<uint64_t> generation_{1};
  std::atomic<size_t> live_{0};
};

inline constexpr uint32_t kMaxExports = 256;

// What a peer needs to map a region.
struct RegionExport {
  std::atomic<uint32_t> id;
  std::atomic<int32_t> descriptor;
  std::atomic<uint64_t> inode;
  std::atomic<uint64_t> bytes;
};

// The exports of one rank of one communicator, in memory that its peers map.
class RegionExports {
 public:
  explicit RegionExports(RegionExport* table = nullptr) : table_(table) {}
  // Makes the region visible; false when its slot is taken by another live region.
  bool publish(const Region& region);
  // Takes back the entries of regions that have ended.
  void refresh();

 private:
  RegionExport* table_;
  uint64_t seen_generation_ = 0;
};

// The regions of one peer, as far as this process has mapped them. Used by one thread at a time.
class PeerRegions {
 public:
  PeerRegions(const RegionExport* table, int pid) : table_(table), pid_(pid) {}
  ~PeerRegions();
  PeerRegions(const PeerRegions&) = delete;
  PeerRegions& operator=(const PeerRegions&) = delete;

  // Address of the bytes in this process, or nullptr when they cannot be had.
  void* map(uint32_t id, uint64_t offset, size_t bytes);

 private:
  struct Mapping {
    uint32_t id;
    std::byte* base;  // nullptr: mapping failed, not tried again
    size_t bytes;
  };
  const Mapping* find_or_map(uint32_t id);
  void drop_ended();

  const RegionExport* table_;
  int pid_;
  std::vector<Mapping> mappings_;
};

// Opens descriptor `descriptor` of process `pid` and checks that it is the file with this inode; -1 with errno if not.
int open_peer_descriptor(int pid, int descriptor, uint64_t inode);

}  // namespace treering
