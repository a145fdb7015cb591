// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/root_search.h"

#include <fmt/format.h>

namespace treering {

std::string RootSearch::who() const {
  return is_awaited() ? "rank 0, at MASTER_ADDR and the port after MASTER_PORT,"
                      : fmt::format("the process that made the unique id (pid {})", root_pid_);
}

std::optional<Status> RootSearch::failed(const Status& status, DialEnd end, Clock::time_point now) const {
  if (status.code() == trSystemError) return Status(status.code(), "this process: " + status.message());
  const auto timeout = near_ ? Clock::duration(kNearTimeout) : kGoneTimeout;
  const bool may_come = is_awaited() || end == DialEnd::kNoAnswer;
  const bool late = (!may_come && now - began_ > timeout) || deadline_ - now < 4 * kRetry;
  if (!late && !(end == DialEnd::kRefused && near_)) return {};
  const bool awaited = is_awaited();
  const char* why =
      awaited ? "it has not come, or has another TREERING_SECRET (or torchrun's run id), or has" : "it has";
  return Status(status.code(), fmt::format("{} cannot be reached: {} ended, or all its ranks have met already or "
                                           "failed to meet, or no network leads to it: {}",
                                           who(), why, status.message()));
}

std::string RootSearch::news(const Status& status, Clock::time_point now) {
  if (now - told_ < kTold) return {};
  told_ = now;
  return fmt::format("{} has not been reached for {:.0f} s: {}", who(),
                     std::chrono::duration<double>(now - began_).count(), status.message());
}

Status RootSearch::ended_here(bool have_met) {
  return {trInvalidUsage, fmt::format("the ranks of this unique id, which this process made, {}; make a new one",
                                      have_met ? "have met already" : "have failed to meet")};
}

}  // namespace treering
