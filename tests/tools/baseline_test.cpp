// SPDX-License-Identifier: Apache-2.0
#include "baseline.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "json_report.h"

namespace treering::perf {
namespace {

RunResults results_of(int ranks, std::vector<std::pair<size_t, double>> times) {
  RunResults results;
  results.places.resize(static_cast<size_t>(ranks));
  results.start_time = "2024-02-29 12:00:00";
  for (const auto& [bytes, time_us] : times) {
    Row row;
    row.bytes = bytes;
    row.count = bytes / 4;
    row.type = "float";
    row.operation = "sum";
    for (PlaceResult* place : {&row.out_of_place, &row.in_place.emplace()}) {
      place->time_us = time_us;
      place->algorithm_gbps = algorithm_bandwidth(bytes, time_us);
      place->bus_gbps = place->algorithm_gbps * bus_factor(*find_case("allreduce"), ranks);
      place->checked = true;
      place->iteration_us = {time_us};
    }
    row.algorithm = "ring";
    row.protocol = "staged";
    row.limit_us = time_us / 2;
    results.rows.push_back(row);
  }
  return results;
}

Options options_of(int ranks) {
  Options options;
  options.procs = ranks;
  options.min_bytes = options.max_bytes = 8;
  options.types = {find_data_type("float")};
  options.operations = {find_operation("sum")};
  options.arguments = {"allreduce-perf", "--procs", "\xff"};
  return options;
}

Baseline baseline_of(const Options& options, const RunResults& results) {
  std::string error;
  const auto baseline = parse_baseline(json_report(options, results), &error);
  EXPECT_TRUE(baseline) << error;
  return baseline.value_or(Baseline{});
}

TEST(JsonReport, HasTheKeysOfSchema3) {
  setenv("TREERING_ALGO", "ring", 1);
  setenv("SOME_SECRET", "hidden", 1);
  Options options = options_of(2);
  options.limit = options.per_iteration = true;
  const auto json = nlohmann::json::parse(json_report(options, results_of(2, {{8, 1.0}, {16, 2.0}})));
  EXPECT_EQ(json["version"], 3);
  for (const char* key : {"start_time", "args", "env", "nccl_version", "config", "results", "out_of_bounds",
                          "average_bus_bandwidth", "errors", "end_time"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["config"]["devices"].size(), 2u);
  EXPECT_EQ(json["results"].size(), 2u);
  const auto& row = json["results"][1];
  EXPECT_EQ(row["size"], 16);
  EXPECT_EQ(row["count"], 4);
  EXPECT_EQ(row["type"], "float");
  EXPECT_EQ(row["redop"], "sum");
  EXPECT_EQ(row["root"], "-1");
  for (const char* place : {"out_of_place", "in_place"}) {
    EXPECT_EQ(row[place]["time"], 2.0);
    EXPECT_EQ(row[place]["nwrong"], 0);
    EXPECT_TRUE(row[place]["median"].is_null());
    EXPECT_TRUE(row[place].contains("alg_bw") && row[place].contains("bus_bw"));
  }
  EXPECT_EQ(row["limit_fraction"], 0.5);
  EXPECT_EQ(row["in_place_per_iter"]["times_us"].size(), 1u);
  EXPECT_EQ(json["out_of_bounds"]["okay"], true);
  EXPECT_DOUBLE_EQ(json["average_bus_bandwidth"]["bandwidth"], 0.008);
  const std::string env = json["env"].dump();
  EXPECT_NE(env.find("TREERING_ALGO=ring"), std::string::npos);
  EXPECT_EQ(env.find("hidden"), std::string::npos);
  unsetenv("TREERING_ALGO");
  unsetenv("SOME_SECRET");
}

TEST(RunResults, WrongValuesOfEarlierCyclesCount) {
  RunResults results = results_of(2, {{8, 1.0}});
  results.wrong_before = 3;
  results.rows[0].in_place->wrong = 4;
  EXPECT_EQ(results.wrong(), 7u);
  const auto json = nlohmann::json::parse(json_report(options_of(2), results));
  EXPECT_EQ(json["out_of_bounds"]["okay"], false);
}

TEST(JsonReport, UncheckedRowsHaveNoNumberOfWrongValues) {
  RunResults results = results_of(2, {{8, 1.0}});
  results.rows[0].in_place->checked = false;
  const auto json = nlohmann::json::parse(json_report(options_of(2), results));
  EXPECT_TRUE(json["results"][0]["in_place"]["nwrong"].is_null());
}

TEST(JsonReport, WhatHasNoInPlaceFormClaimsNoTimeForIt) {
  Options options = options_of(2);
  options.per_iteration = true;
  RunResults results = results_of(2, {{8, 1.0}, {16, 1.0}});
  results.rows[0].out_of_place.bus_gbps = 5;
  results.rows[1].out_of_place.bus_gbps = results.rows[1].in_place->bus_gbps = 2;
  results.rows[0].in_place.reset();
  const auto json = nlohmann::json::parse(json_report(options, results));
  EXPECT_FALSE(json["results"][0].contains("in_place") || json["results"][0].contains("in_place_per_iter"));
  EXPECT_TRUE(json["results"][1].contains("in_place"));
  EXPECT_DOUBLE_EQ(results.average_bus_gbps(), 3);
  EXPECT_EQ(results.wrong(), 0u);
  const Comparison comparison = compare(baseline_of(options, results), results, 20);
  EXPECT_EQ(comparison.compared, 3);
  EXPECT_TRUE(comparison.regressed.empty());
}

TEST(Baseline, FindsRowsBeyondTheTolerance) {
  const Options options = options_of(4);
  const Baseline baseline = baseline_of(options, results_of(4, {{8, 1.0}, {1024, 10.0}, {65536, 100.0}}));
  const Comparison comparison =
      compare(baseline, results_of(4, {{8, 1.19}, {1024, 12.5}, {65536, 80.0}, {1 << 20, 1.0}}), 20);
  EXPECT_EQ(comparison.compared, 6);
  ASSERT_EQ(comparison.regressed.size(), 2u);
  EXPECT_EQ(comparison.regressed[0], "1 KiB float sum out-of-place: mean 12.50 us, was 10.00 us (+25%)");
  EXPECT_EQ(comparison.regressed[1], "1 KiB float sum in-place: mean 12.50 us, was 10.00 us (+25%)");
  EXPECT_EQ(comparison.missing, (std::vector<std::string>{"1 MiB float sum"}));
  EXPECT_EQ(compare(baseline, results_of(4, {{1024, 12.5}}), 30).regressed.size(), 0u);
}

RunResults with_medians(RunResults results, double median_us) {
  for (Row& row : results.rows) row.out_of_place.median_us = row.in_place->median_us = median_us;
  return results;
}

std::string printed(const Options& options, const Comparison& comparison) {
  testing::internal::CaptureStdout();
  print_comparison(stdout, options, comparison);
  fflush(stdout);
  return testing::internal::GetCapturedStdout();
}

// One preempted call multiplies the mean of a row.
TEST(Baseline, ComparesMedians) {
  const Options options = options_of(4);
  const Baseline baseline = baseline_of(options, with_medians(results_of(4, {{8, 0.24}}), 0.25));
  const Comparison same = compare(baseline, with_medians(results_of(4, {{8, 1733.0}}), 0.26), 20);
  EXPECT_EQ(same.compared, 2);
  EXPECT_EQ(same.by_means, 0);
  EXPECT_TRUE(same.regressed.empty()) << same.regressed[0];
  EXPECT_EQ(printed(options, same).find("means"), std::string::npos);
  const Comparison slower = compare(baseline, with_medians(results_of(4, {{8, 0.24}}), 0.5), 20);
  ASSERT_EQ(slower.regressed.size(), 2u);
  EXPECT_EQ(slower.regressed[0], "8 B float sum out-of-place: median 0.50 us, was 0.25 us (+100%)");
}

TEST(Baseline, ComparesMeansWhereAMedianIsMissingAndSaysSo) {
  const Options options = options_of(4);
  const RunResults without = results_of(4, {{8, 1.0}}), with = with_medians(without, 5.0);
  const Comparison old_file = compare(baseline_of(options, without), with, 20);
  EXPECT_EQ(old_file.by_means, 2);
  EXPECT_TRUE(old_file.regressed.empty());
  EXPECT_NE(printed(options, old_file).find("2 times are compared by their means"), std::string::npos);
  EXPECT_NE(printed(options, old_file).find("the file has no medians; write it anew with -J"), std::string::npos);
  const Comparison on_a_stream = compare(baseline_of(options, with), without, 20);
  EXPECT_TRUE(on_a_stream.regressed.empty());
  EXPECT_NE(printed(options, on_a_stream).find("this run has no medians; -I or -z 2"), std::string::npos);
}

TEST(Baseline, ReadsFilesThatHaveNoMedians) {
  std::string error;
  const auto old = parse_baseline(
      R"({"config":{"devices":[{},{}]},"results":[{"size":8,"type":"float","redop":"sum",
          "out_of_place":{"time":2.0},"in_place":{"time":3.0,"median":2.5}}]})",
      &error);
  ASSERT_TRUE(old) << error;
  EXPECT_FALSE(old->rows[0].out_of_place.median_us);
  EXPECT_EQ(old->rows[0].in_place.median_us, 2.5);
}

TEST(Baseline, RefusesOtherRanksAndBuffers) {
  Options options = options_of(4);
  const Baseline baseline = baseline_of(options, results_of(4, {{8, 1.0}}));
  EXPECT_EQ(why_not_comparable(baseline, options), "");
  EXPECT_NE(why_not_comparable(baseline, options_of(2)).find("4 ranks, this run has 2"), std::string::npos);
  options.buffers = Buffers::kMemAlloc;
  EXPECT_NE(why_not_comparable(baseline, options).find("-R 0"), std::string::npos);
}

TEST(Baseline, RefusesOtherMemoryAndGraphs) {
  const RunResults results = results_of(4, {{8, 1.0}});
  const Options host = options_of(4);
  Options gpu = host;
  gpu.memory = MemoryKind::kGpu;
  EXPECT_NE(why_not_comparable(baseline_of(host, results), gpu).find("--memory host, this run has --memory gpu"),
            std::string::npos);
  EXPECT_NE(why_not_comparable(baseline_of(gpu, results), host).find("--memory gpu, this run has --memory host"),
            std::string::npos);
  Options graphs = gpu;
  graphs.graph_launches = 3;
  EXPECT_NE(why_not_comparable(baseline_of(graphs, results), gpu).find("-G 3, this run has -G 0"), std::string::npos);
  EXPECT_NE(why_not_comparable(baseline_of(gpu, results), graphs).find("-G 0, this run has -G 3"), std::string::npos);
  EXPECT_EQ(why_not_comparable(baseline_of(graphs, results), graphs), "");
  // Files from before there was GPU memory; those of nccl-tests, which are of GPUs, do not say.
  auto json = nlohmann::json::parse(json_report(host, results));
  std::string error;
  json["config"].erase("memory");
  EXPECT_EQ(why_not_comparable(*parse_baseline(json.dump(), &error), host), "");
  EXPECT_NE(why_not_comparable(*parse_baseline(json.dump(), &error), gpu), "");
  json["config"].erase("buffers");
  EXPECT_EQ(why_not_comparable(*parse_baseline(json.dump(), &error), gpu), "");
}

TEST(Baseline, SaysWhatIsWrongWithAFileInItsOwnWords) {
  std::string error;
  EXPECT_FALSE(parse_baseline("size,count\n8,2\n", &error));
  EXPECT_EQ(error, "it is not JSON; give a file that -J wrote");
  EXPECT_FALSE(parse_baseline("{}", &error));
  EXPECT_EQ(error, "it is JSON, but not as -J writes it: key 'config' not found");
}

TEST(JsonReport, NamesTheGpuOfEachRank) {
  Options options = options_of(1);
  options.memory = MemoryKind::kGpu;
  options.procs = 1;
  options.gpus = 2;
  options.graph_launches = 4;
  RunResults results = results_of(2, {{8, 1.0}});
  for (int rank = 0; rank < 2; ++rank) {
    RankPlace& place = results.places[static_cast<size_t>(rank)];
    place.gpu = 1 - rank;
    snprintf(place.gpu_name, sizeof place.gpu_name, "Model %d", rank);
    snprintf(place.gpu_bus, sizeof place.gpu_bus, "%s", rank == 0 ? "0000:00:00.0" : "0000:01:00.0");
  }
  const auto config = nlohmann::json::parse(json_report(options, results))["config"];
  EXPECT_EQ(config["memory"], "gpu");
  EXPECT_EQ(config["ngpus"], 2);
  EXPECT_EQ(config["graph"], 4);
  EXPECT_EQ(config["devices"][0]["device"], 1);
  EXPECT_EQ(config["devices"][1]["device"], 0);
  EXPECT_EQ(config["devices"][1]["device_hex"], "0000:01:00.0");
  EXPECT_EQ(config["devices"][1]["device_info"], "Model 1");
}

TEST(Baseline, RefusesAnotherCollective) {
  Options options = options_of(4);
  const Baseline baseline = baseline_of(options, results_of(4, {{8, 1.0}}));
  options.collective = find_case("alltoall");
  EXPECT_EQ(why_not_comparable(baseline, options),
            "it was made with the collective allreduce, this run is of alltoall; run allreduce, or give a file that -J "
            "wrote for alltoall");
}

TEST(Baseline, RefusesRunsWithoutARowInCommon) {
  Options options = options_of(4);
  const Baseline baseline = baseline_of(options, results_of(4, {{8, 1.0}, {1024, 1.0}}));
  EXPECT_EQ(why_not_comparable(baseline, options), "");
  options.types = {find_data_type("half"), find_data_type("float")};
  EXPECT_EQ(why_not_comparable(baseline, options), "") << "float is in both";
  options.types = {find_data_type("half")};
  EXPECT_EQ(why_not_comparable(baseline, options),
            "it has no row in common with this run: it has float; sum; 8 B to 1 KiB, this run half; sum; 8 B; give -d, "
            "-o, -b, -e, -i and -f as then, or another file");
  options = options_of(4);
  options.operations = {find_operation("max")};
  EXPECT_NE(why_not_comparable(baseline, options).find("float; sum; 8 B to 1 KiB, this run float; max; 8 B"),
            std::string::npos);
  options = options_of(4);
  options.min_bytes = options.max_bytes = 64;
  EXPECT_NE(why_not_comparable(baseline, options).find("this run float; sum; 64 B"), std::string::npos);
}

TEST(Baseline, RefusesWhatIsNoResultFile) {
  for (const char* text : {"", "{", "[]", "{}", "{\"config\":{\"devices\":[]},\"results\":[]}",
                           "{\"config\":{\"devices\":[]},\"results\":[{\"size\":\"x\"}]}"}) {
    std::string error;
    EXPECT_FALSE(parse_baseline(text, &error)) << text;
    EXPECT_FALSE(error.empty()) << text;
  }
  std::string error;
  EXPECT_FALSE(read_baseline("/nonexistent/file", &error));
  EXPECT_EQ(error, "it cannot be opened");
}

}  // namespace
}  // namespace treering::perf
