// SPDX-License-Identifier: Apache-2.0
// A trace's file: JSON trace events, an array of one event a line that Perfetto and chrome://tracing read. Its end is
// missing, as they allow: a process may be killed at any time. docs/metrics.md has the fields; treering-trace reads them.
#pragma once

#include <cstdint>
#include <string>

#include "metrics/trace_ring.h"

namespace treering {

struct TracedProcess {
  std::string host, clock;  // processes with the same `clock` read the same one
  int pid = 0;
  uint32_t rank = 0;
};
struct TracedCommunicator {
  std::string name, id;  // `id`: the same on all its ranks, and of no other one
  uint32_t rank = 0, ranks = 1;
  uint32_t track = 0;  // within the process, from 1
};

inline constexpr int kTraceVersion = 1;

std::string trace_head(const TracedProcess& process);
std::string trace_head(const TracedProcess& process, const TracedCommunicator& communicator);
void add_event(const TracedProcess& process, const TracedCommunicator& communicator, const TraceEvent& event,
               std::string* text);
// `lost`: events of the communicator that are missing.
std::string trace_end(const TracedProcess& process, const TracedCommunicator& communicator, uint64_t lost);

}  // namespace treering
