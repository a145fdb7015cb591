// SPDX-License-Identifier: Apache-2.0
// Telemetry: the metrics and the trace of this process: its communicators, and the threads that write what they record.
//
//   communicator  --add()-->  CallRecorder  --every 10 s, at the end, when asked-->  metrics: a file, or HTTP
//                                           --every half second, at the end------->  trace: a file
//
// The first communicator with the option decides where it goes. What cannot be written is said once in the log; the job
// goes on. A forked child starts anew: it writes nothing of its parent's.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/open_file.h"
#include "metrics/call_recorder.h"
#include "metrics/destination.h"
#include "metrics/totals.h"
#include "metrics/trace_text.h"

namespace treering {

struct TelemetryOptions {
  std::string metrics, trace;  // the options' values; empty: none
};

class Telemetry {
 public:
  static Telemetry& instance();

  // A communicator begins. `id`: see TracedCommunicator. nullptr: nothing is to be recorded.
  std::shared_ptr<CallRecorder> add(const TelemetryOptions& options, const ProcessPlace& place, CounterLabels labels,
                                    const std::string& id, uint32_t polls_until_wait);
  // It ends, and calls no more.
  void end(const std::shared_ptr<CallRecorder>& recorder);

  // About all communicators that the process has and had.
  std::string metrics_text();
  // All that is known now goes to the files; also at the end of the process.
  void write_all();

 private:
  struct Entry {
    std::shared_ptr<CallRecorder> recorder;
    TracedCommunicator traced;
  };

  Telemetry() = default;
  static Telemetry* make_first();
  static void end_fork_in_child();
  void start(const TelemetryOptions& options, const ProcessPlace& place);
  void start_metrics(const std::string& option);
  void start_trace(const std::string& directory);
  void loop();
  bool take_out(const std::shared_ptr<CallRecorder>& recorder);
  void write_metrics();
  void flush_trace();
  void take_events(const Entry& entry, std::string* text);
  void write_trace(const std::string& text);
  void warn_once(const std::string& text);

  std::mutex mutex_;  // of what follows
  std::condition_variable work_;
  std::vector<Entry> entries_;
  TotalsTable ended_;
  ProcessPlace place_;
  bool has_place_ = false, has_thread_ = false;
  // Set while both mutexes are held, read while one is:
  std::string metrics_option_, trace_option_;  // that were started, also in vain
  std::string metrics_path_;                   // empty: no file is written
  uint32_t tracks_ = 0;

  std::mutex files_mutex_;  // of what follows, and of writing; locked before mutex_
  OpenFile trace_file_;
  std::string trace_path_;
  TracedProcess traced_process_;

  std::mutex warned_mutex_;
  std::set<std::string> warned_;
};

}  // namespace treering
