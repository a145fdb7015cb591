// SPDX-License-Identifier: Apache-2.0
#include "metrics/destination.h"

#include <gtest/gtest.h>

#include "metrics/http.h"

namespace treering {
namespace {

const ProcessPlace kFirst{0, 0, 17, "node1"}, kFourth{3, 1, 18, "node2"};

TEST(MetricsPath, ProcessesHaveFilesOfTheirOwn) {
  EXPECT_EQ(metrics_path("/a/m.prom", kFirst), "/a/m.prom");
  EXPECT_EQ(metrics_path("/a/m.prom", kFourth), "/a/m-rank3.prom");
  EXPECT_EQ(metrics_path("/a.b/m", kFourth), "/a.b/m-rank3");
  EXPECT_EQ(metrics_path("m%r.prom", kFirst), "m0.prom");
  EXPECT_EQ(metrics_path("m%r.prom", kFourth), "m3.prom");
  EXPECT_EQ(metrics_path("m-%h-%p", kFourth), "m-node2-18");
  EXPECT_EQ(metrics_path("m-%h", kFourth), "m-node2-rank3") << "another process of the host may have it";
  EXPECT_EQ(metrics_path("100%", kFirst), "100%");
  EXPECT_EQ(metrics_path("a%qb", kFirst), "a%qb");
}

TEST(MetricsPort, ProcessesOfAHostHavePortsOfTheirOwn) {
  EXPECT_TRUE(is_port(":9400"));
  EXPECT_FALSE(is_port("9400"));
  EXPECT_EQ(metrics_port(":9400", kFirst), 9400u);
  EXPECT_EQ(metrics_port(":9400", kFourth), 9401u);
  EXPECT_EQ(metrics_port(":65535", kFirst), 65535u);
  EXPECT_EQ(metrics_port(":65535", kFourth), 0u);
}

TEST(TraceName, NamesTheProcess) { EXPECT_EQ(trace_name(kFourth), "rank3-node2-18.json"); }

std::string status_of(const std::string& request) {
  const std::string response = answer(request, [] { return std::string("numbers\n"); });
  return response.substr(9, response.find("\r\n") - 9);
}

TEST(Http, GetsMetrics) {
  const auto numbers = [] { return std::string("numbers\n"); };
  const std::string response = answer("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", numbers);
  EXPECT_TRUE(response.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0"));
  EXPECT_NE(response.find("\r\nContent-Length: 8\r\n"), std::string::npos);
  EXPECT_TRUE(response.ends_with("\r\n\r\nnumbers\n")) << response;
  EXPECT_EQ(status_of("GET / HTTP/1.0\r\n\r\n"), "200 OK");
  EXPECT_EQ(status_of("GET /metrics?name=a HTTP/1.0\n\n"), "200 OK");
  const std::string head = answer("HEAD /metrics HTTP/1.1\r\n\r\n", numbers);
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
  EXPECT_NE(head.find("\r\nContent-Length: 8\r\n"), std::string::npos);
}

TEST(Http, RefusesTheRest) {
  EXPECT_EQ(status_of("POST /metrics HTTP/1.1\r\n\r\n"), "405 Method Not Allowed");
  EXPECT_EQ(status_of("GET /secret HTTP/1.1\r\n\r\n"), "404 Not Found");
  for (const char* text : {"", " ", "\r\n\r\n", "GET", "GET /metrics", "GET /metrics \r\n\r\n", "\x16\x03\x01 x y"})
    EXPECT_EQ(status_of(text), "400 Bad Request") << text;
}

TEST(Http, KnowsTheEndOfARequest) {
  EXPECT_FALSE(is_whole_request("GET / HTTP/1.1\r\n"));
  EXPECT_TRUE(is_whole_request("GET / HTTP/1.1\r\n\r\n"));
  EXPECT_TRUE(is_whole_request("GET / HTTP/1.0\n\n"));
}

}  // namespace
}  // namespace treering
