// SPDX-License-Identifier: Apache-2.0
// RankStatus: what a rank tells the others about itself, always on: the operation it is in, how far it is, whom it
// waits for, where its output buffer lies, and its failure if it has one.
//
// Written by its owner alone, read by any rank at any time through its transport; every field is a relaxed atomic
// except those that publish others (`operation`, a call's `tag`, `failure_state`). The calls of earlier operations are
// for finding and telling differences alone.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "transport/open_buffers.h"

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

// What a call is for, where the name of its collective would not tell the user.
enum class Purpose : uint16_t {
  kItself,
  kVariable,  // counts that differ between ranks: the v-variant
  kBoxes,     // of trExchangeStart()
  kSplit,     // the others: exchanges of the library
  kGrow,
  kBoxPlan,
  kSparse,
  kGpus,
};

// What a rank called: the plain values.
struct CallCopy {
  uint64_t tag = 0;  // call_tag(); 0: none
  uint64_t count = 0;
  uint32_t root = 0;
  uint32_t fused = 0;  // calls of a group that the operation is; `count` is the sum of theirs. 0: one call
  uint16_t type = 0;
  uint16_t op = 0;
  uint16_t collective = 0;
  Purpose purpose = Purpose::kItself;
};

struct CallRecord {
  std::atomic<uint64_t> tag;  // one value, so that the two parts belong together; the others are for messages
  std::atomic<uint64_t> count;
  std::atomic<uint32_t> root;
  std::atomic<uint32_t> fused;
  std::atomic<uint16_t> type;
  std::atomic<uint16_t> op;
  std::atomic<uint16_t> collective;
  std::atomic<Purpose> purpose;

  void store(const CallCopy& call) {
    count.store(call.count, std::memory_order_relaxed);
    root.store(call.root, std::memory_order_relaxed);
    fused.store(call.fused, std::memory_order_relaxed);
    type.store(call.type, std::memory_order_relaxed);
    op.store(call.op, std::memory_order_relaxed);
    collective.store(call.collective, std::memory_order_relaxed);
    purpose.store(call.purpose, std::memory_order_relaxed);
    tag.store(call.tag, std::memory_order_release);
  }
  CallCopy load() const {
    CallCopy call;
    call.tag = tag.load(std::memory_order_acquire);
    call.count = count.load(std::memory_order_acquire);
    call.root = root.load(std::memory_order_acquire);
    call.fused = fused.load(std::memory_order_acquire);
    call.type = type.load(std::memory_order_acquire);
    call.op = op.load(std::memory_order_acquire);
    call.collective = collective.load(std::memory_order_acquire);
    call.purpose = purpose.load(std::memory_order_acquire);
    if (tag.load(std::memory_order_relaxed) != call.tag) return {};  // the owner has come to this place again
    return call;
  }
};

// The calls of a rank's last operations stay readable: one that is ahead is compared with one that waits. The root of
// small broadcasts gets as far ahead as a FIFO has slots (8), or some times that through a tree.
inline constexpr size_t kCallsKept = 16;

// Begins with what transports read.
struct alignas(64) RankStatus : OpenBuffers {
  std::atomic<uint64_t> completed;  // number of the operation that this rank completed last
  std::atomic<uint32_t> left;       // not 0: the rank has destroyed its communicator (kLeft...)

  std::atomic<uint64_t> device_collectives;  // given to this rank's GPU so far, as kernels

  // Written only by a rank that has been waiting for long.
  alignas(64) std::atomic<uint64_t> heartbeat;
  std::atomic<uint64_t> steps;
  std::atomic<uint32_t> waiting_for;          // rank + 1; 0 = not waiting
  std::atomic<uint32_t> takes_no_connection;  // not 0: its process has no file descriptor left for one

  alignas(64) CallRecord calls[kCallsKept];  // of operation k at k % kCallsKept
  alignas(64) FailureRecord failure;
  alignas(64) Notice notices[2];
};

// The operation's number (its low half) and the signature of the rank's call.
constexpr uint64_t call_tag(uint64_t operation, uint32_t signature) { return operation << 32 | signature; }
constexpr uint32_t operation_of(uint64_t tag) { return static_cast<uint32_t>(tag >> 32); }

// A copy of the plain values.
struct RankStatusSnapshot {
  uint64_t operation = 0;
  uint64_t completed = 0;
  std::array<CallCopy, kCallsKept> calls;
  bool left = false;
  uint64_t device_collectives = 0;
  uint64_t heartbeat = 0;
  uint64_t steps = 0;
  uint32_t waiting_for = 0;
  bool takes_no_connection = false;
  bool failed = false;
  uint32_t failure_code = 0;
  std::string failure_text;
  struct {
    uint64_t round = 0;
    std::array<uint64_t, kNoticeWords> words{};
  } notices[2];

  const CallCopy& call(uint64_t number) const { return calls[number % kCallsKept]; }
};

inline RankStatusSnapshot snapshot_of(const RankStatus& status) {
  RankStatusSnapshot s;
  s.operation = status.operation.load(std::memory_order_acquire);
  s.completed = status.completed.load(std::memory_order_relaxed);
  for (size_t i = 0; i < kCallsKept; ++i) s.calls[i] = status.calls[i].load();
  s.left = status.left.load(std::memory_order_relaxed) != 0;
  s.device_collectives = status.device_collectives.load(std::memory_order_relaxed);
  s.heartbeat = status.heartbeat.load(std::memory_order_relaxed);
  s.steps = status.steps.load(std::memory_order_relaxed);
  s.waiting_for = status.waiting_for.load(std::memory_order_relaxed);
  s.takes_no_connection = status.takes_no_connection.load(std::memory_order_relaxed) != 0;
  s.failed = status.failure.state.load(std::memory_order_acquire) == static_cast<uint32_t>(FailureState::kSet);
  if (s.failed) {
    s.failure_code = status.failure.code.load(std::memory_order_relaxed);
    s.failure_text = status.failure.text;
  }
  for (size_t i = 0; i < 2; ++i) {
    s.notices[i].round = status.notices[i].round.load(std::memory_order_seq_cst);
    for (size_t word = 0; word < kNoticeWords; ++word)
      s.notices[i].words[word] = status.notices[i].words[word].load(std::memory_order_relaxed);
  }
  return s;
}

// Sets the record unless it is set already; true when this call did.
bool claim_failure(FailureRecord* record, uint32_t code, const std::string& text);

}  // namespace treering
