// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/notice_log.h"

#include <algorithm>

namespace treering {
namespace {

// A later notice of a process says all that an earlier one said. So those that are kept are at most some for each
// process.
bool replaces(const NoticeMessage& later, const NoticeMessage& earlier) {
  const auto of_silence = [](NoticeType type) { return type == NoticeType::kSilent || type == NoticeType::kHeard; };
  return later.process == earlier.process &&
         ((later.type == NoticeType::kMoved && earlier.type == NoticeType::kMoved) ||
          (of_silence(later.type) && of_silence(earlier.type)));
}

Status status_of(const NoticeMessage& notice) { return {static_cast<trResult_t>(notice.code), notice.text}; }

}  // namespace

NoticeMessage NoticeLog::number(NoticeMessage notice, uint32_t own) {
  notice.origin = own;
  notice.number = ++numbered_;
  return notice;
}

NoticeLog::Taken NoticeLog::take(const NoticeMessage& notice, Clock::time_point now) {
  if (notice.type == NoticeType::kDissolved) return {.pass_on = false, .apply = true};  // it has no number
  uint64_t& last = last_numbers_[notice.origin];
  if (notice.number <= last) return {};
  last = notice.number;
  if (notice.type != NoticeType::kRankLeft)  // the most frequent one replaces nothing
    std::erase_if(notices_, [&](const NoticeMessage& earlier) { return replaces(notice, earlier); });
  notices_.push_back(notice);
  if (notice.type != NoticeType::kVerdict) return {.pass_on = true, .apply = true};
  const bool is_first = !has_verdict();
  if (is_first) verdict_at_ = now;
  return {.pass_on = true, .apply = is_first};
}

Status NoticeLog::verdict() const {
  const auto found = std::find_if(notices_.begin(), notices_.end(),
                                  [](const NoticeMessage& notice) { return notice.type == NoticeType::kVerdict; });
  return found == notices_.end() ? Status() : status_of(*found);
}

Status NoticeLog::cause_of_leaving(uint32_t rank) const {
  const auto found = std::find_if(notices_.begin(), notices_.end(), [rank](const NoticeMessage& notice) {
    return notice.type == NoticeType::kRankLeft && notice.other == rank && notice.code != trSuccess;
  });
  return found == notices_.end() ? Status() : status_of(*found);
}

}  // namespace treering
