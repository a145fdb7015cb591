// SPDX-License-Identifier: Apache-2.0
// A trace as it was read: the processes that wrote it, the communicators, and their calls. Times are microseconds of the
// clock of the process's host.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace treering::trace {

struct TracedProcess {
  std::string file, host, clock;
  int64_t pid = 0;
  uint32_t rank = 0;
  uint64_t lost = 0;                         // calls that had no room in its memory
  bool is_cut = false;                       // the last line is not complete
  std::map<uint32_t, size_t> communicators;  // by track: index in Trace::communicators
};

// One rank's side of a call.
struct CallRecord {
  size_t process = 0;
  uint32_t rank = 0;  // in the communicator
  double begin = 0, end = 0, waited = 0;
  std::optional<uint32_t> waited_for;
  bool begin_is_late = false;
};

struct TracedCall {
  std::string name;
  uint64_t bytes = 0;
  std::vector<CallRecord> records;
};

struct TracedGroup {
  std::string name, id;
  uint32_t ranks = 0;
  std::map<uint32_t, std::vector<size_t>> processes;  // by rank; several: a mistake of the files
  std::map<uint64_t, TracedCall> calls;               // by number, which all ranks count alike
  std::vector<TracedCall> uncounted;                  // sends and receives: one record each
};

struct Trace {
  std::vector<TracedProcess> processes;
  std::vector<TracedGroup> communicators;
};

// "rank 3 (pid 17 on node2)".
std::string describe(const TracedProcess& process, uint32_t rank);
// "communicator gradients", or "a communicator without a name".
std::string describe(const TracedGroup& group);

}  // namespace treering::trace
