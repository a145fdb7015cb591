// SPDX-License-Identifier: Apache-2.0
// Addresses: filters, grades, packing; ports.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <cstdlib>

#include "bootstrap/address.h"
#include "bootstrap/agent.h"
#include "bootstrap/dial.h"
#include "core/config.h"

namespace treering {
namespace {

Address make(const char* interface, const char* text, uint8_t prefix = 24) {
  Address address;
  address.version = std::string(text).find(':') == std::string::npos ? 4 : 6;
  inet_pton(address.version == 4 ? AF_INET : AF_INET6, text, address.bytes.data());
  address.interface = interface;
  address.prefix = prefix;
  return address;
}

const std::vector<Address> kMachine = {make("lo", "127.0.0.1", 8),        make("lo", "::1", 128),
                                       make("eth0", "10.1.2.3"),          make("eth0", "fe80::1", 64),
                                       make("docker0", "172.17.0.1", 16), make("ib0", "10.2.0.3"),
                                       make("eth10", "fd00::5", 64)};

std::string chosen(const std::string& filter, const std::string& family = "",
                   const std::vector<Address>& all = kMachine) {
  std::vector<Address> result;
  const Status status = choose_addresses(all, filter, family, &result);
  if (!status.ok()) return std::string("error: ").append(status.message());
  std::string text;
  for (const Address& address : result) text.append(text.empty() ? "" : " ").append(to_text(address));
  return text;
}

TEST(Addresses, AreChosen) {
  EXPECT_EQ(chosen(""), "10.1.2.3 10.2.0.3 fd00::5 fe80::1");
  EXPECT_EQ(chosen("eth"), "10.1.2.3 fd00::5 fe80::1");
  EXPECT_EQ(chosen("=eth0"), "10.1.2.3 fe80::1");
  EXPECT_EQ(chosen("eth1,ib"), "10.2.0.3 fd00::5");
  EXPECT_EQ(chosen("^eth"), "10.2.0.3");
  EXPECT_EQ(chosen("^=eth0"), "10.2.0.3 fd00::5");
  EXPECT_EQ(chosen("10.1.0.0/16"), "10.1.2.3");
  EXPECT_EQ(chosen("fd00::/8"), "fd00::5");
  EXPECT_EQ(chosen("lo,docker0"), "172.17.0.1 127.0.0.1 ::1") << "when asked for";
  EXPECT_EQ(chosen("", "ipv4"), "10.1.2.3 10.2.0.3");
  EXPECT_EQ(chosen("", "ipv6"), "fd00::5 fe80::1");
  EXPECT_EQ(chosen("", "", {kMachine[0], kMachine[4]}), "172.17.0.1") << "where there is nothing better";
  EXPECT_EQ(chosen("", "", {kMachine[0], kMachine[1]}), "127.0.0.1 ::1");
}

TEST(Addresses, BridgesOfContainersAreDockersAlone) {
  const std::vector<Address> machine{make("br-ex", "10.3.0.1"), make("br-0123456789ab", "172.18.0.1", 16),
                                     make("br-0", "10.4.0.1"), make("br-network-name", "10.5.0.1")};
  EXPECT_EQ(chosen("", "", machine), "10.3.0.1 10.4.0.1 10.5.0.1");
}

TEST(Addresses, OfAHostsNameAreAllOfTheFamily) {
  std::vector<Address> addresses;
  ASSERT_TRUE(resolve_host("127.0.0.1", "", &addresses).ok());
  ASSERT_EQ(addresses.size(), 1u);
  EXPECT_EQ(to_text(addresses[0]), "127.0.0.1");
  ASSERT_TRUE(resolve_host("fd00::7", "ipv6", &addresses).ok());
  EXPECT_EQ(to_text(addresses[0]), "fd00::7");
  const Status wrong = resolve_host("127.0.0.1", "ipv6", &addresses);
  EXPECT_EQ(wrong.code(), trInvalidArgument);
  EXPECT_NE(wrong.message().find("'127.0.0.1' is no host that can be found as TREERING_SOCKET_FAMILY=ipv6"),
            std::string::npos)
      << wrong.message();
}

TEST(Addresses, WrongFiltersAreErrors) {
  EXPECT_NE(chosen("wlan").find("this machine has lo (127.0.0.1)"), std::string::npos) << chosen("wlan");
  for (const char* filter : {"eth0,,lo", "10.1.0.0/33", "10.1/16", "fd00::/x", "^", ","})
    EXPECT_EQ(chosen(filter).rfind("error: TREERING_SOCKET_IFNAME", 0), 0u) << filter << ": " << chosen(filter);
}

TEST(Addresses, SurvivePacking) {
  std::vector<Address> found;
  ASSERT_TRUE(choose_addresses(kMachine, "", "", &found).ok());
  unsigned char packed[46];
  pack_addresses(found, packed, sizeof packed);
  const auto back = unpack_addresses(packed, sizeof packed);
  ASSERT_EQ(back.size(), found.size());
  for (size_t i = 0; i < back.size(); ++i) EXPECT_TRUE(back[i].same_bytes(found[i])) << to_text(back[i]);
  pack_addresses(std::vector<Address>(40, found[2]), packed, sizeof packed);
  EXPECT_EQ(unpack_addresses(packed, sizeof packed).size(), 2u) << "as many as fit";
}

TEST(Candidates, LoopbackOnlyWithinANetworkAndStreamsAlternate) {
  Place own, peer;
  own.network = 1;
  peer.network = 2;
  peer.port = 5;
  peer.local = 3;
  peer.addresses = {make("x", "127.0.0.1", 8)};
  EXPECT_TRUE(find_candidates(own, {}, peer, true, 0).empty());
  peer.network = 1;
  EXPECT_EQ(find_candidates(own, {}, peer, true, 0).size(), 1u);
  EXPECT_EQ(find_candidates(own, {}, peer, false, 0).front().text.rfind("Unix socket", 0), 0u);
  own.addresses = {make("a", "10.1.0.1"), make("a", "10.4.0.1"), make("b", "10.2.0.1")};
  own.addresses[0].scope = own.addresses[1].scope = 2;
  own.addresses[2].scope = 3;
  peer.addresses = {make("x", "10.1.0.9"), make("x", "10.4.0.9"), make("y", "10.2.0.9"), make("z", "10.3.0.9")};
  EXPECT_EQ(find_candidates(own, {}, peer, true, 0).front().text, "10.1.0.9 from 10.1.0.1 port 5");
  EXPECT_EQ(find_candidates(own, {}, peer, true, 1).front().text, "10.2.0.9 from 10.2.0.1 port 5");
  EXPECT_EQ(find_candidates(own, {}, peer, true, 2).front().text, "10.1.0.9 from 10.1.0.1 port 5")
      << "two addresses of one interface count once";
  EXPECT_EQ(find_candidates(own, {}, peer, true, 0).size(), 7u) << "every way is there";
  EXPECT_EQ(count_shared_interfaces(own, peer), 1u) << "within a network all go by the loopback";
  peer.network = 2;
  EXPECT_EQ(count_shared_interfaces(own, peer), 2u);
  own.addresses.push_back(make("bridge", "192.168.122.1"));
  own.addresses.back().scope = 4;
  peer.addresses.push_back(make("bridge", "192.168.122.1"));
  EXPECT_EQ(count_shared_interfaces(own, peer), 2u) << "each has its own 192.168.122.1";
}

TEST(Candidates, LinkLocalThroughTheOwnInterfacesFirst) {
  Place own, peer;
  peer.network = 1;
  peer.port = 5;
  peer.addresses = {make("x", "fe80::9", 64)};
  std::vector<Address> interfaces;
  for (uint32_t scope = 1; scope <= 40; ++scope) {
    interfaces.push_back(make("v", "fe80::1", 64));
    interfaces.back().scope = scope;
  }
  own.addresses = {interfaces[30]};
  const auto ways = find_candidates(own, interfaces, peer, false, 0);
  ASSERT_EQ(ways.size(), 16u);
  for (size_t i = 0; i < ways.size(); ++i)
    EXPECT_EQ(reinterpret_cast<const sockaddr_in6&>(ways[i].address).sin6_scope_id, i == 0 ? 31 : i);
}

TEST(Ports, AreParsed) {
  auto parse = [](const char* text, Config* config) {
    setenv("TREERING_PORT", text, 1);
    const Status status = resolve_config(nullptr, config);
    unsetenv("TREERING_PORT");
    return status;
  };
  Config config;
  ASSERT_TRUE(parse("20000-20010", &config).ok());
  EXPECT_EQ(config.first_port, 20000);
  EXPECT_EQ(config.last_port, 20010);
  ASSERT_TRUE(parse("4321", &config).ok());
  EXPECT_EQ(config.last_port, 4321);
  for (const char* text : {"0", "70000", "5-4", "x", "1-", "1-2-3"}) EXPECT_FALSE(parse(text, &config).ok()) << text;
}

// A port that is taken is passed over; when all are, the range is named.
TEST(Ports, ARangeIsUsed) {
  const int taken = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&any), sizeof any), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  socklen_t length = sizeof any;
  getsockname(taken, reinterpret_cast<sockaddr*>(&any), &length);
  Config config;
  config.first_port = config.last_port = ntohs(any.sin6_port);
  Agent& agent = Agent::instance();
  Status status;
  Place place;
  ASSERT_TRUE(agent.call([&] { status = agent.open(config, "Ask for another", &place); }).ok());
  EXPECT_NE(status.message().find("no port of " + std::to_string(config.first_port)), std::string::npos)
      << status.message();
  config.last_port = std::min(config.first_port + 200, 65535);
  ASSERT_TRUE(agent.call([&] { status = agent.open(config, "Ask for another", &place); }).ok());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_GT(place.port, config.first_port);
  close(taken);
}

}  // namespace
}  // namespace treering
