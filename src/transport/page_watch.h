// SPDX-License-Identifier: Apache-2.0
// PageWatch: whether the pages of a range of this process are still those that were there, by userfaultfd. The ranges are
// registered for write protection, and nothing is protected: so there are no faults, but the kernel tells when pages are
// unmapped, moved or dropped (munmap, mmap over them, mremap, madvise).
//
//   thread that unmaps                 reader                           thread that is about to use a key
//   munmap(): pages are gone
//             waits                -->  read(), marks the ranges
//   goes on                       <--                                   is_settled(), is_intact(range)
//
// (madvise() is the other way round: the kernel tells, the thread goes on once that was read, and then drops the pages.)
// The thread that unmaps may hold any lock, as that of malloc. So the reader is a thread that does nothing else: it
// allocates nothing, takes no lock and unmaps nothing.
//
// A program may close the descriptor, and its number may become another file's (core/open_file.h). Then nothing is
// settled any more, the reader ends, and all ranges have changed.
//
// Invariant: memory that came to its address before is_settled() was called, and this said true, is never taken for the
// pages that a range was begun with: is_intact() is false of it. (The kernel tells before the thread that changed the
// memory goes on. is_settled() asks the kernel whether a thread is on the way, and the reader whether it has marked what
// it read.)
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/open_file.h"
#include "core/status.h"

namespace treering {

// Bytes of this process's memory.
struct ByteRange {
  uintptr_t begin = 0, end = 0;

  static ByteRange of(const void* data, size_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    return {begin, begin + bytes};
  }
  size_t bytes() const { return end - begin; }
  bool overlaps(ByteRange other) const { return begin < other.end && other.begin < end; }
  bool holds(ByteRange other) const { return begin <= other.begin && other.end <= end; }
  bool operator==(const ByteRange&) const = default;
};

class PageWatch {
 public:
  static constexpr uint32_t kMaxRanges = 1024;

  // That of the process, which ends with its last owner; another one where the program has closed its descriptor. nullptr
  // with the reason: the kernel does not have it, or denies it.
  static std::shared_ptr<PageWatch> open(Status* why_not);
  ~PageWatch();
  PageWatch(const PageWatch&) = delete;
  PageWatch& operator=(const PageWatch&) = delete;

  // Watches the pages of private anonymous memory; ranges may overlap. What is being unmapped meanwhile is not noticed.
  // trInProgress: not settled; then the reader might yet end the watch of pages that were moved there.
  Status begin(ByteRange bytes, uint32_t* range);
  void end(uint32_t range);

  // Whether all changes that were made before are known. Two system calls, no lock.
  bool is_settled() const;
  // Whether the range's pages are those that it was begun with, as far as changes are known. Any thread.
  bool is_intact(uint32_t range) const { return !ranges_[range].is_changed.load(std::memory_order_acquire); }
  // Counts changes of ranges.
  uint64_t changes() const { return changes_.load(std::memory_order_acquire); }

  // Tests set it. The reader calls it when it has read that pages were moved, before it ends the watch of where they are.
  inline static std::atomic<void (*)()> before_forgetting_moved{nullptr};

 private:
  struct Range {
    std::atomic<uintptr_t> begin{0}, end{0};  // whole pages; end 0: not used
    std::atomic<bool> is_changed{false};
  };

  PageWatch() = default;
  Status start();
  bool is_open() const;
  bool unprotect_page() const;
  void read_events();
  bool take_events();
  void end_reading();
  void mark(ByteRange changed);
  void mark_all();
  void forget_pages(ByteRange pages) const;
  void become_inherited();
  ByteRange pages_of(uint32_t range) const {
    return {ranges_[range].begin.load(std::memory_order_relaxed), ranges_[range].end.load(std::memory_order_relaxed)};
  }

  OpenFile events_;       // the userfaultfd
  void* page_ = nullptr;  // watched until the end: is_settled() asks for it, and the reader ends when it is unmapped
  pthread_t reader_{};
  pid_t reading_process_ = 0;  // that has the reader
  std::atomic<bool> is_given_up_{false};
  std::array<Range, kMaxRanges> ranges_;
  std::atomic<bool> is_marking_{false};
  std::atomic<uint64_t> changes_{0};
};

}  // namespace treering
