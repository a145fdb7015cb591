// SPDX-License-Identifier: Apache-2.0
// The selection in words and tables.
#include <fmt/format.h>

#include <algorithm>

#include "algorithms/select.h"

namespace treering {
namespace {

std::string describe(const Machine& machine, const SelectionInput& input) {
  std::string text = fmt::format("{} ranks on {} cores, {} buffers{}", input.ranks, machine.cores,
                                 input.direct ? "shared" : "ordinary", input.in_place ? ", in place" : "");
  const uint32_t host_ranks = machine.host_ranks == 0 ? input.ranks : machine.host_ranks;
  if (machine.hosts > 1)
    text += fmt::format(
        ", {} hosts of up to {} ranks, {:.2f} Gbit/s and {:.1f} us between hosts, {:.1f} us of work a message",
        machine.hosts, host_ranks, machine.network_gbps * 8, machine.network_us, machine.network_message_us);
  if (host_ranks > machine.cores) text += " (more ranks than cores: every wait costs the turns of other ranks)";
  return text;
}

// Only the best pipeline depth of an algorithm and protocol is shown.
std::vector<Candidate> best_depths(const std::vector<Candidate>& candidates) {
  std::vector<Candidate> result;
  for (const Candidate& c : candidates) {
    if (result.empty() || result.back().algorithm != c.algorithm || result.back().protocol != c.protocol)
      result.push_back(c);
    else if (c.predicted_us < result.back().predicted_us)
      result.back() = c;
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const Candidate& a, const Candidate& b) { return a.predicted_us < b.predicted_us; });
  return result;
}

}  // namespace

std::string format_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return value == static_cast<double>(static_cast<uint64_t>(value)) ? fmt::format("{:.0f} {}", value, kUnits[unit])
                                                                    : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

Status explain_text(const Machine& machine, const SelectionInput& input, std::string* text) {
  Selection selection;
  TR_RETURN_IF_ERROR(select(machine, input, &selection));
  const Candidate& best = selection.best;
  // One that does not fit is left out, with the reason.
  std::string forced;
  if (forced_algorithm(input.forced, input.collective) == best.algorithm) forced = "; the algorithm is forced";
  if (!selection.forced_in_vain.empty()) forced += ", but " + selection.forced_in_vain;
  *text = fmt::format("{} of {}: {}\n", info_of(input.collective).name, format_bytes(input.bytes),
                      describe(machine, input));
  *text += fmt::format("chosen: {} ({}), {} channel(s), {} slice(s) of {}, messages of up to {}{}\n",
                       best.algorithm->name, protocol_name(best.protocol), best.channels, best.slices,
                       format_bytes(best.slice_bytes), format_bytes(best.chunk_bytes), forced);
  *text += fmt::format("  {}; {}; rounds {}\n\n", best.algorithm->description, best.algorithm->source,
                       best.algorithm->rounding);
  *text += fmt::format("  {:<19}{:<9}{:>8}{:>9}{:>8}{:>7}{:>10}{:>12}{:>12}{:>12}{:>13}\n", "algorithm", "protocol",
                       "channels", "pipeline", "slices", "rounds", "messages", "latency us", "steps us", "data us",
                       "predicted us");
  for (const Candidate& c : best_depths(selection.candidates)) {
    const bool chosen = c.algorithm == best.algorithm && c.protocol == best.protocol;
    *text +=
        fmt::format("{} {:<19}{:<9}{:>8}{:>9}{:>8}{:>7.0f}{:>10.0f}{:>12.2f}{:>12.2f}{:>12.2f}{:>13.2f}\n",
                    chosen ? '*' : ' ', c.algorithm->name, protocol_name(c.protocol), c.channels, c.pipeline_chunks,
                    c.slices, c.rounds, c.messages, c.latency_us, c.executor_us, c.data_us, c.predicted_us);
  }
  *text += "\nrounds and messages of one slice; predicted = latency (rounds) + steps (messages) + data (bytes)\n";
  for (const std::string& reason : selection.left_out) *text += fmt::format("left out: {}\n", reason);
  return {};
}

Status explain_ranges_text(const Machine& machine, const SelectionInput& input, std::string* text) {
  std::vector<SelectionRange> ranges;
  TR_RETURN_IF_ERROR(selection_ranges(machine, input, &ranges));
  *text = fmt::format("{}: {}\n", info_of(input.collective).name, describe(machine, input));
  *text += fmt::format("  {:>12}   {:<12}{:<20}{:<9}{:>8}  {}\n", "from", "to", "algorithm", "protocol", "channels",
                       "predicted us at its start");
  for (const SelectionRange& range : ranges)
    *text += fmt::format("  {:>12} - {:<12}{:<20}{:<9}{:>8}  {:.2f}\n", format_bytes(range.first_bytes),
                         range.last_bytes == UINT64_MAX ? "any" : format_bytes(range.last_bytes),
                         range.at_first.algorithm->name, protocol_name(range.at_first.protocol),
                         range.at_first.channels, range.at_first.predicted_us);
  return {};
}

}  // namespace treering
