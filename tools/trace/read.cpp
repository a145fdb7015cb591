// SPDX-License-Identifier: Apache-2.0
#include "read.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace treering::trace {
namespace {

constexpr int kVersion = 1;
constexpr size_t kMaxNamed = 8;

// The events of one file, put where they belong.
class FileReader {
 public:
  FileReader(Trace* trace, std::map<std::string, size_t>* groups, const std::string& file)
      : trace_(trace), groups_(groups), index_(trace->processes.size()) {
    trace->processes.push_back({.file = file});
  }

  void read() {
    const std::string file = process().file;
    const bool is_whole = visit_events(file, [this](const Json& event) { take(event); });
    if (!has_head_)
      throw std::runtime_error(
          fmt::format("{}: the event treering_process is missing: TREERING_TRACE has not made this file", file));
    process().is_cut = !is_whole;
  }

 private:
  TracedProcess& process() { return trace_->processes[index_]; }

  void take(const Json& event) {
    const std::string name = event.at("name"), phase = event.at("ph");
    if (name == "treering_process") return take_head(event.at("args"));
    if (name == "treering_communicator") return take_communicator(event.at("tid"), event.at("args"));
    if (name == "treering_end") process().lost += event.at("args").at("lost").get<uint64_t>();
    if (phase == "X" && event.at("cat") == "call") take_call(name, event);
  }

  void take_head(const Json& args) {
    if (const int version = args.at("version"); version != kVersion)
      throw std::runtime_error(
          fmt::format("is of version {}, and this program reads version {}: take that of the library "
                      "which made it",
                      version, kVersion));
    has_head_ = true;
    TracedProcess& own = process();
    own.host = args.at("host");
    own.clock = args.at("clock");
    own.pid = args.at("pid");
    own.rank = args.at("rank");
  }

  void take_communicator(uint32_t track, const Json& args) {
    const std::string id = args.at("id");
    const auto [known, is_new] = groups_->emplace(id, trace_->communicators.size());
    if (is_new) trace_->communicators.push_back({args.at("communicator"), id, args.at("ranks"), {}, {}, {}});
    process().communicators[track] = known->second;
    ranks_[track] = args.at("rank");
    trace_->communicators[known->second].processes[ranks_[track]].push_back(index_);
  }

  void take_call(const std::string& name, const Json& event) {
    const uint32_t track = event.at("tid");
    const auto found = process().communicators.find(track);
    if (found == process().communicators.end())
      throw std::runtime_error(fmt::format("a call of track {}, which no event treering_communicator names", track));
    TracedGroup& group = trace_->communicators[found->second];
    const Json& args = event.at("args");
    CallRecord record;
    record.process = index_;
    record.rank = ranks_[track];
    record.begin = event.at("ts");
    record.end = record.begin + event.at("dur").get<double>();
    record.waited = args.value("waited_us", 0.0);
    if (args.contains("waited_for")) record.waited_for = args["waited_for"].get<uint32_t>();
    record.begin_is_late = args.value("begin_is_late", false);
    const uint64_t number = args.at("number");
    if (number == 0) group.uncounted.emplace_back();
    TracedCall& call = number == 0 ? group.uncounted.back() : group.calls[number];
    call.name = name;
    call.bytes = std::max<uint64_t>(call.bytes, args.at("bytes"));
    call.records.push_back(record);
  }

  Trace* trace_;
  std::map<std::string, size_t>* groups_;
  const size_t index_;
  std::map<uint32_t, uint32_t> ranks_;  // by track
  bool has_head_ = false;
};

}  // namespace

std::string describe(const TracedProcess& process, uint32_t rank) {
  return fmt::format("rank {} (pid {} on {})", rank, process.pid, process.host);
}

std::string describe(const TracedGroup& group) {
  return group.name.empty() ? "a communicator without a name" : fmt::format("communicator {}", group.name);
}

std::vector<std::string> trace_files(const std::string& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entries(directory, error);
  if (error) throw std::runtime_error(fmt::format("{}: {}", directory, error.message()));
  std::vector<std::string> files;
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank") && name.ends_with(".json")) files.push_back(entry.path().string());
  }
  if (files.empty())
    throw std::runtime_error(
        fmt::format("{}: no file of a trace is there (rank*.json); a program makes them with "
                    "TREERING_TRACE={} in its environment",
                    directory, directory));
  std::sort(files.begin(), files.end());
  return files;
}

bool visit_events(const std::string& file, const std::function<void(Json&&)>& visit) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error(fmt::format("{}: cannot be read", file));
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    const bool is_whole = !in.eof();
    if (number == 1 && is_whole && line == "[") continue;
    if (!is_whole) return false;
    if (line.ends_with(',')) line.pop_back();
    try {
      if (number == 1) throw std::runtime_error("is not a trace: its first line is not \"[\"");
      visit(Json::parse(line));
    } catch (const Json::exception& error) {
      throw std::runtime_error(fmt::format("{}:{}: {}", file, number, error.what()));
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(fmt::format("{}:{}: {}", file, number, error.what()));
    }
  }
  return true;
}

Trace read_trace(const std::vector<std::string>& files) {
  Trace trace;
  std::map<std::string, size_t> groups;
  for (const std::string& file : files) FileReader(&trace, &groups, file).read();
  return trace;
}

void check_complete(const Trace& trace, const std::string& directory) {
  for (const TracedGroup& group : trace.communicators) {
    std::vector<uint32_t> missing;
    for (uint32_t rank = 0; rank < group.ranks; ++rank) {
      const auto found = group.processes.find(rank);
      if (found == group.processes.end()) missing.push_back(rank);
      if (found != group.processes.end() && found->second.size() > 1)
        throw std::runtime_error(fmt::format("{} and {} are both of rank {} of {}: remove one",
                                             trace.processes[found->second[0]].file,
                                             trace.processes[found->second[1]].file, rank, describe(group)));
    }
    if (missing.empty()) continue;
    const size_t count = missing.size();
    missing.resize(std::min(count, kMaxNamed));
    throw std::runtime_error(fmt::format(
        "{}: {} of {} ranks of {} have no file there: {}{}; copy them from the other hosts, or take --partial",
        directory, count, group.ranks, describe(group), fmt::join(missing, ", "), count > kMaxNamed ? " ..." : ""));
  }
}

}  // namespace treering::trace
