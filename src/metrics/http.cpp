// SPDX-License-Identifier: Apache-2.0
#include "metrics/http.h"

#include <fmt/format.h>

#include "metrics/open_metrics.h"

namespace treering {

bool is_whole_request(std::string_view request) {
  return request.find("\r\n\r\n") != std::string_view::npos || request.find("\n\n") != std::string_view::npos;
}

// The first line alone counts: "GET /metrics HTTP/1.1".
Asked asked_by(std::string_view request) {
  const std::string_view line = request.substr(0, request.find_first_of("\r\n"));
  const size_t first = line.find(' ');
  const size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos || line.substr(second + 1, 5) != "HTTP/") return Asked::kNothing;
  const std::string_view method = line.substr(0, first);
  if (method != "GET" && method != "HEAD") return Asked::kOtherMethod;
  std::string_view path = line.substr(first + 1, second - first - 1);
  path = path.substr(0, path.find('?'));
  if (path != "/" && path != "/metrics") return Asked::kOtherPath;
  return method == "GET" ? Asked::kMetrics : Asked::kMetricsHead;
}

std::string answer_to(Asked asked, const std::string& metrics) {
  const auto response = [](const char* status, const char* type, const char* more, const std::string& body) {
    return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}Connection: close\r\n\r\n", status,
                       type, body.size(), more);
  };
  constexpr const char* kPlain = "text/plain; charset=utf-8";
  std::string body;
  switch (asked) {
    case Asked::kMetrics:
      return response("200 OK", kOpenMetricsType, "", metrics) + metrics;
    case Asked::kMetricsHead:
      return response("200 OK", kOpenMetricsType, "", metrics);
    case Asked::kOtherMethod:
      body = "GET /metrics is all that there is.\n";
      return response("405 Method Not Allowed", kPlain, "Allow: GET, HEAD\r\n", body) + body;
    case Asked::kOtherPath:
      body = "The metrics are at /metrics.\n";
      return response("404 Not Found", kPlain, "", body) + body;
    case Asked::kNothing:
      break;
  }
  body = "This is no HTTP request.\n";
  return response("400 Bad Request", kPlain, "", body) + body;
}

}  // namespace treering
