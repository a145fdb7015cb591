// SPDX-License-Identifier: Apache-2.0
// ReusedBuffers: which of a rank's buffers are registered with its devices, by how calls use them. No I/O and no clock.
//
//   use of a buffer   copied, copied, ...  | until it has cost as much as registering it is expected to cost
//                     register -> added()  | from then on calls refer to it in place
//                              -> refused()| it is copied, twice as often before it is tried again
//
// How often a buffer will be used is not known before. Where registering costs what is expected, copies and registering
// together cost at most twice what is best. What it costs is measured where it is done; the first is taken to cost as much
// as a copy, and what is expected of the next grows by a factor of four at most. So the first ones may cost more.
//
// Invariant: what the call at hand uses is never given up for other buffers.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "transport/page_watch.h"

namespace treering {

// To look up a smaller one, and to watch it, costs about as much as copying it.
inline constexpr size_t kMinReused = 64 << 10;

class ReusedBuffers {
 public:
  struct Limits {
    size_t buffers = 256;          // registered at a time
    size_t bytes = SIZE_MAX;       // ... of all of them
    size_t candidates = 4096;      // that are remembered
    double copy_seconds = 0.1e-9;  // of a byte
  };
  struct Buffer {
    uint32_t id = 0;  // of the registration
    ByteRange bytes;
    uint64_t last_call = 0;
  };
  enum class Action { kCopy, kRefer, kRegister };
  struct Advice {
    Action action = Action::kCopy;
    Buffer* buffer = nullptr;  // kRefer: that holds it
  };

  explicit ReusedBuffers(const Limits& limits) : limits_(limits) {}

  void begin_call() { ++call_; }

  // The call uses these bytes. After kRegister follows added() or refused().
  Advice use(ByteRange bytes) {
    for (Buffer& buffer : buffers_) {
      if (!buffer.bytes.holds(bytes)) continue;
      buffer.last_call = call_;
      return {Action::kRefer, &buffer};
    }
    if (bytes.bytes() < kMinReused || bytes.bytes() > limits_.bytes) return {};
    if (candidates_.size() >= limits_.candidates) candidates_.clear();
    Candidate& candidate = candidates_[bytes.begin];
    if (candidate.bytes != bytes.bytes()) candidate = {bytes.bytes()};
    if (candidate.spent >= candidate.factor * expected_seconds(bytes.bytes())) return {Action::kRegister, nullptr};
    candidate.spent += copy_seconds(bytes.bytes());
    return {};
  }

  void added(ByteRange bytes, uint32_t id, double seconds) {
    // A busy machine makes it longer, perhaps a thousand times, and others would wait for that.
    seconds_[size_class(bytes.bytes())] = std::min(seconds, kMaxGrowth * expected_seconds(bytes.bytes()));
    candidates_.erase(bytes.begin);
    buffers_.push_back({id, bytes, call_});
    bytes_ += bytes.bytes();
  }
  void refused(ByteRange bytes) {
    const auto found = candidates_.find(bytes.begin);
    if (found == candidates_.end()) return;
    found->second.spent = 0;
    found->second.factor *= 2;
  }
  void ended(uint32_t id) {
    std::erase_if(buffers_, [&](const Buffer& buffer) {
      if (buffer.id != id) return false;
      bytes_ -= buffer.bytes.bytes();
      return true;
    });
  }

  // One that ends before these bytes are registered: they hold it, or there are too many. Nothing: no more.
  std::optional<uint32_t> replaced_by(ByteRange bytes) const {
    for (const Buffer& buffer : buffers_)
      if (bytes.holds(buffer.bytes) && buffer.last_call != call_) return buffer.id;
    return has_room(bytes) ? std::nullopt : least_recent();
  }
  bool has_room(ByteRange bytes) const {
    return buffers_.size() < limits_.buffers && bytes_ + bytes.bytes() <= limits_.bytes;
  }
  // That no call has used for the longest time, nor this one.
  std::optional<uint32_t> least_recent() const {
    const Buffer* oldest = nullptr;
    for (const Buffer& buffer : buffers_)
      if (buffer.last_call != call_ && (oldest == nullptr || buffer.last_call < oldest->last_call)) oldest = &buffer;
    return oldest == nullptr ? std::nullopt : std::optional(oldest->id);
  }

  const std::vector<Buffer>& buffers() const { return buffers_; }
  // To register a buffer of that size: what was measured for its class of sizes. If nothing was, the least of what follows
  // from the other classes: from a smaller one in proportion to the size, from a larger one its time as it is. If nothing
  // was measured at all, the time of a copy.
  double expected_seconds(size_t bytes) const {
    const size_t own = size_class(bytes);
    if (seconds_[own] > 0) return seconds_[own];
    double expected = 0;
    for (size_t other = 0; other < seconds_.size(); ++other) {
      if (seconds_[other] == 0) continue;
      const double scaled =
          other < own ? seconds_[other] * static_cast<double>(uint64_t{1} << (own - other)) : seconds_[other];
      expected = expected == 0 ? scaled : std::min(expected, scaled);
    }
    return expected > 0 ? expected : copy_seconds(bytes);
  }

 private:
  static constexpr double kMaxGrowth = 4;

  // Sizes from a power of two to the next.
  static size_t size_class(size_t bytes) { return static_cast<size_t>(std::bit_width(bytes)); }
  double copy_seconds(size_t bytes) const { return limits_.copy_seconds * static_cast<double>(bytes); }

  struct Candidate {
    size_t bytes = 0;
    double spent = 0;   // on copies, in seconds
    double factor = 1;  // how much more must be spent than is expected
  };

  const Limits limits_;
  uint64_t call_ = 0;
  std::vector<Buffer> buffers_;
  size_t bytes_ = 0;
  std::unordered_map<uintptr_t, Candidate> candidates_;  // by address
  std::array<double, 65> seconds_{};                     // to register, by size; 0: not measured
};

}  // namespace treering
