// SPDX-License-Identifier: Apache-2.0
// PageWatch on the kernel at hand: each way in which pages change is noticed before the thread that changes them goes on,
// and what changes elsewhere is not.
#include "transport/page_watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "support/seccomp.h"

namespace treering {
namespace {

constexpr size_t kPage = 4096, kBytes = 64 * kPage;

std::byte* anonymous(size_t bytes, void* at = nullptr) {
  void* memory = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
  std::memset(memory, 1, bytes);
  return static_cast<std::byte*>(memory);
}

size_t open_descriptors() {
  size_t count = 0;
  DIR* open = opendir("/proc/self/fd");
  while (open != nullptr && readdir(open) != nullptr) ++count;
  if (open != nullptr) closedir(open);
  return count;
}

class Pages : public ::testing::Test {
 protected:
  void SetUp() override {
    Status why_not;
    watch_ = PageWatch::open(&why_not);
    if (!watch_) GTEST_SKIP() << why_not.message();
    memory_ = anonymous(kBytes);
  }
  void TearDown() override {
    if (watch_) munmap(memory_, kBytes);
  }
  uint32_t begin(const void* data, size_t bytes) {
    uint32_t range = 0;
    Status begun;
    while ((begun = watch_->begin(ByteRange::of(data, bytes), &range)).code() == trInProgress)
      std::this_thread::yield();
    EXPECT_TRUE(begun.ok()) << begun.message();
    return range;
  }
  // A range in the middle, and what `change` does to its memory.
  template <typename Change>
  void expect_noticed(Change change) {
    const uint32_t range = begin(memory_ + 8 * kPage + 100, 16 * kPage);
    EXPECT_TRUE(watch_->is_settled());
    EXPECT_TRUE(watch_->is_intact(range));
    change(memory_ + 8 * kPage);
    EXPECT_FALSE(watch_->is_settled() && watch_->is_intact(range));
    while (!watch_->is_settled()) std::this_thread::yield();
    EXPECT_FALSE(watch_->is_intact(range));
    watch_->end(range);
  }

  std::shared_ptr<PageWatch> watch_;
  std::byte* memory_ = nullptr;
};

TEST_F(Pages, ThatAreUnmappedAreNoticed) {
  expect_noticed([](std::byte* pages) { munmap(pages, 16 * kPage); });
}
TEST_F(Pages, ThatArePartlyUnmappedAreNoticed) {
  expect_noticed([](std::byte* pages) { munmap(pages + 16 * kPage, kPage); });  // the last has 100 bytes of it
}
TEST_F(Pages, ThatOtherMemoryIsMappedOverAreNoticed) {
  expect_noticed([](std::byte* pages) { anonymous(kPage, pages + 3 * kPage); });
}
TEST_F(Pages, ThatAreMovedAreNoticed) {
  std::byte* const other = anonymous(kBytes);
  expect_noticed([&](std::byte* pages) {
    ASSERT_EQ(mremap(pages, kPage, kPage, MREMAP_MAYMOVE | MREMAP_FIXED, other + kPage), other + kPage);
  });
  munmap(other, kBytes);
}
// The reader ends the watch of where pages were moved to. Until then no other one is begun there.
TEST_F(Pages, AreNotWatchedWhereOthersAreJustMovedTo) {
  static std::atomic<bool> holds, goes_on;
  holds = goes_on = false;
  PageWatch::before_forgetting_moved = [] {
    holds = true;
    while (!goes_on) std::this_thread::yield();
  };
  std::byte* const other = anonymous(kBytes);
  const uint32_t first = begin(memory_, kBytes);
  // It goes on once that was read: no pages are unmapped, of which the kernel would tell later.
  ASSERT_EQ(mremap(memory_, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, other), other);
  while (!holds) std::this_thread::yield();
  uint32_t moved = 0;
  const Status early = watch_->begin(ByteRange::of(other, kBytes), &moved);
  EXPECT_EQ(early.code(), trInProgress) << early.message();
  goes_on = true;
  while (!watch_->is_settled()) std::this_thread::yield();
  PageWatch::before_forgetting_moved = nullptr;
  if (!early.ok()) moved = begin(other, kBytes);
  madvise(other, kBytes, MADV_DONTNEED);
  EXPECT_FALSE(watch_->is_settled() && watch_->is_intact(moved)) << "its watch has been lost";
  watch_->end(first);
  watch_->end(moved);
  munmap(other, kBytes);
}

TEST_F(Pages, ThatAreDroppedAreNoticed) {
  for (const int advice : {MADV_DONTNEED, MADV_FREE})
    expect_noticed([&](std::byte* pages) { ASSERT_EQ(madvise(pages + kPage, kPage, advice), 0); });
}

TEST_F(Pages, ThatAreUsedOrNeighboursOfSuchStayAsTheyAre) {
  const uint32_t range = begin(memory_ + 8 * kPage, 16 * kPage);
  std::memset(memory_, 2, kBytes);
  munmap(memory_, 8 * kPage);
  munmap(memory_ + 24 * kPage, kPage);
  madvise(memory_ + 30 * kPage, kPage, MADV_DONTNEED);
  ASSERT_EQ(mprotect(memory_ + 8 * kPage, kPage, PROT_READ), 0);
  EXPECT_TRUE(watch_->is_settled());
  EXPECT_TRUE(watch_->is_intact(range));
  EXPECT_EQ(memory_[9 * kPage], std::byte{2});
  watch_->end(range);
}

// Pages that two ranges share are watched until both have ended.
TEST_F(Pages, MayBelongToSeveralRanges) {
  const uint32_t first = begin(memory_, 10 * kPage + 1), second = begin(memory_ + 10 * kPage + 1, 10 * kPage);
  const uint32_t inner = begin(memory_ + 12 * kPage, kPage);
  watch_->end(first);
  watch_->end(inner);
  madvise(memory_ + 10 * kPage, kPage, MADV_DONTNEED);
  EXPECT_FALSE(watch_->is_settled() && watch_->is_intact(second));
  watch_->end(second);
  // Nothing is watched: nothing is noticed, once the reader is done with what madvise() told.
  while (!watch_->is_settled()) std::this_thread::yield();
  const uint64_t changes = watch_->changes();
  munmap(memory_, 20 * kPage);
  EXPECT_TRUE(watch_->is_settled());
  EXPECT_EQ(watch_->changes(), changes);
}

TEST_F(Pages, OfFilesAreNotWatchedAndRangesAreLimited) {
  uint32_t range = 0;
  void* file = mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, -1, 0);
  EXPECT_EQ(file, MAP_FAILED);
  EXPECT_FALSE(watch_->begin({kPage, 2 * kPage}, &range).ok()) << "nothing is mapped there";
  std::vector<uint32_t> ranges;
  for (uint32_t i = 0; i < PageWatch::kMaxRanges; ++i) ranges.push_back(begin(memory_, kPage));
  EXPECT_FALSE(watch_->begin(ByteRange::of(memory_, kPage), &range).ok());
  for (const uint32_t one : ranges) watch_->end(one);
}

// A thread unmaps; another one is given memory at the same address, and asks at once. What it may not be told is that its
// memory is what was watched. The first thread may be anywhere within munmap().
TEST_F(Pages, MemoryThatOtherThreadsMapThereIsNeverTakenForThem) {
  constexpr int kRounds = 2000;
  uint32_t range = 0;
  std::atomic<int> begun{0}, mapped{0};
  std::atomic<std::byte*> watched{nullptr};
  int taken = 0, told_late = 0;
  // Far below all other memory. The kernel maps it only for a call that names the address; sanitizers' allocators name none.
  std::byte* const at = memory_ - (uintptr_t{64} << 30);
  const auto map = [at] {
    return mmap(at, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  };
  ASSERT_EQ(map(), at);
  std::thread unmaps([&] {
    for (int round = 1; round <= kRounds; ++round) {
      while (begun.load() != round) std::this_thread::yield();
      munmap(watched.load(), kBytes);
      while (mapped.load() != round) std::this_thread::yield();
    }
  });
  for (int round = 1; round <= kRounds; ++round) {
    range = begin(at, kBytes);
    watched = at;
    begun = round;
    while (map() != at) continue;  // the kernel gives out the address once it is free
    told_late += watch_->is_intact(range);
    taken += watch_->is_settled() && watch_->is_intact(range);
    mapped = round;
    watch_->end(range);
  }
  unmaps.join();
  munmap(at, kBytes);
  EXPECT_EQ(taken, 0);
  std::printf("in %d of %d rounds the memory was there before the change was known\n", told_late, kRounds);
}

TEST_F(Pages, TheWatchIsTheProcesssAndEndsWithItsLastOwner) {
  watch_.reset();
  const size_t descriptors = open_descriptors();
  Status why_not;
  {
    const auto first = PageWatch::open(&why_not), second = PageWatch::open(&why_not);
    EXPECT_EQ(first, second);
    uint32_t range = 0;
    EXPECT_TRUE(first->begin(ByteRange::of(memory_, kBytes), &range).ok());
    EXPECT_GT(open_descriptors(), descriptors);
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  munmap(memory_, kBytes);  // does not wait
  memory_ = anonymous(kBytes);
  watch_ = PageWatch::open(&why_not);
}

// A child's memory is its own: nothing of it is watched, its changes hold up no thread, and it may watch anew.
TEST_F(Pages, AForkedChildHasAWatchOfItsOwn) {
  const uint32_t range = begin(memory_, kBytes);
  const pid_t child = fork();
  if (child == 0) {
    if (watch_->is_settled() || watch_->is_intact(range)) _exit(1);
    std::byte* const other = anonymous(kBytes);
    munmap(memory_, kBytes);
    uint32_t none = 0, own = 0;
    if (watch_->begin(ByteRange::of(other, kBytes), &none).ok()) _exit(2);
    watch_->end(range);
    Status why_not;
    const auto watch = PageWatch::open(&why_not);
    if (!watch || watch == watch_) _exit(3);
    if (!watch->begin(ByteRange::of(other, kBytes), &own).ok() || !watch->is_settled()) _exit(4);
    watch_.reset();
    munmap(other, kBytes);
    _exit(watch->is_settled() && watch->is_intact(own) ? 5 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(watch_->is_settled() && watch_->is_intact(range)) << "the child's munmap is not the parent's";
  watch_->end(range);
}

// A child that keeps the descriptor, as one of a plain clone() does, holds up nothing once the watch has ended.
TEST_F(Pages, ADescriptorThatAChildKeepsHoldsUpNothing) {
  (void)begin(memory_, kBytes);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const auto child =
      static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));  // no handler of pthread_atfork() runs
  if (child == 0) {
    char end = 0;
    close(pipes[1]);
    _exit(read(pipes[0], &end, 1) == 0 ? 0 : 1);
  }
  watch_.reset();
  munmap(memory_, kBytes);
  memory_ = anonymous(kBytes);
  close(pipes[1]);
  close(pipes[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
}

// Takes the lowest numbers. The pipes are full of what a reader would find. By the system calls themselves: ThreadSanitizer
// would take it for a race with the library's thread, which it is meant to be.
class ForeignFiles {
 public:
  ForeignFiles() {
    for (int i = 0; i < 8; ++i) {
      int ends[2];
      if (syscall(SYS_pipe2, ends, O_NONBLOCK) != 0) _exit(90);
      if (syscall(SYS_write, ends[1], bytes_, sizeof bytes_) != sizeof bytes_) _exit(91);
      pipes_.emplace_back(ends[0]);
      events_.emplace_back(static_cast<int>(syscall(SYS_eventfd2, 0, EFD_NONBLOCK)));
    }
  }
  bool are_untouched() const {
    for (const OpenFile& file : pipes_) {
      int bytes = 0;
      if (!file.is_same() || ioctl(file.fd, FIONREAD, &bytes) != 0 || bytes != sizeof bytes_) return false;
    }
    uint64_t count = 0;
    for (const OpenFile& file : events_)
      if (read(file.fd, &count, sizeof count) >= 0 || errno != EAGAIN) return false;
    return true;
  }

 private:
  static constexpr char bytes_[256] = {};
  std::vector<OpenFile> pipes_, events_;
};

// A program that closes all descriptors that it does not know, as daemons do. 0, or the number of what went wrong.
int close_all_and_go_on(bool reused, bool changes_before_end) {
  Status why_not;
  auto watch = PageWatch::open(&why_not);
  std::byte* const memory = anonymous(kBytes);
  uint32_t range = 0, none = 0;
  if (!watch->begin(ByteRange::of(memory, kBytes), &range).ok()) return 1;
  for (int fd = 3; fd < 1024; ++fd) syscall(SYS_close, fd);
  std::optional<ForeignFiles> foreign;
  if (reused) foreign.emplace();
  if (watch->is_settled()) return 2;
  if (changes_before_end) {
    munmap(memory, kBytes);  // does not wait
    while (watch->is_intact(range)) std::this_thread::yield();
    if (const Status begun = watch->begin(ByteRange::of(&watch, 1), &none); begun.ok() || begun.code() == trInProgress)
      return 3;
  }
  // Another communicator has one of its own, also beside the old one.
  const auto next = PageWatch::open(&why_not);
  if (!next || next == watch) return 4;
  std::byte* const other = anonymous(kBytes);
  uint32_t own = 0;
  if (!next->begin(ByteRange::of(other, kBytes), &own).ok() || !next->is_settled()) return 5;
  watch->end(range);
  watch.reset();
  if (!next->is_settled() || !next->is_intact(own)) return 6;
  munmap(other, kBytes);
  if (next->is_settled() && next->is_intact(own)) return 7;
  return !foreign || foreign->are_untouched() ? 0 : 8;
}

TEST(PageWatchClosed, LeavesAloneWhatGetsItsNumberAndEnds) {
  {
    Status why_not;
    if (!PageWatch::open(&why_not)) GTEST_SKIP() << why_not.message();
  }
  for (const bool reused : {false, true})
    for (const bool changes : {false, true}) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(30);
        _exit(close_all_and_go_on(reused, changes));
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status)) << "it hung, signal " << WTERMSIG(status);
      EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : 0, 0) << "reused " << reused << ", changes " << changes;
    }
}

TEST(PageWatchDenied, SaysWhy) {
  const pid_t child = fork();
  if (child == 0) {
    if (!testing::deny_system_calls({SYS_userfaultfd})) _exit(77);
    Status why_not;
    _exit(PageWatch::open(&why_not) == nullptr && why_not.message() == "userfaultfd: Operation not permitted" ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp filters";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace treering
