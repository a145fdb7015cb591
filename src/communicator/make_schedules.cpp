// SPDX-License-Identifier: Apache-2.0
#include "communicator/make_schedules.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/log.h"

namespace treering {
namespace {

constexpr uint32_t kMaxEagerRanks = 64;
constexpr double kFetchUs = 0.7;  // of a system call that copies between processes

}  // namespace

Status make_schedules(CommunicatorParts* parts, Machine machine, Plan plan) {
  machine.channels = parts->memory.layout().channels;
  const bool paced = parts->config.link_mbps > 0;
  machine.mailbox_bytes = parts->call->has_mailbox() && !paced ? MailboxMemory::kMaxBytes : 0;
  machine.fetch_us = parts->peer_table->all_fetch() ? kFetchUs : 0;
  if (paced) machine.exchange_gbps = std::min(machine.exchange_gbps, parts->config.link_mbps / 8000.0);
  machine.slot_bytes = parts->context.pools[0].slot_bytes();
  const bool eager = parts->peer_table->all_mapped() && !paced && parts->context.ranks <= kMaxEagerRanks;
  EagerSizes sizes;
  sizes.mapped = machine.eager_bytes = eager ? EagerPath::most_bytes(parts->context) : 0;
  sizes.regions = std::min(sizes.mapped, EagerPath::kMaxMappedBytes);
  if (parts->peer_table->any_in_process()) sizes.mapped = sizes.regions;  // such peers read everything in place
  // Over links what fits into a line needs nothing of a schedule, either.
  const bool linked = !parts->peer_table->all_mapped() && !paced;
  sizes.linked = linked ? std::min(kInlineBytes, EagerPath::most_bytes(parts->context)) : 0;
  machine.streaming_bytes = machine.llc_bytes / (size_t{4} * machine.host_ranks);
  parts->context.streaming_bytes = machine.streaming_bytes;
  auto schedules =
      std::make_unique<ScheduleCache>(std::move(plan), parts->context.rank, machine, parts->config.algorithm,
                                      static_cast<uint32_t>(parts->config.channels));
  parts->selection = std::make_unique<CallSelection>(parts->config, parts->context.ranks, schedules.get());
  parts->call->set_schedules(schedules.get(), sizes);
  parts->schedules = std::move(schedules);  // the last that can lack memory: see ~Communicator()
  if (parts->context.rank == 0)
    log_line(
        LogLevel::kInfo,
        fmt::format(
            "communicator of {} ranks{} on {} cores: {}, {} KiB of staging memory a rank; a cache line takes {:.2f} "
            "us to another rank, data is exchanged at {:.1f} GB/s",
            parts->context.ranks,
            machine.hosts == 1
                ? ""
                : fmt::format(" on {} hosts ({:.1f} us, {:.1f} us of work a message and {:.2f} Gbit/s between them)",
                              machine.hosts, machine.network_us, machine.network_message_us, 8 * machine.network_gbps),
            machine.cores, parts->peer_table->summary(), parts->memory.layout().staging_bytes * machine.channels >> 10,
            machine.alpha_us, machine.exchange_gbps));
  parts->host_ranks = machine.host_ranks;
  parts->wait_policy = wait_policy_of(machine.host_ranks, machine.cores);
  return parts->schedules->check();
}

}  // namespace treering
