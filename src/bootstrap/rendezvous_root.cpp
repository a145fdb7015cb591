// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/rendezvous_root.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace treering {
namespace {

std::string difference(const std::string& a, const std::string& b) {
  size_t at = 0, line = 0;
  while (at < a.size() && at < b.size() && a[at] == b[at]) {
    if (a[at] == '\n') line = at + 1;
    ++at;
  }
  auto text = [line](const std::string& s) { return s.substr(line, s.find('\n', line) - line); };
  return fmt::format("'{}' and '{}'", text(a), text(b));
}

}  // namespace

// "rank 3 (pid 17 on b)", or "rank 3" where it has not arrived and is not known by another name.
std::string RendezvousRoot::name_of(uint32_t rank) const {
  if (rank < names_.size()) return names_[rank];
  const auto found = hellos_.find(rank);
  if (found == hellos_.end()) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (pid {} on {})", rank, found->second.pid, places_[found->second.process].host_name);
}

Status RendezvousRoot::gave_up(const HelloMessage& hello) const {
  return {trRemoteError, name_of(hello.rank) + " ended or gave up while the communicator was being created"};
}

RendezvousRoot::RendezvousRoot(const Place& own, const std::string& host, std::vector<std::string> names)
    : names_(std::move(names)) {
  JoinMessage join;
  join.host = host;
  join.place = own;
  (void)place(join);
}

PlacedMessage RendezvousRoot::place(const JoinMessage& join) {
  auto [known, is_new] = process_of_.try_emplace(join.place.local, static_cast<uint32_t>(places_.size()));
  if (is_new) {
    Place place = join.place;
    place.process = known->second;
    auto [host, first_of_host] = host_numbers_.try_emplace(join.host, static_cast<uint32_t>(hosts_.size()));
    place.host = host->second;
    if (first_of_host) {
      if (place.host > 0) place.parent = hosts_[(place.host - 1) / kFanOut][0];
      hosts_.emplace_back();
    } else {
      place.parent = hosts_[place.host][(hosts_[place.host].size() - 1) / kFanOut];
    }
    hosts_[place.host].push_back(place.process);
    places_.push_back(std::move(place));
  }
  PlacedMessage placed;
  placed.own = places_[known->second];
  for (uint32_t next = placed.own.parent; next != kNobody; next = places_[next].parent)
    placed.ancestors.push_back(places_[next]);
  return placed;
}

Status RendezvousRoot::hello(const HelloMessage& hello, Clock::time_point now, bool* complete) {
  *complete = false;
  if (hellos_.empty()) {
    ranks_ = hello.ranks;
    settings_ = hello.settings;
    first_rank_ = hello.rank;
    first_hello_ = now;
  }
  if (hello.rank >= hello.ranks || hello.process >= places_.size())
    return {trInvalidArgument, fmt::format("rank {} of {} ranks", hello.rank, hello.ranks)};
  if (hello.ranks != ranks_)
    return {trInvalidUsage, fmt::format("nranks differs: rank {} gave {}, rank {} gave {}", first_rank_, ranks_,
                                        hello.rank, hello.ranks)};
  if (auto found = hellos_.find(hello.rank); found != hellos_.end()) {
    if (found->second.nonce == hello.nonce) return {};
    return {trInvalidUsage, fmt::format("rank {} of {} was given twice, by process {} and by process {}", hello.rank,
                                        ranks_, found->second.pid, hello.pid)};
  }
  if (hello.settings != settings_)
    return {trInvalidUsage, fmt::format("settings differ between ranks {} and {}: {}", first_rank_, hello.rank,
                                        difference(settings_, hello.settings))};
  if (hello.timeout_ms > 0) {
    timeout_ms_ = hello.timeout_ms;
    deadline_ = std::min(deadline_, now + std::chrono::milliseconds(hello.timeout_ms));
  }
  hellos_[hello.rank] = hello;
  *complete = hellos_.size() == ranks_;
  return {};
}

ProcessTableMessage RendezvousRoot::process_table() const {
  ProcessTableMessage table;
  table.segment_bytes = table.staging_bytes = UINT64_MAX;
  for (const auto& [rank, hello] : hellos_) {
    table.segment_bytes = std::min(table.segment_bytes, hello.segment_bytes);
    table.staging_bytes = std::min(table.staging_bytes, hello.staging_bytes);
  }
  table.places = places_;
  for (const auto& [rank, hello] : hellos_) table.process_of_rank.push_back(hello.process);
  return table;
}

Status RendezvousRoot::lost_process(uint32_t process) const {
  for (const auto& [rank, hello] : hellos_)
    if (hello.process == process) return gave_up(hello);
  return {};
}

Status RendezvousRoot::lost_rank(uint32_t rank) const {
  auto found = hellos_.find(rank);
  return found == hellos_.end() ? Status() : gave_up(found->second);
}

std::string RendezvousRoot::missing(const Parts* answered, const std::set<uint32_t>& silent) const {
  constexpr size_t kMaxText = 300;
  const auto is_missing = [&](uint32_t rank) {
    return hellos_.count(rank) == 0 || (answered != nullptr && answered->count(rank) == 0);
  };
  // The first missing rank of the process through which that one is heard; process 0 hears its own children.
  const auto mute_above = [&](const Place& place) -> std::optional<uint32_t> {
    for (const auto& [rank, hello] : hellos_)
      if (place.parent != 0 && hello.process == place.parent && (answered == nullptr || is_missing(rank))) return rank;
    return {};
  };
  std::string missing, below;
  const auto add = [&](std::string name, const std::string& note) {
    if (name.ends_with(')')) name.insert(name.size() - 1, note);
    missing += missing.empty() ? name : ", " + name;
  };
  // Ranks that are heard, those of this process among them, may wait for one that is not.
  std::vector<std::string> late, own;
  for (uint32_t rank = 0; rank < ranks_ && missing.size() <= kMaxText; ++rank) {
    if (!is_missing(rank)) continue;
    const auto hello = hellos_.find(rank);
    if (hello == hellos_.end()) {
      add(name_of(rank), "");
      continue;
    }
    const Place& place = places_[hello->second.process];
    const bool is_cut_off = place.parent != 0 && silent.count(place.parent) != 0;
    const auto above = mute_above(place);
    if (place.process == 0)
      own.push_back(name_of(rank));
    else if (is_cut_off && !above)  // the parent has given its part
      add(name_of(rank), fmt::format(", heard through process {} (pid {} on {}) alone, which stopped answering",
                                     place.parent, places_[place.parent].pid, places_[place.parent].host_name));
    else if (silent.count(place.process) != 0 && !is_cut_off)
      add(name_of(rank), ", stopped answering");
    else if (!above)
      late.push_back(name_of(rank));
    else if (below.size() < kMaxText)
      below += fmt::format("; {} is heard through {} alone", name_of(rank), name_of(*above));
  }
  for (const auto& names : {late, own}) {
    const bool others_are_missing = !missing.empty();
    for (const std::string& name : names)
      if (others_are_missing)
        below += below.size() < kMaxText ? fmt::format("; {} is not at this step yet", name) : "";
      else if (missing.size() <= kMaxText)
        add(name, ", not at this step yet");
  }
  if (missing.size() > kMaxText) missing += ", ...";
  for (const Place& place : places_) {
    const bool said = std::any_of(hellos_.begin(), hellos_.end(),
                                  [&](const auto& entry) { return entry.second.process == place.process; });
    const auto above = mute_above(place);
    if (said || !above || below.size() >= kMaxText) continue;
    below += fmt::format("; process {} (pid {} on {}) has come, and is heard through {} alone", place.process,
                         place.pid, place.host_name, name_of(*above));
  }
  return fmt::format("{} of {} ranks{}", missing, ranks_, below);
}

Status RendezvousRoot::deadline_passed(const Parts* answered, const std::set<uint32_t>& silent) const {
  const auto own =
      std::find_if(hellos_.begin(), hellos_.end(), [](const auto& entry) { return entry.second.process == 0; });
  const std::string who = own != hellos_.end() ? name_of(own->first)
                                               : fmt::format("the process that made the unique id (pid {} on {})",
                                                             places_[0].pid, places_[0].host_name);
  return {trTimeout, fmt::format("the deadline passed while the communicator was being created, says {}; missing: {}",
                                 who, missing(answered, silent))};
}

std::string RendezvousRoot::still_waiting(Clock::time_point now) const {
  const std::string until =
      deadline_ == Clock::time_point::max()
          ? "there is no deadline"
          : fmt::format("the deadline (TREERING_TIMEOUT) is in {:.0f} s", seconds(deadline_ - now));
  return fmt::format("the first rank has been waiting for {:.0f} s for {}; {}", seconds(now - first_hello_),
                     missing(nullptr, {}), until);
}

}  // namespace treering
