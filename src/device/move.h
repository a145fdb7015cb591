// SPDX-License-Identifier: Apache-2.0
// Move: combines the operands of one extent of a step into its destinations, by all threads of a block, in one pass.
//
// Sources are received messages in their order with the local operand at `local_position`; destinations are messages
// to send and up to two places in local memory. Every element of all sources is read before any destination of it is
// written, by the same thread, so a destination may be a source.
#pragma once

#include "device/numbers.h"
#include "device/work.h"

namespace treering::cuda {

// What is done with the elements of a step.
template <class Number>
struct Arithmetic {
  using Compute = typename Number::Compute;
  trRedOp_t op;
  uint32_t divisor;  // 1: none
  bool scaled;       // the local operand is multiplied by `*scale`
  // In the block's shared memory. It is read when it is used, because registers are few.
  const typename Number::Storage* scale;

  TR_DEVICE Compute factor() const { return Number::load(*scale); }
};

// kWords words of 8 bytes as elements in registers.
template <class Number, uint32_t kWords>
struct Batch {
  using Storage = typename Number::Storage;
  using Compute = typename Number::Compute;
  static constexpr uint32_t kElements = kWords * 8 / sizeof(Storage);
  Compute values[kElements];

  TR_DEVICE void load(const uint64_t* words) {
    Storage stored[kElements];
    memcpy(stored, words, sizeof stored);
    TR_UNROLL
    for (uint32_t e = 0; e < kElements; ++e) values[e] = Number::load(stored[e]);
  }
  TR_DEVICE void store(uint64_t* words) const {
    Storage stored[kElements];
    TR_UNROLL
    for (uint32_t e = 0; e < kElements; ++e) stored[e] = Number::store(values[e]);
    memcpy(words, stored, sizeof stored);
  }
  // The right operand stays packed until it is used: as numbers, bytes take four times the registers.
  TR_DEVICE void combine(const Arithmetic<Number>& how, const uint64_t* words) {
    Storage right[kElements];
    memcpy(right, words, sizeof right);
    // Sums first: the op is the same for all, and most are sums.
    if (how.op == trSum || how.op == trAvg) {
      TR_UNROLL
      for (uint32_t e = 0; e < kElements; ++e) values[e] = combine_two(trSum, values[e], Number::load(right[e]));
    } else {
      TR_UNROLL
      for (uint32_t e = 0; e < kElements; ++e) values[e] = combine_two(how.op, values[e], Number::load(right[e]));
    }
  }
  TR_DEVICE void finish(const Arithmetic<Number>& how) {
    if (how.divisor == 1) return;
    TR_UNROLL
    for (uint32_t e = 0; e < kElements; ++e) values[e] = divide_by(values[e], how.divisor);
  }
};

// Operands of a pre-multiplied sum, in place.
template <class Number, uint32_t kWords>
TR_DEVICE void scale_words(const Arithmetic<Number>& how, uint64_t* words) {
  const typename Number::Compute factor = how.factor();
  typename Number::Storage stored[kWords * 8 / sizeof(typename Number::Storage)];
  memcpy(stored, words, sizeof stored);
  TR_UNROLL
  for (auto& each : stored) each = Number::store(combine_two(trProd, Number::load(each), factor));
  memcpy(words, stored, sizeof stored);
}

// Words at a place in local memory that may begin anywhere and may end after `count` elements.
template <class Number, uint32_t kWords>
TR_DEVICE void load_local(uint64_t* words, const std::byte* from, uint64_t count) {
  using Storage = typename Number::Storage;
  constexpr uint32_t kElements = kWords * 8 / sizeof(Storage);
  constexpr uint32_t kAccess = kWords % 2 == 0 ? 16 : 8;
  if (count >= kElements && reinterpret_cast<uintptr_t>(from) % kAccess == 0) {
    TR_UNROLL
    for (uint32_t w = 0; w < kWords; w += kAccess / 8) load_words<kAccess>(words + w, from + 8 * w);
    return;
  }
  if (count >= kElements && reinterpret_cast<uintptr_t>(from) % 8 == 0) {
    TR_UNROLL
    for (uint32_t w = 0; w < kWords; ++w) load_words<8>(words + w, from + 8 * w);
    return;
  }
  Storage stored[kElements];
  TR_UNROLL
  for (uint32_t e = 0; e < kElements; ++e) {
    stored[e] = Storage{};
    if (e < count) stored[e] = reinterpret_cast<const Storage*>(from)[e];
  }
  memcpy(words, stored, sizeof stored);
}

template <class Number, uint32_t kWords>
TR_DEVICE void store_local(std::byte* to, const uint64_t* words, uint64_t count) {
  using Storage = typename Number::Storage;
  constexpr uint32_t kElements = kWords * 8 / sizeof(Storage);
  constexpr uint32_t kAccess = kWords % 2 == 0 ? 16 : 8;
  if (count >= kElements && reinterpret_cast<uintptr_t>(to) % kAccess == 0) {
    TR_UNROLL
    for (uint32_t w = 0; w < kWords; w += kAccess / 8) store_words<kAccess>(to + 8 * w, words + w);
    return;
  }
  if (count >= kElements && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
    TR_UNROLL
    for (uint32_t w = 0; w < kWords; ++w) store_words<8>(to + 8 * w, words + w);
    return;
  }
  Storage stored[kElements];
  memcpy(stored, words, sizeof stored);
  TR_UNROLL
  for (uint32_t e = 0; e < kElements; ++e)
    if (e < count) reinterpret_cast<Storage*>(to)[e] = stored[e];
}

// The operands of one extent. Messages are those of the step: where each begins is in the lists.
struct ExtentOperands {
  const std::byte* const* messages_in;
  std::byte* const* messages_out;
  size_t message_offset;  // of the extent in every message
  uint32_t receives, sends;
  const std::byte* local;  // operand, or nullptr
  uint32_t local_position;
  std::byte* stores[2];  // or nullptr
  uint64_t count;        // elements

  TR_DEVICE uint32_t sources() const { return receives + (local != nullptr); }
  TR_DEVICE bool is_local(uint32_t source) const {
    return local != nullptr && source == (local_position < receives ? local_position : receives);
  }
  TR_DEVICE const std::byte* source(uint32_t s) const {
    if (is_local(s)) return local;
    const uint32_t message = local != nullptr && s > local_position ? s - 1 : s;
    return messages_in[message] + message_offset;
  }
};

// `there`: where the value lies already.
template <uint32_t kPacks>
TR_DEVICE void store_packs(const ExtentOperands& o, size_t first, size_t stride, const uint64_t (&words)[kPacks][2],
                           const std::byte* there) {
  TR_ROLLED
  for (uint32_t d = 0; d < o.sends; ++d) {
    std::byte* to = o.messages_out[d] + o.message_offset + first;
    TR_UNROLL
    for (uint32_t u = 0; u < kPacks; ++u) store_words<16>(to + u * stride, words[u]);
  }
  TR_UNROLL
  for (uint32_t d = 0; d < 2; ++d) {
    if (o.stores[d] == nullptr || o.stores[d] == there) continue;
    TR_UNROLL
    for (uint32_t u = 0; u < kPacks; ++u) store_words<16>(o.stores[d] + first + u * stride, words[u]);
  }
}

template <class Number, uint32_t kPacks>
TR_DEVICE void load_packs(const ExtentOperands& o, const Arithmetic<Number>& how, uint32_t source, size_t first,
                          size_t stride, uint64_t (&words)[kPacks][2]) {
  const std::byte* from = o.source(source) + first;
  TR_UNROLL
  for (uint32_t u = 0; u < kPacks; ++u) load_words<16>(words[u], from + u * stride);
  if (!how.scaled || !o.is_local(source)) return;
  TR_UNROLL
  for (uint32_t u = 0; u < kPacks; ++u) scale_words<Number, 2>(how, words[u]);
}

// Groups of kPacks x 16 bytes for each thread: `first` is the byte at which the thread's first lies, `stride` leads to
// its next.
template <class Number, uint32_t kPacks>
TR_DEVICE void move_packs(const ExtentOperands& o, const Arithmetic<Number>& how, size_t first, size_t stride) {
  Batch<Number, 2> values[kPacks];
  uint64_t words[kPacks][2];
  load_packs<Number, kPacks>(o, how, 0, first, stride, words);
  TR_UNROLL
  for (uint32_t u = 0; u < kPacks; ++u) values[u].load(words[u]);
  const uint32_t sources = o.sources();
  TR_ROLLED
  for (uint32_t s = 1; s < sources; ++s) {
    load_packs<Number, kPacks>(o, how, s, first, stride, words);
    TR_UNROLL
    for (uint32_t u = 0; u < kPacks; ++u) values[u].combine(how, words[u]);
  }
  TR_UNROLL
  for (uint32_t u = 0; u < kPacks; ++u) {
    values[u].finish(how);
    values[u].store(words[u]);
  }
  store_packs<kPacks>(o, first, stride, words, nullptr);
}

// One source that only moves: no registers for elements, so more bytes are under way.
template <uint32_t kPacks>
TR_DEVICE void copy_packs(const ExtentOperands& o, size_t first, size_t stride) {
  uint64_t words[kPacks][2];
  const std::byte* from = o.source(0) + first;
  TR_UNROLL
  for (uint32_t u = 0; u < kPacks; ++u) load_words<16>(words[u], from + u * stride);
  store_packs<kPacks>(o, first, stride, words, o.source(0));
}

template <class Number>
TR_DEVICE void move_element(const ExtentOperands& o, const Arithmetic<Number>& how, uint64_t element) {
  using Storage = typename Number::Storage;
  const auto load = [&](uint32_t source) {
    const auto value = Number::load(reinterpret_cast<const Storage*>(o.source(source))[element]);
    return how.scaled && o.is_local(source) ? scaled<Number>(value, how.factor()) : value;
  };
  auto value = load(0);
  const uint32_t sources = o.sources();
  TR_ROLLED
  for (uint32_t s = 1; s < sources; ++s) value = combine_two(how.op == trAvg ? trSum : how.op, value, load(s));
  if (how.divisor != 1) value = divide_by(value, how.divisor);
  const Storage stored = Number::store(value);
  TR_ROLLED
  for (uint32_t d = 0; d < o.sends; ++d)
    reinterpret_cast<Storage*>(o.messages_out[d] + o.message_offset)[element] = stored;
  for (uint32_t d = 0; d < 2; ++d)
    if (o.stores[d] != nullptr) reinterpret_cast<Storage*>(o.stores[d])[element] = stored;
}

// An extent of plain memory (Simple). Slots are aligned, so 16 bytes are moved at once where the local places are
// aligned as well; the rest goes by elements.
template <class Number>
TR_DEVICE void move_extent(const ExtentOperands& o, const Arithmetic<Number>& how, const Thread& thread) {
  using Storage = typename Number::Storage;
  // As many bytes under way for each thread as registers allow: as a number, a byte takes as many as a word.
  constexpr uint32_t kPacks = sizeof(Storage) < 4 ? sizeof(Storage) : 4;
  const uint64_t bytes = o.count * sizeof(Storage);
  uint64_t done = 0;
  const uintptr_t places = reinterpret_cast<uintptr_t>(o.local) | reinterpret_cast<uintptr_t>(o.stores[0]) |
                           reinterpret_cast<uintptr_t>(o.stores[1]);
  if (places % 16 == 0) {
    const size_t stride = size_t{16} * thread.count(), at = size_t{16} * thread.index();
    if (o.sources() == 1 && how.divisor == 1 && !how.scaled) {
      for (; bytes - done >= 8 * stride; done += 8 * stride) copy_packs<8>(o, done + at, stride);
      for (; bytes - done >= stride; done += stride) copy_packs<1>(o, done + at, stride);
      if (bytes - done >= at + 16) copy_packs<1>(o, done + at, stride);
    } else {
      for (; bytes - done >= kPacks * stride; done += kPacks * stride)
        move_packs<Number, kPacks>(o, how, done + at, stride);
      for (; bytes - done >= stride; done += stride) move_packs<Number, 1>(o, how, done + at, stride);
      if (bytes - done >= at + 16) move_packs<Number, 1>(o, how, done + at, stride);
    }
    done = bytes / 16 * 16;
  }
  for (uint64_t e = done / sizeof(Storage) + thread.index(); e < o.count; e += thread.count())
    move_element<Number>(o, how, e);
}

}  // namespace treering::cuda
