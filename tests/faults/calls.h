// SPDX-License-Identifier: Apache-2.0
// Calls on a communicator whose every result is checked: each is drawn from a number that all its ranks know.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "treering/treering.h"

namespace faults {

// splitmix64
inline uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// A rank's place in a communicator and its buffers, which are allocated once: memory may become scarce.
struct Place {
  trComm_t comm = nullptr;
  int rank = 0, ranks = 1;
  trStream_t stream = nullptr;  // with one, a call is only begun, and nothing of it checked
};

// What a rank does otherwise than the others: a call with other arguments, or another call.
enum class Other { kNothing, kCount, kCollective, kRoot, kType, kOperation, kShrink, kInPlaceOfCreation };

struct Called {
  const char* name = "";
  trResult_t result = trSuccess;
  bool is_wrong = false;  // it succeeded with other data than it should have
  size_t wrong_at = 0;    // element
  int32_t got = 0, due = 0;
};

class Calls {
 public:
  Calls(size_t least_bytes, size_t most_bytes);
  ~Calls() { destroy_stream(); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  // One of four collectives runs on a stream, and one of four in a group with a second call.
  void vary_ways() { varies_ways_ = true; }
  trResult_t destroy_stream();

  // A collective of some kind, root and size, by `draw`. `other` changes it if it can_differ() so.
  Called collective(const Place& place, uint64_t draw, Other other = Other::kNothing);
  Called all_to_all(const Place& place, uint64_t draw, Other other = Other::kNothing);
  // Every rank sends to one and receives from another, alone or all to all in a group.
  Called transfer(const Place& place, uint64_t draw, Other other = Other::kNothing);
  bool can_differ(const Place& place, uint64_t draw, Other other) const;  // of collective()
  // allreduce of `count` elements.
  Called sum(const Place& place, uint64_t draw, size_t count);
  size_t least_count() const { return std::max<size_t>(1, least_ / sizeof(int32_t)); }
  size_t more_counts() const { return 1 + (most_ - least_) / sizeof(int32_t); }

  // The buffers, with a communicator that lives until they are deregistered; what is in them.
  void register_buffers(trComm_t comm);
  void deregister_buffers();
  std::vector<int32_t> contents() const;
  // As a program does that uses its memory again.
  void overwrite();

  // Whether any rank wants to stop, on all of them.
  Called agree(const Place& place, bool own, bool* any);

 private:
  struct Shape;
  Shape shape_of(const Place& place, uint64_t draw, Other other) const;
  static void change(const Place& place, uint64_t draw, Other other, Shape* shape);
  Called run(const Place& place, const Shape& shape);
  trResult_t start_on_stream(const Place& place, const Shape& shape);
  Called run_in_group(const Place& place, const Shape& shape);
  trResult_t start(const Place& place, const Shape& shape);
  void fill(const Place& place, const Shape& shape);
  void check(const Place& place, const Shape& shape, Called* called);
  void check_block(int32_t factor, size_t from, size_t count, size_t at, uint64_t phase, Called* called);

  size_t least_, most_;
  std::vector<int32_t> in_, out_;
  bool varies_ways_ = false;
  trStream_t stream_ = nullptr;
  trComm_t registered_with_ = nullptr;
  void* handles_[2] = {};
};

// The thread of the streams stays once it was there.
void start_streams();

}  // namespace faults
