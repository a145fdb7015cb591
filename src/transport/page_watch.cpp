// SPDX-License-Identifier: Apache-2.0
#include "transport/page_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <mutex>
#include <vector>

#include "transport/address_space.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace treering {
namespace {

constexpr size_t kStackBytes = 128 << 10;
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
    for (const ByteRange& piece : left) {
      if (!piece.overlaps(other)) {
        next.push_back(piece);
        continue;
      }
      if (piece.begin < other.begin) next.push_back({piece.begin, other.begin});
      if (other.end < piece.end) next.push_back({other.end, piece.end});
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
  if (auto watch = current().watch.lock()) return watch;
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
  events_ = create(UFFD_USER_MODE_ONLY);
  if (events_ < 0 && errno == EINVAL) events_ = create(0);
  if (events_ < 0) return failed("userfaultfd");
  uffdio_api api{UFFD_API, kFeatures, 0};
  if (ioctl(events_, UFFDIO_API, &api) != 0) return failed("userfaultfd with events and write protection");
  page_ = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page_ == MAP_FAILED) {
    page_ = nullptr;
    return failed("mmap");
  }
  if (!watch_pages(events_, ByteRange::of(page_, kPageBytes))) return failed("UFFDIO_REGISTER");
  if (!is_settled()) return failed("UFFDIO_WRITEPROTECT");
  stop_ = eventfd(0, EFD_CLOEXEC);
  if (stop_ < 0) return failed("eventfd");
  // No handler of the program runs in the reader: it might allocate.
  sigset_t all, before;
  sigfillset(&all);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, std::max<size_t>(kStackBytes, PTHREAD_STACK_MIN));
  pthread_sigmask(SIG_SETMASK, &all, &before);
  errno = pthread_create(&reader_, &attributes, read_events, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (errno != 0) return failed("pthread_create");
  is_reading_started_ = true;
  return {};
}

PageWatch::~PageWatch() {
  if (is_reading_started_) {
    // A descriptor that a child has kept would hold up what unmaps, were pages still registered.
    for (uint32_t range = 0; range < kMaxRanges; ++range)
      if (pages_of(range).end != 0) (void)forget_pages(pages_of(range));
    const uint64_t one = 1;
    (void)!write(stop_, &one, sizeof one);
    pthread_join(reader_, nullptr);
  }
  if (page_ != nullptr && events_ >= 0) (void)forget_pages(ByteRange::of(page_, kPageBytes));
  if (events_ >= 0) close(events_);
  if (stop_ >= 0) close(stop_);
  if (page_ != nullptr) munmap(page_, kPageBytes);
}

// In a process that was forked: nothing of it is watched, and the reader is the parent's.
void PageWatch::become_inherited() {
  close(events_);
  close(stop_);
  events_ = stop_ = -1;
  is_reading_started_ = false;
  for (Range& range : ranges_) range.is_changed.store(true, std::memory_order_relaxed);
  changes_.fetch_add(1, std::memory_order_release);
}

Status PageWatch::begin(ByteRange bytes, uint32_t* range) {
  std::lock_guard lock(current().mutex);
  if (events_ < 0) return {trSystemError, "it belongs to the process that forked this one"};
  for (*range = 0; *range < kMaxRanges; ++*range)
    if (ranges_[*range].end.load(std::memory_order_relaxed) == 0) break;
  if (*range == kMaxRanges) return {trSystemError, fmt::format("{} ranges are watched already", kMaxRanges)};
  const ByteRange pages = pages_around(bytes);
  Range& made = ranges_[*range];
  made.is_changed.store(false, std::memory_order_relaxed);
  made.begin.store(pages.begin, std::memory_order_relaxed);
  made.end.store(pages.end, std::memory_order_release);
  if (watch_pages(events_, pages)) return {};
  const int error = errno;
  made.end.store(0, std::memory_order_release);
  return {trSystemError, fmt::format("UFFDIO_REGISTER: {}", std::strerror(error))};
}

void PageWatch::end(uint32_t range) {
  std::lock_guard lock(current().mutex);
  const ByteRange pages = pages_of(range);
  ranges_[range].end.store(0, std::memory_order_release);
  if (events_ < 0) return;
  std::vector<ByteRange> others;
  for (uint32_t i = 0; i < kMaxRanges; ++i)
    if (pages_of(i).end != 0 && pages_of(i).overlaps(pages)) others.push_back(pages_of(i));
  for (const ByteRange& alone : pages_alone(pages, others)) (void)forget_pages(alone);
}

// Where other memory lies there by now it may fail; then a change of that memory is told, and is no range's.
bool PageWatch::forget_pages(ByteRange pages) const {
  uffdio_range request{pages.begin, pages.bytes()};
  return ioctl(events_, UFFDIO_UNREGISTER, &request) == 0;
}

// The kernel refuses it while a thread has changed watched memory, and the reader has not read that yet.
bool PageWatch::is_settled() const {
  uffdio_writeprotect request{{reinterpret_cast<uintptr_t>(page_), kPageBytes}, 0};
  return ioctl(events_, UFFDIO_WRITEPROTECT, &request) == 0 && !is_marking_.load(std::memory_order_seq_cst);
}

void* PageWatch::read_events(void* watch) {
  auto* const self = static_cast<PageWatch*>(watch);
  pollfd waited[] = {{self->events_, POLLIN, 0}, {self->stop_, POLLIN, 0}};
  for (;;) {
    if (poll(waited, 2, -1) < 0) continue;
    if (waited[0].revents != 0) self->take_events();
    if (waited[1].revents != 0) return nullptr;
  }
}

void PageWatch::take_events() {
  uffd_msg message;
  is_marking_.store(true, std::memory_order_seq_cst);
  while (read(events_, &message, sizeof message) == static_cast<ssize_t>(sizeof message)) {
    if (message.event == UFFD_EVENT_UNMAP || message.event == UFFD_EVENT_REMOVE)
      mark({message.arg.remove.start, message.arg.remove.end});
    if (message.event != UFFD_EVENT_REMAP) continue;
    const auto& moved = message.arg.remap;
    mark({moved.from, moved.from + moved.len});
    (void)forget_pages({moved.to, moved.to + moved.len});
  }
  is_marking_.store(false, std::memory_order_seq_cst);
}

void PageWatch::mark(ByteRange changed) {
  for (uint32_t range = 0; range < kMaxRanges; ++range)
    if (pages_of(range).overlaps(changed)) {
      ranges_[range].is_changed.store(true, std::memory_order_release);
      changes_.fetch_add(1, std::memory_order_release);
    }
}

}  // namespace treering
