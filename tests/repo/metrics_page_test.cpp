// SPDX-License-Identifier: Apache-2.0
// The table in docs/metrics.md is what the table of metrics says. `metrics_page_test --write PATH` writes it anew.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>
#include <string>

#include "metrics/metric_table.h"

namespace {

constexpr const char* kBegin =
    "<!-- Made from src/metrics/metric_table.cpp: metrics_page_test --write docs/metrics.md -->\n";
constexpr const char* kEnd = "<!-- The end of what is made. -->\n";

std::string read(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Where the table stands in the page; false: the marks are missing.
bool find_table(const std::string& page, size_t* begin, size_t* end) {
  *begin = page.find(kBegin);
  *end = page.find(kEnd);
  if (*begin == std::string::npos || *end == std::string::npos || *end < *begin) return false;
  *begin += std::strlen(kBegin);
  return true;
}

TEST(MetricsPage, HasTheTable) {
  const std::string page = read(TREERING_METRICS_MD);
  size_t begin = 0, end = 0;
  ASSERT_TRUE(find_table(page, &begin, &end)) << TREERING_METRICS_MD << " has not the two marks around the table";
  EXPECT_EQ(page.substr(begin, end - begin), treering::metrics_markdown())
      << "write it anew with: metrics_page_test --write docs/metrics.md";
}

TEST(MetricsPage, RowsAreOpenMetrics) {
  std::set<std::string> names;
  for (const treering::MetricRow& row : treering::metric_table()) {
    const std::string name = row.name;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(name.starts_with("treering_")) << name;
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), std::string::npos) << name;
    for (const char* suffix : {"_total", "_bucket", "_count", "_sum", "_info"})
      EXPECT_FALSE(name.ends_with(suffix)) << name;
    if (*row.unit != '\0') {
      EXPECT_TRUE(name.ends_with(std::string("_") + row.unit)) << name;
    }
    EXPECT_EQ(std::string(row.help).find_first_of("\n|\\\""), std::string::npos) << name;
    EXPECT_STRNE(row.help, "");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--write") == 0) {
    std::string page = read(argv[2]);
    size_t begin = 0, end = 0;
    if (find_table(page, &begin, &end)) {
      page.replace(begin, end - begin, treering::metrics_markdown());
      std::ofstream file(argv[2]);
      file << page;
      if (file.flush()) return 0;
    }
    std::cerr << "error: cannot write the table into \"" << argv[2] << "\"\n";
    return 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
