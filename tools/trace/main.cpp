// SPDX-License-Identifier: Apache-2.0
// treering-trace: joins the files that TREERING_TRACE makes on one clock, and prints who was late.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "arguments.h"
#include "clocks.h"
#include "lateness.h"
#include "read.h"
#include "write.h"

namespace treering::trace {
namespace {

constexpr int kBadInput = 2;
constexpr size_t kMaxRows = 20;

struct Arguments {
  std::string directory, output;
  double least_us = 50;
  bool partial = false;
};

std::string as_time(double us) {
  if (us >= 1e6) return fmt::format("{:.3f} s", us / 1e6);
  return us >= 1e3 ? fmt::format("{:.3f} ms", us / 1e3) : fmt::format("{:.1f} us", us);
}

std::string counted(size_t count, const char* one, const char* several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

void print_summary(const Trace& trace, const Clocks& clocks) {
  size_t calls = 0;
  for (const TracedGroup& group : trace.communicators) calls += group.calls.size() + group.uncounted.size();
  fmt::print("{}, {}, {}, {}\n", counted(trace.processes.size(), "process", "processes"),
             counted(clocks.count(), "clock", "clocks"),
             counted(trace.communicators.size(), "communicator", "communicators"), counted(calls, "call", "calls"));
  for (const std::string& line : clocks.describe()) fmt::print("clock of {}\n", line);
}

void print_notes(const Trace& trace) {
  for (const TracedProcess& process : trace.processes) {
    if (process.is_cut)
      fmt::print(stderr, "note: {}: the last line is not complete and is left out: the process was killed\n",
                 process.file);
    if (process.lost > 0)
      fmt::print(stderr, "note: {}: {} missing: they came faster than they could be written\n", process.file,
                 counted(process.lost, "call is", "calls are"));
  }
}

void print_late(const Trace& trace, const Lateness& lateness, double least) {
  if (lateness.ranks.empty()) fmt::print("\nno rank was late by {} or more\n", as_time(least));
  if (!lateness.ranks.empty())
    fmt::print("\n{:<36} {:>8} {:>14} {:>12}   {}\n", "who was late", "calls", "others lost", "longest", "in");
  for (size_t i = 0; i < std::min(kMaxRows, lateness.ranks.size()); ++i) {
    const LateRank& late = lateness.ranks[i];
    fmt::print("{:<36} {:>8} {:>14} {:>12}   {}\n", describe(trace.processes[late.process], late.rank), late.times,
               as_time(late.lost), as_time(late.longest), late.worst);
  }
  if (lateness.ranks.size() > kMaxRows) fmt::print("and {} more ranks\n", lateness.ranks.size() - kMaxRows);
  fmt::print("\nother waits, for data on its way: {}\n", as_time(lateness.exchange));
  if (lateness.unknown > 0) fmt::print("waits for ranks without a file: {}\n", as_time(lateness.unknown));
}

int run(int argc, char** argv) {
  CLI::App app{"Joins the files of TREERING_TRACE on one clock, for Perfetto, and prints which ranks were late.",
               "treering-trace"};
  app.set_version_flag("--version", "treering-trace " TREERING_VERSION_STRING);
  Arguments arguments;
  app.add_option("directory", arguments.directory, "where the files are: the value of TREERING_TRACE")->required();
  app.add_option("-o,--output", arguments.output, "the joined file; joined.json in the directory if not given");
  app.add_option("--least", arguments.least_us, "microseconds: shorter waits do not count as lateness")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--partial", arguments.partial, "also where ranks have no file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return tools::refuse(app, error, tools::text_of(app, error));
  }
  const Trace trace = read_trace(trace_files(arguments.directory));
  if (!arguments.partial) check_complete(trace, arguments.directory);
  const Clocks clocks(trace);
  const std::string output = arguments.output.empty() ? arguments.directory + "/joined.json" : arguments.output;
  write_joined(trace, clocks, output);
  print_notes(trace);
  print_summary(trace, clocks);
  print_late(trace, find_late(trace, clocks, arguments.least_us), arguments.least_us);
  fmt::print("{} is for https://ui.perfetto.dev or chrome://tracing\n", output);
  return 0;
}

}  // namespace
}  // namespace treering::trace

int main(int argc, char** argv) {
  try {
    return treering::trace::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return treering::trace::kBadInput;
  }
}
