// SPDX-License-Identifier: Apache-2.0
// The treering-topo program: its output, its JSON, its errors.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

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
