// SPDX-License-Identifier: Apache-2.0
// What a rank shows the others in a split or a shrink: as a block of an allgather, or as a notice in its status.
#pragma once

#include <bitset>
#include <cstdint>
#include <cstring>

#include "core/config.h"
#include "executor/rank_status.h"
#include "treering/treering.h"

namespace treering {

// Rounds of a split or shrink, whatever becomes of it: ranks that fail at different points agree on the next one's.
constexpr uint64_t kRoundsOfSplit = 2;

using RankSet = std::bitset<kMaxRanks>;

struct SplitInfo {
  enum Content : uint32_t {
    kNothing,
    kId,       // a trUniqueId: where the new communicator meets
    kMembers,  // a RankSet: who belongs to it
    kRefusal,  // a RankSet: what rank `key` gave, which differs
  };
  int32_t color;
  int32_t key;
  uint32_t rank;
  Content content;
  unsigned char bytes[TR_UNIQUE_ID_BYTES];

  template <typename T>
  void hold(Content kind, const T& value) {
    static_assert(sizeof value == sizeof bytes && std::is_trivially_copyable_v<T>);
    content = kind;
    std::memcpy(bytes, &value, sizeof value);
  }
  template <typename T>
  T held() const {
    T value;
    std::memcpy(static_cast<void*>(&value), bytes, sizeof value);
    return value;
  }
};
static_assert(sizeof(SplitInfo) == kNoticeWords * sizeof(uint64_t));

}  // namespace treering
