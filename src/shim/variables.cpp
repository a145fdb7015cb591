// SPDX-License-Identifier: Apache-2.0
#include "shim/variables.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include "shim/algorithms.h"
#include "shim/log.h"

extern char** environ;

namespace treering::nccl {
namespace {

// Files never override the environment, nor the first file the second.
void read_file(const std::string& path, std::map<std::string, std::string>* values) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    line = line.substr(0, line.find('#'));
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const auto key = split_list(line.substr(0, equals), ' '), value = split_list(line.substr(equals + 1), '\n');
    if (key.size() == 1) values->emplace(key[0], value.empty() ? "" : value[0]);
  }
}

const std::map<std::string, std::string>& file_values() {
  static const auto* values = [] {
    auto* made = new std::map<std::string, std::string>;
    const char* named = std::getenv("NCCL_CONF_FILE");
    const char* home = std::getenv("HOME");
    if (named != nullptr && *named != '\0')
      read_file(named, made);
    else if (home != nullptr)
      read_file(std::string(home) + "/.nccl.conf", made);
    read_file("/etc/nccl.conf", made);
    return made;
  }();
  return *values;
}

// A number that cannot be read is named in the log, and the default holds: so do NCCL's users know it.
bool parse_number(const std::string& name, const std::string& text, int* value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error == std::errc() && end == text.data() + text.size()) return true;
  log_warn(fmt::format("{} is '{}'; give a whole number; the default is used", name, text));
  return false;
}

template <int Request::*field>
Status apply_number(const std::string& name, const std::string& value, Request* request) {
  int number = 0;
  if (!parse_number(name, value, &number)) return {};
  if (number > 0) request->*field = number;
  return {};
}

template <bool Request::*field>
Status apply_flag(const std::string& name, const std::string& value, Request* request) {
  int number = 0;
  if (parse_number(name, value, &number)) request->*field = number != 0;
  return {};
}

Status apply_blocking(const std::string& name, const std::string& value, Request* request) {
  int number = 0;
  if (parse_number(name, value, &number) && number >= 0) request->blocking = number != 0;
  return {};
}

// LOC (or 0) is "never"; the other levels are about PCIe and NVLink.
Status apply_p2p_level(const std::string&, const std::string& value, Request* request) {
  if (value == "LOC" || value == "0") request->without_p2p = true;
  return {};
}

Status apply_algorithms(const std::string& name, const std::string& value, Request* request) {
  return translate_algorithms(name, value, &request->algorithm);
}

Status apply_protocols(const std::string& name, const std::string& value, Request* request) {
  return translate_protocols(name, value, &request->protocol);
}

constexpr const char* kNet = "of InfiniBand and other networks; see docs/rdma.md for what is followed";

const VariableRow kVariables[] = {
    {"DEBUG", "VERSION, WARN, INFO, ABORT, TRACE", "What is logged.", nullptr, true},
    {"DEBUG_FILE", "path", "Where to, instead of standard output; %h becomes the host, %p the process id.", nullptr,
     true},
    {"DEBUG_SUBSYS", "list, `^` in front negates", "Subsystems of which INFO is shown; INIT,BOOTSTRAP,ENV by default.",
     nullptr, true},
    {"CONF_FILE", "path", "A file of `KEY=VALUE` lines, instead of ~/.nccl.conf.", nullptr, true},
    {"COMM_ID", "host:port",
     "Every rank's ncclGetUniqueId() gives this id; rank 0 listens there. Ranks that do not come are named every 10 s "
     "(`NCCL_DEBUG=WARN`), and in an error after `TREERING_TIMEOUT`, where that is set.",
     nullptr, true},
    {"COMM_BLOCKING", "0 or 1", "Overrides the `blocking` of the settings.", apply_blocking},
    {"ALGO", "`[function:][^]name,...;...` of Tree, Ring, CollnetDirect, CollnetChain, NVLS, NVLSTree, PAT",
     "Ring or Tree alone forces it where this library has it (broadcast: its chain for Ring); other sets leave the choice "
     "to the cost model. An unknown word is an error.",
     apply_algorithms},
    {"PROTO", "as ALGO, of LL, LL128, Simple",
     "Protocols that kernels of collectives may use; on the host the sender of a message chooses. An unknown word is an "
     "error.",
     apply_protocols},
    {"MIN_NCHANNELS", "number", "Least number of channels, cut to 4.", apply_number<&Request::min_channels>},
    {"MAX_NCHANNELS", "number", "Largest number of channels.", apply_number<&Request::max_channels>},
    {"MIN_CTAS", "number", "As MIN_NCHANNELS.", apply_number<&Request::min_channels>},
    {"MAX_CTAS", "number", "As MAX_NCHANNELS.", apply_number<&Request::max_channels>},
    {"MIN_NRINGS", "number", "As MIN_NCHANNELS.", apply_number<&Request::min_channels>},
    {"MAX_NRINGS", "number", "As MAX_NCHANNELS.", apply_number<&Request::max_channels>},
    {"BUFFSIZE", "bytes", "Shared staging memory of each rank, 64 KiB to 256 MiB.",
     apply_number<&Request::buffer_bytes>},
    {"P2P_DISABLE", "0 or 1",
     "1: no access to a peer's memory in place (transports in-process and cma), and TREERING_DEVICE_P2P becomes 0: GPUs exchange "
     "through memory of the host.",
     apply_flag<&Request::without_p2p>},
    {"P2P_LEVEL", "LOC, NVL, PIX, PXB, PHB, SYS", "LOC: as P2P_DISABLE=1.", apply_p2p_level},
    {"SHM_DISABLE", "0 or 1", "1: no shared memory, unless P2P_DISABLE leaves nothing else.",
     apply_flag<&Request::without_shm>},
    {"NTHREADS", "64 to 512", "of GPU kernels", nullptr},
    {"LAUNCH_MODE", "PARALLEL or GROUP", "of GPU kernels", nullptr},
    {"SOCKET_IFNAME", "list of prefixes, `^` or `=` in front", "Becomes TREERING_SOCKET_IFNAME.", nullptr, true},
    {"SOCKET_FAMILY", "AF_INET or AF_INET6", "Becomes TREERING_SOCKET_FAMILY.", nullptr, true},
    {"SOCKET_NTHREADS", "number", "Times NSOCKS_PERTHREAD becomes TREERING_TCP_STREAMS.", nullptr, true},
    {"NSOCKS_PERTHREAD", "number", "Times SOCKET_NTHREADS becomes TREERING_TCP_STREAMS.", nullptr, true},
    {"IB_HCA", "list of prefixes with `:port`, `^` or `=` in front",
     "Becomes TREERING_VERBS_DEVICES, for verbs where TREERING_TRANSPORTS names it.", nullptr, true},
    {"IB_DISABLE", "0 or 1", kNet, nullptr},
    {"IB_GID_INDEX", "number", "Becomes TREERING_VERBS_GID.", nullptr, true},
    {"IB_TIMEOUT", "number", "Becomes TREERING_VERBS_TIMEOUT.", nullptr, true},
    {"IB_RETRY_CNT", "number", kNet, nullptr},
    {"IB_SL", "number", "Becomes TREERING_VERBS_SL.", nullptr, true},
    {"IB_TC", "number", "Becomes TREERING_VERBS_TC.", nullptr, true},
    {"IB_QPS_PER_CONNECTION", "number", kNet, nullptr},
    {"NET", "name", kNet, nullptr},
    {"CROSS_NIC", "0, 1 or 2", kNet, nullptr},
    {"NET_GDR_LEVEL", "LOC, PIX, PXB, PHB, SYS", kNet, nullptr},
    {"TOPO_FILE", "path", "of PCIe and NVLink", nullptr},
    {"TOPO_DUMP_FILE", "path", "of PCIe and NVLink", nullptr},
    {"GRAPH_FILE", "path", "of PCIe and NVLink", nullptr},
    {"GRAPH_DUMP_FILE", "path", "of PCIe and NVLink", nullptr},
    {"RINGS", "`0 1 2 3|3 2 1 0`", "the ring follows the machine's topology", nullptr},
    {"HOSTID", "text", "Becomes TREERING_HOSTID.", nullptr, true},
    {"IGNORE_CPU_AFFINITY", "0 or 1", "threads keep their affinity", nullptr},
    {"TUNER_PLUGIN", "name", "of plugins", nullptr},
    {"RAS_ENABLE", "0 or 1", "of the RAS service", nullptr},
};

const VariableRow* row_named(const std::string& name) {
  for (const VariableRow& row : kVariables)
    if (name == std::string("NCCL_") + row.name) return &row;
  return nullptr;
}

// Every NCCL_* variable that is set, with its value.
std::map<std::string, std::string> set_variables() {
  std::map<std::string, std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (text.rfind("NCCL_", 0) == 0 && equals != std::string::npos)
      all[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : file_values())
    if (name.rfind("NCCL_", 0) == 0) all.emplace(name, value);
  return all;
}

void say_once(const std::string& name, const std::string& value) {
  static std::mutex mutex;
  static auto* said = new std::set<std::string>;
  std::lock_guard lock(mutex);
  if (!said->insert(name + "=" + value).second) return;
  const VariableRow* row = row_named(name);
  const char* effect = "";
  if (row == nullptr)
    effect = ", which this library does not know";
  else if (row->apply == nullptr && !row->read_elsewhere)
    effect = "; accepted without effect";
  log_info(kEnv, -1, fmt::format("{} set by environment to {}{}", name, value, effect));
}

}  // namespace

std::span<const VariableRow> variable_table() { return kVariables; }

std::string variable(const std::string& name) {
  if (const char* text = std::getenv(name.c_str())) return text;
  const auto found = file_values().find(name);
  return found == file_values().end() ? "" : found->second;
}

Status apply_variables(Request* request) {
  hand_on_variables();
  for (const auto& [name, value] : set_variables()) {
    if (value.empty()) continue;
    say_once(name, value);
    const VariableRow* row = row_named(name);
    if (row != nullptr && row->apply != nullptr) TR_RETURN_IF_ERROR(row->apply(name, value, request));
  }
  return {};
}

std::vector<std::string> split_list(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    std::string part = text.substr(at, end - at);
    part.erase(0, part.find_first_not_of(" \t\r"));
    part.erase(part.find_last_not_of(" \t\r") + 1);
    if (!part.empty()) parts.push_back(std::move(part));
    at = end + 1;
  }
  return parts;
}

std::string variables_markdown() {
  std::string text =
      "# NCCL_* variables of the shim\n\nGenerated from the table in src/shim/variables.cpp. A field that the program sets "
      "in its `ncclConfig_t` yields to the variable, as with NCCL. `TREERING_*` variables ([options.md](options.md)) hold as "
      "well and win over an `NCCL_*` variable of the same meaning. `TREERING_TIMEOUT` is 0 by default here: NCCL's calls "
      "have no deadline.\n\nVariables are read from the environment, then from `NCCL_CONF_FILE` or `~/.nccl.conf`, then from "
      "`/etc/nccl.conf` (`KEY=VALUE` lines, `#` comments). Each that is set gets a line in the log "
      "(`NCCL_DEBUG=INFO`).\n\n## With effect\n\n| variable | values | meaning |\n|---|---|---|\n";
  auto rows = [&](bool effect) {
    for (const VariableRow& row : kVariables)
      if (effect == (row.apply != nullptr || row.read_elsewhere))
        text += fmt::format("| `NCCL_{}` | {} | {} |\n", row.name, row.values, row.documentation);
  };
  rows(true);
  text += "\n## Accepted without effect\n\n| variable | values | they are |\n|---|---|---|\n";
  rows(false);
  return text;
}

}  // namespace treering::nccl
