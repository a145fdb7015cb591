// SPDX-License-Identifier: Apache-2.0
#include "transport/page_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/background_thread.h"
#include "transport/address_space.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace treering {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr int kMaxWaitMs = 200;  // until the reader looks whether its descriptor was closed
constexpr uint64_t kFeatures =
    UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_PAGEFAULT_FLAG_WP;

// The watch of the process.
struct Current {
  std::mutex mutex;  // also of begin() and end(): a fork waits for them
  std::weak_ptr<PageWatch> watch;
};
// Never destroyed: threads may still use it while the process ends.
Current& current() {
  static auto* const made = new Current;
  return *made;
}

ByteRange pages_around(ByteRange bytes) {
  return {bytes.begin / kPageBytes * kPageBytes, (bytes.end + kPageBytes - 1) / kPageBytes * kPageBytes};
}

bool watch_pages(int events, ByteRange pages) {
  uffdio_register request{{pages.begin, pages.bytes()}, UFFDIO_REGISTER_MODE_WP, 0};
  return ioctl(events, UFFDIO_REGISTER, &request) == 0;
}

// Those pages of `range` that are in none of `others`.
std::vector<ByteRange> pages_alone(ByteRange range, const std::vector<ByteRange>& others) {
  std::vector<ByteRange> left{range};
  for (const ByteRange& other : others) {
    std::vector<ByteRange> next;
    for (const ByteRange& range : left) {
      if (!range.overlaps(other)) {
        next.push_back(range);
        continue;
      }
      if (range.begin < other.begin) next.push_back({range.begin, other.begin});
      if (other.end < range.end) next.push_back({other.end, range.end});
    }
    left = std::move(next);
  }
  return left;
}

}  // namespace

std::shared_ptr<PageWatch> PageWatch::open(Status* why_not) {
  // A child has no reader, and must not hold the descriptor: where a parent has closed it, it would still be told of changes.
  static const bool is_told_of_forks = [] {
    return pthread_atfork([] { current().mutex.lock(); }, [] { current().mutex.unlock(); },
                          [] {
                            if (const auto watch = current().watch.lock()) watch->become_inherited();
                            current().watch.reset();
                            current().mutex.unlock();
                          }) == 0;
  }();
  std::lock_guard lock(current().mutex);
  if (auto watch = current().watch.lock(); watch && watch->is_open()) return watch;
  if (!is_told_of_forks) return *why_not = {trSystemError, "pthread_atfork failed"}, nullptr;
  std::shared_ptr<PageWatch> made(new PageWatch);
  *why_not = made->start();
  if (!why_not->ok()) return nullptr;
  current().watch = made;
  return made;
}

Status PageWatch::start() {
  const auto failed = [](const char* what) {
    return Status(trSystemError, fmt::format("{}: {}", what, std::strerror(errno)));
  };
  const auto create = [](int flags) {
    return static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags));
  };
  int events = create(UFFD_USER_MODE_ONLY);
  if (events < 0 && errno == EINVAL) events = create(0);
  if (events < 0) return failed("userfaultfd");
  events_ = OpenFile(events);
  uffdio_api api{UFFD_API, kFeatures, 0};
  if (ioctl(events, UFFDIO_API, &api) != 0) return failed("userfaultfd with events and write protection");
  page_ = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page_ == MAP_FAILED) {
    page_ = nullptr;
    return failed("mmap");
  }
  if (!watch_pages(events, ByteRange::of(page_, kPageBytes))) return failed("UFFDIO_REGISTER");
  if (!is_settled()) return failed("UFFDIO_WRITEPROTECT");
  const auto read = [this] { read_events(); };
  if (!start_joined_thread("treering-pages", kStackBytes, read, &reader_))
    return {trSystemError, "no thread can be had"};
  reading_process_ = getpid();
  return {};
}

PageWatch::~PageWatch() {
  if (reading_process_ == getpid()) {
    end_reading();
  } else {
    events_.close_if_same();
    if (page_ != nullptr) munmap(page_, kPageBytes);
  }
}

void PageWatch::end_reading() {
  const bool is_own = is_open();
  if (is_own) {
    // A descriptor that a child has kept would hold up what unmaps, were pages still registered.
    for (uint32_t range = 0; range < kMaxRanges; ++range)
      if (pages_of(range).end != 0) forget_pages(pages_of(range));
    munmap(page_, kPageBytes);  // the reader ends at once
  }
  // Else the page stays: where a child has the descriptor, no thread would read that it is unmapped.
  is_given_up_.store(true, std::memory_order_relaxed);
  pthread_join(reader_, nullptr);
  if (is_own) close(events_.fd);
}

// In a process that was forked: nothing of it is watched, and the reader is the parent's.
void PageWatch::become_inherited() {
  if (is_open()) close(events_.fd);
  events_ = {};
  reading_process_ = 0;
  mark_all();
}

Status PageWatch::begin(ByteRange bytes, uint32_t* range) {
  std::lock_guard lock(current().mutex);
  if (events_.fd < 0) return {trSystemError, "it belongs to the process that forked this one"};
  if (!is_open()) return {trSystemError, "the program has closed the descriptor of the watch"};
  if (!is_settled()) return {trInProgress, "the kernel has not told of all changes yet"};
  for (*range = 0; *range < kMaxRanges; ++*range)
    if (ranges_[*range].end.load(std::memory_order_relaxed) == 0) break;
  if (*range == kMaxRanges) return {trSystemError, fmt::format("{} ranges are watched already", kMaxRanges)};
  const ByteRange pages = pages_around(bytes);
  Range& made = ranges_[*range];
  made.is_changed.store(false, std::memory_order_relaxed);
  made.begin.store(pages.begin, std::memory_order_relaxed);
  made.end.store(pages.end, std::memory_order_release);
  if (watch_pages(events_.fd, pages)) return {};
  const int error = errno;
  made.end.store(0, std::memory_order_release);
  return {trSystemError, fmt::format("UFFDIO_REGISTER: {}", std::strerror(error))};
}

void PageWatch::end(uint32_t range) {
  std::lock_guard lock(current().mutex);
  const ByteRange pages = pages_of(range);
  ranges_[range].end.store(0, std::memory_order_release);
  std::vector<ByteRange> others;
  for (uint32_t i = 0; i < kMaxRanges; ++i)
    if (pages_of(i).end != 0 && pages_of(i).overlaps(pages)) others.push_back(pages_of(i));
  for (const ByteRange& alone : pages_alone(pages, others)) forget_pages(alone);
}

// Where other memory lies there by now it may fail; then a change of that memory is told, and is no range's.
void PageWatch::forget_pages(ByteRange pages) const {
  if (!events_.is_same()) return;
  uffdio_range request{pages.begin, pages.bytes()};
  (void)ioctl(events_.fd, UFFDIO_UNREGISTER, &request);
}

// The kernel refuses it (EAGAIN) while a thread is on the way from a change of watched memory, and the reader has not
// read that yet.
bool PageWatch::unprotect_page() const {
  uffdio_writeprotect request{{reinterpret_cast<uintptr_t>(page_), kPageBytes}, 0};
  return ioctl(events_.fd, UFFDIO_WRITEPROTECT, &request) == 0;
}

bool PageWatch::is_settled() const {
  return events_.is_same() && unprotect_page() && !is_marking_.load(std::memory_order_seq_cst);
}

// Whether the descriptor is still that of the watch. Only a userfaultfd answers so: EAGAIN as above, ENOENT once the page
// is unmapped, ESRCH once the process that made it has ended.
bool PageWatch::is_open() const {
  return events_.is_same() && (unprotect_page() || errno == EAGAIN || errno == ENOENT || errno == ESRCH);
}

void PageWatch::read_events() {
  // While it waits, the kernel keeps what it waits for, also where the program closes it.
  pollfd waited{events_.fd, POLLIN, 0};
  for (;;) {
    const int ready = poll(&waited, 1, kMaxWaitMs);
    if (is_given_up_.load(std::memory_order_relaxed) || !is_open()) return mark_all();
    if (ready > 0 && !take_events()) return;
  }
}

// Whether there will be more.
bool PageWatch::take_events() {
  bool ends = false;
  uffd_msg message;
  is_marking_.store(true, std::memory_order_seq_cst);
  while (events_.is_same() && read(events_.fd, &message, sizeof message) == static_cast<ssize_t>(sizeof message)) {
    if (message.event == UFFD_EVENT_UNMAP || message.event == UFFD_EVENT_REMOVE) {
      const ByteRange gone{message.arg.remove.start, message.arg.remove.end};
      mark(gone);
      ends |= gone.holds(ByteRange::of(page_, kPageBytes));
    }
    if (message.event != UFFD_EVENT_REMAP) continue;
    const auto& moved = message.arg.remap;
    mark({moved.from, moved.from + moved.len});
    if (void (*const hold)() = before_forgetting_moved.load(std::memory_order_relaxed); hold != nullptr) hold();
    forget_pages({moved.to, moved.to + moved.len});
  }
  is_marking_.store(false, std::memory_order_seq_cst);
  return !ends;
}

void PageWatch::mark(ByteRange changed) {
  for (uint32_t range = 0; range < kMaxRanges; ++range)
    if (pages_of(range).overlaps(changed)) {
      ranges_[range].is_changed.store(true, std::memory_order_release);
      changes_.fetch_add(1, std::memory_order_release);
    }
}

// Nothing is known of what changes from now on.
void PageWatch::mark_all() {
  for (Range& range : ranges_) range.is_changed.store(true, std::memory_order_release);
  changes_.fetch_add(1, std::memory_order_release);
}

}  // namespace treering
