// SPDX-License-Identifier: Apache-2.0
// Mailbox: the fast path for tiny messages. It does what the schedule "one-shot" does (a test compares the two): every
// rank gives its whole input to all others and combines all inputs in rank order.
//
//   up to kLineBytes x kReaderLines:  a copy for each reader, in lines of the reader's area
//        | 56 bytes of data | turn, signature |     data and flag arrive in one cache line: one transfer
//   above:  one copy that all readers read, in the writer's area
//        | turn, signature | data ...             |     and then one line with the flag
//
// There are two buffers, used in turn. No acknowledgement is needed: a rank that writes message m + 2 has finished
// m + 1, for which every peer sent its m + 1, which it did after it had read every m.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/execution.h"

namespace treering {

inline constexpr uint32_t kMaxMailboxRanks = 64;  // everyone writes to everyone

struct alignas(64) MailboxLine {
  unsigned char data[56];
  std::atomic<uint64_t> flag;  // turn in the low half, signature in the high half
};
static_assert(sizeof(MailboxLine) == 64);

// The mailbox part of a rank's area.
class MailboxMemory {
 public:
  static constexpr size_t kLineBytes = sizeof(MailboxLine::data);
  static constexpr size_t kReaderLines = 4;
  static constexpr size_t kMaxBytes = 32 << 10;

  MailboxMemory() = default;
  MailboxMemory(std::byte* base, uint32_t ranks) : base_(base), ranks_(ranks) {}
  static size_t bytes(uint32_t ranks) {
    return 2 * (ranks * kReaderLines * sizeof(MailboxLine) + sizeof(MailboxLine) + kMaxBytes);
  }

  // The lines in which `sender` writes to the area's owner.
  MailboxLine* lines(uint32_t buffer, uint32_t sender) const {
    return reinterpret_cast<MailboxLine*>(base_) + (buffer * ranks_ + sender) * kReaderLines;
  }
  // The owner's copy for all readers: flag and data.
  MailboxLine* shared_flag(uint32_t buffer) const {
    return reinterpret_cast<MailboxLine*>(base_ + 2 * ranks_ * kReaderLines * sizeof(MailboxLine)) + buffer;
  }
  std::byte* shared_data(uint32_t buffer) const {
    return reinterpret_cast<std::byte*>(shared_flag(0) + 2) + buffer * kMaxBytes;
  }

 private:
  std::byte* base_ = nullptr;
  uint32_t ranks_ = 0;
};

// One rank's side of the mailboxes of a communicator.
class Mailbox {
 public:
  Mailbox() = default;
  // areas[r]: the mailbox memory of rank r.
  Mailbox(uint32_t rank, std::vector<MailboxMemory> areas);

  uint32_t ranks() const { return static_cast<uint32_t>(areas_.size()); }  // 0: there is none

  // Publishes this rank's input.
  void start(uint32_t signature, const void* input, size_t bytes);
  // Takes what has arrived; when everything has, combines it into the output. It cannot fail, but the calls may differ.
  Progress advance(const Call& call);
  // The peer that the last kBlocked waited for, or whose call differed.
  uint32_t peer() const { return next_; }

 private:
  void combine(const Call& call);

  uint32_t rank_ = 0;
  std::vector<MailboxMemory> areas_;
  uint32_t turn_ = 0;
  uint32_t signature_ = 0;
  const void* input_ = nullptr;
  size_t bytes_ = 0;
  uint32_t next_ = 0;  // the first peer whose message has not been taken
  std::vector<const void*> sources_;
  std::vector<unsigned char> copies_;  // unpacked lines, kReaderLines * kLineBytes for each rank
};

}  // namespace treering
