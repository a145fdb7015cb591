// SPDX-License-Identifier: Apache-2.0
// Descriptions by hand: what each statement makes, and what is said of lines that are wrong.
#include "topology/import/description.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include "support/seed.h"
#include "topology/graph.h"
#include "topology/machines.h"

namespace treering {
namespace {

// "a - b kind gbps xcount origin" of the only link between both; "" where there is none, or several.
std::string link_between(const LinkGraph& graph, const std::string& a, const std::string& b) {
  std::string found;
  for (const GraphLink& link : graph.links) {
    const std::string &from = graph.nodes[link.a].name, &to = graph.nodes[link.b].name;
    if (!(from == a && to == b) && !(from == b && to == a)) continue;
    if (!found.empty() || link.gbps_ab != link.gbps_ba) return {};
    std::ostringstream text;
    text << name_of(link.kind) << " " << link.gbps_ab << " x" << link.count << " " << name_of(link.origin);
    found = text.str();
  }
  return found;
}

std::string error_of(const std::string& text) {
  LinkGraph graph;
  const Status status = parse_description(text, "FILE", &graph);
  return status.ok() ? "" : status.message();
}

TEST(Description, StatementsMakeLinks) {
  const LinkGraph graph = graph_of(
      "# a machine\n"
      "gpu 0-3 on cpu0 at 24\t# GB/s each way\n"
      "gpu 4,5-6,7 on pci0-3 at pcie4x16\r\n"
      "\n"
      "link cpu0 cpu1 at 16\n"
      "link pci0 cpu1 at 32\n"
      "nvlink 0 1 x4\n"
      "nvlink 2 gpu3 x18 gen5\n"
      "xgmi 4 5 x2 gen2\n"
      "link 6 7 at 3.5\n"
      "nvswitch gpus 0-1 at nvlink4x18\n"
      "nvswitch switch1 gpus 2,3 at 450\n"
      "nic 0 on pci0 at 50\n"
      "network nics 0 at 25");
  EXPECT_EQ(graph.gpus().size(), 8u);
  const std::pair<const char*, const char*> ends[] = {
      {"gpu0", "cpu0"},    {"gpu4", "pci0"}, {"gpu7", "pci3"}, {"cpu0", "cpu1"}, {"pci0", "cpu1"},
      {"gpu0", "gpu1"},    {"gpu2", "gpu3"}, {"gpu4", "gpu5"}, {"gpu6", "gpu7"}, {"gpu1", "switch0"},
      {"gpu2", "switch1"}, {"nic0", "pci0"}, {"nic0", "net0"}};
  const char* const links[] = {"pcie 24 x1 given",     "pcie 31.504 x16 table", "pcie 31.504 x16 table",
                               "socket 16 x1 given",   "pcie 32 x1 given",      "nvlink 100 x4 table",
                               "nvlink 900 x18 table", "xgmi 100 x2 table",     "nvlink 3.5 x1 given",
                               "nvlink 450 x18 table", "nvlink 450 x1 given",   "pcie 50 x1 given",
                               "network 25 x1 given"};
  for (size_t i = 0; i < std::size(ends); ++i)
    EXPECT_EQ(link_between(graph, ends[i].first, ends[i].second), links[i]) << ends[i].first << " " << ends[i].second;
}

TEST(Description, GpusKeepTheirNumbers) {
  const LinkGraph graph = graph_of("gpu 6 on cpu0 at 1\ngpu 2-3 on cpu0 at 1\n");
  std::vector<int32_t> numbers;
  for (uint32_t node : graph.gpus()) numbers.push_back(graph.nodes[node].number);
  EXPECT_EQ(numbers, (std::vector<int32_t>{2, 3, 6}));
}

TEST(Description, HostsAreNumberedOn) {
  const LinkGraph graph = graph_of(
      "hosts 2\n gpu 2 on cpu0 at 1\n gpu 0 on cpu0 at 1\n nic 0 on cpu0 at 1\n network net3 nics 0 at 1\nend\n"
      "hosts 1\n gpu 0 on cpu0 at 1\nend\n");
  std::vector<std::string> names;
  for (uint32_t node : graph.gpus())
    names.push_back(std::to_string(graph.nodes[node].number) + " " + graph.nodes[node].name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"0 host0/gpu0", "1 host0/gpu2", "2 host1/gpu0", "3 host1/gpu2", "4 host2/gpu0"}));
  EXPECT_EQ(link_between(graph, "host1/nic0", "net3"), "network 1 x1 given") << "a network is of all hosts";
}

TEST(Description, WrongLinesNameValueLineAndRemedy) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "FILE: nothing is described in it"},
      {"# nothing\n\n", "FILE: nothing is described in it"},
      {"gpu 0-1\n\nlnk 0 1 at 3", "FILE:3: \"lnk\" is no statement; did you mean link?"},
      {"gpu", "FILE:1: the line is not understood: say \"gpu LIST\" or \"gpu LIST on PARTS at RATE\""},
      {"gpu 0 on cpu0", "the line is not understood"},
      {"gpu 0-", "\"0-\" is no number of a part"},
      {"gpu 3-1", "\"3-1\" is a range that ends before it begins: say 1-3"},
      {"gpu 0,,1", "\"\" is no number of a part"},
      {"gpu 10000", "say 0 to 9999"},
      {"gpu -1", "\"-1\" is no number of a part"},
      {"gpu 99999999999999999999", "is no number of a part"},
      {"gpu cpu0", "\"cpu0\" is a cpu where a gpu is expected"},
      {"gpu 0\ngpu 0-1", "FILE:2: gpu0 is declared twice"},
      {"gpu 0 on core0 at 1", "\"core0\" names no part: say gpu, cpu, numa, pci, nic, switch or net and a number"},
      {"gpu 0-2 on pci0-1 at 1", "\"pci0-1\" has 2 parts for 3 of kind gpu"},
      {"gpu 0 on cpu0 at 0", "\"0\" is no rate: say GB/s each way, 0.001 to 100000"},
      {"gpu 0 on cpu0 at -3", "\"-3\" is no rate"},
      {"gpu 0 on cpu0 at nan", "\"nan\" is no rate"},
      {"gpu 0 on cpu0 at inf", "\"inf\" is no rate"},
      {"gpu 0 on cpu0 at 24GB", "\"24GB\" is no rate"},
      {"gpu 0 on cpu0 at 1e9", "\"1e9\" is no rate"},
      {"gpu 0 on cpu0 at pcie9x16", "generation 9 of pcie is not in the table (docs/topology.md)"},
      {"gpu 0 on cpu0 at pcie4", "\"pcie4\" is no rate: say generation and number, 1 to 1024, as pcie4x16"},
      {"gpu 0 on cpu0 at pcie4x0", "\"pcie4x0\" is no rate"},
      {"gpu 0\nlink 0 1 at 3", "FILE:2: gpu1 is not declared: say \"gpu 1\" in a line before"},
      {"nvlink 0 1 x4", "gpu0 is not declared"},
      {"gpu 0-1\nnvlink 0 1 4", "\"4\" is no number of links: say x1 to x1024"},
      {"gpu 0-1\nnvlink 0 1 x0", "\"x0\" is no number of links"},
      {"gpu 0-1\nnvlink 0 1 x4 5", "\"5\" is no generation: say gen and a number, as gen3"},
      {"gpu 0-1\nnvlink 0 1 x4 gen8", "generation 8 of nvlink is not in the table"},
      {"gpu 0-1\nnvlink 0 0 x4", "gpu0 is linked with itself"},
      {"gpu 0-1\nlink 0 1 at 3\nlink 1 0 at 3", "FILE:3: gpu1 and gpu0 have a link of kind nvlink already, by line 2"},
      {"gpu 0-1\nlink 0-1 1 at 3", "\"0-1\" is 2 parts: a link has one at each end"},
      {"nvswitch gpus 0-3", "say \"nvswitch gpus LIST at RATE\""},
      {"nvswitch cpu0 gpus 0-3 at 4", "\"cpu0\" is no name here: say switch and a number"},
      {"network nics 0 at 1", "nic0 is not declared"},
      {"hosts", "FILE:1: \"\" is no number of hosts: say \"hosts N\" with 1 to 1024"},
      {"hosts 0\nend", "\"0\" is no number of hosts"},
      {"hosts 2000\nend", "\"2000\" is no number of hosts"},
      {"hosts 2\ngpu 0", "FILE:1: \"hosts 2\" is without its \"end\""},
      {"hosts 2\nhosts 2\nend\nend", "FILE:1: \"hosts 2\" is without its \"end\""},
      {"gpu 0\nend", "FILE:2: \"end\" is without a \"hosts\" before it"},
      {"hosts 1\ngpu 0\nend now", "FILE:3: \"now\" is one word too many behind \"end\""},
      {"hosts 2\n gpu 0-1\n link 0 2 at 1\nend", "FILE:3: host0/gpu2 is not declared"},
      {"hosts 2\n gpu 0-1\nend\ngpu 1", "GPU 1 has a number of the hosts' GPUs: give it 4 or more"},
      {"hosts 1024\n gpu 0-99\nend", "is a part more than the 65536 that a description may have"},
  };
  for (const auto& [text, said] : cases)
    EXPECT_NE(error_of(text).find(said), std::string::npos) << text << "\n-> " << error_of(text);
  const std::string shown = error_of(std::string("\x01\xff", 2) + std::string(100, 'a'));
  EXPECT_NE(shown.find("\"??" + std::string(38, 'a') + "...\""), std::string::npos) << shown;
}

TEST(Description, FilesThatCannotBeReadOrAreTooLong) {
  LinkGraph graph;
  Status status = read_description("/no/such.txt", &graph);
  EXPECT_NE(status.message().find("/no/such.txt cannot be read: No such file"), std::string::npos) << status.message();
  status = read_description("/", &graph);
  EXPECT_NE(status.message().find("/ cannot be read: Is a directory"), std::string::npos) << status.message();

  status = parse_description(std::string(kMaxDescriptionBytes + 1, '#'), "FILE", &graph);
  EXPECT_EQ(status.message(), "FILE: more than 16 MiB: no description of a machine is so long");
  EXPECT_EQ(error_of("gpu 0\n" + std::string(kMaxDescriptionBytes - 6, '#')), "");

  const std::string path = testing::TempDir() + "/description_test.txt";
  std::ofstream(path) << "gpu 0-1\nlink 0 1 at 7\n";
  status = read_description(path, &graph);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(graph.links.size(), 1u);
  std::ofstream(path) << std::string(kMaxDescriptionBytes + 1, '#');
  EXPECT_NE(read_description(path, &graph).message().find(path + ": more than 16 MiB"), std::string::npos);
  std::remove(path.c_str());
}

// Descriptions with bytes and lines changed, doubled, lost: an error or a graph whose links are sound.
TEST(Description, DamagedDescriptionsAreReadOrRefused) {
  std::mt19937_64 random(test_seed());
  const std::vector<Machine> machines = known_machines();
  for (int i = 0; i < 4000; ++i) {
    std::string text = machines[random() % machines.size()].text;
    for (uint64_t changes = 1 + random() % 4; changes > 0 && !text.empty(); --changes) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text[at] = "0123456789-,x\n gpu"[random() % 18];
          break;
        case 2:
          text.erase(at, 1 + random() % 9);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 30));
      }
    }
    LinkGraph graph;
    if (!parse_description(text, "FILE", &graph).ok()) continue;
    for (const GraphLink& link : graph.links) {
      ASSERT_LT(std::max(link.a, link.b), graph.nodes.size()) << text;
      ASSERT_NE(link.a, link.b) << text;
      ASSERT_GE(std::min(link.gbps_ab, link.gbps_ba), kMinGivenGbps) << text;
    }
    for (uint32_t gpu : graph.gpus()) ASSERT_GE(graph.nodes[gpu].number, 0) << text;
  }
}

// The page's table of capacities is that of the code.
TEST(Description, ThePageHasTheTable) {
  std::ifstream page(TREERING_TOPOLOGY_MD);
  std::stringstream text;
  text << page.rdbuf();
  for (LinkKind kind : {LinkKind::kNvlink, LinkKind::kPcie, LinkKind::kXgmi})
    for (uint32_t generation = 1; generation <= 9; ++generation) {
      const std::optional<double> gbps = table_gbps(kind, generation);
      std::ostringstream row;
      row << "| `" << name_of(kind) << "` | " << generation << " | ";
      const bool is_there = text.str().find("\n" + row.str()) != std::string::npos;
      EXPECT_EQ(is_there, gbps.has_value()) << row.str();
      if (gbps) row << *gbps << " |";
      EXPECT_TRUE(!gbps || text.str().find("\n" + row.str()) != std::string::npos) << row.str();
    }
}

}  // namespace
}  // namespace treering
