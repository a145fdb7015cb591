// SPDX-License-Identifier: Apache-2.0
// Location: where one rank runs, as far as its binding tells. Every rank finds its own and sends it to the
// rank that makes the plan, so the type is plain data without pointers.
//
// A number is known only if the binding leaves no choice: a rank bound to the cores of one NUMA node has that
// node, a rank that may run anywhere has -1 throughout (unless the machine has only one).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/status.h"
#include "topology/plan.h"
#include "topology/switches.h"
#include "topology/topology.h"

namespace treering {

struct Location {
  uint64_t host = 0;  // host_identity() of the machine
  int32_t pid = 0;
  int32_t package = -1;    // OS index
  int32_t numa_node = -1;  // OS index
  int32_t cache = -1;      // index of the last-level cache
  int32_t core = -1;       // index of the core
  uint32_t cpu_count = 0;  // processing units that the rank may run on
  SwitchPath switches{};
};
static_assert(std::is_trivially_copyable_v<Location>);

// A number that stands for a name.
uint64_t identity_of(std::string_view name);

// machine_identity() as a number.
uint64_t host_identity();

// The location of a thread that may run on `cpus` (OS indices).
Location locate(const Topology& topology, std::span<const uint32_t> cpus, uint64_t host, int32_t pid);

// The processors that the calling thread may run on, by its current binding: OS indices, ascending.
Status bound_cpus(std::vector<uint32_t>* cpus);

// The location of the calling thread, by its current binding.
Status locate_this_thread(const Topology& topology, Location* location);

// Lays out the ranks (rank = position in `locations`) by switch, host, package, NUMA node, cache and core. Because
// each of these is one contiguous run of the ring, the ring enters and leaves every one of them exactly once.
// What a location does not know is filled in as if the host's ranks were spread evenly, in rank order, over
// the usable cores of `topology`, which stands for every host. Depends on its arguments alone.
Plan make_plan(std::span<const Location> locations, const Topology& topology);

}  // namespace treering
