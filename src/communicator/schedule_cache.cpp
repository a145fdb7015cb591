#include "communicator/schedule_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "core/log.h"

namespace treering {

ScheduleCache::ScheduleCache(Plan plan, uint32_t rank, Machine machine, std::string forced_algorithm,
                             uint32_t forced_channels)
    : plan_(std::move(plan)),
      rank_(rank),
      machine_(machine),
      forced_(std::move(forced_algorithm)),
      channels_(forced_channels) {}

SelectionInput ScheduleCache::input(size_t bytes) const {
  SelectionInput input;
  input.ranks = plan_.ranks;
  input.bytes = bytes;
  input.channels = channels_;
  input.forced = forced_;
  return input;
}

Status ScheduleCache::check() {
  Selection selection;
  return select(machine_, input(1), &selection);
}

const Choice& ScheduleCache::decide(size_t band) {
  std::lock_guard lock(mutex_);
  if (choices_[band]) return *choices_[band];
  Selection selection;
  size_t bytes = band >= 63 ? SIZE_MAX / 2 : size_t{1} << band;
  if (Status status = select(machine_, input(bytes), &selection); !status.ok()) {
    log_line(LogLevel::kError, "selection failed after it was checked: " + status.message());
    std::abort();
  }
  auto choice = std::make_unique<Choice>();
  choice->candidate = selection.best;
  choice->candidate.channels = std::min(choice->candidate.channels, kMaxChannels);
  choice->mailbox = selection.best.protocol == Protocol::kMailbox;
  choice->program = program(choice->candidate);
  if (rank_ == 0 && log_enabled(LogLevel::kInfo))
    log_line(LogLevel::kInfo, fmt::format("allreduce of up to {}: {} ({}), {} channel(s), messages of up to {}, {:.2f} us "
                                          "predicted; trExplain() shows the alternatives",
                                          format_bytes(bytes), choice->candidate.algorithm->name,
                                          protocol_name(choice->candidate.protocol), choice->candidate.channels,
                                          format_bytes(choice->candidate.chunk_bytes), choice->candidate.predicted_us));
  choices_[band] = std::move(choice);
  bands_[band].store(choices_[band].get(), std::memory_order_release);
  return *choices_[band];
}

const Program* ScheduleCache::program(const Candidate& candidate) {
  auto& slot = programs_[Key(candidate.algorithm, candidate.channels, candidate.pipeline_chunks)];
  if (slot) return slot.get();
  slot = std::make_unique<Program>();
  slot->input_used_once = candidate.algorithm->input_used_once;
  for (uint32_t channel = 0; channel < candidate.channels; ++channel)
    slot->channels.push_back(
        candidate.algorithm->build(plan_, rank_, Shape{channel, candidate.channels, candidate.pipeline_chunks}));
  return slot.get();
}

Status ScheduleCache::explain(size_t bytes, std::string* text) const {
  std::string ranges;
  TR_RETURN_IF_ERROR(explain_text(machine_, input(bytes), text));
  TR_RETURN_IF_ERROR(explain_ranges_text(machine_, input(bytes), &ranges));
  *text += "\n" + ranges;
  return {};
}

}  // namespace treering
