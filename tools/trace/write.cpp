// SPDX-License-Identifier: Apache-2.0
#include "write.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>

#include "read.h"

namespace treering::trace {
namespace {

double first_begin(const Trace& trace, const Clocks& clocks) {
  double first = std::numeric_limits<double>::max();
  const auto look = [&](const TracedCall& call) {
    for (const CallRecord& record : call.records)
      first = std::min(first, clocks.translate(record.process, record.begin));
  };
  for (const TracedGroup& group : trace.communicators) {
    for (const auto& [number, call] : group.calls) look(call);
    for (const TracedCall& call : group.uncounted) look(call);
  }
  return first == std::numeric_limits<double>::max() ? 0 : first;
}

double rounded(double us) { return std::round(us * 1e3) / 1e3; }

}  // namespace

void write_joined(const Trace& trace, const Clocks& clocks, const std::string& file) {
  std::ofstream out(file, std::ios::binary);
  const auto check = [&] {
    if (!out) throw std::runtime_error(fmt::format("{}: cannot be written: {}", file, std::strerror(errno)));
  };
  check();
  const double first = first_begin(trace, clocks);
  bool is_first = true;
  out << "[\n";
  for (size_t process = 0; process < trace.processes.size(); ++process)
    (void)visit_events(trace.processes[process].file, [&](Json&& event) {
      event["pid"] = process;  // ranks of several jobs or communicators may have the same number
      if (event.contains("ts")) {
        const double begin = event["ts"], end = begin + event.value("dur", 0.0);
        const double joined = clocks.translate(process, begin) - first;
        event["ts"] = rounded(joined);
        event["dur"] = rounded(std::max(0.0, clocks.translate(process, end) - first - joined));
      }
      out << (is_first ? "" : ",\n") << event.dump();
      is_first = false;
    });
  out << "\n]\n";
  out.flush();
  check();
}

}  // namespace treering::trace
