// SPDX-License-Identifier: Apache-2.0
#include "communicator/agree_on_network.h"

#include <algorithm>
#include <set>

#include "communicator/idle_links.h"
#include "core/log.h"
#include "peers/measure.h"

namespace treering {
namespace {

// This rank's part, if it is one of those that measure.
Status measure_own_link(CommunicatorParts* parts, const std::vector<uint32_t>& leaders, const NetworkTerms& terms,
                        NetworkMeasurement* measured) {
  const auto at = std::find(leaders.begin(), leaders.end(), parts->context.rank);
  if (at == leaders.end()) return {};
  const size_t i = static_cast<size_t>(at - leaders.begin()), hosts = leaders.size();
  const auto deadline = std::min(terms.deadline, Clock::now() + std::chrono::hours(1));
  const uint32_t next = leaders[(i + 1) % hosts], previous = leaders[(i + hosts - 1) % hosts];
  Connection *const to_next = parts->context.connection(0, next), *failed = nullptr;
  auto& published = parts->context.status->waiting_for;  // of the ring each rank knows its neighbours alone
  const Status status = measure_network(
      to_next, parts->context.connection(0, previous), i == 0, static_cast<uint32_t>(hosts),
      static_cast<uint32_t>(parts->context.pools[0].slot_bytes()),
      deadline - Watch::time_for_answers(deadline - Clock::now()), [parts] { return parts->context.progress(); },
      [&](const Connection* waiting_for) {
        published.store((waiting_for == to_next ? next : previous) + 1, std::memory_order_relaxed);
        IdleLinks::serve();
        if (terms.guard) TR_RETURN_IF_ERROR(terms.guard());
        Status failure = parts->watch->creation_verdict();
        // Ranks that do not measure wait in an exchange already: a death ends that, and is told to none as a loss. That it
        // comes to its deadline says less than what this rank finds.
        if (failure.ok())
          if (const Status exchange = parts->membership->failure(); exchange.code() != trTimeout) failure = exchange;
        return failure.ok() ? failure : parts->membership->in_words_of_guard(failure);
      },
      measured, &failed);
  if (status.ok()) published.store(0, std::memory_order_relaxed);
  if (status.ok() || failed == nullptr) return status;
  const uint32_t peer = failed == to_next ? next : previous;
  if (status.code() == trTimeout) return parts->watch->no_progress(peer, leaders, terms.serve);
  parts->watch->suspect_link(peer, status);
  return parts->watch->await_failure(terms.serve);
}

}  // namespace

Status agree_on_network(CommunicatorParts* parts, const Plan& plan, const NetworkTerms& terms, Machine* machine) {
  if (parts->config.link_gbps > 0) {
    machine->network_gbps = parts->config.link_gbps / 8;
    machine->network_us = parts->config.link_us;
    machine->network_message_us = std::min(machine->network_message_us, machine->network_us);
    return {};
  }
  std::vector<uint32_t> leaders;
  std::set<uint64_t> seen;
  for (uint32_t rank : plan.ring)
    if (seen.insert(parts->info(rank).location.host).second) leaders.push_back(rank);
  NetworkOfAll network;
  TR_RETURN_IF_ERROR(measure_until_plausible(
      [&](NetworkMeasurement* measured) { return measure_own_link(parts, leaders, terms, measured); },
      [&](const std::string& own, std::vector<std::string>* all) {
        Membership::Blobs blobs;
        TR_RETURN_IF_ERROR(parts->membership->allgather(own, &blobs));
        *all = *blobs;
        return Status();
      },
      &network));
  const NetworkMeasurement& slowest = network.slowest;
  if (!network.plausible && parts->context.rank == 0)
    log_line(LogLevel::kInfo,
             "the network could not be measured well, as the machines are busy: algorithms may be chosen for a slower "
             "one. TREERING_LINK says what it does");
  if (slowest.latency_us > 0) machine->network_us = slowest.latency_us;
  if (slowest.gbps > 0) machine->network_gbps = slowest.gbps;
  if (slowest.message_us > 0) machine->network_message_us = std::min(slowest.message_us, machine->network_us);
  return {};
}

}  // namespace treering
