// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>

namespace treering::perf {

Progress::Progress(int terminal, std::chrono::milliseconds delay, std::chrono::milliseconds period)
    : terminal_(isatty(terminal) == 1 ? terminal : -1), delay_(delay), period_(period) {
  if (terminal_ >= 0) thread_ = std::thread([this] { run(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(lock_);
    over_ = true;
    erase();
  }
  ending_.notify_all();
  thread_.join();
}

void Progress::set(std::string what) {
  if (terminal_ < 0) return;
  std::lock_guard lock(lock_);
  what_ = std::move(what);
  if (what_.empty()) erase();
}

void Progress::print(const std::function<void()>& write) {
  std::lock_guard lock(lock_);
  erase();
  write();
}

void Progress::run() {
  std::unique_lock lock(lock_);
  for (auto next = begin_ + delay_; !ending_.wait_until(lock, next, [this] { return over_; });
       next = Clock::now() + period_)
    show();
}

void Progress::show() {
  if (what_.empty()) return;
  char seconds[32];
  snprintf(seconds, sizeof seconds, ", %.0f s", std::chrono::duration<double>(Clock::now() - begin_).count());
  put("\r\033[K" + what_ + seconds);
  shown_ = true;
}

void Progress::erase() {
  if (shown_) put("\r\033[K");
  shown_ = false;
}

// Past stdio, whose buffers others may hold.
void Progress::put(const std::string& text) const {
  // A terminal that is stopped (Ctrl-S) takes nothing, and must not hold up the run; one that is gone needs no line.
  pollfd entry{terminal_, POLLOUT, 0};
  if (poll(&entry, 1, 0) != 1 || (entry.revents & POLLOUT) == 0) return;
  if (write(terminal_, text.data(), text.size()) < 0) return;
}

}  // namespace treering::perf
