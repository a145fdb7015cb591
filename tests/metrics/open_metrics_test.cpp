// SPDX-License-Identifier: Apache-2.0
// The rules of OpenMetrics that hold for every text; Prometheus's own parser reads it in metrics_test.py.
#include "metrics/open_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "metrics/metric_table.h"
#include "metrics/text.h"
#include "metrics/scrape.h"
#include "support/seed.h"

namespace treering {
namespace {

const std::vector<const char*> kKinds = {"allreduce", "barrier"};
const std::vector<const char*> kTransports = {nullptr, "shared-memory", "tcp"};

TotalsTable table_of(const CommunicatorCounters& counters) {
  TotalsTable table;
  add_totals(key_of(counters.labels), read_totals(counters), &table);
  return table;
}

void expect_rules(const std::string& text) {
  ASSERT_TRUE(text.ends_with("\n# EOF\n")) << text;
  std::istringstream lines(text);
  std::string family;
  std::set<std::string> families, samples;
  // name, labels, value
  const std::regex sample(
      R"re(([a-z_]+)\{([a-z]+="(?:[^"\\\n]|\\[\\n"])*"(?:,[a-z]+="(?:[^"\\\n]|\\[\\n"])*")*)\} ([0-9.e+-]+))re");
  for (std::string line; std::getline(lines, line);) {
    if (line == "# EOF") continue;
    if (line.starts_with("# TYPE ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << family << " comes twice";
      continue;
    }
    if (line.starts_with("# UNIT ") || line.starts_with("# HELP ")) {
      EXPECT_EQ(line.substr(7, line.find(' ', 7) - 7), family);
      if (line.starts_with("# UNIT ")) {
        EXPECT_TRUE(family.ends_with("_" + line.substr(line.rfind(' ') + 1))) << line;
      }
      continue;
    }
    std::smatch parts;
    ASSERT_TRUE(std::regex_match(line, parts, sample)) << line;
    EXPECT_TRUE(parts[1].str().starts_with(family)) << line;
    EXPECT_TRUE(samples.insert(parts[1].str() + parts[2].str()).second) << "twice: " << line;
  }
}

TEST(OpenMetrics, AnIdleProcessHasFamiliesAlone) {
  const std::string text = open_metrics({"0.3.0", "node1", 17}, {});
  expect_rules(text);
  EXPECT_NE(text.find("treering_library_info{version=\"0.3.0\",host=\"node1\",pid=\"17\"} 1\n"), std::string::npos)
      << text;
  for (const MetricRow& row : metric_table())
    EXPECT_NE(text.find(std::string("# TYPE ") + row.name + " "), std::string::npos) << row.name;
}

TEST(OpenMetrics, EachValueStandsUnderItsLabels) {
  CommunicatorCounters counters({"gradients", 0, 3, kKinds, kTransports});
  counters.kinds[0].calls.add(5);
  counters.kinds[0].bytes.add(40);
  counters.kinds[0].failures.add(1);
  counters.kinds[0].waited_ns.add(1'500'000'000);
  counters.kinds[0].duration_ns.add(2'000'000'000);
  counters.kinds[0].durations[bucket_of(900)].add(4);
  counters.kinds[0].durations[bucket_of(40'000'000'000)].add(1);
  counters.waited_for[2].add(1'250'000'000);
  counters.waited_for[0].add(250'000'000);
  counters.sent[1].store(10);
  counters.sent[2].store(20);
  counters.sent_to_each.add(100);
  const std::string text = open_metrics({"0.3.0", "node1", 17}, table_of(counters));
  expect_rules(text);
  const auto value = [&](const char* name, const std::string& label) {
    return testing::value_of(text, name, {"communicator=\"gradients\"", "ranks=\"3\"", "rank=\"0\"", label});
  };
  const std::string of = "collective=\"allreduce\"";
  EXPECT_EQ(value("treering_calls_total", of), 5);
  EXPECT_EQ(value("treering_call_bytes_total", of), 40);
  EXPECT_EQ(value("treering_call_failures_total", of), 1);
  EXPECT_EQ(value("treering_waited_seconds_total", of), 1.5);
  EXPECT_EQ(value("treering_call_seconds_sum", of), 2);
  EXPECT_EQ(value("treering_call_seconds_count", of), 5);
  EXPECT_EQ(value("treering_call_seconds_bucket", "le=\"3e-07\""), 0);
  EXPECT_EQ(value("treering_call_seconds_bucket", "le=\"1e-06\""), 4);
  EXPECT_EQ(value("treering_call_seconds_bucket", "le=\"30\""), 4);
  EXPECT_EQ(value("treering_call_seconds_bucket", "le=\"+Inf\""), 5);
  EXPECT_EQ(value("treering_waited_for_seconds_total", "peer=\"2\""), 1.25);
  EXPECT_EQ(value("treering_waited_for_seconds_total", "peer=\"none\""), 0.25);
  EXPECT_EQ(value("treering_sent_bytes_total", "transport=\"shared-memory\""), 110);
  EXPECT_EQ(value("treering_sent_bytes_total", "transport=\"tcp\""), 120);
  EXPECT_EQ(value("treering_communicators", ""), 1);
  EXPECT_EQ(value("treering_calls_total", "barrier"), std::nullopt) << "what was not called is left out";
}

TEST(OpenMetrics, CommunicatorsOfANameAreOneSeries) {
  TotalsTable table;
  for (int i = 0; i < 3; ++i) {
    CommunicatorCounters counters({"", 1, 2, kKinds, {"tcp", nullptr}});
    counters.kinds[1].calls.add(2);
    Totals totals = read_totals(counters);
    if (i > 0) totals.communicators = 0;  // it has ended
    add_totals(key_of(counters.labels), totals, &table);
  }
  const std::string text = open_metrics({"0.3.0", "node1", 17}, table);
  expect_rules(text);
  EXPECT_EQ(testing::value_of(text, "treering_calls_total", {"communicator=\"(unnamed)\"", "barrier"}), 6);
  EXPECT_EQ(testing::value_of(text, "treering_communicators", {"communicator=\"(unnamed)\""}), 1);
}

// A program that gives each communicator a name of its own does not fill the memory.
TEST(OpenMetrics, ThereAreOnlySoManySeries) {
  TotalsTable table;
  for (size_t i = 0; i < 3 * kMaxSeries; ++i) {
    CommunicatorCounters counters({"c" + std::to_string(i), 0, 1, kKinds, {nullptr}});
    counters.kinds[0].calls.add(1);
    add_totals(key_of(counters.labels), read_totals(counters), &table);
  }
  EXPECT_EQ(table.size(), kMaxSeries + 1);
  const std::string text = open_metrics({"0.3.0", "node1", 17}, table);
  expect_rules(text);
  EXPECT_EQ(testing::value_of(text, "treering_calls_total", {"communicator=\"(others)\""}), 2 * kMaxSeries);
}

TEST(OpenMetrics, AnyNameIsALabel) {
  std::mt19937_64 random(test_seed());
  for (int time = 0; time < 300; ++time) {
    std::string name;
    for (uint64_t i = random() % 12; i > 0; --i) {
      const std::string_view special = "\\\"\n{},=\xC3\xA4\xED\xA0\x80";
      name += random() % 2 == 0 ? special[random() % special.size()] : static_cast<char>(random() & 0xFF);
    }
    CommunicatorCounters counters({name, 0, 3, kKinds, kTransports});
    counters.kinds[0].calls.add(1);
    SCOPED_TRACE(::testing::PrintToString(name));
    const std::string text = open_metrics({"0.3.0", name, 17}, table_of(counters));
    expect_rules(text);
    EXPECT_EQ(as_utf8(text), text);
  }
}

TEST(Buckets, ABoundIsInItsBucket) {
  EXPECT_EQ(bucket_of(0), 0u);
  for (size_t i = 0; i < kDurationBounds.size(); ++i) {
    EXPECT_EQ(bucket_of(kDurationBounds[i]), i);
    EXPECT_EQ(bucket_of(kDurationBounds[i] + 1), i + 1);
  }
}

TEST(Text, BytesThatAreNoCharacterAreReplaced) {
  EXPECT_EQ(as_utf8("a\xC3\xA4z"), "a\xC3\xA4z");
  EXPECT_EQ(as_utf8("\xF0\x9F\x98\x80"), "\xF0\x9F\x98\x80");
  EXPECT_EQ(as_utf8("\xC3"), "?");
  EXPECT_EQ(as_utf8("\xC0\xAF"), "??") << "longer than it need be";
  EXPECT_EQ(as_utf8("\xED\xA0\x80"), "???") << "half of a pair of UTF-16";
  EXPECT_EQ(as_utf8("\xF5\x80\x80\x80x"), "????x");
  EXPECT_EQ(as_label_value("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
  EXPECT_EQ(as_json_text("a\"b\\c\nd\x01"), "a\\\"b\\\\c\\u000ad\\u0001");
}

}  // namespace
}  // namespace treering
