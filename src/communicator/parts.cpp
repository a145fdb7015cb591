// SPDX-License-Identifier: Apache-2.0
#include "communicator/parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/log.h"

namespace treering {

bool CommunicatorParts::needs_membership() const {
  const auto elsewhere = [this](const RankInfo& other) {
    return other.pid_namespace != info(context.rank).pid_namespace;
  };
  return !peer_table->all_mapped() || std::any_of(infos->begin(), infos->end(), elsewhere);
}

void CommunicatorParts::introduce(uint32_t peer, Introduction introduction) {
  if (membership) return membership->introduce(peer, std::move(introduction));
  log_line(LogLevel::kError,
           fmt::format("introduction to rank {}: the ranks share memory, and have no control connections", peer));
}

}  // namespace treering
