// SPDX-License-Identifier: Apache-2.0
#include "lateness.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace treering::trace {
namespace {

class LatenessFinder {
 public:
  LatenessFinder(const Trace& trace, const Clocks& clocks, double least)
      : trace_(trace), clocks_(clocks), least_(least) {}

  void read(const TracedGroup& group, uint64_t number, const TracedCall& call) {
    lost_.clear();
    const CallRecord* const last = number != 0 && call.records.size() == group.ranks ? last_to_begin(call) : nullptr;
    for (const CallRecord& record : call.records) {
      if (record.waited < least_) continue;
      if (last != nullptr)
        blame_last(record, *last);
      else
        follow_wait(group, call, record);
    }
    for (const auto& [rank, lost] : lost_) count(group, rank, lost, number, call);
  }

  Lateness take() {
    for (auto& [key, late] : late_) result_.ranks.push_back(std::move(late));
    std::stable_sort(result_.ranks.begin(), result_.ranks.end(),
                     [](const LateRank& a, const LateRank& b) { return a.lost > b.lost; });
    return std::move(result_);
  }

 private:
  struct Loss {
    double sum = 0, longest = 0;
  };

  double begin_of(const CallRecord& record) const { return clocks_.translate(record.process, record.begin); }

  const CallRecord* last_to_begin(const TracedCall& call) const {
    return &*std::max_element(call.records.begin(), call.records.end(),
                              [this](const CallRecord& a, const CallRecord& b) { return begin_of(a) < begin_of(b); });
  }

  void lose(uint32_t rank, double us) {
    Loss& loss = lost_[rank];
    loss.sum += us;
    loss.longest = std::max(loss.longest, us);
  }

  // What it waited before the last one began. The rest is the time that the data took.
  void blame_last(const CallRecord& record, const CallRecord& last) {
    const double error =
        record.process == last.process ? 0 : clocks_.error(record.process) + clocks_.error(last.process);
    const double before = begin_of(last) - begin_of(record);
    const double lost = std::min(record.waited, before);
    const bool is_late = &record != &last && before > error && lost >= least_;
    if (is_late) lose(last.rank, lost);
    result_.exchange += record.waited - (is_late ? lost : 0);
  }

  void follow_wait(const TracedGroup& group, const TracedCall& call, const CallRecord& record) {
    std::set<uint32_t> seen{record.rank};
    std::optional<uint32_t> next = record.waited_for;
    while (next && seen.insert(*next).second) {
      const auto waits = std::find_if(call.records.begin(), call.records.end(), [&](const CallRecord& other) {
        return other.rank == *next && other.waited >= least_ && other.waited_for;
      });
      if (waits == call.records.end()) {
        if (group.processes.count(*next) != 0) return lose(*next, record.waited);
        result_.unknown += record.waited;
        return;
      }
      next = waits->waited_for;
    }
    result_.exchange += record.waited;  // in a circle, or for no rank in particular
  }

  void count(const TracedGroup& group, uint32_t rank, const Loss& loss, uint64_t number, const TracedCall& call) {
    const size_t process = group.processes.at(rank)[0];
    const auto is_there = [&](const auto& entry) { return entry.second[0] == process; };
    const bool is_alone = std::count_if(group.processes.begin(), group.processes.end(), is_there) == 1;
    const uint32_t name = is_alone ? trace_.processes[process].rank : rank;
    LateRank& late = late_[{process, name}];
    late.process = process;
    late.rank = name;
    ++late.times;
    late.lost += loss.sum;
    if (loss.longest <= late.longest) return;
    late.longest = loss.longest;
    late.worst = number == 0 ? call.name : fmt::format("{} {}", call.name, number);
    if (!group.name.empty()) late.worst += " of " + group.name;
  }

  const Trace& trace_;
  const Clocks& clocks_;
  const double least_;
  std::map<uint32_t, Loss> lost_;  // in the call at hand, by the rank that was late
  std::map<std::pair<size_t, uint32_t>, LateRank> late_;
  Lateness result_;
};

}  // namespace

Lateness find_late(const Trace& trace, const Clocks& clocks, double least) {
  LatenessFinder finder(trace, clocks, least);
  for (const TracedGroup& group : trace.communicators) {
    for (const auto& [number, call] : group.calls) finder.read(group, number, call);
    for (const TracedCall& call : group.uncounted) finder.read(group, 0, call);
  }
  return finder.take();
}

}  // namespace treering::trace
