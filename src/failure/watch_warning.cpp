// SPDX-License-Identifier: Apache-2.0
// Watch's warning: who holds up a collective, in the log and long before the deadline.
#include <fmt/format.h>

#include "bootstrap/membership.h"
#include "core/log.h"
#include "failure/watch.h"

namespace treering {
namespace {

constexpr uint32_t kSpeakersOfAll = 4;  // ranks at which those of other hosts look, to leave a warning to them
constexpr size_t kMaxNamed = 8;

}  // namespace

void Watch::consider_warning(uint32_t waiting_for, Clock::time_point now, Clock::duration late) {
  const std::optional<Clock::time_point> asked = warning_.asked();
  switch (warning_.look(now, waits_since_, late)) {
    case WaitWarning::Next::kNothing:
      if (asked) ask_others(*asked);
      return;
    case WaitWarning::Next::kAsk:
      return speaks_for_others() ? ask_others(now) : warning_.leave_to_others();
    case WaitWarning::Next::kSay:
      return warn_of_wait(waiting_for, now, *asked);
  }
}

// Whether no lower rank waits in this operation and runs, as far as is known. A rank looks at all of its host and at few
// others.
bool Watch::speaks_for_others() {
  for (uint32_t peer = 0; peer < context_->rank; ++peer) {
    if (peer >= kSpeakersOfAll && !knows_by_reading(peer)) continue;
    note_progress(peer);
    RankStatusSnapshot shown;
    if (!shows_life(peer) || !read(peer, &shown)) continue;
    if (shown.waiting_for != 0 && shown.operation == call_->operation && shown.completed < shown.operation)
      return false;
  }
  return true;
}

// A rank that was asked a moment ago is not asked at once again: it is to be called again and again.
void Watch::ask_others(Clock::time_point since) {
  for (uint32_t peer = 0; peer < context_->ranks; ++peer)
    if (!has_answered(peer, since)) job_->request_status(peer);
}

bool Watch::has_answered(uint32_t peer, Clock::time_point since) const {
  std::string bytes;
  Clock::time_point when;
  return knows_by_reading(peer) || (job_->latest_status(peer, &bytes, &when) && when >= since);
}

// The ranks that have not answered since they were asked, in words. What they showed before may have changed.
std::string Watch::unanswered(Clock::time_point asked) const {
  std::string text;
  size_t count = 0;
  for (uint32_t peer = 0; peer < context_->ranks; ++peer) {
    if (has_answered(peer, asked)) continue;
    if (count++ < kMaxNamed) text += (text.empty() ? "" : ", ") + describe(peer);
  }
  if (count > kMaxNamed) text += fmt::format(" and {} more", count - kMaxNamed);
  return text.empty() ? text : fmt::format("no answer has come of {}", text);
}

void Watch::warn_of_wait(uint32_t waiting_for, Clock::time_point now, Clock::time_point asked) {
  std::string who = unanswered(asked);
  trResult_t code = trSuccess;  // of an error, which a warning is not
  if (who.empty()) who = who_holds_up(waiting_for, &code);
  const std::string limit =
      timeout_.count() > 0 ? fmt::format("the deadline is {} ms", timeout_.count()) : "there is no deadline";
  const std::string what =
      is_cut_off_ ? fmt::format("has had no connection to {}", describe(waiting_for)) : "has not moved";
  const double seconds = std::chrono::duration<double>(warning_.waited(now, waits_since_)).count();
  const LogRank line_has_it(context_->rank);
  log_line(LogLevel::kWarn, fmt::format("{}{} {} for {:.1f} s ({}): {}. Rank {} waits for rank {}", agreement_.prefix(),
                                        operation_text(), what, seconds, limit, who, context_->rank, waiting_for));
}

}  // namespace treering
