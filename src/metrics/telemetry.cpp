// SPDX-License-Identifier: Apache-2.0
#include "metrics/telemetry.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "core/background_thread.h"
#include "core/log.h"
#include "core/process.h"
#include "metrics/files.h"
#include "metrics/http_server.h"
#include "metrics/open_metrics.h"

namespace treering {
namespace {

constexpr auto kMetricsPeriod = std::chrono::seconds(10);
constexpr auto kTracePeriod = std::chrono::milliseconds(500);
constexpr size_t kWriterStackBytes = 256 << 10;

std::atomic<Telemetry*> current_telemetry{nullptr};  // never destroyed: its threads run until the process ends

// Containers may have a clock of their own on the same machine.
std::string identity_of_clock() {
  std::error_code unknown;
  return machine_identity() + " " + std::filesystem::read_symlink("/proc/self/ns/time", unknown).string();
}

// What cannot be written for want of memory is left out: it must not end the process.
template <typename Work>
void unless_memory_lacks(const Work& work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

Telemetry* Telemetry::make_first() {
  current_telemetry = new Telemetry;
  pthread_atfork(nullptr, nullptr, end_fork_in_child);
  (void)std::atexit([] { unless_memory_lacks([] { instance().write_all(); }); });
  return current_telemetry;
}

Telemetry& Telemetry::instance() {
  [[maybe_unused]] static Telemetry* const first = make_first();
  return *current_telemetry.load(std::memory_order_acquire);
}

// The parent's threads are not here. What its communicators record, if the child uses them at all, is never read.
void Telemetry::end_fork_in_child() {
  current_telemetry.load()->trace_file_.close_if_same();
  current_telemetry = new Telemetry;
}

std::shared_ptr<CallRecorder> Telemetry::add(const TelemetryOptions& options, const ProcessPlace& place,
                                             CounterLabels labels, const std::string& id, uint32_t polls_until_wait) {
  if (options.metrics.empty() && options.trace.empty()) return nullptr;
  start(options, place);
  std::lock_guard files(files_mutex_);
  const bool traces = !options.trace.empty() && trace_file_.fd >= 0;
  Entry entry{nullptr, {labels.communicator, id, labels.rank, labels.ranks, 0}};
  entry.recorder =
      std::make_shared<CallRecorder>(std::move(labels), polls_until_wait, traces, [this] { work_.notify_one(); });
  std::lock_guard lock(mutex_);
  entry.traced.track = ++tracks_;
  if (traces) write_trace(trace_head(traced_process_, entry.traced));
  entries_.push_back(entry);
  return entry.recorder;
}

void Telemetry::start(const TelemetryOptions& options, const ProcessPlace& place) {
  std::lock_guard files(files_mutex_);
  std::unique_lock lock(mutex_);
  if (!std::exchange(has_place_, true)) place_ = place;
  if (!options.metrics.empty() && metrics_option_.empty()) start_metrics(options.metrics);
  if (!options.trace.empty() && trace_option_.empty()) start_trace(options.trace);
  const bool writes = !metrics_path_.empty() || trace_file_.fd >= 0;
  if (!writes || has_thread_) return;
  has_thread_ = start_background_thread("treering-metric", kWriterStackBytes, [this] { loop(); });
  if (!has_thread_) warn_once("the thread that writes metrics and traces could not be started (see ulimit -u)");
}

void Telemetry::start_metrics(const std::string& option) {
  metrics_option_ = option;
  if (!is_port(option)) {
    metrics_path_ = metrics_path(option, place_);
    return;
  }
  const uint32_t port = metrics_port(option, place_);
  OpenFile socket;
  Status status(trInvalidArgument,
                fmt::format("process {} of this host would have a port above 65535", place_.on_host));
  if (port != 0) status = listen_on_loopback(port, &socket);
  if (status.ok() && start_background_thread("treering-http", kWriterStackBytes,
                                             [=, this] { serve_metrics(socket, [this] { return metrics_text(); }); }))
    return;
  if (status.ok()) status = {trSystemError, "its thread could not be started (see ulimit -u)"};
  warn_once(
      fmt::format("TREERING_METRICS is '{}': {}; the metrics of rank {}'s process are not served. Choose a port "
                  "that is free, with as many after it as the host has processes",
                  option, status.message(), place_.rank));
}

void Telemetry::start_trace(const std::string& directory) {
  trace_option_ = directory;
  trace_path_ = directory + "/" + trace_name(place_);
  traced_process_ = {place_.host, identity_of_clock(), place_.pid, place_.rank};
  if (const Status made = make_trace_file(directory, trace_name(place_), &trace_file_); !made.ok())
    return warn_once(
        fmt::format("TREERING_TRACE is '{}': {}; rank {}'s process is not traced. Name a directory that this "
                    "process may write",
                    directory, made.message(), place_.rank));
  write_trace(trace_head(traced_process_));
}

void Telemetry::loop() {
  for (auto next_metrics = Clock::now();;) {
    unless_memory_lacks([this] { flush_trace(); });
    bool has_path = false, has_trace = false;
    {
      std::lock_guard lock(mutex_);
      has_path = !metrics_path_.empty();
      has_trace = !trace_option_.empty();
    }
    if (has_path && Clock::now() >= next_metrics) {
      next_metrics = Clock::now() + kMetricsPeriod;
      unless_memory_lacks([this] { write_metrics(); });
    }
    std::unique_lock lock(mutex_);
    if (has_trace)
      work_.wait_for(lock, kTracePeriod);
    else
      work_.wait_until(lock, next_metrics);
  }
}

std::string Telemetry::metrics_text() {
  std::lock_guard lock(mutex_);
  TotalsTable table = ended_;
  for (const Entry& entry : entries_) {
    const CommunicatorCounters& counters = entry.recorder->counters();
    add_totals(key_of(counters.labels), read_totals(counters), &table);
  }
  return open_metrics({TREERING_VERSION_STRING, place_.host, place_.pid}, table);
}

void Telemetry::write_metrics() {
  std::lock_guard files(files_mutex_);
  const std::string text = metrics_text();
  const Status written = replace_file(metrics_path_, text);
  if (written.ok()) return;
  warn_once(
      fmt::format("TREERING_METRICS is '{}': {}; the job goes on without the file. Name a file in a directory that "
                  "exists and that this process may write",
                  metrics_option_, written.message()));
}

void Telemetry::take_events(const Entry& entry, std::string* text) {
  if (entry.recorder->trace() == nullptr) return;
  entry.recorder->trace()->take(
      [&](const TraceEvent& event) { add_event(traced_process_, entry.traced, event, text); });
}

void Telemetry::flush_trace() {
  std::lock_guard files(files_mutex_);
  if (trace_file_.fd < 0) return;
  std::vector<Entry> entries;
  {
    std::lock_guard lock(mutex_);
    entries = entries_;
  }
  std::string text;
  for (const Entry& entry : entries) take_events(entry, &text);
  write_trace(text);
}

// The program may close all descriptors that it does not know.
void Telemetry::write_trace(const std::string& text) {
  if (trace_file_.fd < 0 || text.empty()) return;
  Status status(trSystemError, "the program has closed its descriptor");
  if (trace_file_.is_same()) status = write_text(trace_file_.fd, text);
  if (status.ok()) return;
  trace_file_.close_if_same();
  trace_file_ = {};
  warn_once(fmt::format("TREERING_TRACE is '{}': cannot write '{}': {}; the trace ends here", trace_option_,
                        trace_path_, status.message()));
}

void Telemetry::end(const std::shared_ptr<CallRecorder>& recorder) {
  if (take_out(recorder)) write_metrics();
}

// Whether the metrics are to be written: it was the last one.
bool Telemetry::take_out(const std::shared_ptr<CallRecorder>& recorder) {
  std::lock_guard files(files_mutex_);
  std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.recorder == recorder; });
  if (found == entries_.end()) return false;  // it is of the process that forked this one
  if (recorder->trace() != nullptr) {
    std::string text;
    take_events(*found, &text);
    write_trace(text + trace_end(traced_process_, found->traced, recorder->trace()->lost()));
  }
  Totals totals = read_totals(recorder->counters());
  totals.communicators = 0;
  add_totals(key_of(recorder->counters().labels), totals, &ended_);
  entries_.erase(found);
  return entries_.empty() && !metrics_path_.empty();
}

void Telemetry::write_all() {
  flush_trace();
  {
    std::lock_guard lock(mutex_);
    if (metrics_path_.empty()) return;
  }
  write_metrics();
}

void Telemetry::warn_once(const std::string& text) {
  std::lock_guard lock(warned_mutex_);
  if (warned_.insert(text).second) log_line(LogLevel::kWarn, text);
}

}  // namespace treering
