// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/host.h"

#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>

#include "core/process.h"

namespace treering {
namespace {

uint64_t namespace_number(const char* path) {
  struct stat info {};
  return stat(path, &info) == 0 ? info.st_ino : 0;
}

}  // namespace

HostIdentity identify_host(const std::string& configured) {
  HostIdentity identity;
  identity.name = host_name();
  identity.configured = configured;
  const std::string machine = machine_identity();
  // Containers of one machine share its boot; whether they share memory, too, is for the proofs to find out.
  identity.host = configured.empty() ? machine : "configured:" + configured;
  const std::string network = fmt::format("{}/{}", machine, namespace_number("/proc/self/ns/net"));
  crypto_generichash(reinterpret_cast<unsigned char*>(&identity.network), sizeof identity.network,
                     reinterpret_cast<const unsigned char*>(network.data()), network.size(), nullptr, 0);
  return identity;
}

}  // namespace treering
