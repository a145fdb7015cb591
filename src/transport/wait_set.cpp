// SPDX-License-Identifier: Apache-2.0
#include "transport/wait_set.h"

#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace treering {
namespace {
// One is enough to end the wait; the others are reported by the next.
constexpr int kMaxEvents = 16;
}  // namespace

WaitSet::~WaitSet() {
  if (epoll_ >= 0) close(epoll_);
}

void WaitSet::watch(int fd, For purpose) const {
  epoll_event event{};
  event.events = (purpose == For::kInput ? EPOLLIN | EPOLLRDHUP : EPOLLOUT) | EPOLLET;
  // A stream that cannot be watched is looked at when the time is over.
  (void)epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

void WaitSet::add(int fd, For purpose) {
  std::lock_guard lock(mutex_);
  streams_.emplace_back(fd, purpose);
  count();
  if (epoll_ >= 0) watch(fd, purpose);
}

void WaitSet::add(int fd, WaitSource* source) {
  add(fd, For::kInput);
  std::lock_guard lock(mutex_);
  sources_.emplace_back(fd, source);
  count();
}

// With the mutex.
void WaitSet::count() {
  const auto cheap = std::count_if(sources_.begin(), sources_.end(),
                                   [](const auto& source) { return source.second->is_cheap_to_poll(); });
  size_ = streams_.size();
  dear_ = streams_.size() - static_cast<size_t>(cheap);
}

bool WaitSet::arm() {
  std::lock_guard lock(mutex_);
  for (const auto& [fd, source] : sources_) source->arm();
  return !sources_.empty();
}

void WaitSet::forget(int fd) {
  std::lock_guard lock(mutex_);
  std::erase_if(streams_, [&](const auto& stream) { return stream.first == fd; });
  std::erase_if(sources_, [&](const auto& source) { return source.first == fd; });
  count();
  // Not left to close(): a child of this process may keep the socket open, and its events would come for ever.
  if (epoll_ >= 0) (void)epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
}

int WaitSet::descriptor() {
  std::lock_guard lock(mutex_);
  if (epoll_ < 0 && (epoll_ = epoll_create1(EPOLL_CLOEXEC)) >= 0)
    for (const auto& [fd, purpose] : streams_) watch(fd, purpose);
  return epoll_;
}

bool WaitSet::wait(uint32_t microseconds) {
  const timespec time{microseconds / 1'000'000, static_cast<long>(microseconds % 1'000'000) * 1000};
  epoll_event events[kMaxEvents];
  const int ready = epoll_pwait2(descriptor(), events, kMaxEvents, &time, nullptr);
  // No descriptor left, or a kernel before 5.11.
  if (ready < 0) (void)nanosleep(&time, nullptr);
  return ready > 0;
}

}  // namespace treering
