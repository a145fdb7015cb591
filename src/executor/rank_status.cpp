// SPDX-License-Identifier: Apache-2.0
#include "executor/rank_status.h"

#include <algorithm>
#include <cstring>

namespace treering {

bool claim_failure(FailureRecord* record, uint32_t code, const std::string& text) {
  uint32_t expected = static_cast<uint32_t>(FailureState::kNone);
  if (!record->state.compare_exchange_strong(expected, static_cast<uint32_t>(FailureState::kWriting))) return false;
  record->code.store(code, std::memory_order_relaxed);
  size_t length = std::min(text.size(), kFailureTextBytes - 1);
  std::memcpy(record->text, text.data(), length);
  record->text[length] = '\0';
  record->state.store(static_cast<uint32_t>(FailureState::kSet), std::memory_order_release);
  return true;
}

}  // namespace treering
