// SPDX-License-Identifier: Apache-2.0
// RegionTable, RegionExports and PeerRegions: what is registered, what is refused, what a free is noticed by,
// and that nothing stays behind.
#include "transport/region.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

namespace treering {
namespace {

constexpr size_t kPage = 4096;

size_t entries_of(const char* directory) {
  size_t count = 0;
  DIR* open = opendir(directory);
  if (open == nullptr) return 0;
  while (readdir(open) != nullptr) ++count;
  closedir(open);
  return count;
}
size_t open_descriptors() { return entries_of("/proc/self/fd"); }

void* anonymous(size_t bytes, void* at = nullptr) {
  void* memory = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
  return memory;
}

class Regions : public ::testing::Test {
 protected:
  void SetUp() override {
    // The table keeps two descriptors of /proc for its whole life, opened on first use.
    uint32_t id = 0;
    void* memory = anonymous(kPage);
    ASSERT_TRUE(table_.move_in_place(memory, kPage, &id).ok());
    (void)table_.find(memory, kPage);
    ASSERT_TRUE(table_.end_registration(id).ok());
    munmap(memory, kPage);
    descriptors_ = open_descriptors();
    shared_files_ = entries_of("/dev/shm");
  }
  void TearDown() override {
    EXPECT_TRUE(table_.empty());
    EXPECT_EQ(open_descriptors(), descriptors_) << "descriptors leaked";
    EXPECT_EQ(entries_of("/dev/shm"), shared_files_) << "files stay in /dev/shm";
  }
  RegionTable& table_ = RegionTable::instance();
  size_t descriptors_ = 0, shared_files_ = 0;
};

// Exports have places by ids: those of other regions take none away.
TEST_F(Regions, OnesThatAreNotOfTheTableAreNumberedApart) {
  void* memory[2] = {};
  uint32_t ids[2] = {};
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(table_.allocate(kPage, &memory[i]).ok());
    ids[i] = table_.find(memory[i], kPage).id;
    EXPECT_NE(table_.take_id(), table_.take_id());
    EXPECT_GT(table_.take_id(), ids[i]);
    EXPECT_FALSE(table_.end_registration(table_.take_id()).ok());
  }
  EXPECT_EQ(ids[1], ids[0] + 1);
  for (void* one : memory) ASSERT_TRUE(table_.release(one).ok());
}

TEST_F(Regions, AllocateFindRelease) {
  void* memory = nullptr;
  uint64_t before = table_.generation();
  ASSERT_TRUE(table_.allocate(10'000, &memory).ok());
  EXPECT_NE(table_.generation(), before);
  std::memset(memory, 1, 10'000);
  Region region = table_.find(memory, 10'000);
  EXPECT_NE(region.id, 0u);
  EXPECT_EQ(region.base, memory);
  EXPECT_EQ(region.bytes, 3 * kPage);
  EXPECT_FALSE(region.moved);
  EXPECT_TRUE(table_.is_live(region.id));
  EXPECT_EQ(table_.find(static_cast<std::byte*>(memory) + 5000, 10).id, region.id);
  EXPECT_EQ(table_.find(static_cast<std::byte*>(memory) + region.bytes, 10).id, 0u);
  int local = 0;
  EXPECT_EQ(table_.find(&local, sizeof local).id, 0u);
  before = table_.generation();
  ASSERT_TRUE(table_.release(memory).ok());
  EXPECT_NE(table_.generation(), before);
  EXPECT_FALSE(table_.is_live(region.id));
}

// Remembers which regions ended, and the first byte of their pages at that time.
class Ends final : public RegionWatcher {
 public:
  explicit Ends(RegionTable* table) : table_(table) { table_->watch(this); }
  ~Ends() { table_->forget(this); }
  void end_region(uint32_t id) override {
    ids.push_back(id);
    if (looked_at != nullptr) seen.push_back(*looked_at);
  }
  const std::byte* looked_at = nullptr;  // nullptr: its pages are gone
  std::vector<uint32_t> ids;
  std::vector<std::byte> seen;

 private:
  RegionTable* const table_;
};

TEST_F(Regions, WatchersAreToldBeforePagesAreGivenBackOrMove) {
  Ends ends(&table_);
  void* allocated = nullptr;
  ASSERT_TRUE(table_.allocate(kPage, &allocated).ok());
  const uint32_t first = table_.find(allocated, kPage).id;
  *static_cast<std::byte*>(allocated) = std::byte{42};
  ends.looked_at = static_cast<std::byte*>(allocated);
  ASSERT_TRUE(table_.release(allocated).ok());
  EXPECT_EQ(ends.ids, std::vector{first});
  EXPECT_EQ(ends.seen, std::vector{std::byte{42}}) << "told when the pages were gone";

  auto* memory = static_cast<std::byte*>(anonymous(4 * kPage));
  uint32_t small = 0, large = 0;
  ASSERT_TRUE(table_.move_in_place(memory, 2 * kPage, &small).ok());
  memory[0] = std::byte{43};
  ends.looked_at = memory;
  ASSERT_TRUE(table_.move_in_place(memory, 4 * kPage, &large).ok());
  EXPECT_EQ(ends.ids, (std::vector{first, small})) << "its pages were moved once more";
  ASSERT_TRUE(table_.end_registration(large).ok());
  EXPECT_EQ(ends.ids, (std::vector{first, small, large}));
  munmap(memory, 4 * kPage);
}

TEST_F(Regions, WatchersAreToldThatTheUserHasUnmappedPages) {
  Ends ends(&table_);
  void* memory = anonymous(2 * kPage);
  uint32_t id = 0;
  ASSERT_TRUE(table_.move_in_place(memory, 2 * kPage, &id).ok());
  anonymous(2 * kPage, memory);  // other pages, at the same address
  EXPECT_EQ(table_.find(memory, 2 * kPage).id, 0u);
  EXPECT_EQ(ends.ids, std::vector{id});
  munmap(memory, 2 * kPage);
}

TEST_F(Regions, NoWatcherIsToldAfterItWasForgottenOrInAForkedProcess) {
  void* memory = nullptr;
  ASSERT_TRUE(table_.allocate(kPage, &memory).ok());
  const uint32_t id = table_.find(memory, kPage).id;
  { Ends forgotten(&table_); }
  Ends ends(&table_);
  const pid_t child = fork();
  if (child == 0) _exit(table_.release(memory).ok() && ends.ids.empty() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the parent's device would have lost its registration";
  ASSERT_TRUE(table_.release(memory).ok());
  EXPECT_EQ(ends.ids, std::vector{id});
}

TEST_F(Regions, ReleaseOfWhatIsNoneIsAnErrorThatNamesIt) {
  void* memory = nullptr;
  ASSERT_TRUE(table_.allocate(kPage, &memory).ok());
  Status inside = table_.release(static_cast<std::byte*>(memory) + 64);
  EXPECT_EQ(inside.code(), trInvalidArgument);
  EXPECT_NE(inside.message().find("0x"), std::string::npos) << inside.message();
  int local = 0;
  EXPECT_EQ(table_.release(&local).code(), trInvalidArgument);
  EXPECT_EQ(table_.release(nullptr).code(), trInvalidArgument);
  ASSERT_TRUE(table_.release(memory).ok());
  EXPECT_EQ(table_.release(memory).code(), trInvalidArgument) << "freed twice";
}

TEST_F(Regions, SizesAtTheEdges) {
  void* memory = nullptr;
  ASSERT_TRUE(table_.allocate(0, &memory).ok());
  EXPECT_NE(memory, nullptr);
  ASSERT_TRUE(table_.release(memory).ok());
  EXPECT_EQ(table_.allocate(SIZE_MAX, &memory).code(), trInvalidArgument);
  EXPECT_EQ(table_.allocate(SIZE_MAX / 2, &memory).code(), trInvalidArgument);
  EXPECT_EQ(table_.allocate(SIZE_MAX / 64, &memory).code(), trSystemError);
}

TEST_F(Regions, MoveInPlaceKeepsContentsAndTakesWholePages) {
  std::vector<uint64_t> data(100'000);
  std::iota(data.begin(), data.end(), 1);
  auto copy = data;
  uint32_t id = 0;
  ASSERT_TRUE(table_.move_in_place(data.data(), data.size() * 8, &id).ok());
  EXPECT_NE(id, 0u);
  EXPECT_EQ(data, copy);
  Region region = table_.find(data.data(), data.size() * 8);
  EXPECT_EQ(region.id, id);
  EXPECT_TRUE(region.moved);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(region.base) % kPage, 0u);
  EXPECT_GE(reinterpret_cast<uint64_t*>(region.base), data.data());
  EXPECT_LE(region.base + region.bytes, reinterpret_cast<std::byte*>(data.data() + data.size()));
  uint32_t again = 5;
  ASSERT_TRUE(table_.move_in_place(data.data(), data.size() * 8, &again).ok());
  EXPECT_EQ(again, 0u) << "registered already";
  EXPECT_EQ(table_.release(region.base).code(), trInvalidArgument) << "not of trMemAlloc";
  ASSERT_TRUE(table_.end_registration(id).ok());
  EXPECT_EQ(data, copy) << "the pages stay";
  ASSERT_TRUE(table_.end_registration(id).ok()) << "ending twice is harmless";
}

TEST_F(Regions, LessThanAPageIsNotMoved) {
  std::vector<char> small(200);
  uint32_t id = 5;
  ASSERT_TRUE(table_.move_in_place(small.data(), small.size(), &id).ok());
  EXPECT_EQ(id, 0u);
}

TEST_F(Regions, RefusesStacksFilesAndHoles) {
  uint32_t id = 0;
  alignas(kPage) char local[4 * kPage];
  Status stack = table_.move_in_place(local, sizeof local, &id);
  EXPECT_EQ(stack.code(), trInvalidArgument);
  EXPECT_NE(stack.message().find("stack"), std::string::npos) << stack.message();

  Status thread_stack;
  std::thread([&] {
    alignas(kPage) char inner[4 * kPage];
    thread_stack = table_.move_in_place(inner, sizeof inner, &id);
  }).join();
  EXPECT_EQ(thread_stack.code(), trInvalidArgument) << thread_stack.message();

  void* shared = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(table_.move_in_place(shared, 2 * kPage, &id).code(), trInvalidArgument);
  munmap(shared, 2 * kPage);

  int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  void* file = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  close(fd);
  Status of_file = table_.move_in_place(file, 2 * kPage, &id);
  EXPECT_EQ(of_file.code(), trInvalidArgument);
  EXPECT_NE(of_file.message().find("file"), std::string::npos) << of_file.message();
  munmap(file, 2 * kPage);

  auto* memory = static_cast<std::byte*>(anonymous(4 * kPage));
  mprotect(memory + 2 * kPage, kPage, PROT_READ);
  EXPECT_EQ(table_.move_in_place(memory, 4 * kPage, &id).code(), trInvalidArgument) << "read-only page";
  munmap(memory + kPage, kPage);
  Status hole = table_.move_in_place(memory, 2 * kPage, &id);
  EXPECT_EQ(hole.code(), trInvalidArgument);
  EXPECT_NE(hole.message().find("not mapped"), std::string::npos) << hole.message();
  munmap(memory, 4 * kPage);
  EXPECT_EQ(id, 0u);
}

TEST_F(Regions, UnmappedAndUsedAgainIsNoticed) {
  constexpr size_t kBytes = 8 * kPage;
  void* memory = anonymous(kBytes);
  uint32_t id = 0;
  ASSERT_TRUE(table_.move_in_place(memory, kBytes, &id).ok());
  uint64_t before = table_.generation();
  munmap(memory, kBytes);
  ASSERT_EQ(anonymous(kBytes, memory), memory);
  std::memset(memory, 3, kBytes);
  EXPECT_EQ(table_.find(memory, kBytes).id, 0u);
  EXPECT_NE(table_.generation(), before);
  EXPECT_FALSE(table_.is_live(id));
  EXPECT_TRUE(table_.end_registration(id).ok()) << "after the free";
  // The new memory can be registered in its turn and gets an id of its own.
  uint32_t next = 0;
  ASSERT_TRUE(table_.move_in_place(memory, kBytes, &next).ok());
  EXPECT_GT(next, id);
  EXPECT_EQ(static_cast<char*>(memory)[kBytes - 1], 3);
  ASSERT_TRUE(table_.end_registration(next).ok());
  munmap(memory, kBytes);
}

TEST_F(Regions, UnmappedAndNotUsedAgainIsNoticed) {
  constexpr size_t kBytes = 8 * kPage;
  void* memory = anonymous(kBytes);
  uint32_t id = 0;
  ASSERT_TRUE(table_.move_in_place(memory, kBytes, &id).ok());
  munmap(memory, kBytes);
  EXPECT_EQ(table_.find(memory, kBytes).id, 0u);
}

TEST_F(Regions, ReplacedByAnotherRegionIsNotMistakenForIt) {
  constexpr size_t kBytes = 8 * kPage;
  void* memory = anonymous(kBytes);
  uint32_t first = 0, second = 0;
  ASSERT_TRUE(table_.move_in_place(memory, kBytes, &first).ok());
  munmap(memory, kBytes);
  anonymous(kBytes, memory);
  ASSERT_TRUE(table_.move_in_place(memory, kBytes, &second).ok());
  EXPECT_NE(second, 0u);
  EXPECT_EQ(table_.find(memory, kBytes).id, second);
  ASSERT_TRUE(table_.end_registration(first).ok());
  EXPECT_EQ(table_.find(memory, kBytes).id, second) << "ending the old one leaves the new one";
  ASSERT_TRUE(table_.end_registration(second).ok());
  munmap(memory, kBytes);
}

// A region moved before fork() is checked against the child's own address space in the child.
TEST_F(Regions, AForkedChildLooksAtItsOwnMemory) {
  constexpr size_t kBytes = 8 * kPage;
  void* memory = anonymous(kBytes);
  uint32_t id = 0;
  ASSERT_TRUE(table_.move_in_place(memory, kBytes, &id).ok());
  ASSERT_EQ(table_.find(memory, kBytes).id, id);
  pid_t child = fork();
  if (child == 0) {
    munmap(memory, kBytes);
    anonymous(kBytes, memory);
    _exit(table_.find(memory, kBytes).id == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child took its fresh memory for the region";
  EXPECT_EQ(table_.find(memory, kBytes).id, id);
  ASSERT_TRUE(table_.end_registration(id).ok());
  munmap(memory, kBytes);
}

TEST_F(Regions, ExportsCollideByIdAndAreTakenBack) {
  auto table = std::make_unique<RegionExport[]>(kMaxExports);
  RegionExports exports(table.get());
  auto entry = [&](uint32_t id) -> RegionExport& { return table[id % kMaxExports]; };
  std::vector<void*> memories(kMaxExports + 1);
  std::vector<Region> regions;
  for (void*& memory : memories) {
    ASSERT_TRUE(table_.allocate(kPage, &memory).ok());
    regions.push_back(table_.find(memory, kPage));
  }
  for (size_t i = 0; i < kMaxExports; ++i) ASSERT_TRUE(exports.publish(regions[i])) << i;
  EXPECT_TRUE(exports.publish(regions[3])) << "again";
  EXPECT_FALSE(exports.publish(regions.back())) << "the table is full: its slot is the first region's";
  EXPECT_EQ(entry(regions[0].id).id.load(), regions[0].id);
  ASSERT_TRUE(table_.release(memories[0]).ok());
  EXPECT_TRUE(exports.publish(regions.back())) << "the slot is free again";
  EXPECT_EQ(entry(regions.back().id).id.load(), regions.back().id);
  for (size_t i = 1; i < memories.size(); ++i) ASSERT_TRUE(table_.release(memories[i]).ok());
  exports.refresh();
  for (size_t i = 0; i < kMaxExports; ++i) EXPECT_EQ(table[i].id.load(), 0u);
}

TEST_F(Regions, PeersMapOnlyWhatIsExportedAndLetItGo) {
  auto table = std::make_unique<RegionExport[]>(kMaxExports);
  RegionExports exports(table.get());
  void* memory = nullptr;
  ASSERT_TRUE(table_.allocate(2 * kPage, &memory).ok());
  Region region = table_.find(memory, 2 * kPage);
  {
    PeerRegions early(table.get(), getpid());
    EXPECT_EQ(early.map(region.id, 0, 1), nullptr) << "not published";
  }
  ASSERT_TRUE(exports.publish(region));
  {
    PeerRegions peer(table.get(), getpid());
    auto* mapped = static_cast<char*>(peer.map(region.id, 0, 2 * kPage));
    ASSERT_NE(mapped, nullptr);
    EXPECT_NE(static_cast<void*>(mapped), memory);
    std::strcpy(static_cast<char*>(memory), "seen");
    EXPECT_STREQ(mapped, "seen");
    EXPECT_EQ(open_descriptors(), descriptors_ + 1) << "a mapping costs the peer no descriptor";
  }
  table[region.id % kMaxExports].inode.store(region.inode + 1);
  {
    PeerRegions peer(table.get(), getpid());
    EXPECT_EQ(peer.map(region.id, 0, 1), nullptr) << "another file behind that descriptor";
  }
  ASSERT_TRUE(table_.release(memory).ok());
  exports.refresh();
  PeerRegions late(table.get(), getpid());
  EXPECT_EQ(late.map(region.id, 0, 1), nullptr) << "the region has ended";
}

}  // namespace
}  // namespace treering
