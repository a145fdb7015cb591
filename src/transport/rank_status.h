// RankStatus: what a rank tells the others about itself, always on: the operation it is in, how far it is, whom it
// waits for, where its output buffer lies, and its failure if it has one.
//
// Written by its owner alone, read by any rank at any time through its transport; every field is a relaxed atomic
// except the two that publish others (`operation`, `failure_state`). A reader that needs the fields of operation k
// checks `operation == k` first: the owner cannot leave operation k while a peer still has to send it something.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace treering {

inline constexpr size_t kFailureTextBytes = 640;

enum class FailureState : uint32_t { kNone = 0, kWriting = 1, kSet = 2 };

// A failure as all ranks report it. Claimed by compare-and-swap so that the first one wins.
struct FailureRecord {
  std::atomic<uint32_t> state;
  std::atomic<uint32_t> code;
  char text[kFailureTextBytes];
};

// What a rank tells the others outside of any operation, readable also after a failure. Rounds are numbered by the
// communicator; two notices take turns, so that a round's words stay until every rank has entered the next one.
inline constexpr size_t kNoticeWords = 18;
struct Notice {
  std::atomic<uint64_t> round;  // 0: none; stored after the words
  std::atomic<uint64_t> words[kNoticeWords];
};

inline constexpr uint32_t kLeft = 1;
inline constexpr uint32_t kLeftWithMemory = 2;  // of other ranks' GPUs: it still has that open

struct alignas(64) RankStatus {
  std::atomic<uint64_t> operation;  // number of the operation that this rank entered last, from 1
  std::atomic<uint64_t> completed;  // number of the operation that this rank completed last
  std::atomic<uint64_t> count;
  std::atomic<uint64_t> tag;  // call_tag() of the operation: one value, so that it is never read half old, half new
  std::atomic<uint16_t> type;
  std::atomic<uint16_t> op;
  std::atomic<uint16_t> collective;
  std::atomic<uint16_t>
      open_input;  // 1: peers may store results where they found this rank's operands (fused, in place)
  std::atomic<uint32_t> root;
  std::atomic<uint32_t> fused;  // calls of a group that the operation is; `count` is the sum of theirs. 0: one call
  std::atomic<uint64_t> output_address;  // of the receive buffer; 0: peers may not store results there
  std::atomic<uint64_t> output_offset;   // of the receive buffer in output_region, for ranks that map it
  std::atomic<uint32_t> output_region;   // 0: in none
  std::atomic<uint32_t> left;            // not 0: the rank has destroyed its communicator (kLeft...)

  std::atomic<uint64_t> device_collectives;  // given to this rank's GPU so far, as kernels

  // Written only by a rank that has been waiting for long.
  alignas(64) std::atomic<uint64_t> heartbeat;
  std::atomic<uint64_t> steps;
  std::atomic<uint32_t> waiting_for;  // rank + 1; 0 = not waiting

  alignas(64) FailureRecord failure;
  alignas(64) Notice notices[2];
};

// The operation's number (its low half) and the signature of the rank's call.
constexpr uint64_t call_tag(uint64_t operation, uint32_t signature) { return operation << 32 | signature; }

// A copy of the plain values.
struct RankStatusSnapshot {
  uint64_t operation = 0;
  uint64_t completed = 0;
  uint64_t count = 0;
  uint64_t tag = 0;
  uint16_t type = 0;
  uint16_t op = 0;
  uint16_t collective = 0;
  uint32_t root = 0;
  uint32_t fused = 0;
  bool left = false;
  uint64_t device_collectives = 0;
  uint64_t heartbeat = 0;
  uint64_t steps = 0;
  uint32_t waiting_for = 0;
  bool failed = false;
  uint32_t failure_code = 0;
  std::string failure_text;
  struct {
    uint64_t round = 0;
    std::array<uint64_t, kNoticeWords> words{};
  } notices[2];
};

inline RankStatusSnapshot snapshot_of(const RankStatus& status) {
  RankStatusSnapshot s;
  s.operation = status.operation.load(std::memory_order_acquire);
  s.completed = status.completed.load(std::memory_order_relaxed);
  s.count = status.count.load(std::memory_order_relaxed);
  s.tag = status.tag.load(std::memory_order_relaxed);
  s.type = status.type.load(std::memory_order_relaxed);
  s.op = status.op.load(std::memory_order_relaxed);
  s.collective = status.collective.load(std::memory_order_relaxed);
  s.root = status.root.load(std::memory_order_relaxed);
  s.fused = status.fused.load(std::memory_order_relaxed);
  s.left = status.left.load(std::memory_order_relaxed) != 0;
  s.device_collectives = status.device_collectives.load(std::memory_order_relaxed);
  s.heartbeat = status.heartbeat.load(std::memory_order_relaxed);
  s.steps = status.steps.load(std::memory_order_relaxed);
  s.waiting_for = status.waiting_for.load(std::memory_order_relaxed);
  s.failed = status.failure.state.load(std::memory_order_acquire) == static_cast<uint32_t>(FailureState::kSet);
  if (s.failed) {
    s.failure_code = status.failure.code.load(std::memory_order_relaxed);
    s.failure_text = status.failure.text;
  }
  for (size_t i = 0; i < 2; ++i) {
    s.notices[i].round = status.notices[i].round.load(std::memory_order_acquire);
    for (size_t word = 0; word < kNoticeWords; ++word)
      s.notices[i].words[word] = status.notices[i].words[word].load(std::memory_order_relaxed);
  }
  return s;
}

// Sets the record unless it is set already; true when this call did.
bool claim_failure(FailureRecord* record, uint32_t code, const std::string& text);

}  // namespace treering
