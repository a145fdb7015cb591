// SPDX-License-Identifier: Apache-2.0
#include "metrics/trace_text.h"

#include <fmt/format.h>

#include <iterator>

#include "metrics/text.h"

namespace treering {
namespace {

// Microseconds, exactly: a double has not room for the nanoseconds of a machine that has run for months.
std::string us(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

std::string metadata(const char* name, uint32_t rank, uint32_t track, const std::string& args) {
  return fmt::format("{{\"name\":\"{}\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{{}}}}},\n", name, rank, track,
                     args);
}

}  // namespace

std::string trace_head(const TracedProcess& process) {
  const std::string host = as_json_text(process.host);
  return "[\n" +
         metadata("treering_process", process.rank, 0,
                  fmt::format("\"version\":{},\"host\":\"{}\",\"clock\":\"{}\",\"pid\":{},\"rank\":{}", kTraceVersion,
                              host, as_json_text(process.clock), process.pid, process.rank)) +
         metadata("process_name", process.rank, 0,
                  fmt::format("\"name\":\"rank {} (pid {} on {})\"", process.rank, process.pid, host)) +
         metadata("process_sort_index", process.rank, 0, fmt::format("\"sort_index\":{}", process.rank));
}

std::string trace_head(const TracedProcess& process, const TracedCommunicator& communicator) {
  const std::string name = as_json_text(communicator.name);
  return metadata("treering_communicator", process.rank, communicator.track,
                  fmt::format("\"communicator\":\"{}\",\"id\":\"{}\",\"rank\":{},\"ranks\":{}", name,
                              as_json_text(communicator.id), communicator.rank, communicator.ranks)) +
         metadata("thread_name", process.rank, communicator.track,
                  fmt::format("\"name\":\"{}{}rank {} of {}\"", name, name.empty() ? "" : ", ", communicator.rank,
                              communicator.ranks));
}

void add_event(const TracedProcess& process, const TracedCommunicator& communicator, const TraceEvent& event,
               std::string* text) {
  const auto out = std::back_inserter(*text);
  fmt::format_to(out,
                 "{{\"name\":\"{}\",\"cat\":\"call\",\"ph\":\"X\",\"ts\":{},\"dur\":{},\"pid\":{},\"tid\":{},"
                 "\"args\":{{\"number\":{},\"bytes\":{},\"algorithm\":\"{}\"",
                 event.kind, us(event.begin), us(event.end - event.begin), process.rank, communicator.track,
                 event.number, event.bytes, event.algorithm);
  if (event.waited > 0) fmt::format_to(out, ",\"waited_us\":{}", us(event.waited));
  if (event.waited > 0 && event.wait_peer != communicator.rank)
    fmt::format_to(out, ",\"waited_for\":{}", event.wait_peer);
  fmt::format_to(out, "{}{}}}}},\n", event.begin_is_late ? ",\"begin_is_late\":true" : "",
                 event.failed ? ",\"failed\":true" : "");
  if (event.waited == 0) return;
  const std::string whom =
      event.wait_peer == communicator.rank ? std::string("wait") : fmt::format("wait for rank {}", event.wait_peer);
  fmt::format_to(out, "{{\"name\":\"{}\",\"cat\":\"wait\",\"ph\":\"X\",\"ts\":{},\"dur\":{},\"pid\":{},\"tid\":{}}},\n",
                 whom, us(event.wait_begin), us(event.wait_end - event.wait_begin), process.rank, communicator.track);
}

std::string trace_end(const TracedProcess& process, const TracedCommunicator& communicator, uint64_t lost) {
  return metadata("treering_end", process.rank, communicator.track, fmt::format("\"lost\":{}", lost));
}

}  // namespace treering
