// ScheduleCache: what a communicator does for each size, decided and compiled once.
//
// Sizes fall into bands, powers of two; every size of a band runs the same algorithm with the same compiled programs.
// A band is decided when it is first used; after that a look-up is one array access. The cache is bounded by the
// number of bands, and programs that several bands share exist once.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "algorithms/select.h"
#include "executor/execution.h"
#include "topology/plan.h"

namespace treering {

struct Choice {
  const Program* program = nullptr;
  bool mailbox = false;
  Candidate candidate;
};

class ScheduleCache {
 public:
  ScheduleCache(Plan plan, uint32_t rank, Machine machine, std::string forced_algorithm, uint32_t forced_channels);

  // Checks the forced algorithm's name and limits by deciding one size.
  Status check();
  // The choice for a call of `bytes` bytes; never fails after check().
  const Choice& choose(size_t bytes) {
    const Choice* choice = bands_[band_of(bytes)].load(std::memory_order_acquire);
    return choice != nullptr ? *choice : decide(band_of(bytes));
  }
  Status explain(size_t bytes, std::string* text) const;
  const Plan& plan() const { return plan_; }
  const Machine& machine() const { return machine_; }

 private:
  static constexpr size_t kBands = 65;
  // Band b holds the sizes in (2^(b-1), 2^b].
  static size_t band_of(size_t bytes) {
    return bytes <= 1 ? 0 : 64 - static_cast<size_t>(__builtin_clzll(bytes - 1));
  }
  const Choice& decide(size_t band);
  const Program* program(const Candidate& candidate);
  SelectionInput input(size_t bytes) const;

  using Key = std::tuple<const Algorithm*, uint32_t, uint32_t>;

  Plan plan_;
  uint32_t rank_;
  Machine machine_;
  std::string forced_;
  uint32_t channels_;
  std::array<std::atomic<const Choice*>, kBands> bands_{};
  std::mutex mutex_;  // of the two below
  std::array<std::unique_ptr<Choice>, kBands> choices_;
  std::map<Key, std::unique_ptr<Program>> programs_;
};

}  // namespace treering
