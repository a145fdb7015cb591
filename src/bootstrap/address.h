// SPDX-License-Identifier: Apache-2.0
// Address: where a process can be reached over TCP: the addresses of the machine's interfaces, chosen by
// TREERING_SOCKET_IFNAME and TREERING_SOCKET_FAMILY, best ones first; and their forms: packed (unique id, messages),
// text, sockaddr.
//
// A loopback address is offered only where there is no other (or it was asked for), and is only used within one network
// namespace. A link-local IPv6 address has meaning only together with an interface of the process that connects.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace treering {

struct Address {
  uint8_t version = 0;  // 4 or 6
  std::array<unsigned char, 16> bytes{};
  uint8_t prefix = 0;  // length of the network's
  // Set for this machine's own addresses alone:
  uint32_t scope = 0;  // number of the interface
  std::string interface;

  bool loopback() const;
  bool link_local() const;
  bool same_bytes(const Address& other) const { return version == other.version && bytes == other.bytes; }
};

template <typename V>
void visit(V& v, Address& address) {
  v(address.version);
  v(address.bytes);
  v(address.prefix);
}

std::string to_text(const Address& address);
// For a link-local address `scope` is this machine's interface to go through.
socklen_t to_sockaddr(const Address& address, uint16_t port, uint32_t scope, sockaddr_storage* result);
// Whether both are in the network of `own`.
bool same_network(const Address& own, const Address& other);

// The filter of TREERING_SOCKET_IFNAME: names are prefixes, `=name` is exact, a/b is a network; `^` in front of all
// excludes. An empty text takes every interface but loopback and containers' bridges, and those when there is no other.
struct InterfaceFilter {
  struct Item {
    std::string name;  // empty: a network
    bool exact = false;
    Address network;
  };
  std::vector<Item> items;
  bool exclude = false;

  bool matches(const Address& address) const;
};
Status parse_interface_filter(const std::string& text, InterfaceFilter* filter);

// All addresses of interfaces that are up.
Status list_addresses(std::vector<Address>* all);
// Those to offer, best first. `filter_text` and `family` as in the options; an error lists what there is.
Status choose_addresses(const std::vector<Address>& all, const std::string& filter_text, const std::string& family,
                        std::vector<Address>* chosen);

// The addresses of a host's name, or an address in text; `family` as in the options.
Status resolve_host(const std::string& host, const std::string& family, std::vector<Address>* addresses);

// As many addresses as fit: a byte of kind, then 4, 8 (link-local) or 16 bytes each.
void pack_addresses(const std::vector<Address>& addresses, unsigned char* to, size_t bytes);
std::vector<Address> unpack_addresses(const unsigned char* from, size_t bytes);

}  // namespace treering
