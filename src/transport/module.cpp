// SPDX-License-Identifier: Apache-2.0
#include "transport/module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/log.h"
#include "core/shared_object.h"

namespace treering {
namespace {

// Reaches no peer.
class Unavailable final : public Transport {
 public:
  explicit Unavailable(std::string why) : why_(std::move(why)) {}
  Status prove(uint32_t) override { return {trSystemError, why_}; }
  PeerConnections connect(uint32_t, PairAbilities) override { return {}; }

 private:
  const std::string why_;
};

// "TREERING_VERBS_LIBRARY"
std::string variable_of(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  return "TREERING_" + name + "_LIBRARY";
}

Transport* open(const std::string& name, const TransportSetup& setup, std::string* why_not) {
  const std::string file = fmt::format("libtreering-{}.so.0", name);
  void* library = open_shared_object(file.c_str(), variable_of(name).c_str(), Elsewhere::kNever, why_not);
  if (library == nullptr) {
    *why_not = fmt::format(
        "the library was built or installed without it, or lacks what it needs (docs/{}.md, \"Build it\"): {}",
        name == "verbs" ? "rdma" : name, *why_not);
    return nullptr;
  }
  const auto open = reinterpret_cast<OpenTransportModule>(dlsym(library, kOpenTransportModule));
  if (open != nullptr) return open(module_build().c_str(), setup, why_not);
  *why_not = fmt::format("{} has no {}", file, kOpenTransportModule);
  return nullptr;
}

}  // namespace

std::unique_ptr<Transport> open_module(const std::string& name, const TransportSetup& setup) {
  std::string why_not;
  if (Transport* transport = open(name, setup, &why_not); transport != nullptr)
    return std::unique_ptr<Transport>(transport);
  // It was named: otherwise it is not opened.
  if (setup.rank == 0) log_line(LogLevel::kWarn, fmt::format("{} is not used: {}", name, why_not));
  return std::make_unique<Unavailable>(why_not);
}

}  // namespace treering
