// SPDX-License-Identifier: Apache-2.0
// Where a process's metrics and trace go, of what the options say. Several processes of a host get the same options.
#pragma once

#include <cstdint>
#include <string>

namespace treering {

// A process, by the first communicator that it has made.
struct ProcessPlace {
  uint32_t rank = 0;     // the lowest that the process has
  uint32_t on_host = 0;  // the processes of its host, in the order of their lowest ranks
  int pid = 0;
  std::string host;
};

// "a%r.txt": %r, %p and %h become the rank, the process id and the host's name. A path with neither %r nor %p is rank 0's;
// other processes put "-rank3" before its suffix.
std::string metrics_path(const std::string& option, const ProcessPlace& place);
// ":9400": one port up for each process of the host before this one. 0: there is no such port.
uint32_t metrics_port(const std::string& option, const ProcessPlace& place);
inline bool is_port(const std::string& option) { return option.starts_with(':'); }

// In the trace's directory.
std::string trace_name(const ProcessPlace& place);

}  // namespace treering
