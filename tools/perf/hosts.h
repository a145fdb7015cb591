// SPDX-License-Identifier: Apache-2.0
// Hosts: starts the processes of a run on several hosts through a command such as ssh.
//
//   this process -- ssh a --> treering-perf, rank 0        each gets its rank in the environment and the unique id, which
//                -- ssh a --> treering-perf, rank 1        holds the job's secret, as a line of standard input: other users
//                -- ssh b --> treering-perf, rank 2        see environments and command lines, not pipes
//
// The ranks meet in this process, and it ends the others when one fails, as for processes of one machine (launcher.h).
#pragma once

#include <string>
#include <vector>

#include "options.h"

namespace treering::perf {

// The words of the command that runs `command`, a line for sh, on `host`.
std::vector<std::string> launch_command(const std::string& launcher, const std::string& host,
                                        const std::string& command);
// The line for sh that runs this program again as one rank.
std::string rank_command(const Options& options, int rank, int ranks);

// Returns the run's exit status.
int run_on_hosts(const Options& options);

}  // namespace treering::perf
