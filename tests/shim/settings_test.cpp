// SPDX-License-Identifier: Apache-2.0
// What settings become: structs of older headers, NCCL_ALGO, and the table of variables against its page.
// `shim_settings_test --write PATH` writes docs/nccl-variables.md anew.
#include "shim/settings.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "shim/algorithms.h"
#include "shim/log.h"
#include "shim/variables.h"

namespace treering::nccl {
namespace {

// A caller's struct as its release has it: its size, and bytes of padding that are not what a newer header expects.
struct Caller {
  unsigned version;
  size_t bytes;   // of its struct
  size_t fields;  // of those, up to here they are set
};
const Caller kCallers[] = {{NCCL_VERSION(2, 14, 3), 24, 20}, {NCCL_VERSION(2, 17, 1), 40, 40},
                           {NCCL_VERSION(2, 18, 1), 48, 44}, {NCCL_VERSION(2, 25, 1), 48, 48},
                           {NCCL_VERSION(2, 27, 3), 72, 72}, {NCCL_VERSION(2, 28, 9), 80, 80}};

class OlderCallers : public ::testing::TestWithParam<Caller> {};

TEST_P(OlderCallers, PaddingIsNotAField) {
  const Caller caller = GetParam();
  ncclConfig_t whole = NCCL_CONFIG_INITIALIZER;
  whole.version = caller.version;
  whole.size = caller.bytes;
  whole.blocking = 0;
  whole.maxCTAs = 3;
  whole.netName = "net";
  whole.trafficClass = 9;
  whole.commName = "name";
  whole.shrinkShare = 1;
  whole.nvlsCTAs = 2;
  whole.nChannelsPerNetPeer = 7;
  // Exactly as many bytes as the caller has: reading further is for AddressSanitizer to find.
  auto* memory = static_cast<unsigned char*>(std::malloc(caller.bytes));
  std::memset(memory, 0x77, caller.bytes);
  std::memcpy(memory, &whole, caller.fields);
  ncclConfig_t full;
  const Status status = read_config("test", reinterpret_cast<ncclConfig_t*>(memory), &full);
  std::free(memory);
  ASSERT_TRUE(status.ok()) << status.message();
  const bool v17 = caller.version >= NCCL_VERSION(2, 17, 0), v25 = caller.version >= NCCL_VERSION(2, 25, 0);
  const bool v27 = caller.version >= NCCL_VERSION(2, 27, 0), v28 = caller.version >= NCCL_VERSION(2, 28, 0);
  EXPECT_EQ(full.blocking, 0);
  EXPECT_EQ(full.cgaClusterSize, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(full.maxCTAs, v17 ? 3 : NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(full.netName != nullptr, v17);
  EXPECT_EQ(full.trafficClass, v25 ? 9 : NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(full.commName != nullptr, v27);
  EXPECT_EQ(full.shrinkShare, v27 ? 1 : NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(full.nvlsCTAs, v27 ? 2 : NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(full.nChannelsPerNetPeer, v28 ? 7 : NCCL_CONFIG_UNDEF_INT);
}

INSTANTIATE_TEST_SUITE_P(Releases, OlderCallers, ::testing::ValuesIn(kCallers));

TEST(Settings, NewerCallersMayHaveMore) {
  struct {
    ncclConfig_t known = NCCL_CONFIG_INITIALIZER;
    int unknown[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  } newer;
  newer.known.size = sizeof newer;
  newer.known.version = NCCL_VERSION(2, 31, 0);
  newer.known.minCTAs = 1;
  ncclConfig_t full;
  setenv("NCCL_DEBUG", "INFO", 1);
  reset_log();
  ::testing::internal::CaptureStdout();
  const Status status = read_config("test", &newer.known, &full);
  const std::string logged = ::testing::internal::GetCapturedStdout();
  unsetenv("NCCL_DEBUG");
  reset_log();
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(full.minCTAs, 1);
  EXPECT_NE(logged.find("the last 32 bytes of config are of a newer header (23100); they have no effect"),
            std::string::npos)
      << logged;
}

TEST(Settings, ValuesOfTheNetworkThatCannotBeHandedOnAreNamed) {
  struct Case {
    const char *nccl, *value, *warning;
  };
  const Case cases[] = {
      {"NCCL_IB_TIMEOUT", "32", "NCCL_IB_TIMEOUT is '32'; give a number from 1 to 31; the default is used"},
      {"NCCL_IB_SL", "high", "NCCL_IB_SL is 'high'; give a number from 0 to 15; the default is used"},
      {"NCCL_IB_GID_INDEX", "3x", "NCCL_IB_GID_INDEX is '3x'; give a number from 0 to 255; the default is used"},
      {"NCCL_SOCKET_FAMILY", "ipv6", "NCCL_SOCKET_FAMILY is 'ipv6'; give AF_INET or AF_INET6; the default is used"},
      {"NCCL_IB_GID_INDEX", "-1", nullptr},
      {"NCCL_IB_TIMEOUT", "0", nullptr}};
  setenv("NCCL_DEBUG", "WARN", 1);
  reset_log();
  for (const Case& one : cases) {
    setenv(one.nccl, one.value, 1);
    ::testing::internal::CaptureStdout();
    hand_on_variables();
    hand_on_variables();
    fflush(stdout);
    const std::string said = ::testing::internal::GetCapturedStdout();
    unsetenv(one.nccl);
    if (one.warning == nullptr) {
      EXPECT_EQ(said, "") << one.nccl << "=" << one.value;
      continue;
    }
    const size_t at = said.find(one.warning);
    EXPECT_NE(at, said.npos) << said;
    EXPECT_EQ(said.find(one.warning, at + 1), said.npos) << "once: " << said;
  }
  unsetenv("NCCL_DEBUG");
  reset_log();
}

TEST(Settings, VariablesOfTheNetworkAreHandedOn) {
  struct Case {
    const char *ours, *nccl, *value, *handed;
  };
  const Case cases[] = {{"TREERING_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "eth,ib", "eth,ib"},
                        {"TREERING_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "=eth0,ib1", "=eth0,=ib1"},
                        {"TREERING_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "^=eth0,ib1", "^=eth0,=ib1"},
                        {"TREERING_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "^docker,lo", "^docker,lo"},
                        {"TREERING_VERBS_DEVICES", "NCCL_IB_HCA", "=mlx5_0:1,mlx5_1", "=mlx5_0:1,=mlx5_1"},
                        {"TREERING_VERBS_GID", "NCCL_IB_GID_INDEX", "3", "3"},
                        {"TREERING_VERBS_TIMEOUT", "NCCL_IB_TIMEOUT", "18", "18"},
                        {"TREERING_VERBS_SL", "NCCL_IB_SL", "1", "1"},
                        {"TREERING_VERBS_TC", "NCCL_IB_TC", "0x6a", "106"},
                        {"TREERING_VERBS_TC", "NCCL_IB_TC", "-1", nullptr},
                        {"TREERING_VERBS_TIMEOUT", "NCCL_IB_TIMEOUT", "0", nullptr},
                        {"TREERING_SOCKET_FAMILY", "NCCL_SOCKET_FAMILY", "AF_INET6", "ipv6"},
                        {"TREERING_DEVICE_P2P", "NCCL_P2P_DISABLE", "1", "0"},
                        {"TREERING_DEVICE_P2P", "NCCL_P2P_LEVEL", "LOC", "0"},
                        {"TREERING_HOSTID", "NCCL_HOSTID", "rack7-host3", "rack7-host3"},
                        {"TREERING_TCP_STREAMS", "NCCL_NSOCKS_PERTHREAD", "4", "4"}};
  for (const Case& one : cases) {
    unsetenv(one.ours);
    setenv(one.nccl, one.value, 1);
    hand_on_variables();
    ASSERT_EQ(std::getenv(one.ours) != nullptr, one.handed != nullptr) << one.nccl << "=" << one.value;
    EXPECT_STREQ(std::getenv(one.ours), one.handed) << one.nccl;
    setenv(one.ours, "mine", 1);  // what the user has set stays
    hand_on_variables();
    EXPECT_STREQ(std::getenv(one.ours), "mine");
    unsetenv(one.ours);
    unsetenv(one.nccl);
  }
}

TEST(Settings, WrongStructsAreRefused) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER, full;
  config.magic = 0xcafebeee;
  EXPECT_EQ(read_config("test", &config, &full).code(), trInvalidArgument);
  config = NCCL_CONFIG_INITIALIZER;
  config.size = 8;
  EXPECT_EQ(read_config("test", &config, &full).code(), trInvalidArgument);
  auto refused = [&](int ncclConfig_t::*field, int value) {
    ncclConfig_t wrong = NCCL_CONFIG_INITIALIZER;
    wrong.*field = value;
    return read_config("test", &wrong, &full).code() == trInvalidArgument;
  };
  EXPECT_TRUE(refused(&ncclConfig_t::blocking, 2));
  EXPECT_TRUE(refused(&ncclConfig_t::blocking, -1));
  EXPECT_TRUE(refused(&ncclConfig_t::minCTAs, 0));
  EXPECT_TRUE(refused(&ncclConfig_t::splitShare, 2));
  EXPECT_TRUE(refused(&ncclConfig_t::CTAPolicy, 4));
  EXPECT_FALSE(refused(&ncclConfig_t::trafficClass, -5));
  config = NCCL_CONFIG_INITIALIZER;
  config.minCTAs = 4;
  config.maxCTAs = 2;
  EXPECT_EQ(read_config("test", &config, &full).code(), trInvalidArgument);
}

TEST(Settings, TheDeadlineIsTheUsersOrNone) {
  const auto resolved = [](const char* text, Settings* settings) {
    setenv("TREERING_TIMEOUT", text, 1);
    const Status status = resolve_settings("test", nullptr, settings);
    unsetenv("TREERING_TIMEOUT");
    return status;
  };
  Settings settings;
  EXPECT_TRUE(resolved("12", &settings).ok());
  EXPECT_EQ(settings.timeout_ms, 12'000);
  EXPECT_TRUE(resolved("", &settings).ok());
  EXPECT_EQ(settings.timeout_ms, 0);
  for (const char* bad : {"soon", "1s", "-1", "2000001", "99999999999"})
    EXPECT_NE(resolved(bad, &settings).message().find(fmt::format("TREERING_TIMEOUT is '{}'", bad)), std::string::npos);
}

TEST(Settings, ChannelsAndName) {
  auto channels = [](int least, int most) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.minCTAs = least;
    config.maxCTAs = most;
    config.commName = "gradients";
    Settings settings;
    EXPECT_TRUE(resolve_settings("test", &config, &settings).ok());
    EXPECT_STREQ(settings.config().name, "gradients");
    EXPECT_EQ(settings.config().timeout_ms, 0) << "as with NCCL: no deadline";
    return settings.config().channels;
  };
  const int undefined = NCCL_CONFIG_UNDEF_INT;
  EXPECT_EQ(channels(undefined, undefined), TR_CONFIG_UNDEF_INT);
  EXPECT_EQ(channels(3, undefined), 3);
  EXPECT_EQ(channels(16, 32), 4);
  EXPECT_EQ(channels(undefined, 1), 1);
  EXPECT_EQ(channels(1, 32), TR_CONFIG_UNDEF_INT);
}

TEST(Algorithms, AreTranslated) {
  auto translated = [](const char* text) {
    std::string list;
    const Status status = translate_algorithms("NCCL_ALGO", text, &list);
    return status.ok() ? list : "error: " + status.message();
  };
  EXPECT_EQ(translated("Ring"), "allreduce:ring,broadcast:chain,allgather:ring,reduce-scatter:ring");
  EXPECT_EQ(translated("TREE"), "allreduce:tree,broadcast:tree,reduce:tree");
  EXPECT_EQ(translated("allreduce:tree;broadcast:ring"), "allreduce:tree,broadcast:chain");
  EXPECT_EQ(translated("Ring,Tree"), "");
  EXPECT_EQ(translated("^Tree"), "");
  EXPECT_EQ(translated("NVLS,NVLSTree,CollnetDirect,CollnetChain,PAT"), "");
  EXPECT_EQ(translated("allgather:tree"), "");
  EXPECT_NE(translated("Rings").find("known are tree, ring"), std::string::npos);
  EXPECT_NE(translated("allreduce:ring;reduces:tree").find("'reduces' is not a function"), std::string::npos);
}

TEST(Protocols, AreTranslated) {
  auto translated = [](const char* text) {
    std::string list;
    const Status status = translate_protocols("NCCL_PROTO", text, &list);
    return status.ok() ? list : "error: " + status.message();
  };
  EXPECT_EQ(translated("^LL128"), "^ll128");
  EXPECT_EQ(translated("Simple"), "simple");
  EXPECT_EQ(translated("allreduce:LL,Simple;ReduceScatter:Simple;sendrecv:LL"),
            "allreduce:ll,simple;reduce-scatter:simple");
  EXPECT_EQ(translated("LL;allreduce:^ll"), "ll;allreduce:^ll");
  EXPECT_NE(translated("LL256").find("'ll256' is unknown"), std::string::npos);
  setenv("NCCL_PROTO", "allreduce:Simple", 1);
  Settings settings;
  EXPECT_TRUE(resolve_settings("test", nullptr, &settings).ok());
  EXPECT_STREQ(settings.config().device_protocol, "allreduce:simple");
  setenv("TREERING_DEVICE_PROTOCOL", "ll", 1);
  EXPECT_TRUE(resolve_settings("test", nullptr, &settings).ok());
  EXPECT_EQ(settings.config().device_protocol, nullptr) << "the own variable wins";
  unsetenv("TREERING_DEVICE_PROTOCOL");
  unsetenv("NCCL_PROTO");
}

TEST(Variables, PageEqualsTheTable) {
  std::ifstream file(NCCL_VARIABLES_MD);
  ASSERT_TRUE(file) << NCCL_VARIABLES_MD;
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), variables_markdown())
      << "write it anew with: shim_settings_test --write docs/nccl-variables.md";
}

// Those that users are known to set; each must be in the table.
TEST(Variables, AllAreKnown) {
  std::string known = " ";
  for (const VariableRow& row : variable_table()) known += std::string(row.name) + " ";
  for (
      const std::string& name : split_list(
          "DEBUG DEBUG_FILE DEBUG_SUBSYS SOCKET_IFNAME SOCKET_FAMILY SOCKET_NTHREADS NSOCKS_PERTHREAD IB_HCA IB_DISABLE "
          "IB_GID_INDEX IB_TIMEOUT IB_RETRY_CNT IB_SL IB_TC IB_QPS_PER_CONNECTION NET CROSS_NIC NET_GDR_LEVEL ALGO PROTO "
          "MIN_NCHANNELS MAX_NCHANNELS MIN_CTAS MAX_CTAS MIN_NRINGS MAX_NRINGS BUFFSIZE NTHREADS P2P_DISABLE P2P_LEVEL "
          "SHM_DISABLE COMM_ID TOPO_FILE TOPO_DUMP_FILE GRAPH_FILE GRAPH_DUMP_FILE RINGS COMM_BLOCKING LAUNCH_MODE HOSTID "
          "IGNORE_CPU_AFFINITY TUNER_PLUGIN RAS_ENABLE CONF_FILE",
          ' '))
    EXPECT_NE(known.find(" " + name + " "), std::string::npos) << name;
}

}  // namespace
}  // namespace treering::nccl

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--write") == 0) {
    std::ofstream file(argv[2]);
    file << treering::nccl::variables_markdown();
    if (file.flush()) return 0;
    std::cerr << "error: cannot write \"" << argv[2] << "\"\n";
    return 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
