// SPDX-License-Identifier: Apache-2.0
#include "topology/location.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "core/process.h"

namespace treering {
namespace {

constexpr size_t kMaxCpus = size_t{1} << 16;

// The one value of `member` over all places, or -1 if they differ.
int32_t common_value(const std::vector<const CorePlace*>& places, int32_t CorePlace::*member) {
  if (places.empty()) return -1;
  const int32_t value = places[0]->*member;
  for (const CorePlace* place : places)
    if (place->*member != value) return -1;
  return value;
}

}  // namespace

uint64_t identity_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

uint64_t host_identity() { return identity_of(machine_identity()); }

Location locate(const Topology& topology, std::span<const uint32_t> cpus, uint64_t host, int32_t pid) {
  const std::set<uint32_t> allowed(cpus.begin(), cpus.end());
  const std::vector<CorePlace> places = core_places(topology, false);
  std::vector<const CorePlace*> usable;
  for (const CorePlace& place : places)
    if (std::any_of(place.cpus.begin(), place.cpus.end(), [&](uint32_t cpu) { return allowed.count(cpu) != 0; }))
      usable.push_back(&place);
  Location location;
  location.host = host;
  location.pid = pid;
  location.cpu_count = static_cast<uint32_t>(allowed.size());
  location.package = common_value(usable, &CorePlace::package);
  location.numa_node = common_value(usable, &CorePlace::numa_node);
  location.cache = common_value(usable, &CorePlace::cache);
  location.core = common_value(usable, &CorePlace::core);
  return location;
}

Status bound_cpus(std::vector<uint32_t>* bound) {
  for (size_t cpus = CPU_SETSIZE; cpus <= kMaxCpus; cpus *= 2) {
    std::vector<unsigned long> mask(cpus / (8 * sizeof(unsigned long)));
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    const size_t bytes = mask.size() * sizeof(unsigned long);
    if (sched_getaffinity(0, bytes, set) != 0) {
      if (errno == EINVAL) continue;  // the kernel knows more processors than fit
      return {trSystemError, fmt::format("sched_getaffinity: {}", std::strerror(errno))};
    }
    bound->clear();
    for (size_t cpu = 0; cpu < cpus; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set)) bound->push_back(static_cast<uint32_t>(cpu));
    return {};
  }
  return {trSystemError, fmt::format("sched_getaffinity: more than {} processors", kMaxCpus)};
}

Status locate_this_thread(const Topology& topology, Location* location) {
  std::vector<uint32_t> bound;
  TR_RETURN_IF_ERROR(bound_cpus(&bound));
  *location = locate(topology, bound, host_identity(), static_cast<int32_t>(getpid()));
  return {};
}

}  // namespace treering
