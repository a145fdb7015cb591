// SPDX-License-Identifier: Apache-2.0
// What ranks print that mpirun, srun or --hosts has started: what they have in common once on each machine.
//
// The ranks of a run on a machine have no memory in common, and perhaps no communicator any more. The first one that has
// something to print binds a name of it in the kernel; the others find the name taken. It goes with the process.
#pragma once

#include <string>

namespace treering::perf {

// The variable that tells the processes of a run what they have in common. Without it, it is who started them.
inline constexpr const char* kRunVariable = "PERF_RUN";

// Prints "error: " and `who` said `error`, unless another rank of the run prints the same error. Takes a second, in which
// the others come to theirs: a launcher ends them all when the first process ends.
void print_error_once(const std::string& who, const std::string& error);

}  // namespace treering::perf
