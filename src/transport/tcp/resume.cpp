// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/resume.h"

#include <fmt/format.h>

#include <algorithm>

namespace treering {
namespace {
using std::chrono::milliseconds;
// A kernel waits 200 ms at least before it sends something again, and twice as long each time.
// Each link finds out by itself, one after the other where calls depend on one another.
constexpr milliseconds kMinStall{1000}, kMaxStall{2500};
constexpr milliseconds kAfterDeadline{2000};
// For the new connection by another network, once a stream is taken for dead.
constexpr milliseconds kMaxReopen{1000};
constexpr milliseconds kMinKernel{120'000}, kKernelWithout{600'000};
}  // namespace

TcpTimeouts::TcpTimeouts(milliseconds deadline)
    : stall(deadline.count() == 0 ? kMaxStall : std::clamp(deadline / 4, kMinStall, kMaxStall)),
      redial(deadline.count() == 0 ? deadline : deadline + kAfterDeadline),
      leave(deadline.count() == 0 ? stall + kMaxReopen : std::min(deadline, stall + kMaxReopen)),
      kernel(deadline.count() == 0 ? kKernelWithout : std::max(deadline, kMinKernel)) {}

bool TcpStall::look(const Facts& facts, TcpClock::time_point now, milliseconds timeout) {
  if (!facts.under_way || facts.acknowledged != acknowledged_ || since_ == TcpClock::time_point()) {
    since_ = facts.under_way ? now : TcpClock::time_point();
    acknowledged_ = facts.acknowledged;
    return false;
  }
  return now - since_ >= timeout && facts.since_answer >= timeout;
}

bool TcpDeparture::is_over(const Facts& facts, TcpClock::time_point now, milliseconds timeout) const {
  if (facts.arrived) return true;
  const auto waited = now - began_;
  return waited >= timeout || waited - facts.since_answer >= kAnswersWithin;
}

void TcpRedial::ask(TcpClock::time_point now) {
  asked_ = ever_asked_ = true;
  if (since_ == TcpClock::time_point()) since_ = now, attempts_ = 0;
  if (away_ == TcpClock::time_point()) away_ = now;
  ++attempts_;
}

void TcpRedial::opened(TcpClock::time_point now) {
  asked_ = false;
  opened_ = now;
  since_ = away_ = {};
  broke_.clear(), why_.clear();
}

void TcpRedial::lost(TcpClock::time_point now, const std::string& why, TcpClock::time_point of_no_use_since) {
  away_ = of_no_use_since == TcpClock::time_point() ? now : of_no_use_since;
  not_there(now, why, true);
}

void TcpRedial::not_there(TcpClock::time_point now, const std::string& why, bool was_open) {
  if (was_open && now - opened_ >= kWorked)
    pause_ = milliseconds(0);
  else
    pause_ = std::clamp(pause_ * 2, kFirstPause, kLongestPause);
  (was_open ? broke_ : why_) = why;
  if (!was_open) asked_ = false;
  next_ = now + pause_;
}

bool TcpRedial::over(TcpClock::time_point now, milliseconds timeout, TcpClock::time_point heard) const {
  return timeout.count() > 0 && since_ != TcpClock::time_point() && now - std::max(since_, heard) >= timeout;
}

std::string TcpRedial::story(TcpClock::time_point now) const {
  std::string text = broke_;
  if (since_ == TcpClock::time_point()) return text;
  const double seconds = std::chrono::duration<double>(now - since_).count();
  text += fmt::format("{}{} for {:.1f} s, in {} attempt{}", text.empty() ? "" : "; ",
                      broke_.empty() ? "it could not be opened" : "it could not be opened again", seconds, attempts_,
                      attempts_ == 1 ? "" : "s");
  if (!why_.empty()) text += ": " + why_;
  return text;
}

}  // namespace treering
