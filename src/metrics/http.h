// SPDX-License-Identifier: Apache-2.0
// The answer to a scrape.
#pragma once

#include <string>
#include <string_view>

namespace treering {

inline constexpr size_t kMaxRequest = 8192;  // bytes

// Whether the request's head is complete: there is no more to read.
bool is_whole_request(std::string_view request);
enum class Asked : uint8_t { kMetrics, kMetricsHead, kOtherMethod, kOtherPath, kNothing };
Asked asked_by(std::string_view request);
std::string answer_to(Asked asked, const std::string& metrics);

// What `make_metrics` makes for GET and HEAD of / and /metrics; else an error in HTTP's words.
template <typename Make>
std::string answer(std::string_view request, const Make& make_metrics) {
  const Asked asked = asked_by(request);
  const bool is_wanted = asked == Asked::kMetrics || asked == Asked::kMetricsHead;
  return answer_to(asked, is_wanted ? make_metrics() : std::string());
}

}  // namespace treering
