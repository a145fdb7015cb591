// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace treering {
namespace {

enum PackedKind : unsigned char { kPackedEnd = 0, kPackedIPv4 = 4, kPackedIPv6 = 6, kPackedLinkLocal = 7 };
// A packed address is its kind, then `length` of its bytes from `first` on.
struct PackedForm {
  PackedKind kind;
  size_t first, length;
};
constexpr PackedForm kPackedForms[] = {{kPackedIPv4, 0, 4}, {kPackedIPv6, 0, 16}, {kPackedLinkLocal, 8, 8}};

const PackedForm* form_of_kind(unsigned char kind) {
  for (const PackedForm& form : kPackedForms)
    if (form.kind == kind) return &form;
  return nullptr;
}

const PackedForm& form_of(const Address& address) {
  if (address.version == 4) return *form_of_kind(kPackedIPv4);
  const bool is_short = address.link_local() && std::all_of(address.bytes.begin() + 2, address.bytes.begin() + 8,
                                                            [](unsigned char byte) { return byte == 0; });
  return *form_of_kind(is_short ? kPackedLinkLocal : kPackedIPv6);
}

// Bridges and pairs that containers make: other machines do not reach them.
bool of_containers(const std::string& interface) {
  for (const char* prefix : {"docker", "virbr", "veth", "cni", "podman", "lxc"})
    if (interface.starts_with(prefix)) return true;
  // Docker's are br- and the beginning of the network's id; others, as br-ex, are hosts' own.
  constexpr size_t kDockerName = 15;
  return interface.size() == kDockerName && interface.starts_with("br-") &&
         interface.find_first_not_of("0123456789abcdef", 3) == std::string::npos;
}

bool parse_network(const std::string& text, Address* network) {
  const size_t slash = text.find('/');
  const std::string host = text.substr(0, slash);
  network->version = host.find(':') == std::string::npos ? 4 : 6;
  if (inet_pton(network->version == 4 ? AF_INET : AF_INET6, host.c_str(), network->bytes.data()) != 1) return false;
  unsigned length = 0;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data() + slash + 1, end, length);
  if (error != std::errc() || stop != end || length > (network->version == 4 ? 32u : 128u)) return false;
  network->prefix = static_cast<uint8_t>(length);
  return true;
}

Address from_sockaddr(const sockaddr* from, const sockaddr* mask) {
  Address address;
  std::array<unsigned char, 16> bits{};
  if (from->sa_family == AF_INET) {
    address.version = 4;
    std::memcpy(address.bytes.data(), &reinterpret_cast<const sockaddr_in*>(from)->sin_addr, 4);
    if (mask != nullptr) std::memcpy(bits.data(), &reinterpret_cast<const sockaddr_in*>(mask)->sin_addr, 4);
  } else {
    address.version = 6;
    std::memcpy(address.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr, 16);
    if (mask != nullptr) std::memcpy(bits.data(), &reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr, 16);
  }
  for (unsigned char byte : bits) address.prefix = static_cast<uint8_t>(address.prefix + std::popcount(byte));
  return address;
}

std::string describe(const std::vector<Address>& all) {
  std::string text;
  for (const Address& address : all)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", address.interface, to_text(address));
  return text.empty() ? "none" : text;
}

}  // namespace

bool Address::loopback() const {
  static constexpr std::array<unsigned char, 16> kLoopback6{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return version == 4 ? bytes[0] == 127 : bytes == kLoopback6;
}

bool Address::link_local() const { return version == 6 && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80; }

std::string to_text(const Address& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(address.version == 4 ? AF_INET : AF_INET6, address.bytes.data(), text, sizeof text);
  return text;
}

socklen_t to_sockaddr(const Address& address, uint16_t port, uint32_t scope, sockaddr_storage* result) {
  std::memset(result, 0, sizeof *result);
  if (address.version == 4) {
    auto* to = reinterpret_cast<sockaddr_in*>(result);
    to->sin_family = AF_INET;
    to->sin_port = htons(port);
    std::memcpy(&to->sin_addr, address.bytes.data(), 4);
    return sizeof *to;
  }
  auto* to = reinterpret_cast<sockaddr_in6*>(result);
  to->sin6_family = AF_INET6;
  to->sin6_port = htons(port);
  to->sin6_scope_id = address.link_local() ? scope : 0;
  std::memcpy(&to->sin6_addr, address.bytes.data(), 16);
  return sizeof *to;
}

bool same_network(const Address& own, const Address& other) {
  if (own.version != other.version) return false;
  for (unsigned bit = 0; bit < own.prefix; ++bit)
    if (((own.bytes[bit / 8] ^ other.bytes[bit / 8]) >> (7 - bit % 8) & 1) != 0) return false;
  return true;
}

Status parse_interface_filter(const std::string& text, InterfaceFilter* filter) {
  *filter = {};
  size_t at = 0;
  if (!text.empty() && text[0] == '^') filter->exclude = true, at = 1;
  for (size_t end = 0; at <= text.size() && !text.empty(); at = end + 1) {
    end = std::min(text.find(',', at), text.size());
    std::string word = text.substr(at, end - at);
    InterfaceFilter::Item item;
    if (word.find('/') != std::string::npos) {
      if (!parse_network(word, &item.network))
        return {
            trInvalidArgument,
            fmt::format("TREERING_SOCKET_IFNAME: '{}' is not a network; give one as 10.1.0.0/16 or fd00::/8", word)};
    } else {
      item.exact = !word.empty() && word[0] == '=';
      item.name = word.substr(item.exact ? 1 : 0);
      if (item.name.empty() || item.name[0] == '^')
        return {
            trInvalidArgument,
            fmt::format("TREERING_SOCKET_IFNAME is '{}': a name is missing; give prefixes of interface names, =name "
                        "or networks, separated by commas; ^ in front of all excludes",
                        text)};
    }
    filter->items.push_back(std::move(item));
  }
  return {};
}

bool InterfaceFilter::matches(const Address& address) const {
  const bool listed = std::any_of(items.begin(), items.end(), [&](const Item& item) {
    if (item.name.empty()) return same_network(item.network, address);
    return item.exact ? address.interface == item.name : address.interface.rfind(item.name, 0) == 0;
  });
  return listed != exclude;
}

Status list_addresses(std::vector<Address>* all) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {trSystemError, fmt::format("getifaddrs: {}", std::strerror(errno))};
  all->clear();
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (entry->ifa_addr->sa_family != AF_INET && entry->ifa_addr->sa_family != AF_INET6) continue;
    Address address = from_sockaddr(entry->ifa_addr, entry->ifa_netmask);
    address.interface = entry->ifa_name;
    address.scope = if_nametoindex(entry->ifa_name);
    all->push_back(std::move(address));
  }
  freeifaddrs(list);
  return {};
}

Status choose_addresses(const std::vector<Address>& all, const std::string& filter_text, const std::string& family,
                        std::vector<Address>* chosen) {
  InterfaceFilter filter;
  TR_RETURN_IF_ERROR(parse_interface_filter(filter_text, &filter));
  const bool asked = !filter.items.empty() && !filter.exclude;
  chosen->clear();
  for (const Address& address : all) {
    if ((family == "ipv4" && address.version != 4) || (family == "ipv6" && address.version != 6)) continue;
    if (filter.items.empty() || filter.matches(address)) chosen->push_back(address);
  }
  if (chosen->empty() && !filter.items.empty())
    return {trInvalidArgument, fmt::format("TREERING_SOCKET_IFNAME is '{}' (TREERING_SOCKET_FAMILY: {}): no address "
                                           "matches; this machine has {}",
                                           filter_text, family.empty() ? "any" : family, describe(all))};
  // 0: ordinary, 1: link-local, 2: of containers, 3: loopback. The last two only where there is nothing else.
  auto grade = [&](const Address& address) {
    if (address.loopback()) return 3;
    if (of_containers(address.interface)) return asked ? 0 : 2;
    return address.link_local() ? 1 : 0;
  };
  std::stable_sort(chosen->begin(), chosen->end(),
                   [&](const Address& a, const Address& b) { return grade(a) < grade(b); });
  if (!asked && !chosen->empty()) {
    const int most = std::max(1, grade(chosen->front()));
    std::erase_if(*chosen, [&](const Address& address) { return grade(address) > most; });
  }
  return {};
}

Status resolve_host(const std::string& host, const std::string& family, std::vector<Address>* addresses) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (family == "ipv4") hints.ai_family = AF_INET;
  if (family == "ipv6") hints.ai_family = AF_INET6;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0)
    return {trInvalidArgument,
            fmt::format("'{}' is no host that can be found{}: {}", host,
                        family.empty() ? "" : " as TREERING_SOCKET_FAMILY=" + family, gai_strerror(error))};
  addresses->clear();
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    Address address = from_sockaddr(one->ai_addr, nullptr);
    address.prefix = address.version == 4 ? 32 : 128;
    addresses->push_back(address);
  }
  freeaddrinfo(found);
  if (!addresses->empty()) return {};
  return {trInvalidArgument, fmt::format("'{}' has neither an IPv4 nor an IPv6 address", host)};
}

void pack_addresses(const std::vector<Address>& addresses, unsigned char* to, size_t bytes) {
  std::memset(to, 0, bytes);
  size_t at = 0;
  for (const Address& address : addresses) {
    const PackedForm& form = form_of(address);
    if (at + 1 + form.length > bytes) continue;
    to[at] = form.kind;
    std::memcpy(to + at + 1, address.bytes.data() + form.first, form.length);
    at += 1 + form.length;
  }
}

std::vector<Address> unpack_addresses(const unsigned char* from, size_t bytes) {
  std::vector<Address> addresses;
  for (size_t at = 0; at < bytes && from[at] != kPackedEnd;) {
    const PackedForm* form = form_of_kind(from[at]);
    if (form == nullptr || at + 1 + form->length > bytes) break;
    Address address;
    address.version = form->kind == kPackedIPv4 ? 4 : 6;
    std::memcpy(address.bytes.data() + form->first, from + at + 1, form->length);
    if (form->kind == kPackedLinkLocal) address.bytes[0] = 0xfe, address.bytes[1] = 0x80;
    addresses.push_back(address);
    at += 1 + form->length;
  }
  return addresses;
}

}  // namespace treering
