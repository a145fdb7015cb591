// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace treering::perf {
namespace {

struct Parsed {
  int status;
  Options options;
  std::string error;
};

// treering-perf with a collective, or with "" none; without it allreduce-perf.
Parsed parse(std::vector<std::string> words, const char* collective = nullptr) {
  if (collective != nullptr && *collective != '\0') words.insert(words.begin(), collective);
  words.insert(words.begin(), collective != nullptr ? "treering-perf" : "allreduce-perf");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  Parsed parsed;
  testing::internal::CaptureStderr();
  parsed.status = parse_options(static_cast<int>(argv.size()), argv.data(), &parsed.options);
  parsed.error = testing::internal::GetCapturedStderr();
  return parsed;
}

std::vector<size_t> sizes_of(const Options& options) {
  std::vector<size_t> sizes;
  for (const Point& point : options.points()) sizes.push_back(point.bytes);
  return sizes;
}

TEST(Options, DefaultsAreThoseOfNcclTests) {
  const Parsed parsed = parse({"--procs", "2"});
  ASSERT_EQ(parsed.status, -1) << parsed.error;
  const Options& options = parsed.options;
  EXPECT_EQ(options.min_bytes, size_t{32} << 20);
  EXPECT_EQ(options.max_bytes, size_t{32} << 20);
  EXPECT_EQ(options.step_factor, 1u);
  EXPECT_EQ(options.iterations, 20);
  EXPECT_EQ(options.warm_up, 1);
  EXPECT_EQ(options.aggregated, 1);
  EXPECT_EQ(options.cycles, 1);
  EXPECT_EQ(options.checks, 1);
  EXPECT_EQ(options.averaging, Averaging::kMean);
  EXPECT_EQ(options.blocking, Blocking::kNone);
  EXPECT_EQ(options.buffers, Buffers::kMalloc);
  ASSERT_EQ(options.operations.size(), 1u);
  EXPECT_STREQ(options.operations[0]->name, "sum");
  ASSERT_EQ(options.types.size(), 1u);
  EXPECT_STREQ(options.types[0]->name, "float");
  EXPECT_FALSE(options.per_iteration);
  EXPECT_LT(options.timeout_s, 0);
}

TEST(Options, TakesTheLettersOfNcclTests) {
  const Parsed parsed =
      parse({"-b", "8", "-e", "1K",  "-f", "2",        "-n", "5",  "-w", "0", "-m", "3", "-N", "2",
             "-c", "0", "-o", "all", "-d", "bfloat16", "-r", "-1", "-z", "1", "-t", "3", "-g", "1",
             "-a", "3", "-G", "0",   "-T", "9",        "-R", "2",  "-u", "1", "-I", "1", "-J", "x.json"});
  ASSERT_EQ(parsed.status, -1) << parsed.error;
  const Options& options = parsed.options;
  EXPECT_EQ(sizes_of(options), (std::vector<size_t>{8, 16, 32, 64, 128, 256, 512, 1024}));
  EXPECT_EQ(options.iterations, 5);
  EXPECT_EQ(options.operations.size(), operations().size());
  EXPECT_STREQ(options.types[0]->name, "bfloat16");
  EXPECT_EQ(options.ranks(), 3);
  EXPECT_EQ(options.averaging, Averaging::kMax);
  EXPECT_EQ(options.timeout_s, 9);
  EXPECT_EQ(options.buffers, Buffers::kMemAlloc);
  EXPECT_EQ(options.blocking, Blocking::kBarrier);
  EXPECT_TRUE(options.per_iteration);
  EXPECT_EQ(options.json_file, "x.json");
}

TEST(Options, TheLargestSizeFollowsTheLeastWhereItIsNotGiven) {
  const Parsed parsed = parse({"-b", "64M", "--procs", "2"});
  ASSERT_EQ(parsed.status, -1) << parsed.error;
  EXPECT_EQ(sizes_of(parsed.options), (std::vector<size_t>{size_t{64} << 20}));
  EXPECT_EQ(parse({"-b", "1M", "--procs", "2"}).options.max_bytes, size_t{32} << 20);
}

// Blocks of 4 ranks: no size is left without an element for each, and none is there twice.
TEST(Options, SizesAreOfWholeElementsForEveryRank) {
  const std::vector<std::string> words = {"-b", "8", "-e", "64", "-f", "2", "--procs", "4"};
  for (const char* blocks : {"allgather", "reduce-scatter", "alltoall", "gather", "scatter", "allgatherv", "alltoallv"})
    EXPECT_EQ(sizes_of(parse(words, blocks).options), (std::vector<size_t>{16, 32, 64})) << blocks;
  for (const char* whole : {"allreduce", "reduce", "broadcast", "sendrecv"})
    EXPECT_EQ(sizes_of(parse(words, whole).options), (std::vector<size_t>{8, 16, 32, 64})) << whole;
  EXPECT_EQ(sizes_of(parse({"-b", "1", "-e", "9", "-i", "1", "--procs", "4"}, "reduce").options),
            (std::vector<size_t>{4, 8}));
  EXPECT_EQ(sizes_of(parse({"--procs", "4"}, "barrier").options), (std::vector<size_t>{0}));
}

TEST(Options, BuffersHoldTheLeastSizeOfEveryType) {
  const Parsed parsed = parse({"-b", "1", "-e", "8", "-f", "8", "-d", "all", "--procs", "4"}, "gather");
  ASSERT_EQ(parsed.status, -1) << parsed.error;
  size_t most = 0;
  for (const Point& point : parsed.options.points()) {
    EXPECT_GT(point.bytes, 0u);
    EXPECT_EQ(point.bytes % (4 * point.type->bytes), 0u) << point.type->name;
    most = std::max(most, point.bytes);
  }
  EXPECT_EQ(most, 64u) << "one complex128 for each rank";
  EXPECT_GE(parsed.options.buffer_bytes(), most);
}

TEST(Options, PerIterationNeedsNoValue) {
  const Parsed alone = parse({"-I", "--procs", "2"});
  EXPECT_EQ(alone.status, -1) << alone.error;
  EXPECT_TRUE(alone.options.per_iteration);
  EXPECT_FALSE(parse({"-I", "0", "--procs", "2"}).options.per_iteration);
}

TEST(Options, CollectivesGoByTheNamesThatPeopleWrite) {
  const std::pair<const char*, std::vector<const char*>> names[] = {
      {"reduce-scatter", {"reduce_scatter", "ReduceScatter", "reducescatter", "REDUCE-SCATTER", "Reduce_Scatter"}},
      {"allreduce", {"all_reduce", "AllReduce", "all-reduce", "ALLREDUCE"}},
      {"alltoallv", {"all_to_all_v", "AllToAllV", "alltoall-v"}},
      {"sendrecv", {"send_recv", "SendRecv"}}};
  for (const auto& [name, spellings] : names)
    for (const char* spelling : spellings) {
      const Parsed parsed = parse({"--procs", "2"}, spelling);
      ASSERT_EQ(parsed.status, -1) << parsed.error;
      EXPECT_STREQ(parsed.options.collective->name, name) << spelling;
    }
  for (const char* unknown : {"", "-", "reduce scatter", "reducescatters"})
    EXPECT_EQ(find_case(unknown), nullptr) << unknown;
}

TEST(Options, RowsAreThoseOfDefinedOperationsInTheirOrder) {
  const Parsed parsed =
      parse({"-b", "8", "-e", "16", "-f", "2", "-d", "bool", "-o", "all", "-r", "-1", "--procs", "2"}, "reduce");
  ASSERT_EQ(parsed.status, -1) << parsed.error;
  const std::vector<RowPlan> rows = parsed.options.rows();
  ASSERT_EQ(rows.size(), 2u * 6 * 2);
  EXPECT_EQ(rows.front().point.bytes, 8u);
  EXPECT_STREQ(rows.front().operation->name, "bitand");
  EXPECT_EQ(rows[0].root, 0);
  EXPECT_EQ(rows[1].root, 1);
  EXPECT_EQ(rows.back().point.bytes, 16u);
}

// Each bad value: exit status 2, and a message with the value and what it may be.
TEST(Options, BadValuesAreNamed) {
  const struct {
    std::vector<std::string> words;
    const char* value;
    const char* advice;
  } cases[] = {
      {{"-b", "8X", "--procs", "2"}, "8X", "K, M, G or T"},
      {{"-b", "9999999G", "--procs", "2"}, "9999999G", "up to 8191T"},
      {{"-np", "2"}, "-np is an option of mpirun", "--procs"},
      {{"-d", "bool", "--procs", "2"}, "\"sum\" is not defined for -d bool", "land, lor, lxor"},
      {{"-b", "64M", "-e", "33M", "--procs", "2"}, "-b 64M is above -e 33M", "-b 33M or less, or a larger -e"},
      {{"-e", "8M", "--procs", "2"}, "-b 32M (the default) is above -e 8M", "-b 8M or less"},
      {{"-b", "0", "--procs", "2"}, "\"0\"", "1 or more"},
      {{"-b", "1", "-e", "2", "-i", "0", "--procs", "2"}, "-i", "-f 2"},
      {{"-n", "0", "--procs", "2"}, "\"0\"", "from 1 to"},
      {{"-n", "many", "--procs", "2"}, "many", "from 1 to"},
      {{"-o", "nand", "--procs", "2"}, "nand", "sum, prod, max, min, avg"},
      {{"-d", "fp4", "--procs", "2"}, "fp4", "bfloat16"},
      {{"-z", "3", "--procs", "2"}, "\"3\"", "from 0 to 2"},
      {{"-a", "4", "--procs", "2"}, "\"4\"", "from 0 to 3"},
      {{"-R", "5", "--procs", "2"}, "\"5\"", "from 0 to 2"},
      {{"-g", "8", "--procs", "2"}, "\"8\"", "--memory gpu"},
      {{"-G", "1", "--procs", "2"}, "\"1\"", "--memory gpu"},
      {{"-g", "0", "--memory", "gpu"}, "\"0\"", "from 1 to 1024"},
      {{"-G", "-1", "--memory", "gpu", "-g", "2"}, "\"-1\"", "from 0 to"},
      {{"--memory", "disk", "--procs", "2"}, "\"disk\"", "host, gpu"},
      {{"--memory", "gpu", "-R", "1", "-g", "2"}, "\"1\"", "trDeviceMemAlloc"},
      {{"--memory", "gpu", "-R", "2", "-g", "2"}, "\"2\"", "trDeviceMemAlloc"},
      {{"--memory", "gpu", "--limit", "-g", "2"}, "--limit", "leave it out"},
      {{"--memory", "gpu", "--procs", "32", "-t", "8", "-g", "8"}, "--procs 32 x -t 8 x -g 8", "more than 1024"},
      {{"--hosts", "fd00::1"}, "fd00::1", "[fd00::1]:4"},
      {{"--hosts", "[fd00::1]x:2"}, "[fd00::1]x:2", "[fd00::1]:4"},
      {{"--hosts", "a:2;b:2"}, "a:2;b:2", "HOST:PROCESSES"},
      {{"--hosts", "a b:2"}, "a b:2", "HOST:PROCESSES"},
      {{"--memory", "gpu", "--hosts", "a:2", "-g", "2"}, "--hosts", "leave out --procs, -t and -g"},
      {{"-r", "2", "--procs", "2"}, "\"2\"", "from -1 to 1"},
      {{"--procs", "0"}, "\"0\"", "from 1 to 1024"},
      {{"--procs", "1024", "-t", "2"}, "1024", "more than"},
      {{"--tolerance", "-1", "--procs", "2"}, "-1", "0"},
      {{"--tolerance", "5", "--procs", "2"}, "--tolerance", "--baseline"},
      {{"--csv", "x", "-J", "x", "--procs", "2"}, "\"x\"", "another file"},
      {{"--bogus", "--procs", "2"}, "--bogus", "--help"},
      {{"--proc", "2"}, "--proc: there is no such option; did you mean --procs?", "--help"},
      {{"--iterations", "2"}, "--iterations", "did you mean --iters?"},
      {{"-n", "0", "--procs", "2"}, "-n, --iters: value \"0\"", "from 1 to"},
      {{"-b", "8", "-b", "9", "--procs", "2"}, "-b, --minbytes: is given more than once", "give it once"},
      {{"--bytes-max", "8", "--procs", "2"}, "--bytes-max", "did you mean --maxbytes?"},
      {{"--one-rank-allow"}, "--one-rank-allow", "did you mean --allow-one-rank?"},
      {{"--file_output=x", "--procs", "2"}, "--file_output", "did you mean --output_file?"},
      {{"--procs"}, "--procs", "a value is missing"},
      {{"--procs", "2", "extra"}, "\"extra\"", "one argument too many"},
      {{"--procs", "2", "allgather"}, "\"allgather\"", "use treering-perf allgather"},
      {{"-J", "-", "--procs", "2"}, "-J: value \"-\"", "give a file"},
      {{"-b", "8", "-b", "16", "--procs", "2"}, "--minbytes", "given more than once"},
      {{"---", "--procs", "2"}, "\"---\"", "one argument too many"},
      {{"--seed", "-1", "--procs", "2"}, "--seed: value \"-1\"", "a whole number from 0 to 18446744073709551615"},
      {{"--seed", "x", "--procs", "2"}, "\"x\"", "a whole number from 0 to"},
      {{"--tolerance", "x", "--procs", "2"}, "--tolerance: value \"x\"", "percent from 0 to 1000000"},
      {{"-d", "fp4", "--procs", "2"}, "fp4", "float32, float64, float16, fp16, bf16"},
  };
  for (const auto& one : cases) {
    const Parsed parsed = parse(one.words);
    EXPECT_EQ(parsed.status, 2) << one.words[0];
    EXPECT_NE(parsed.error.find(one.value), std::string::npos) << parsed.error;
    EXPECT_NE(parsed.error.find(one.advice), std::string::npos) << parsed.error;
  }
}

TEST(Options, WhatIsOfOneCollectiveAloneIsRefusedForOthers) {
  const std::pair<Parsed, const char*> cases[] = {
      {parse({"allgather", "--procs", "2"}, "allreduce"),
       "\"allgather\": one run measures one collective, and \"allreduce\" is given already; run it once for each"},
      {parse({"-v"}, ""), "-v: there is no such option"},
      {parse({}, ""), "the collective is missing; give one of allreduce, "},
      {parse({"--limit", "--procs", "2"}, "broadcast"), "--limit: known for allreduce alone; leave it out"},
      {parse({"--procs", "2"}, "broadcst"), "; did you mean broadcast?"},
      {parse({"--procs", "2"}, "reducescater"), "; did you mean reduce-scatter?"}};
  for (const auto& [parsed, words] : cases) {
    EXPECT_EQ(parsed.status, 2);
    EXPECT_NE(parsed.error.find(words), std::string::npos) << parsed.error;
  }
  EXPECT_EQ(parse({"--procs", "2"}, "broadcast").options.unused_operation, "");
  const Parsed unused = parse({"-o", "max", "--procs", "2"}, "broadcast");
  EXPECT_EQ(unused.status, -1) << "nccl-tests take it, too";
  EXPECT_EQ(unused.options.unused_operation, "max");
  EXPECT_EQ(parse({"-o", "max", "--procs", "2"}, "reduce").options.operations.size(), 1u);
}

TEST(Options, HelpHasTheAliasesOfTypesAndSaysWhatLimitIsFor) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(parse({"--help"}).status, 0);
  const std::string help = testing::internal::GetCapturedStdout();
  for (const char* alias : {"float16", "float32", "float64", "bf16", "fp16"}) {
    EXPECT_NE(help.find(alias), std::string::npos) << alias;
    EXPECT_NE(find_data_type(alias), nullptr) << alias;
  }
  EXPECT_NE(help.find("allreduce alone"), std::string::npos);
}

TEST(Options, RanksOnGpusAreProcessesTimesThreadsTimesGpus) {
  const Parsed parsed =
      parse({"--memory", "gpu", "--procs", "2", "-t", "3", "-g", "4", "-G", "5", "-r", "23"}, "reduce");
  ASSERT_EQ(parsed.status, -1) << parsed.error;
  EXPECT_EQ(parsed.options.ranks(), 24);
  EXPECT_EQ(parsed.options.ranks_per_process(), 12);
  EXPECT_EQ(parsed.options.memory, MemoryKind::kGpu);
  EXPECT_TRUE(parsed.options.stream);
  EXPECT_EQ(parsed.options.graph_launches, 5);
  EXPECT_FALSE(parsed.options.launched);
  EXPECT_TRUE(parse({"--memory", "gpu"}).options.launched);
}

// With -I: a graph's calls are not told apart.
TEST(Options, TimesAreOfCallsOrOfLaunches) {
  EXPECT_EQ(parse({"--memory", "gpu", "-g", "2", "-n", "7"}).options.samples(), 0);
  EXPECT_EQ(parse({"--memory", "gpu", "-g", "2", "-n", "7", "-I"}).options.samples(), 7);
  EXPECT_EQ(parse({"--memory", "gpu", "-g", "2", "-n", "7", "-I", "-G", "3"}).options.samples(), 3);
}

TEST(Options, WhatHasNoAlgorithmsIsNotExplained) {
  const Parsed parsed = parse({"--procs", "2", "--explain"}, "sendrecv");
  EXPECT_EQ(parsed.status, 2);
  EXPECT_NE(parsed.error.find("--explain"), std::string::npos) << parsed.error;
  EXPECT_EQ(parse({"--procs", "2", "--explain"}, "alltoall").status, -1);
}

TEST(Options, ExplainTakesNoFileThatItWouldLeaveEmpty) {
  for (const char* option : {"-J", "--csv", "--baseline"}) {
    const Parsed parsed = parse({"--procs", "2", "--explain", option, "file"}, "allreduce");
    EXPECT_EQ(parsed.status, 2) << option;
    EXPECT_NE(parsed.error.find(std::string(option) + ": --explain"), std::string::npos) << parsed.error;
  }
}

TEST(Options, OneRankOfHostsIsRefusedAsOneOfThisMachineIs) {
  const Parsed parsed = parse({"--hosts", "a"}, "allreduce");
  EXPECT_EQ(parsed.status, 2);
  EXPECT_NE(parsed.error.find("1 rank has no peer"), std::string::npos) << parsed.error;
  EXPECT_EQ(parse({"--hosts", "a", "--allow-one-rank"}, "allreduce").status, -1);
  EXPECT_EQ(parse({"--hosts", "a,b"}, "allreduce").status, -1);
}

// It may be one of many that a launcher has started.
TEST(Options, OneRankIsLookedForInTheEnvironmentUnlessWanted) {
  EXPECT_EQ(parse({}).status, -1);
  EXPECT_TRUE(parse({}).options.launched);
  EXPECT_EQ(parse({"--allow-one-rank"}).status, -1);
}

}  // namespace
}  // namespace treering::perf
