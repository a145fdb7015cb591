// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>

#include "core/config.h"
#include "shim/log.h"
#include "shim/variables.h"

namespace treering::nccl {
namespace {

void hand_on(const char* name, const std::string& value) {
  if (!value.empty()) setenv(name, value.c_str(), 0);
}

// `=a,b` makes every name exact; here each has its own `=`.
std::string interfaces(const std::string& value) {
  const size_t exact = value.find_first_of('=');
  if (exact > 1 || (exact == 1 && value[0] != '^')) return value;
  std::string text = value.substr(0, exact);
  for (const std::string& name : split_list(value.substr(exact + 1), ','))
    text += (text.empty() || text == "^" ? "=" : ",=") + name;
  return text;
}

// Once in a process: the variables are handed on whenever a communicator or an id is made.
void warn_once(const std::string& text) {
  static std::mutex mutex;
  static auto* const said = new std::set<std::string>;
  std::lock_guard lock(mutex);
  if (said->insert(text).second) log_warn(text);
}

std::string family(const std::string& value) {
  if (value == "AF_INET") return "ipv4";
  if (value == "AF_INET6") return "ipv6";
  if (!value.empty())
    warn_once(fmt::format("NCCL_SOCKET_FAMILY is '{}'; give AF_INET or AF_INET6; the default is used", value));
  return "";
}

std::string streams(const std::string& threads, const std::string& sockets) {
  if (threads.empty() && sockets.empty()) return "";
  const auto number = [](const std::string& text) { return std::max(1l, std::strtol(text.c_str(), nullptr, 10)); };
  return std::to_string(std::min<long>(kMaxTcpStreams, number(threads) * number(sockets)));
}

// In decimal, from any base that C has. Nothing for a value that is no such number; the one below `least` means "not set".
std::string number_of(const char* name, long least, long most) {
  const std::string text = variable(name);
  if (text.empty()) return "";
  char* end = nullptr;
  const long number = std::strtol(text.c_str(), &end, 0);
  if (*end == '\0' && number >= least && number <= most) return std::to_string(number);
  if (*end != '\0' || number != least - 1)
    warn_once(fmt::format("{} is '{}'; give a number from {} to {}; the default is used", name, text, least, most));
  return "";
}

// As they are read for the host's transports.
bool forbids_p2p() {
  const std::string disable = variable("NCCL_P2P_DISABLE"), level = variable("NCCL_P2P_LEVEL");
  char* end = nullptr;
  return (std::strtol(disable.c_str(), &end, 10) != 0 && *end == '\0') || level == "LOC" || level == "0";
}

}  // namespace

void hand_on_variables() {
  hand_on("TREERING_SOCKET_IFNAME", interfaces(variable("NCCL_SOCKET_IFNAME")));
  hand_on("TREERING_SOCKET_FAMILY", family(variable("NCCL_SOCKET_FAMILY")));
  hand_on("TREERING_DEVICE_P2P", forbids_p2p() ? "0" : "");
  hand_on("TREERING_HOSTID", variable("NCCL_HOSTID"));
  hand_on("TREERING_VERBS_DEVICES", interfaces(variable("NCCL_IB_HCA")));
  hand_on("TREERING_VERBS_GID", number_of("NCCL_IB_GID_INDEX", 0, 255));
  hand_on("TREERING_VERBS_TIMEOUT", number_of("NCCL_IB_TIMEOUT", 1, 31));
  hand_on("TREERING_VERBS_SL", number_of("NCCL_IB_SL", 0, 15));
  hand_on("TREERING_VERBS_TC", number_of("NCCL_IB_TC", 0, 255));
  hand_on("TREERING_TCP_STREAMS", streams(variable("NCCL_SOCKET_NTHREADS"), variable("NCCL_NSOCKS_PERTHREAD")));
}

}  // namespace treering::nccl
