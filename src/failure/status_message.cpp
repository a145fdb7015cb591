// SPDX-License-Identifier: Apache-2.0
#include "failure/status_message.h"

#include <cstring>

namespace treering {
namespace {

// Ranks of one communicator run the same build: it is compared when they meet.
struct Fixed {
  uint64_t operation, completed, device_collectives, heartbeat, steps;
  std::array<CallCopy, kCallsKept> calls;
  uint32_t waiting_for, failure_code;
  uint8_t left, failed, takes_no_connection;
  struct {
    uint64_t round;
    std::array<uint64_t, kNoticeWords> words;
  } notices[2];
};

}  // namespace

std::string pack_status(const RankStatus& status) {
  const RankStatusSnapshot s = snapshot_of(status);
  Fixed fixed{};
  fixed.operation = s.operation;
  fixed.completed = s.completed;
  fixed.calls = s.calls;
  fixed.device_collectives = s.device_collectives;
  fixed.heartbeat = s.heartbeat;
  fixed.steps = s.steps;
  fixed.waiting_for = s.waiting_for;
  fixed.failure_code = s.failure_code;
  fixed.left = s.left;
  fixed.failed = s.failed;
  fixed.takes_no_connection = s.takes_no_connection;
  for (size_t i = 0; i < 2; ++i) fixed.notices[i] = {s.notices[i].round, s.notices[i].words};
  return std::string(reinterpret_cast<const char*>(&fixed), sizeof fixed) + s.failure_text;
}

bool unpack_status(const std::string& bytes, RankStatusSnapshot* snapshot) {
  Fixed fixed;
  if (bytes.size() < sizeof fixed) return false;
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  RankStatusSnapshot s;
  s.operation = fixed.operation;
  s.completed = fixed.completed;
  s.calls = fixed.calls;
  s.device_collectives = fixed.device_collectives;
  s.heartbeat = fixed.heartbeat;
  s.steps = fixed.steps;
  s.waiting_for = fixed.waiting_for;
  s.failure_code = fixed.failure_code;
  s.left = fixed.left != 0;
  s.failed = fixed.failed != 0;
  s.takes_no_connection = fixed.takes_no_connection != 0;
  s.failure_text = bytes.substr(sizeof fixed);
  for (size_t i = 0; i < 2; ++i) {
    s.notices[i].round = fixed.notices[i].round;
    s.notices[i].words = fixed.notices[i].words;
  }
  *snapshot = std::move(s);
  return true;
}

}  // namespace treering
