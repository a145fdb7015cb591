// SPDX-License-Identifier: Apache-2.0
// Low latency: the LL and LL128 protocols, where every few bytes carry their own flag, so that nothing waits for a
// counter behind the data.
//
//   LL      | data 4 | flag 4 | data 4 | flag 4 | ...        a word of 8 bytes arrives at once; 16 bytes of data are 4 words
//   LL128   | data 120 ......................... | flag 8 |  a line of 128 bytes arrives at once
//
// The flag of message k is k + 1, by its low 32 bits for LL. What a slot holds from earlier messages has smaller
// flags. Old words of LL could look new again after 2^32 messages: the first messages of every 2^31, of whatever
// protocol, fill the whole slot of LL that is theirs, so none gets that old.
#pragma once

#include "device/move.h"

namespace treering::cuda {

// Ends every wait when the host says so.
class SpinWait {
 public:
  TR_DEVICE explicit SpinWait(const DeviceStatus* status) : status_(status) {}
  // False when it is over.
  TR_DEVICE bool wait() {
    relax(turns_);
    return (++turns_ & 1023) != 0 || load_flag(&status_->abort) == 0;
  }

 private:
  const DeviceStatus* status_;
  uint32_t turns_ = 0;
};

// 16 bytes of data from 4 words; false when the wait was ended.
TR_DEVICE bool read_ll(const uint64_t* at, uint32_t flag, uint64_t* words, const DeviceStatus* status) {
  SpinWait spin(status);
  uint64_t pairs[4];
  for (;;) {
    TR_UNROLL
    for (uint32_t i = 0; i < 4; ++i) pairs[i] = load_pair(at + i);
    if (static_cast<uint32_t>(pairs[0] >> 32) == flag && static_cast<uint32_t>(pairs[1] >> 32) == flag &&
        static_cast<uint32_t>(pairs[2] >> 32) == flag && static_cast<uint32_t>(pairs[3] >> 32) == flag)
      break;
    if (!spin.wait()) return false;
  }
  words[0] = (pairs[0] & 0xffffffffu) | pairs[1] << 32;
  words[1] = (pairs[2] & 0xffffffffu) | pairs[3] << 32;
  return true;
}
TR_DEVICE void write_ll(uint64_t* at, uint32_t flag, const uint64_t* words) {
  const uint64_t high = uint64_t{flag} << 32;
  store_pair(at, (words[0] & 0xffffffffu) | high);
  store_pair(at + 1, words[0] >> 32 | high);
  store_pair(at + 2, (words[1] & 0xffffffffu) | high);
  store_pair(at + 3, words[1] >> 32 | high);
}

struct Ll {
  static constexpr uint32_t kWords = 2;
  static constexpr uint32_t kThreads = 1;  // that share a unit
  static constexpr size_t kUnitData = 16;  // bytes of data in a unit
  static constexpr size_t kUnitWords = 4;  // words of a unit in the buffer
  static TR_DEVICE bool read(const uint64_t* unit, uint32_t, uint64_t flag, uint64_t* words,
                             const DeviceStatus* status) {
    return read_ll(unit, static_cast<uint32_t>(flag), words, status);
  }
  static TR_DEVICE void write(uint64_t* unit, uint32_t, uint64_t flag, const uint64_t* words) {
    write_ll(unit, static_cast<uint32_t>(flag), words);
  }
};

struct Ll128 {
  static constexpr uint32_t kWords = kWordsOfLane;
  static constexpr uint32_t kThreads = kLanesOfLine;
  static constexpr size_t kUnitData = kLineData;
  static constexpr size_t kUnitWords = 16;
  static TR_DEVICE bool read(const uint64_t* unit, uint32_t lane, uint64_t flag, uint64_t* words,
                             const DeviceStatus* status) {
    SpinWait spin(status);
    bool seen = false;
    while (!try_read_line(unit, lane, flag, words, &seen))
      if (!seen && !true_for_line(spin.wait())) return false;
    return true;
  }
  static TR_DEVICE void write(uint64_t* unit, uint32_t lane, uint64_t flag, const uint64_t* words) {
    write_line(unit, lane, flag, words);
  }
};

// What the threads need of a step's messages besides ExtentOperands.
struct FlaggedMessages {
  const uint64_t* in_flags;   // of each received message
  const uint64_t* out_flags;  // of each message to send
  const DeviceStatus* status;
};

// An extent that begins at unit `first_unit` of every message. False when a wait was ended.
// The threads of one unit (a line) stay together: all of them run every unit of their group.
template <class Number, class Protocol>
TR_DEVICE bool move_flagged(const ExtentOperands& o, const Arithmetic<Number>& how, const FlaggedMessages& flags,
                            size_t first_unit, const Thread& thread) {
  using Storage = typename Number::Storage;
  constexpr uint32_t kWords = Protocol::kWords;
  constexpr uint32_t kElements = kWords * 8 / sizeof(Storage);
  constexpr uint32_t kUnitElements = Protocol::kUnitData / sizeof(Storage);
  const uint64_t units = (o.count + kUnitElements - 1) / kUnitElements;
  const uint32_t lane = thread.index() % Protocol::kThreads;
  const uint32_t sources = o.sources();
  for (uint64_t unit = thread.index() / Protocol::kThreads; unit < units; unit += thread.count() / Protocol::kThreads) {
    const uint64_t element = unit * kUnitElements + uint64_t{lane} * kElements;
    // How many elements this thread's words have; the last word of a line is its flag.
    const uint64_t limit = (unit + 1) * kUnitElements;
    const uint64_t end = o.count < limit ? o.count : limit;
    const uint64_t count = end > element ? end - element : 0;
    const size_t at = (first_unit + unit) * Protocol::kUnitWords;
    Batch<Number, kWords> values;
    uint64_t words[kWords];
    const auto load = [&](uint32_t source) {
      if (o.is_local(source)) {
        load_local<Number, kWords>(words, o.local + element * sizeof(Storage), count);
        if (how.scaled) scale_words<Number, kWords>(how, words);
        return true;
      }
      const uint32_t message = o.local != nullptr && source > o.local_position ? source - 1 : source;
      return Protocol::read(reinterpret_cast<const uint64_t*>(o.messages_in[message]) + at, lane,
                            flags.in_flags[message], words, flags.status);
    };
    if (!load(0)) return false;
    values.load(words);
    TR_ROLLED
    for (uint32_t s = 1; s < sources; ++s) {
      if (!load(s)) return false;
      values.combine(how, words);
    }
    values.finish(how);
    values.store(words);
    TR_ROLLED
    for (uint32_t d = 0; d < o.sends; ++d)
      Protocol::write(reinterpret_cast<uint64_t*>(o.messages_out[d]) + at, lane, flags.out_flags[d], words);
    for (uint32_t d = 0; d < 2; ++d)
      if (o.stores[d] != nullptr) store_local<Number, kWords>(o.stores[d] + element * sizeof(Storage), words, count);
  }
  return true;
}

}  // namespace treering::cuda
