// SPDX-License-Identifier: Apache-2.0
#include "run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "../calls.h"
#include "../say.h"
#include "support/fake_verbs/fake_verbs.h"
#include "support/waiting.h"

namespace faults::verbs {
namespace {

using treering::testing::soon;

constexpr size_t kIds = 12;                      // communicators of the phase `init`
constexpr auto kAll = std::chrono::seconds(12);  // until all ranks have come to a point
constexpr size_t kMaxObjects = 256;
constexpr int kPolls = 500;

fake_verbs_counters counters() {
  fake_verbs_counters now{};
  fake_verbs_get_counters(&now);
  return now;
}

std::vector<fake_verbs_qp> queue_pairs() {
  std::vector<fake_verbs_qp> all(kMaxObjects);
  all.resize(std::min(all.size(), fake_verbs_qps(all.data(), all.size())));
  return all;
}

struct Shared {
  const Scenario& scenario;
  std::vector<trUniqueId> ids;
  std::atomic<int> in{0}, through{0};
  std::atomic<bool> stop{false};
  std::atomic<int> leaver{-1};
};

class Rank {
 public:
  Rank(Shared* shared, int rank, Report* report)
      : shared_(*shared),
        scenario_(shared->scenario),
        rank_(rank),
        report_(*report),
        calls_(scenario_.least, scenario_.most) {
    base_.rank = rank, base_.ranks = scenario_.ranks;
  }

  void run() {
    fake_verbs_set_owner(rank_);
    if (scenario_.phase == Phase::kInit) {
      run_inits();
    } else if (passes([&] { return init(0, &base_.comm); }, true)) {
      if (scenario_.is_registered) calls_.register_buffers(base_.comm);
      loop();
    }
    look_at_memory();
    calls_.deregister_buffers();
    if (base_.comm != nullptr) trCommDestroy(base_.comm);
  }

 private:
  Called init(size_t number, trComm_t* comm) {
    return {"init", trCommInitRank(comm, scenario_.ranks, shared_.ids[number], rank_)};
  }

  template <typename Call>
  bool passes(const Call& call, bool is_of_base) {
    const double began = now();
    const Called called = call();
    std::atomic_ref(report_.calls)++;  // the driver looks meanwhile
    if (called.is_wrong)
      report_.wrong =
          fmt::format("{} element {} is {} and not {}", called.name, called.wrong_at, called.got, called.due);
    if (called.result == trSuccess) return !called.is_wrong;
    report_.errors.push_back({called.result, now(), began, called.name, trGetLastError(nullptr), is_of_base});
    if (!is_of_base || !scenario_.calls() || !kept_.empty()) return false;
    // From here on nothing may touch the memory of the user. A queue pair that is made just now has no peer, and gets none.
    for (const fake_verbs_qp& qp : queue_pairs())
      if (qp.owner == rank_ && qp.is_connected && !qp.is_in_error)
        report_.unstopped += fmt::format(" {:#x}", qp.number);
    calls_.overwrite();  // a peer whose call succeeds has not got this
    kept_ = calls_.contents();
    return false;
  }

  void loop() {
    bool wants_end = false;
    for (uint64_t i = 0;; ++i) {
      if (shared_.leaver == rank_) {
        report_.is_gone = true;
        return;
      }
      for (uint64_t j = 0; j < (scenario_.phase == Phase::kSmall ? 8 : 1); ++j)
        if (!step(scenario_.numbers + 1000 * i + 10 * j, &wants_end)) return;
      bool any = false;
      if (!passes([&] { return calls_.agree(base_, wants_end || shared_.stop, &any); }, true)) return;
      if (any) {
        report_.is_ok = true;
        return;
      }
      if (i == 1) ++shared_.in;
    }
  }

  bool step(uint64_t draw, bool* wants_end) {
    if (scenario_.phase == Phase::kAllToAll) return passes([&] { return calls_.all_to_all(base_, draw); }, true);
    if (scenario_.calls())
      return passes([&] { return calls_.sum(base_, draw, calls_.least_count() + mixed(draw) % calls_.more_counts()); },
                    true);
    Place sub = base_;
    if (!passes([&] { return Called{"dup", trCommDup(base_.comm, &sub.comm)}; }, false)) return *wants_end = true;
    if (!passes([&] { return calls_.sum(sub, draw, 100); }, false)) *wants_end = true;
    trCommDestroy(sub.comm);
    return true;
  }

  void run_inits() {
    for (size_t i = 0; i < kIds; ++i) {
      Place made = base_;
      if (!passes([&] { return init(i, &made.comm); }, false)) return;
      bool any = false;
      const bool worked = passes([&] { return calls_.sum(made, i, 100); }, false) &&
                          passes([&] { return calls_.agree(made, shared_.stop, &any); }, false);
      trCommDestroy(made.comm);
      if (!worked) return;
      if (i == 0) ++shared_.in;
      if (any) break;
    }
    report_.is_ok = true;
  }

  // After twice the retry time, when all the others have failed, too.
  void look_at_memory() {
    ++shared_.through;
    if (kept_.empty()) return;
    (void)soon([&] { return shared_.through >= scenario_.ranks; }, kAll);
    fake_verbs_advance_clock(2 * kRetryTime);
    fake_verbs_advance(0);
    const std::vector<int32_t> now = calls_.contents();
    const auto [was, is] = std::mismatch(kept_.begin(), kept_.end(), now.begin());
    if (was != kept_.end())
      report_.changed = fmt::format("element {} was {} and is {}", was - kept_.begin(), *was, *is);
  }

  Shared& shared_;
  const Scenario& scenario_;
  const int rank_;
  Report& report_;
  Calls calls_;
  Place base_;
  std::vector<int32_t> kept_;  // buffers when a call on the base communicator had failed
};

// What is done, by the thread that is no rank.
class Fault {
 public:
  Fault(Shared* shared, Record* record) : shared_(*shared), scenario_(shared->scenario), record_(*record) {}

  void inject() {
    const uint64_t before = counters().post_calls;
    // A phase that has ended meanwhile does not get there.
    (void)soon([&] { return counters().post_calls >= before + scenario_.posts || shared_.through > 0; },
               std::chrono::seconds(2));
    record_.fault_at = now();
    switch (scenario_.kind) {
      case Kind::kQueuePair:
        return on_link([](const fake_verbs_qp& qp) { return fake_verbs_break_qp(qp.number) == 0; });
      case Kind::kCompletion:
        return on_link([&](const fake_verbs_qp& qp) {
          fake_verbs_fail_completion(qp.number, scenario_.is_receive ? FAKE_VERBS_RECEIVE_QUEUE : FAKE_VERBS_SEND_QUEUE,
                                     1, scenario_.status);
          return true;
        });
      case Kind::kKey:
        return take_key();
      case Kind::kLockedMemory:
        return fake_verbs_set_memlock(counters().bytes_registered + scenario_.draw % 4 * 4096);
      case Kind::kCall:
        return fake_verbs_fail_call(scenario_.function, scenario_.nth, scenario_.error);
      case Kind::kLate:
        return on_link([&](const fake_verbs_qp& qp) {
          if (fake_verbs_hold_qp(qp.number, 1) != 0) return false;
          wait_virtually();
          return fake_verbs_hold_qp(qp.number, 0) == 0;
        });
      case Kind::kPortShort:
        fake_verbs_set_port_up(0, 1, 0);
        wait_virtually();
        fake_verbs_set_port_up(0, 1, 1);
        return;
      case Kind::kPortLong:
        fake_verbs_set_port_up(0, 1, 0);
        return;
      case Kind::kLeave:
        record_.victims = {static_cast<int>(scenario_.draw) % scenario_.ranks};
        shared_.leaver = record_.victims[0];
        return;
      case Kind::kDatagrams:
        fake_verbs_limits limits{};
        fake_verbs_get_limits(&limits);
        limits.datagram_loss = 50;
        return fake_verbs_set_limits(&limits);
    }
  }

  // Whose thread made the call that failed, where it is known.
  void find_victim() {
    const fake_verbs_counters done = counters();
    if (scenario_.kind != Kind::kCall) return;
    record_.has_hit = done.failed_calls > 0;
    if (record_.has_hit && done.failed_call_owner >= 0) record_.victims = {done.failed_call_owner};
  }

 private:
  // Queue pairs come and go in some phases: it tries for a while.
  template <typename Hit>
  void on_link(const Hit& hit) {
    record_.has_hit = soon([&] {
      const std::vector<fake_verbs_qp> all = queue_pairs();
      std::vector<std::pair<fake_verbs_qp, int>> links;
      for (const fake_verbs_qp& qp : all)
        for (const fake_verbs_qp& other : all)
          if (qp.is_connected != 0 && qp.peer == other.number) links.emplace_back(qp, other.owner);
      if (links.empty()) return shared_.through > 0;
      const auto& [qp, peer] = links[scenario_.draw % links.size()];
      record_.victims = {qp.owner, peer};
      return hit(qp) || shared_.through > 0;
    });
  }
  void take_key() {
    const int victim = static_cast<int>(scenario_.draw) % scenario_.ranks;
    record_.victims = {victim};
    record_.has_hit = soon([&] {
      std::array<uint32_t, kMaxObjects> keys;
      const size_t count = std::min(keys.size(), fake_verbs_keys(victim, keys.data(), keys.size()));
      if (count == 0) return shared_.through > 0;
      return fake_verbs_invalidate_key(keys[scenario_.draw / 16 % count]) == 0;
    });
  }
  // As long as the scenario says; a busy machine may make it longer. The clock goes on also while all ranks sleep.
  void wait_virtually() {
    const uint64_t begin = counters().nanoseconds;
    (void)soon([&] {
      fake_verbs_advance(kPolls);
      return counters().nanoseconds >= begin + scenario_.held || shared_.through > 0;
    });
    record_.was_long = counters().nanoseconds > begin + kRetryTime * 4 / 5;
  }

  Shared& shared_;
  const Scenario& scenario_;
  Record& record_;
};

}  // namespace

Record run(const Scenario& scenario) {
  setenv("TREERING_TRANSPORTS", scenario.has_tcp ? "verbs,tcp" : "verbs", 1);
  setenv("TREERING_VERBS_DEVICES", "=fake0", 1);
  setenv("TREERING_TIMEOUT", fmt::format("{}", kTimeout).c_str(), 1);
  fake_verbs_reset();
  fake_verbs_set_seed(scenario.numbers);
  fake_verbs_set_disorder(scenario.disorder);
  const auto ranks = static_cast<size_t>(scenario.ranks);
  Record record;
  record.ranks.resize(ranks);
  Shared shared{scenario};
  shared.ids.resize(scenario.phase == Phase::kInit ? kIds : 1);
  for (trUniqueId& id : shared.ids)
    if (trGetUniqueId(&id) != trSuccess) return record.trouble = trGetLastError(nullptr), record;
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < ranks; ++i)
      threads.emplace_back([&, i] { Rank(&shared, static_cast<int>(i), &record.ranks[i]).run(); });
    if (!soon([&] { return shared.in == scenario.ranks || shared.through > 0; }) || shared.through > 0)
      record.trouble = "the ranks did not get into the phase";
    Fault fault(&shared, &record);
    if (record.trouble.empty()) fault.inject();
    // What is survived goes on for some calls; what ends them does so before the deadline.
    const auto calls = [&record] { return std::atomic_ref(record.ranks[0].calls).load(); };
    const uint64_t done = calls();
    if (scenario.outcome() != Outcome::kError)
      (void)soon([&] { return calls() > done + 10 || shared.through > 0; });
    else
      (void)soon([&] { return shared.through > 0; });
    shared.stop = true;
    threads.clear();
    fault.find_victim();
  }
  char left[256] = "";
  fake_verbs_left_over(left, sizeof left);
  record.left = left;
  return record;
}

}  // namespace faults::verbs
