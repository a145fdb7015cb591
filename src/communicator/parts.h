// SPDX-License-Identifier: Apache-2.0
// CommunicatorParts: what one rank's communicator consists of. Creation makes the parts in the order in which they stand
// here; the communicator's calls use them. They refer to one another, and stay where they are.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "bootstrap/membership.h"
#include "communicator/calls/active_call.h"
#include "communicator/calls/call_selection.h"
#include "communicator/calls/schedule_cache.h"
#include "communicator/notice_exchange.h"
#include "core/config.h"
#include "executor/backoff.h"
#include "executor/execution.h"
#include "failure/watch.h"
#include "metrics/call_recorder.h"
#include "peers/group_memory.h"
#include "peers/introductions.h"
#include "peers/peer_table.h"

namespace treering {

struct CommunicatorParts {
  CommunicatorParts() = default;
  CommunicatorParts(const CommunicatorParts&) = delete;
  CommunicatorParts& operator=(const CommunicatorParts&) = delete;

  const RankInfo& info(uint32_t rank) const { return (*infos)[rank]; }
  // Whether the end of a process would go unnoticed without a membership.
  bool needs_membership() const;
  bool has_descriptors() const { return membership == nullptr || membership->has_descriptors(); }

  Config config;
  GroupMemory memory;
  RankInfos infos;
  std::shared_ptr<WaitSet> waits = std::make_shared<WaitSet>();  // nullptr once all ranks are known to share memory
  Introductions introductions{
      [this](uint32_t peer, Introduction introduction) { introduce(peer, std::move(introduction)); },
      [this](uint32_t peer) { return membership ? membership->peers()[peer].interfaces : 0; }};
  std::shared_ptr<CallRecorder> recorder;  // nullptr: neither metrics nor a trace are wanted
  std::unique_ptr<PeerTable> peer_table;
  ExecutorContext context;
  std::unique_ptr<ScheduleCache> schedules;  // the last that a creation makes
  std::unique_ptr<CallSelection> selection;
  std::unique_ptr<Watch> watch;
  std::unique_ptr<NoticeExchange> notices;
  std::unique_ptr<ActiveCall> call;
  std::array<unsigned char, 32> split_key{};  // known to the ranks alone
  WaitPolicy wait_policy;
  uint32_t host_ranks = 0;  // of the host that has most
  bool any_device = false;
  // Only while it is needed. The last member: its events use the others.
  std::unique_ptr<Membership> membership;

 private:
  void introduce(uint32_t peer, Introduction introduction);
};

}  // namespace treering
