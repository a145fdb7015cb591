// SPDX-License-Identifier: Apache-2.0
// ScheduleCache: what a communicator does for each collective and size, decided and compiled once.
//
// Sizes fall into bands, powers of two; every size of a band runs the same algorithm with the same compiled programs.
// A band is decided when it is first used; after that a look-up is two array accesses. The cache is bounded by the
// number of bands, and programs that several bands share exist once.
//
//   collective, constraints -> Table -> band -> Choice -> root -> Program
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "algorithms/select.h"
#include "executor/execution.h"
#include "topology/plan.h"

namespace treering {

// What a call needs beyond its size; bits.
enum Constraint : uint32_t {
  kUnequalParts = 1,  // v-variants
  kRankOrdered = 2,   // operands are combined in ascending rank order
  kComputedOnce = 4,  // each result is computed by one rank and forwarded
};
inline constexpr uint32_t kConstraintSets = 8;

struct Choice {
  bool mailbox = false;
  Candidate candidate;
  std::vector<std::atomic<const Program*>> by_root;  // one entry where there is no root
};

class ScheduleCache {
 public:
  ScheduleCache(Plan plan, uint32_t rank, Machine machine, std::string forced_algorithm, uint32_t forced_channels);

  // Checks the forced algorithms' limits by deciding one size of each collective.
  Status check();
  // The choice for a call whose larger buffer has `bytes` bytes; never fails after check().
  const Choice& choose(Collective collective, size_t bytes, uint32_t constraints) {
    Table* table =
        tables_[static_cast<size_t>(collective) * kConstraintSets + constraints].load(std::memory_order_acquire);
    const Choice* choice = table == nullptr ? nullptr : table->bands[band_of(bytes)].load(std::memory_order_acquire);
    return choice != nullptr ? *choice : decide(collective, constraints, band_of(bytes));
  }
  const Program& program(const Choice& choice, uint32_t root) {
    const Program* program = choice.by_root[choice.by_root.size() == 1 ? 0 : root].load(std::memory_order_acquire);
    return program != nullptr ? *program : compile(choice, root);
  }
  // The schedule of one lane (layout.h): to a peer, from a peer, or from this rank to itself.
  const Schedule* send_lane(uint32_t peer) { return lane(0, peer); }
  const Schedule* receive_lane(uint32_t peer) { return lane(1, peer); }
  const Schedule* copy_lane() { return lane(2, rank_); }

  Status explain(Collective collective, size_t bytes, uint32_t constraints, std::string* text) const;
  const Plan& plan() const { return plan_; }
  const Machine& machine() const { return machine_; }

 private:
  static constexpr size_t kBands = 65;
  // Band b holds the sizes in (2^(b-1), 2^b].
  static size_t band_of(size_t bytes) { return bytes <= 1 ? 0 : 64 - static_cast<size_t>(__builtin_clzll(bytes - 1)); }
  struct Table {
    std::array<std::atomic<const Choice*>, kBands> bands{};
  };
  using Key = std::tuple<const Algorithm*, uint32_t, uint32_t, uint32_t>;  // channels, pipeline chunks, root

  const Choice& decide(Collective collective, uint32_t constraints, size_t band);
  const Program& compile(const Choice& choice, uint32_t root);
  const Schedule* lane(uint32_t direction, uint32_t peer);
  SelectionInput input(Collective collective, size_t bytes, uint32_t constraints) const;

  Plan plan_;
  uint32_t rank_;
  Machine machine_;
  std::string forced_;
  uint32_t channels_;
  std::array<std::atomic<Table*>, kCollectiveCount * kConstraintSets> tables_{};
  std::mutex mutex_;  // of what follows
  std::vector<std::unique_ptr<Table>> owned_tables_;
  std::vector<std::unique_ptr<Choice>> choices_;
  std::map<Key, std::unique_ptr<Program>> programs_;
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Schedule>> lanes_;
};

}  // namespace treering
