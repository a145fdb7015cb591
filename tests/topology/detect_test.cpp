// SPDX-License-Identifier: Apache-2.0
// Detection of described machines and of this one, cgroup quotas, locations of threads, placement of memory.
#include "topology/detect.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "topology/cgroup.h"
#include "topology/distance.h"
#include "topology/location.h"
#include "topology/place.h"

namespace treering {
namespace {

Topology detect(const DetectOptions& options) {
  Topology topology;
  const Status status = detect_topology(options, &topology);
  EXPECT_TRUE(status.ok()) << status.message();
  return topology;
}

Topology synthetic(const std::string& description) {
  DetectOptions options;
  options.synthetic = description;
  return detect(options);
}

size_t count(const Topology& topology, NodeKind kind) {
  size_t found = 0;
  for (const TopologyNode& node : topology.nodes) found += node.kind == kind;
  return found;
}

size_t count(const Topology& topology, LinkKind kind) {
  size_t found = 0;
  for (const TopologyLink& link : topology.links) found += link.kind == kind;
  return found;
}

// A directory tree in place of /proc and /sys, removed at the end.
class FakeRoot {
 public:
  FakeRoot() {
    std::string path = (std::filesystem::temp_directory_path() / "treering-test-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << path;
    path_ = path;
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = path_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Detect, SyntheticPackagesWithNumaNodes) {
  const Topology topology = synthetic("package:2 numa:2 l3:1 core:3 pu:2");
  EXPECT_EQ(count(topology, NodeKind::kPackage), 2u);
  EXPECT_EQ(count(topology, NodeKind::kNumaNode), 4u);
  EXPECT_EQ(count(topology, NodeKind::kCache), 4u);
  EXPECT_EQ(count(topology, NodeKind::kCore), 12u);
  EXPECT_EQ(count(topology, LinkKind::kSocket), 1u);
  EXPECT_EQ(count(topology, LinkKind::kMemoryBus), 4u);
  EXPECT_FALSE(topology.this_system);
  EXPECT_EQ(topology.limits.cores_available, 12u);
  for (size_t i = 1; i < topology.nodes.size(); ++i) {
    ASSERT_GE(topology.nodes[i].parent, 0);
    ASSERT_LT(topology.nodes[i].parent, static_cast<int32_t>(i)) << "a parent comes before its children";
  }
  for (const CorePlace& place : core_places(topology, false)) {
    EXPECT_EQ(place.package, place.core / 6);
    EXPECT_EQ(place.numa_node, place.core / 3);
    EXPECT_EQ(place.cache, place.core / 3);
  }
}

TEST(Detect, NumaNodesWithoutPackagesAreTheSockets) {
  EXPECT_EQ(count(synthetic("numa:8 core:2 pu:1"), LinkKind::kSocket), 28u);
  EXPECT_EQ(count(synthetic("package:1 numa:4 core:2 pu:1"), LinkKind::kSocket), 0u);
}

TEST(Detect, ProcessingUnitsStandInForMissingCores) {
  const Topology topology = synthetic("pu:6");
  EXPECT_EQ(count(topology, NodeKind::kCore), 6u);
  EXPECT_EQ(topology.limits.cores_available, 6u);
}

TEST(Detect, ProcessorNumbersAreThoseOfTheDescription) {
  const Topology topology = synthetic("numa:2 core:4 pu:1(indexes=0,2,4,6,1,3,5,7)");
  const std::vector<uint32_t> odd{1, 5}, mixed{1, 2};
  EXPECT_EQ(locate(topology, odd, 0, 0).numa_node, 1);
  EXPECT_EQ(locate(topology, odd, 0, 0).core, -1);
  EXPECT_EQ(locate(topology, mixed, 0, 0).numa_node, -1);
}

TEST(Detect, AffinitySubsetLimitsTheCores) {
  DetectOptions options;
  options.synthetic = "package:2 numa:1 core:4 pu:2";
  options.cpus = std::vector<uint32_t>{1, 2, 3, 9, 400};
  const Topology topology = detect(options);
  EXPECT_EQ(topology.limits.cpus, (std::vector<uint32_t>{1, 2, 3, 9}));
  EXPECT_EQ(topology.limits.machine_cores, 8u);
  EXPECT_EQ(topology.limits.affinity_cores, 3u);
  options.cpus = std::vector<uint32_t>{400};
  Topology none;
  const Status status = detect_topology(options, &none);
  EXPECT_EQ(status.code(), trInvalidArgument);
  EXPECT_NE(status.message().find("400"), std::string::npos) << status.message();
}

TEST(Detect, BadDescriptionsNameThemselves) {
  Topology topology;
  DetectOptions options;
  options.synthetic = "package:two";
  Status status = detect_topology(options, &topology);
  EXPECT_EQ(status.code(), trInvalidArgument);
  EXPECT_NE(status.message().find("package:two"), std::string::npos) << status.message();
  options = {};
  options.xml_path = "/no/such/machine.xml";
  status = detect_topology(options, &topology);
  EXPECT_EQ(status.code(), trInvalidArgument);
  EXPECT_NE(status.message().find("/no/such/machine.xml"), std::string::npos) << status.message();
}

TEST(Detect, DevicesOfACapturedMachine) {
  DetectOptions options;
  options.xml_path = TREERING_TEST_XML;
  const Topology topology = detect(options);
  EXPECT_EQ(count(topology, NodeKind::kGpu), 1u);
  EXPECT_EQ(count(topology, NodeKind::kNic), 1u);
  EXPECT_EQ(count(topology, NodeKind::kPciBridge), 2u);
  for (size_t i = 0; i < topology.nodes.size(); ++i) {
    const TopologyNode& node = topology.nodes[i];
    if (node.kind != NodeKind::kGpu && node.kind != NodeKind::kNic) continue;
    const int32_t package = ancestor(topology, static_cast<int32_t>(i), NodeKind::kPackage);
    ASSERT_GE(package, 0) << node.name;
    EXPECT_EQ(topology.nodes[static_cast<size_t>(package)].os_index, 1);
    EXPECT_EQ(node.pci_bus_id, node.kind == NodeKind::kGpu ? "0000:81:00.0" : "0000:82:00.0");
    EXPECT_EQ(node.name, node.kind == NodeKind::kGpu ? "Accelerator" : "mlx5_0");
    for (const TopologyLink& link : topology.links) {
      if (link.b != i) continue;
      EXPECT_DOUBLE_EQ(link.bandwidth_gbps, node.kind == NodeKind::kGpu ? 63.0 : 31.5);
    }
  }
}

// The adapter hangs at package 1, which has processors 2 and 3.
TEST(Distance, IsThatToTheNearestProcessor) {
  DetectOptions options;
  options.xml_path = TREERING_TEST_XML;
  const Topology topology = detect(options);
  const auto distance = [&](const std::string& device, std::vector<uint32_t> cpus) {
    return distance_to_device(topology, device, cpus);
  };
  EXPECT_EQ(distance("0000:82:00.0", {2}), 0);
  EXPECT_EQ(distance("0000:82:00.0", {0, 1, 3}), 0) << "a rank that may run anywhere";
  EXPECT_GT(distance("0000:82:00.0", {0, 1}), 0);
  EXPECT_EQ(distance("0000:82:00.0", {}), -1);
  EXPECT_EQ(distance("0000:83:00.0", {0}), -1);
  EXPECT_EQ(distance("", {0}), -1);
  EXPECT_EQ(distance("0000:81:00.0", {2}), -1) << "it is no network adapter";
}

TEST(Distance, GrowsWithEachPartOfTheMachineAround) {
  Topology topology;
  const auto add = [&](NodeKind kind, int32_t parent, std::vector<uint32_t> cpus, const char* bus_id) {
    topology.nodes.push_back({kind, "", parent, 0, 0, std::move(cpus), 0, 0, bus_id});
    return static_cast<int32_t>(topology.nodes.size() - 1);
  };
  const int32_t machine = add(NodeKind::kMachine, -1, {0, 1, 2, 3}, "");
  const int32_t package = add(NodeKind::kPackage, machine, {0, 1}, "");
  const int32_t bridge = add(NodeKind::kPciBridge, add(NodeKind::kNumaNode, package, {0}, ""), {}, "");
  add(NodeKind::kNic, bridge, {}, "0000:01:00.0");
  for (const uint32_t cpu : {0u, 1u, 2u})
    EXPECT_EQ(distance_to_device(topology, "0000:01:00.0", std::vector<uint32_t>{cpu}), static_cast<int32_t>(cpu));
}

TEST(Detect, ThisMachineHasACoreForThisThread) {
  unsetenv("HWLOC_SYNTHETIC");
  const Topology topology = detect({});
  EXPECT_GE(topology.limits.cores_available, 1u);
  cpu_set_t inherited, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(inherited), &inherited), 0);
  CPU_ZERO(&one);
  ASSERT_FALSE(topology.limits.cpus.empty());
  CPU_SET(topology.limits.cpus.back(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  Location location;
  const Status status = locate_this_thread(topology, &location);
  EXPECT_EQ(detect({}).limits.affinity_cores, 1u);
  ASSERT_EQ(sched_setaffinity(0, sizeof(inherited), &inherited), 0);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_GE(location.core, 0);
  EXPECT_EQ(location.cpu_count, 1u);
  EXPECT_EQ(location.host, host_identity());
}

TEST(Cgroup, Version2TakesTheSmallestUpToTheRoot) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/user/job");
  root.write("sys/fs/cgroup/user/job/cpu.max", "max 100000");
  EXPECT_EQ(read_cpu_quota(root.path()).cpus, 0);
  root.write("sys/fs/cgroup/user/cpu.max", "250000 100000");
  EXPECT_DOUBLE_EQ(read_cpu_quota(root.path()).cpus, 2.5);
  root.write("sys/fs/cgroup/user/job/cpu.max", "300000 100000");
  EXPECT_DOUBLE_EQ(read_cpu_quota(root.path()).cpus, 2.5);
  EXPECT_EQ(read_cpu_quota(root.path()).source, root.path() + "/sys/fs/cgroup/user/cpu.max");
}

TEST(Cgroup, Version1AndPathsThatAContainerDoesNotSee) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc");
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(read_cpu_quota(root.path()).cpus, 0);
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000");
  EXPECT_DOUBLE_EQ(read_cpu_quota(root.path()).cpus, 0.5);
}

TEST(Cgroup, MissingOrBrokenFilesSetNoLimit) {
  const FakeRoot root;
  EXPECT_EQ(read_cpu_quota(root.path()).cpus, 0);
  root.write("proc/self/cgroup", "nonsense\n0::\n0::/a");
  root.write("sys/fs/cgroup/a/cpu.max", "lots");
  root.write("sys/fs/cgroup/cpu.max", "100000 0");
  EXPECT_EQ(read_cpu_quota(root.path()).cpus, 0);
}

TEST(Cgroup, QuotaRoundsUpToCores) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/");
  DetectOptions options;
  options.synthetic = "core:8 pu:1";
  options.root = root.path();
  const std::pair<const char*, uint32_t> cases[] = {
      {"150000 100000", 2}, {"10000 100000", 1}, {"900000 100000", 8}, {"300000 100000", 3}};
  for (const auto& [text, cores] : cases) {
    root.write("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(detect(options).limits.cores_available, cores) << text;
  }
}

TEST(Place, KeepsTheContentsAndRefusesUnknownNodes) {
  std::vector<unsigned char> memory(100000);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<unsigned char>(i * 7);
  const std::vector<unsigned char> before = memory;
  EXPECT_TRUE(place_memory(memory.data(), memory.size(), -1).ok());
  // Binding to a node that exists may be forbidden in a sandbox; the memory must be as it was all the same.
  const Status bound = place_memory(memory.data(), memory.size(), 0);
  EXPECT_TRUE(bound.ok() || bound.code() == trSystemError) << bound.message();
  const Status unknown = place_memory(memory.data(), memory.size(), 9999);
  EXPECT_EQ(unknown.code(), trInvalidArgument);
  EXPECT_NE(unknown.message().find("9999"), std::string::npos) << unknown.message();
  EXPECT_EQ(memory, before);
}

}  // namespace
}  // namespace treering
