// SPDX-License-Identifier: Apache-2.0
#include "communicator/calls/schedule_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

#include "algorithms/expand.h"
#include "algorithms/lanes.h"
#include "core/log.h"

namespace treering {
namespace {

// Communicators come and go: each text once in a process.
void warn_once(const std::string& text) {
  static std::mutex mutex;
  static auto* const said = new std::set<std::string>;
  std::lock_guard lock(mutex);
  if (said->insert(text).second) log_line(LogLevel::kWarn, text);
}

Schedule schedule_of_lane(uint32_t direction, uint32_t ranks, uint32_t rank, uint32_t peer) {
  if (direction == 0) return send_schedule(ranks, rank, peer);
  return direction == 1 ? receive_schedule(ranks, rank, peer) : copy_schedule(ranks, rank);
}

}  // namespace

ScheduleCache::ScheduleCache(Plan plan, uint32_t rank, Machine machine, std::string forced_algorithm,
                             uint32_t forced_channels)
    : plan_(std::move(plan)),
      rank_(rank),
      machine_(machine),
      forced_(std::move(forced_algorithm)),
      channels_(forced_channels) {}

SelectionInput ScheduleCache::input(Collective collective, size_t bytes, uint32_t constraints) const {
  SelectionInput input;
  input.collective = collective;
  input.ranks = plan_.ranks;
  input.bytes = bytes;
  input.unequal = (constraints & kUnequalParts) != 0;
  input.rank_ordered_only = (constraints & kRankOrdered) != 0;
  input.computed_once_only = (constraints & kComputedOnce) != 0;
  input.channels = channels_;
  input.forced = forced_;
  return input;
}

Status ScheduleCache::check() {
  Selection selection;
  for (const CollectiveInfo& row : collectives())
    TR_RETURN_IF_ERROR(select(machine_, input(row.collective, 1, 0), &selection));
  return {};
}

const Choice& ScheduleCache::decide(Collective collective, uint32_t constraints, size_t band) {
  std::lock_guard lock(mutex_);
  auto& table = tables_[static_cast<size_t>(collective) * kConstraintSets + constraints];
  const bool is_first = table.load() == nullptr;
  if (is_first) {
    owned_tables_.push_back(std::make_unique<Table>());
    table.store(owned_tables_.back().get(), std::memory_order_release);
  }
  auto& slot = table.load()->bands[band];
  if (slot.load() != nullptr) return *slot.load();
  const LogRank lines_have_it(rank_);
  Selection selection;
  size_t bytes = band >= 63 ? SIZE_MAX / 2 : size_t{1} << band;
  if (Status status = select(machine_, input(collective, bytes, constraints), &selection); !status.ok()) {
    log_line(LogLevel::kError, "selection failed after it was checked: " + status.message());
    std::abort();
  }
  if (is_first && rank_ == 0 && !selection.forced_left_out.empty())
    warn_once(
        fmt::format("TREERING_ALGO is not followed in {}: {}", info_of(collective).name, selection.forced_left_out));
  if (is_first && rank_ == 0 && !selection.forced_in_vain.empty())
    warn_once(fmt::format("TREERING_ALGO forces {} in {}, which {}; it is used all the same",
                          selection.best.algorithm->name, info_of(collective).name, selection.forced_in_vain));
  auto choice = std::make_unique<Choice>();
  choice->candidate = selection.best;
  choice->mailbox = selection.best.protocol == Protocol::kMailbox;
  choice->by_root = std::vector<std::atomic<const Program*>>(info_of(collective).rooted ? plan_.ranks : 1);
  if (rank_ == 0 && log_enabled(LogLevel::kInfo))
    log_line(
        LogLevel::kInfo,
        fmt::format("{} of up to {}: {} ({}), {} channel(s), messages of up to {}, {:.2f} us predicted; trExplain() "
                    "shows the alternatives",
                    info_of(collective).name, format_bytes(bytes), choice->candidate.algorithm->name,
                    protocol_name(choice->candidate.protocol), choice->candidate.channels,
                    format_bytes(choice->candidate.chunk_bytes), choice->candidate.predicted_us));
  choices_.push_back(std::move(choice));
  slot.store(choices_.back().get(), std::memory_order_release);
  return *choices_.back();
}

namespace {

std::vector<uint32_t> find_givers(const std::vector<Schedule>& channels) {
  constexpr uint16_t kUnchanged = kReceive | kStore | kFinal;
  std::set<uint32_t> givers;
  for (const Schedule& schedule : channels)
    for (Expansion at(schedule); !at.done(); at.advance()) {
      const Step& step = at.step();
      if ((step.flags & (kUnchanged | kReduce)) != kUnchanged) continue;
      for (uint32_t i = 0; i < step.receive_count; ++i) givers.insert(at.receive_peer(i));
    }
  return {givers.begin(), givers.end()};
}

}  // namespace

const Program& ScheduleCache::compile(const Choice& choice, uint32_t root) {
  std::lock_guard lock(mutex_);
  const Candidate& candidate = choice.candidate;
  if (choice.by_root.size() == 1) root = 0;
  auto& slot = programs_[Key(candidate.algorithm, candidate.channels, candidate.pipeline_chunks, root)];
  if (!slot) {
    auto program = std::make_unique<Program>();
    program->algorithm = candidate.algorithm;
    program->input_used_once = candidate.algorithm->input_used_once;
    program->max_span =
        candidate.algorithm->work({.ranks = plan_.ranks, .bytes = 1, .pipeline_chunks = candidate.pipeline_chunks})
            .max_span;
    for (uint32_t channel = 0; channel < candidate.channels; ++channel)
      program->channels.push_back(candidate.algorithm->build(
          plan_, rank_, Shape{channel, candidate.channels, candidate.pipeline_chunks, root}));
    program->givers = find_givers(program->channels);
    slot = std::move(program);
  }
  const_cast<Choice&>(choice).by_root[root].store(slot.get(), std::memory_order_release);
  return *slot;
}

const Schedule* ScheduleCache::lane(uint32_t direction, uint32_t peer) {
  std::lock_guard lock(mutex_);
  auto& slot = lanes_[{direction, peer}];
  if (!slot) slot = std::make_unique<Schedule>(schedule_of_lane(direction, plan_.ranks, rank_, peer));
  return slot.get();
}

Status ScheduleCache::explain(Collective collective, size_t bytes, uint32_t constraints, std::string* text) const {
  std::string ranges;
  TR_RETURN_IF_ERROR(explain_text(machine_, input(collective, bytes, constraints), text));
  TR_RETURN_IF_ERROR(explain_ranges_text(machine_, input(collective, bytes, constraints), &ranges));
  *text += "\n" + ranges;
  return {};
}

}  // namespace treering
