// SPDX-License-Identifier: Apache-2.0
// The plan: ring order, leaders, and ranks whose location is not known.
#include "support/seed.h"
#include "topology/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "topology/detect.h"
#include "topology/location.h"

namespace treering {
namespace {

Topology synthetic(const std::string& description, std::optional<std::vector<uint32_t>> cpus = std::nullopt) {
  DetectOptions options;
  options.synthetic = description;
  options.cpus = std::move(cpus);
  Topology topology;
  const Status status = detect_topology(options, &topology);
  EXPECT_TRUE(status.ok()) << status.message();
  return topology;
}

Location unknown(uint64_t host = 0) {
  Location location;
  location.host = host;
  return location;
}

void expect_permutation(const Plan& plan) {
  std::vector<uint32_t> sorted = plan.ring;
  std::sort(sorted.begin(), sorted.end());
  for (uint32_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], i);
  ASSERT_EQ(plan.ring.size(), plan.ranks);
}

// How often the ring enters and leaves each domain; domain_of[rank] names it.
template <class Domain>
void expect_one_visit(const Plan& plan, const std::vector<Domain>& domain_of) {
  std::map<Domain, int> entered, left;
  for (size_t i = 0; i < plan.ring.size(); ++i) {
    const Domain from = domain_of[plan.ring[i]], to = domain_of[plan.ring[(i + 1) % plan.ring.size()]];
    if (from == to) continue;
    ++left[from];
    ++entered[to];
  }
  const std::set<Domain> domains(domain_of.begin(), domain_of.end());
  for (const Domain& domain : domains) {
    EXPECT_EQ(entered[domain], domains.size() > 1 ? 1 : 0);
    EXPECT_EQ(left[domain], domains.size() > 1 ? 1 : 0);
  }
}

TEST(Plan, FlatPlanIsNumerical) {
  const Plan plan = flat_plan(3);
  EXPECT_EQ(plan.ranks, 3u);
  EXPECT_EQ(plan.ring, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(plan.host, (std::vector<uint32_t>{0, 0, 0}));
  EXPECT_EQ(plan.numa_node, (std::vector<uint32_t>{0, 0, 0}));
  EXPECT_EQ(plan.leaders, (std::vector<uint32_t>{0}));
}

class RingTest : public ::testing::TestWithParam<const char*> {};

// Every rank bound to its own core, in an order that has nothing to do with the machine, on one host and on
// three.
TEST_P(RingTest, VisitsEveryDomainOnce) {
  const Topology topology = synthetic(GetParam());
  const std::vector<CorePlace> cores = core_places(topology, true);
  std::mt19937_64 random(test_seed());
  for (uint64_t hosts : {1, 3}) {
    std::vector<std::pair<uint64_t, size_t>> seats;
    for (uint64_t host = 0; host < hosts; ++host)
      for (size_t core = 0; core < cores.size(); ++core) seats.emplace_back(host, core);
    for (int repetition = 0; repetition < 20; ++repetition) {
      std::shuffle(seats.begin(), seats.end(), random);
      const size_t ranks = 1 + random() % seats.size();
      std::vector<Location> locations;
      std::vector<uint64_t> host_of;
      std::vector<std::pair<uint64_t, int32_t>> package_of, numa_of;
      for (size_t rank = 0; rank < ranks; ++rank) {
        const auto& [host, core] = seats[rank];
        locations.push_back(locate(topology, cores[core].cpus, 1000 - host, 0));
        host_of.push_back(host);
        package_of.emplace_back(host, cores[core].package);
        numa_of.emplace_back(host, cores[core].numa_node);
      }
      const Plan plan = make_plan(locations, topology);
      expect_permutation(plan);
      expect_one_visit(plan, host_of);
      expect_one_visit(plan, package_of);
      expect_one_visit(plan, numa_of);
      for (size_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(plan.numa_node[rank], static_cast<uint32_t>(numa_of[rank].second));
        EXPECT_EQ(plan.core[rank], cores[seats[rank].second].core);
        EXPECT_EQ(host_of[plan.leaders[plan.host[rank]]], host_of[rank]);
        EXPECT_LE(plan.leaders[plan.host[rank]], rank) << "the leader is the lowest rank of its host";
      }
      EXPECT_EQ(plan.leaders.size(), std::set<uint64_t>(host_of.begin(), host_of.end()).size());
      const Plan again = make_plan(locations, topology);
      EXPECT_EQ(plan.ring, again.ring);
      EXPECT_EQ(plan.host, again.host);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, RingTest,
                         ::testing::Values("numa:2 core:4 pu:1", "package:2 numa:1 core:4 pu:1",
                                           "package:2 numa:2 l3:2 core:2 pu:2", "numa:8 core:2 pu:1",
                                           "package:8 numa:1 core:3 pu:2", "package:4 numa:2 core:2 pu:1",
                                           "numa:2 core:4 pu:1(indexes=0,2,4,6,1,3,5,7)", "core:5 pu:1"));

// Hosts behind random switches of three levels, ranks in any order: each switch is entered and left once.
TEST(Plan, VisitsEverySwitchOnce) {
  std::mt19937_64 random(test_seed());
  for (int repetition = 0; repetition < 50; ++repetition) {
    std::vector<std::string> names;
    for (int host = 0; host < 24; ++host) {
      names.push_back("core" + std::to_string(random() % 2));
      for (const char* level : {".pod", ".leaf"}) names.back() += level + std::to_string(random() % 3);
    }
    std::vector<Location> locations;
    std::vector<std::string> host_of, leaf_of, pod_of, core_of;
    for (int rank = 0; rank < 60; ++rank) {
      const size_t host = random() % names.size();
      locations.push_back(unknown(1000 - host));
      locations.back().switches = switch_path(names[host]);
      host_of.push_back(std::to_string(host));
      leaf_of.push_back(names[host]);
      pod_of.push_back(names[host].substr(0, names[host].rfind('.')));
      core_of.push_back(names[host].substr(0, names[host].find('.')));
    }
    const Plan plan = make_plan(locations, synthetic("core:4 pu:1"));
    expect_permutation(plan);
    for (const auto* domain : {&host_of, &leaf_of, &pod_of, &core_of}) expect_one_visit(plan, *domain);
    EXPECT_EQ(plan.leaders[0], 0u);
    EXPECT_EQ(plan.ring[0], 0u);
  }
}

TEST(Plan, HostsWhoseSwitchIsNotKnownStandAlone) {
  const std::vector<std::string> names{"a", "", "a", "b.x", "a.y", "b.x"};
  std::vector<Location> locations;
  for (const std::string& name : names) {
    locations.push_back(unknown(locations.size()));
    locations.back().switches = switch_path(name);
  }
  EXPECT_EQ(make_plan(locations, Topology{}).ring, (std::vector<uint32_t>{0, 2, 4, 1, 3, 5}));
}

TEST(Switches, AreNamesAndThoseBefore) {
  EXPECT_EQ(switch_path(""), SwitchPath{});
  const SwitchPath one = switch_path("s1.leaf"), other = switch_path("s2.leaf");
  EXPECT_NE(one[0], other[0]);
  EXPECT_NE(one[1], other[1]) << "leaf of another spine";
  EXPECT_EQ(one[2], 0u);
  EXPECT_EQ(switch_path("s1")[0], one[0]);
  const SwitchPath deep = switch_path("a.b.c.d.e");
  EXPECT_EQ(deep[0], switch_path("a.b")[1]) << "the innermost four";
  EXPECT_NE(deep[3], 0u);
}

class Slurm : public ::testing::Test {
 protected:
  void set(const char* address, const char* pattern) {
    setenv("SLURM_TOPOLOGY_ADDR", address, 1);
    setenv("SLURM_TOPOLOGY_ADDR_PATTERN", pattern, 1);
  }
  void TearDown() override {
    unsetenv("SLURM_TOPOLOGY_ADDR");
    unsetenv("SLURM_TOPOLOGY_ADDR_PATTERN");
  }
};

TEST_F(Slurm, TellsTheSwitchesOfItsOwnNode) {
  EXPECT_EQ(switches_from_slurm("n1"), "");
  set("s[0-1].s5.n1", "switch.switch.node");
  EXPECT_EQ(switches_from_slurm("n1"), "s[0-1].s5");
  EXPECT_EQ(switches_from_slurm("n1.cluster"), "s[0-1].s5");
  EXPECT_EQ(switches_from_slurm("n2"), "") << "handed on from another node";
  set("n1", "node");
  EXPECT_EQ(switches_from_slurm("n1"), "") << "it knows none";
}

TEST(Plan, UnknownRanksSpreadEvenlyInRankOrder) {
  const Topology topology = synthetic("package:2 numa:1 core:4 pu:1");
  EXPECT_EQ(make_plan(std::vector<Location>(2, unknown()), topology).numa_node, (std::vector<uint32_t>{0, 1}));
  const Plan four = make_plan(std::vector<Location>(4, unknown()), topology);
  EXPECT_EQ(four.numa_node, (std::vector<uint32_t>{0, 0, 1, 1}));
  EXPECT_EQ(four.core, (std::vector<int32_t>{0, 2, 4, 6}));
  EXPECT_EQ(four.ring, (std::vector<uint32_t>{0, 1, 2, 3}));
}

TEST(Plan, BoundToANodeSpreadsInsideIt) {
  const Topology topology = synthetic("numa:2 core:4 pu:1");
  const std::vector<uint32_t> first{0, 1, 2, 3}, second{4, 5, 6, 7};
  std::vector<Location> locations;
  for (int i = 0; i < 4; ++i) {
    locations.push_back(locate(topology, second, 7, i));
    locations.push_back(locate(topology, first, 7, i));
  }
  const Plan plan = make_plan(locations, topology);
  EXPECT_EQ(plan.core, (std::vector<int32_t>{4, 0, 5, 1, 6, 2, 7, 3}));
  EXPECT_EQ(plan.ring, (std::vector<uint32_t>{1, 3, 5, 7, 0, 2, 4, 6}));
  EXPECT_EQ(plan.leaders, (std::vector<uint32_t>{0}));
}

TEST(Plan, UnknownRanksStayWithinTheAffinity) {
  const Topology topology = synthetic("numa:2 core:4 pu:1", std::vector<uint32_t>{1, 5, 6});
  const Plan plan = make_plan(std::vector<Location>(3, unknown()), topology);
  EXPECT_EQ(plan.core, (std::vector<int32_t>{1, 5, 6}));
  EXPECT_EQ(plan.numa_node, (std::vector<uint32_t>{0, 1, 1}));
}

TEST(Plan, MoreRanksThanCores) {
  const Topology topology = synthetic("numa:2 core:2 pu:1");
  const Plan plan = make_plan(std::vector<Location>(16, unknown()), topology);
  expect_permutation(plan);
  expect_one_visit(plan, plan.numa_node);
  for (int32_t core = 0; core < 4; ++core) EXPECT_EQ(std::count(plan.core.begin(), plan.core.end(), core), 4);
}

TEST(Plan, OneRankAndNone) {
  const Topology topology = synthetic("numa:2 core:2 pu:1");
  const Plan one = make_plan(std::vector<Location>(1, unknown()), topology);
  EXPECT_EQ(one.ring, (std::vector<uint32_t>{0}));
  EXPECT_EQ(one.leaders, (std::vector<uint32_t>{0}));
  EXPECT_TRUE(make_plan({}, topology).ring.empty());
}

TEST(Plan, NumbersThatTheTopologyDoesNotHaveAreKept) {
  const Topology topology = synthetic("numa:2 core:2 pu:1");
  std::vector<Location> locations(4, unknown());
  locations[1].numa_node = 77;
  locations[3].numa_node = 77;
  const Plan plan = make_plan(locations, topology);
  EXPECT_EQ(plan.numa_node[1], 77u);
  EXPECT_EQ(plan.core[1], -1);
  expect_permutation(plan);
  expect_one_visit(plan, plan.numa_node);
  const Plan without = make_plan(std::vector<Location>(4, unknown()), Topology{});
  EXPECT_EQ(without.ring, flat_plan(4).ring);
}

}  // namespace
}  // namespace treering
