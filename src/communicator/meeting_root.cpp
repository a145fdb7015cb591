#include "communicator/meeting_root.h"

#include <fmt/format.h>

#include <algorithm>

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

Status MeetingRoot::gave_up(const HelloMessage& hello) const {
  return {trRemoteError, fmt::format("rank {} (pid {} on {}) ended or gave up while the communicator was being created",
                                     hello.rank, hello.pid, places_[hello.process].host_name)};
}

MeetingRoot::MeetingRoot(const Place& own, const std::string& host) {
  JoinMessage join;
  join.host = host;
  join.place = own;
  (void)place(join);
}

PlacedMessage MeetingRoot::place(const JoinMessage& join) {
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

Status MeetingRoot::hello(const HelloMessage& hello, bool* complete) {
  *complete = false;
  if (hellos_.empty()) {
    ranks_ = hello.ranks;
    settings_ = hello.settings;
    first_rank_ = hello.rank;
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
    deadline_ = std::min(deadline_, Clock::now() + std::chrono::milliseconds(hello.timeout_ms));
  }
  hellos_[hello.rank] = hello;
  *complete = hellos_.size() == ranks_;
  return {};
}

RosterMessage MeetingRoot::roster() const {
  RosterMessage roster;
  roster.segment_bytes = roster.staging_bytes = UINT64_MAX;
  for (const auto& [rank, hello] : hellos_) {
    roster.segment_bytes = std::min(roster.segment_bytes, hello.segment_bytes);
    roster.staging_bytes = std::min(roster.staging_bytes, hello.staging_bytes);
  }
  roster.places = places_;
  for (const auto& [rank, hello] : hellos_) roster.process_of_rank.push_back(hello.process);
  return roster;
}

Status MeetingRoot::lost_process(uint32_t process) const {
  for (const auto& [rank, hello] : hellos_)
    if (hello.process == process) return gave_up(hello);
  return {};
}

Status MeetingRoot::lost_rank(uint32_t rank) const {
  auto found = hellos_.find(rank);
  return found == hellos_.end() ? Status() : gave_up(found->second);
}

std::string MeetingRoot::missing(const std::map<uint32_t, std::string>* answered) const {
  std::string missing;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    auto found = hellos_.find(rank);
    const bool arrived = found != hellos_.end();
    if (arrived && (answered == nullptr || answered->count(rank) != 0)) continue;
    missing += fmt::format("{}rank {}", missing.empty() ? "" : ", ", rank);
    if (arrived)
      missing += fmt::format(" (pid {} on {}, stopped answering)", found->second.pid,
                             places_[found->second.process].host_name);
    if (missing.size() > 300) {
      missing += ", ...";
      break;
    }
  }
  return fmt::format("{} of {} ranks", missing, ranks_);
}

Status MeetingRoot::deadline_passed(const std::map<uint32_t, std::string>* answered) const {
  return {trTimeout,
          fmt::format("the deadline passed while the communicator was being created; missing: {}", missing(answered))};
}

}  // namespace treering
