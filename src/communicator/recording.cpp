// SPDX-License-Identifier: Apache-2.0
#include "communicator/recording.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <set>

#include "core/process.h"
#include "metrics/telemetry.h"

namespace treering {
namespace {

std::vector<const char*> kinds_of_calls() {
  std::vector<const char*> names;
  for (const CollectiveInfo& row : collectives()) names.push_back(row.name);
  names.insert(names.end(), {"send-receive", "exchange", "(library)"});
  return names;
}

ProcessPlace place_of(const CommunicatorParts& parts) {
  const RankInfo& own = parts.info(parts.context.rank);
  ProcessPlace place{parts.context.rank, 0, getpid(), short_host_name()};
  std::set<uint64_t> before;  // processes of this host with a lower rank
  for (const RankInfo& other : *parts.infos) {
    if (same_process(other, own)) {
      place.rank = std::min(place.rank, other.rank);
      break;
    }
    if (other.location.host == own.location.host) before.insert(other.process_token);
  }
  place.on_host = static_cast<uint32_t>(before.size());
  return place;
}

}  // namespace

void start_recording(CommunicatorParts* parts, const std::string& job) try {
  const TelemetryOptions options{parts->config.metrics, parts->config.trace};
  if (options.metrics.empty() && options.trace.empty()) return;
  CounterLabels labels{parts->config.name, parts->context.rank, parts->context.ranks, kinds_of_calls(), {}};
  for (uint32_t peer = 0; peer < labels.ranks; ++peer)
    labels.transports.push_back(peer == labels.rank ? nullptr : parts->peer_table->transport_name(peer));
  static std::atomic<int> alone{0};
  const std::string id = job.empty() ? fmt::format("{}-{}-{}", short_host_name(), getpid(), ++alone) : job;
  // An empty poll of a rank that spins takes less than a reading of the clock; others take longer.
  const bool spins = parts->wait_policy.spins > 0 && parts->waits == nullptr;
  parts->recorder = Telemetry::instance().add(options, place_of(*parts), std::move(labels), id,
                                              spins ? CallRecorder::kPollsOfSpinning : 1);
  if (parts->recorder != nullptr) parts->context.sent = parts->recorder->sent();
} catch (const std::bad_alloc&) {
  // The job goes on without.
}

void end_recording(CommunicatorParts* parts) {
  if (parts->recorder == nullptr) return;
  parts->recorder->fail();  // a call that was dropped
  try {
    Telemetry::instance().end(parts->recorder);
  } catch (const std::bad_alloc&) {  // its last numbers are missing
  }
}

}  // namespace treering
