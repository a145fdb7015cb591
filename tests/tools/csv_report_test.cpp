// SPDX-License-Identifier: Apache-2.0
#include "csv_report.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>

namespace treering::perf {
namespace {

std::vector<std::string> fields_of(const std::string& line) {
  EXPECT_TRUE(line.ends_with('\n')) << line;
  std::vector<std::string> fields(1);
  for (const char c : line.substr(0, line.size() - 1))
    if (c == ',')
      fields.emplace_back();
    else
      fields.back() += c;
  return fields;
}

std::map<std::string, std::string> named(const Options& options, const Row& row) {
  const std::vector<std::string> names = fields_of(csv_header()), fields = fields_of(csv_line(options, row));
  EXPECT_EQ(names.size(), fields.size());
  std::map<std::string, std::string> result;
  for (size_t i = 0; i < std::min(names.size(), fields.size()); ++i) result[names[i]] = fields[i];
  EXPECT_EQ(result.size(), names.size()) << "a name is there twice";
  return result;
}

Row row_of_1_kib() {
  Row row;
  row.bytes = 1024;
  row.count = 256;
  row.type = "float";
  row.operation = "sum";
  row.out_of_place = {
      .time_us = 1.25, .median_us = 1.125, .algorithm_gbps = 2, .bus_gbps = 3, .checked = true, .wrong = 4};
  row.in_place = {.time_us = 0.5};
  row.algorithm = "ring";
  row.protocol = "staged";
  row.transport = "shm";
  row.channels = 2;
  row.limit_us = 0.75;
  return row;
}

TEST(Csv, EveryFieldHasItsName) {
  Options options;
  options.procs = 3;
  options.limit = true;
  const std::map<std::string, std::string> fields = named(options, row_of_1_kib());
  const std::pair<const char*, const char*> expected[] = {{"collective", "allreduce"},
                                                          {"ranks", "3"},
                                                          {"size", "1024"},
                                                          {"count", "256"},
                                                          {"type", "float"},
                                                          {"redop", "sum"},
                                                          {"root", "-1"},
                                                          {"out_of_place_time", "1.25"},
                                                          {"out_of_place_median", "1.125"},
                                                          {"out_of_place_alg_bw", "2"},
                                                          {"out_of_place_bus_bw", "3"},
                                                          {"out_of_place_nwrong", "4"},
                                                          {"in_place_time", "0.5"},
                                                          {"algorithm", "ring"},
                                                          {"protocol", "staged"},
                                                          {"transport", "shm"},
                                                          {"channels", "2"},
                                                          {"limit_us", "0.75"}};
  for (const auto& [name, value] : expected) EXPECT_EQ(fields.at(name), value) << name;
}

TEST(Csv, WhatWasNotMeasuredIsEmpty) {
  Row row = row_of_1_kib();
  EXPECT_EQ(named(Options(), row).at("in_place_median"), "");
  EXPECT_EQ(named(Options(), row).at("in_place_nwrong"), "");
  EXPECT_EQ(named(Options(), row).at("limit_us"), "");
  row.in_place.reset();
  EXPECT_EQ(named(Options(), row).at("in_place_time"), "");
  EXPECT_EQ(named(Options(), row).at("algorithm"), "ring");
}

}  // namespace
}  // namespace treering::perf
