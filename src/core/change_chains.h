// SPDX-License-Identifier: Apache-2.0
// Changes of communicators, which are made, split and ended by calls that block: they run side by side. Those of a chain
// run one after another, each chain in a thread of its own, the first in the caller's.
//
// Invariant: either all threads could be started, or no change has run. A change that waits for those of a thread that
// is missing would wait until its deadline.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <future>
#include <new>
#include <thread>
#include <vector>

#include "core/status.h"

namespace treering {

using ChangeChain = std::vector<std::function<Status()>>;

// An exception becomes a Status, in a thread in which nothing could catch it.
inline Status run_guarded(const std::function<Status()>& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::exception& error) {
    return {trInternalError, error.what()};
  }
}

// The first failure of the first chain that has one. A change that fails ends nothing: other ranks count on the later
// ones.
inline Status run_chains(const std::vector<ChangeChain>& chains) {
  if (chains.empty()) return {};
  std::vector<Status> results(chains.size());
  auto run = [&](size_t chain) {
    for (const auto& change : chains[chain]) {
      Status status = run_guarded(change);
      if (results[chain].ok()) results[chain] = std::move(status);
    }
  };
  std::promise<bool> gate;
  const std::shared_future<bool> all_started = gate.get_future().share();
  std::vector<std::thread> threads;
  std::string reason;
  try {
    threads.reserve(chains.size());
    for (size_t i = 1; i < chains.size(); ++i)
      threads.emplace_back([&run, all_started, i] {
        if (all_started.get()) run(i);
      });
  } catch (const std::exception& error) {
    reason = error.what();
  }
  const bool started = threads.size() + 1 == chains.size();
  gate.set_value(started);
  if (started) run(0);
  for (std::thread& thread : threads) thread.join();
  if (!started)
    return {trSystemError,
            fmt::format("only {} of the {} threads of the group could be started: {} (see ulimit -u and -v)",
                        threads.size(), chains.size() - 1, reason)};
  for (const Status& status : results)
    if (!status.ok()) return status;
  return {};
}

}  // namespace treering
