// SPDX-License-Identifier: Apache-2.0
// Sending without a copy in the kernel (MSG_ZEROCOPY, Linux 4.14): what it still reads of the sender's memory, and
// whether it pays.
//
//   sends with the flag      0   1   2   3   4   5      the kernel numbers those that it took, for each socket, modulo 2^32
//   notices                  [ 0-1 ]     [ 3-4 ]        ranges, in any order, from the socket's error queue
//   memory still needed              2           5
//
// A device that cannot gather, loopback and veth copy after all, later and at a higher price than a plain send; the
// kernel says so in the notices, and a link that hears it stops asking.
#pragma once

#include <cstddef>
#include <cstdint>

namespace treering {

enum class TcpZeroCopy : uint8_t {
  kNever,
  kWhereItPays,
  kAlways,  // though the kernel says that it copies: for tests
};

// For less, a copy is cheaper than pinning pages and reading a notice.
inline constexpr size_t kZeroCopyBytes = 32 << 10;

// Sends of one socket for which the kernel may still read the memory. Each has a place of the owner's, which is told
// when its memory is free.
class ZeroCopySends {
 public:
  // The kernel has memory for the notices of about as many (net.core.optmem_max).
  static constexpr uint32_t kMax = 128;

  explicit ZeroCopySends(uint32_t first = 0) : oldest_(first), next_(first) {}
  bool empty() const { return oldest_ == next_; }
  bool full() const { return next_ - oldest_ == kMax; }
  // The kernel took a send; only when not full.
  void add(uint32_t place) { entries_[next_++ % kMax] = {place, true}; }
  // Those with the numbers from `first` to `last` are through; false when there are no such ones.
  template <typename Released>
  bool complete(uint32_t first, uint32_t last, Released released) {
    const uint32_t range = next_ - oldest_;
    if (first - oldest_ >= range || last - oldest_ >= range || last - oldest_ < first - oldest_) return false;
    for (uint32_t number = first; number != last + 1; ++number) {
      Entry& entry = entries_[number % kMax];
      if (!entry.waits) return false;
      entry.waits = false;
      released(entry.place);
    }
    while (oldest_ != next_ && !entries_[oldest_ % kMax].waits) ++oldest_;
    return true;
  }
  // The socket is gone, and will tell nothing of those that are left.
  template <typename Left>
  void abandon(Left left) {
    for (; oldest_ != next_; ++oldest_)
      if (entries_[oldest_ % kMax].waits) left(entries_[oldest_ % kMax].place);
  }

 private:
  struct Entry {
    uint32_t place;
    bool waits;
  };
  uint32_t oldest_, next_;
  Entry entries_[kMax];
};

struct ZeroCopyNotice {
  uint32_t first, last;
  bool copied;  // the kernel had to, after all
};
// Takes the next one from the socket's error queue; false when there is none.
bool take_zero_copy_notice(int fd, ZeroCopyNotice* notice);

// Whether a link's sends ask for it.
class ZeroCopyUse {
 public:
  // So many sends that were copied all the same, or were refused without one that went through, are enough.
  static constexpr uint32_t kTrials = 4;

  explicit ZeroCopyUse(TcpZeroCopy wish) : wish_(wish), on_(wish != TcpZeroCopy::kNever) {}
  bool on() const { return on_; }
  // Whether the next send shall: until it is known what the kernel does with the first, no others follow them.
  bool wants() const {
    const uint64_t done = copied_ + in_place_;
    return on_ && (wish_ == TcpZeroCopy::kAlways || done >= kTrials || sends_ - done < kTrials);
  }
  uint64_t sends() const { return sends_; }
  // Prepares a socket; false when its kernel cannot.
  bool enable(int fd) const;

  void sent() { ++sends_; }
  void completed(uint32_t sends, bool copied);
  // A send failed that may do as a copy: no memory for notices, or no more memory may be locked, or it cannot be
  // pinned.
  static bool is_refusal(int error);
  void refused();

 private:
  TcpZeroCopy wish_;
  bool on_;
  uint64_t sends_ = 0, copied_ = 0, in_place_ = 0;
  uint32_t refused_ = 0;  // in a row
};

}  // namespace treering
