// SPDX-License-Identifier: Apache-2.0
// The treering-topo program: its output, its JSON, its errors.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Outcome {
  int exit_code = -1;
  std::string output;  // standard output and error
};

Outcome topo(const std::string& arguments) {
  const char* program = std::getenv("TREERING_TOPO");
  if (program == nullptr) {
    ADD_FAILURE() << "TREERING_TOPO must name the program (meson test sets it)";
    return {};
  }
  Outcome outcome;
  std::string command("'");
  command.append(program).append("' ").append(arguments).append(" 2>&1");
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) outcome.output.append(buffer.data(), n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(TopoTool, PrintsThisMachine) {
  const Outcome outcome = topo("");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* part : {"machine", "core 0", "cores available: ", "affinity", "links"})
    EXPECT_TRUE(contains(outcome.output, part)) << part << " in\n" << outcome.output;
}

TEST(TopoTool, PrintsADescribedMachineAndItsPlan) {
  const Outcome outcome = topo("--synthetic 'package:2 numa:1 core:2 pu:1' --ranks 4");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* part : {"package 1", "numa 1, 1 GiB", "cores available: 4", "socket   package 0 - package 1",
                           "ring order: 0 1 2 3", "leaders: 0"})
    EXPECT_TRUE(contains(outcome.output, part)) << part << " in\n" << outcome.output;
}

TEST(TopoTool, JsonIsComplete) {
  const Outcome outcome = topo("--json --xml '" TREERING_TEST_XML "' --ranks 2");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto json = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(json["limits"]["cores_available"], 4);
  EXPECT_EQ(json["nodes"][0]["kind"], "machine");
  EXPECT_EQ(json["plan"]["ring"], (std::vector<int>{0, 1}));
  EXPECT_EQ(json["plan"]["numa_node"], (std::vector<int>{0, 1}));
  EXPECT_EQ(json["verbs"]["rails"], 1);
  EXPECT_EQ(json["verbs"]["queue_pairs"], 1);
  size_t gpus = 0;
  for (const auto& node : json["nodes"]) gpus += node["kind"] == "gpu";
  EXPECT_EQ(gpus, 1u);
}

TEST(TopoTool, BadInputNamesTheValueAndExitsWith2) {
  const std::pair<const char*, const char*> cases[] = {
      {"--synthetic nonsense", "nonsense"},
      {"--xml /no/such.xml", "/no/such.xml"},
      {"--ranks 0",
       "error: --ranks: value \"0\" is not a whole number from 1 to 1024, the most that a communicator has"},
      {"--ranks 1025", "value \"1025\" is not a whole number from 1 to 1024, the most that a communicator has"},
      {"--ranks many", "many"},
      {"--no-such-option", "error: --no-such-option: there is no such option"},
      {"--ranks 2 --rails 5", "error: --rails: Value 5 not in range 1 to 4"},
      {"--rank 3",
       "error: --rank: there is no such option; did you mean --ranks?\n(treering-topo --help lists the options)"},
  };
  for (const auto& [arguments, named] : cases) {
    const Outcome outcome = topo(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments << "\n" << outcome.output;
    EXPECT_TRUE(contains(outcome.output, named)) << arguments << "\n" << outcome.output;
  }
  EXPECT_EQ(topo("--help").exit_code, 0);
  EXPECT_EQ(topo("--ranks 1024").exit_code, 0);
}

// A description in a file, while it lives.
class Described {
 public:
  explicit Described(const std::string& text) : path_(testing::TempDir() + "/topo_tool_test.txt") {
    std::ofstream(path_) << text;
  }
  ~Described() { std::remove(path_.c_str()); }
  std::string option() const { return "--import '" + path_ + "' "; }

 private:
  const std::string path_;
};

const char* const kTwoSockets =
    "gpu 0-2 on cpu0 at 50\ngpu 3-5 on cpu1 at 50\nlink cpu0 cpu1 at 32\n"
    "nvlink 0 1 x2\nnvlink 0 2 x2\nnvlink 1 2 x2\nnvlink 3 4 x2\nnvlink 3 5 x2\nnvlink 4 5 x2\n";

TEST(TopoTool, PrintsRingsAndTreesOfADescription) {
  const Described machine(kTwoSockets);
  const Outcome outcome = topo(machine.option() + "--explain");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* part :
       {"6 of kind gpu", "socket   cpu0 - cpu1, 32 GB/s (given)", "nvlink   gpu3 - gpu4, 50 GB/s (x2) (table)",
        "\nrings: 32 GB/s, 100 % of the bound", "\ntrees: 53.", "order", "parents",
        "each has at least 1 edge between these 2 parts", "\n  GPU 0 1 2\n", "\n  GPU 3 4 5\n",
        "the links carry 32 GB/s each way in all", "1 of socket, 32 GB/s: cpu0 - cpu1"})
    EXPECT_TRUE(contains(outcome.output, part)) << part << " in\n" << outcome.output;
  EXPECT_FALSE(contains(topo(machine.option()).output, "limits")) << "without --explain";

  const Outcome some = topo(machine.option() + "--gpus 0-1,3 --channels 1");
  EXPECT_TRUE(contains(some.output, "among 3 GPUs: 0 1 3")) << some.output;
  EXPECT_TRUE(contains(some.output, "by 1 channel;")) << some.output;
}

// What the hops of `pattern` load, by the paths alone, is within what each link carries; some link is full.
void expect_loads_fit(const nlohmann::json& json, const std::string& pattern) {
  std::map<std::pair<uint32_t, uint32_t>, double> loads, capacities;  // from one node to another one
  double rates = 0, fullest = 0;
  for (const auto& link : json["graph"]["links"]) {
    capacities[{link["a"], link["b"]}] += link["gbps_ab"].get<double>();
    capacities[{link["b"], link["a"]}] += link["gbps_ba"].get<double>();
  }
  for (const auto& channel : json[pattern]["channels"]) {
    rates += channel["gbps"].get<double>();
    for (const auto& hop : channel["hops"]) {
      const std::vector<uint32_t> path = hop["path"];
      ASSERT_EQ(path.size(), hop["links"].size() + 1);
      EXPECT_EQ(path.front(), hop["from"]);
      EXPECT_EQ(path.back(), hop["to"]);
      for (size_t i = 0; i + 1 < path.size(); ++i) loads[{path[i], path[i + 1]}] += channel["gbps"].get<double>();
    }
  }
  for (const auto& [ends, load] : loads) {
    ASSERT_EQ(capacities.count(ends), 1u) << ends.first << " " << ends.second;
    EXPECT_LE(load, capacities[ends] * (1 + 1e-9)) << ends.first << " " << ends.second;
    fullest = std::max(fullest, load / capacities[ends]);
  }
  EXPECT_GT(fullest, 0.999) << pattern << " could be faster";
  const double gpus = static_cast<double>(json["gpus"].size());
  EXPECT_NEAR(rates * (pattern == "rings" ? 1 : 2 * (gpus - 1) / gpus), json[pattern]["gbps"].get<double>(), 1e-6);
}

TEST(TopoTool, JsonHasThePathOfEveryHop) {
  for (const char* text : {kTwoSockets,
                           "hosts 2\nnvswitch gpus 0-3 at 450\nnic 0-3 on 0-3 at 50\n"
                           "network nics 0-3 at 50\nend\n"}) {
    const Described machine(text);
    const Outcome outcome = topo(machine.option() + "--json");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const auto json = nlohmann::json::parse(outcome.output);
    EXPECT_EQ(json["graph"]["nodes"][json["gpus"][1].get<size_t>()]["gpu"], 1);
    EXPECT_GE(json["rings"]["bound_gbps"], json["rings"]["gbps"]);
    EXPECT_GE(json["tree_limit"]["parts"].size(), 2u);
    expect_loads_fit(json, "rings");
    expect_loads_fit(json, "trees");
  }
}

TEST(TopoTool, WrongDescriptionsAndOptionsExitWith2) {
  const Described wrong(std::string(kTwoSockets) + "nvlink 0 9 x2\n");
  const std::pair<std::string, const char*> cases[] = {
      {wrong.option(), "topo_tool_test.txt:10: gpu9 is not declared"},
      {"--import /no/such.txt", "error: /no/such.txt cannot be read"},
      {wrong.option() + "--xml x.xml", "--xml"},
      {"--explain", "--import"},
      {"--gpus 0-1", "--import"},
  };
  for (const auto& [arguments, named] : cases) {
    const Outcome outcome = topo(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments << "\n" << outcome.output;
    EXPECT_TRUE(contains(outcome.output, named)) << arguments << "\n" << outcome.output;
  }
  const Described good(kTwoSockets);
  EXPECT_TRUE(contains(topo(good.option() + "--gpus 0-7").output, "there is no GPU 6 in the graph"));
  EXPECT_TRUE(contains(topo(good.option() + "--gpus cpu0").output, "--gpus: \"cpu0\" is no list of GPUs"));
  EXPECT_EQ(topo(good.option() + "--channels 33").exit_code, 2);
}

// Each rail has queue pairs of its own, and locks all of the memory.
TEST(TopoTool, NeedsCountRails) {
  const auto needs = [](const std::string& rails) {
    const Outcome outcome = topo("--json --xml '" TREERING_TEST_XML "' --ranks 1024 " + rails);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return nlohmann::json::parse(outcome.output)["verbs"];
  };
  const auto one = needs(""), two = needs("--rails 2");
  EXPECT_EQ(one["queue_pairs"], 20) << "2 log2(1024)";
  EXPECT_EQ(two["rails"], 2);
  for (const char* name : {"queue_pairs", "locked_bytes", "staging_bytes", "peer_bytes"})
    EXPECT_EQ(two[name], 2 * one[name].get<uint64_t>()) << name;
  EXPECT_TRUE(contains(topo("--ranks 8 --rails 2").output, "by 2 rails"));
}

}  // namespace
