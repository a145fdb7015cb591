// SPDX-License-Identifier: Apache-2.0
// The barrier that says who is missing.
//
// Each rank puts into the store that it has come. Rank 0 waits for all, and then puts a verdict there: empty, or who is
// missing. The communicator has no part in it, so that a rank that comes late, or never, does no harm to it.
#include "backend.h"
#include "errors.h"
#include "neighbours.h"

namespace treering::pytorch {
namespace {

// What a verdict may take on its way.
constexpr auto kGrace = std::chrono::seconds(5);

std::string key_of(uint64_t number, const std::string& what) {
  return c10::str("treering/monitored/", number, "/", what);
}

}  // namespace

std::string Backend::missing_ranks(uint64_t number, std::chrono::milliseconds timeout) {
  std::vector<int> missing;
  for (int rank = 1; rank < size_; ++rank) missing.push_back(rank);
  const bool all = poll(Clock::now() + timeout, [&] {
    std::erase_if(missing, [&](int rank) { return store_->check({key_of(number, std::to_string(rank))}); });
    return missing.empty();
  });
  if (all) return "";
  std::string names, deaths;
  for (const int rank : missing) {
    names += (names.empty() ? "" : ", ") + std::to_string(rank);
    if (const std::string death = death_of(*store_, rank); !death.empty()) deaths += "; " + death;
  }
  return c10::str(missing.size() == 1 ? "rank " : "ranks ", names, missing.size() == 1 ? " has" : " have",
                  " not come within ", timeout.count(), " ms", deaths);
}

std::string Backend::monitor(uint64_t number, std::chrono::milliseconds timeout) {
  const std::string verdict = key_of(number, "verdict");
  store_->set(key_of(number, std::to_string(rank_)), "here");
  if (rank_ == 0) {
    const std::string missing = missing_ranks(number, timeout);
    store_->set(verdict, "v" + missing);  // not every store takes an empty value
    // All have come, so all are done with the barrier before.
    if (missing.empty() && number > 0) {
      for (int rank = 0; rank < size_; ++rank) store_->deleteKey(key_of(number - 1, std::to_string(rank)));
      store_->deleteKey(key_of(number - 1, "verdict"));
    }
    return missing;
  }
  const auto is_there = [&](const std::string& key) { return store_->check({key}); };
  if (!poll(Clock::now() + timeout, [&] { return is_there(key_of(number, "0")) || is_there(verdict); }))
    return c10::str("rank 0 has not come within ", timeout.count(), " ms");
  if (!poll(Clock::now() + timeout + kGrace, [&] { return is_there(verdict); }))
    return c10::str("rank 0 has come, but has said nothing for ", timeout.count(), " ms");
  const std::vector<uint8_t> said = store_->get(verdict);
  return std::string(said.begin() + 1, said.end());
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) {
  const auto timeout = options.timeout > kNoTimeout ? options.timeout : options_->timeout;
  const std::string missing = monitor(monitored_++, timeout);
  if (!missing.empty()) raise("monitored_barrier: " + missing);
}

}  // namespace treering::pytorch
