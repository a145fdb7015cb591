// SPDX-License-Identifier: Apache-2.0
// Launcher: starts the processes of a run on this machine, pins their ranks and sees that none is left
// behind.
//
// Invariant: when launch() returns, every process it started has ended. They die with the launcher too
// (parent death signal). A process that dies by itself ends the run, and its ranks are named.
#pragma once

#include <functional>
#include <vector>

#include "options.h"
#include "rank_group.h"

namespace treering::perf {

// The core of each rank: one of its own out of the inherited affinity, or -1 for all when there are too few.
std::vector<int> assign_cores(int ranks);

// Binds the calling thread; -1 leaves it as it is.
void pin_to_core(int core);

// Forks `options.procs` processes that each run `process_main(process)` and exit with what it returns. Must
// be called while the calling process has one thread. Returns the run's exit status: that of `shared` when
// every process ended well, 1 when one did not, 128 + the signal after SIGINT, SIGTERM or SIGHUP. In an endless run (-N
// 0) the first SIGINT is handed on to the processes, which end by themselves (interrupt.h).
int launch(const Options& options, SharedState* shared, const std::function<int(int process)>& process_main);

}  // namespace treering::perf
