// SPDX-License-Identifier: Apache-2.0
// Reductions that are no vector kernel of one pass: products of complex numbers, and functions of the user.
//
// Both work tile by tile on a copy of the first operand that stays in the first-level cache, so that every element of
// all sources is read before any destination is written.
#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>

#include "core/types.h"
#include "executor/reduce/reduce_kernels.h"

namespace treering {
namespace {

constexpr size_t kTileBytes = 16 << 10;

struct Scratch {
  alignas(64) std::byte left[kTileBytes];
  alignas(64) std::byte right[kTileBytes];
};

// A thread's own, made at its first use.
Scratch& scratch() {
  thread_local const std::unique_ptr<Scratch> memory = std::make_unique<Scratch>();
  return *memory;
}

const std::byte* source_at(const ReduceCall& call, size_t source, size_t byte) {
  return static_cast<const std::byte*>(call.sources[source]) + byte;
}

void store(const ReduceCall& call, const std::byte* value, size_t byte, size_t bytes) {
  for (size_t k = 0; k < call.destination_count; ++k)
    std::memcpy(static_cast<std::byte*>(call.destinations[k]) + byte, value, bytes);
}

// left[i] *= factors[i * step]: (a + bi)(c + di) = (ac - bd) + (ad + bc)i, each product and sum rounded.
template <typename T>
void multiply(T* left, const T* factors, size_t count, size_t step) {
  for (size_t i = 0; i < count; ++i) {
    const T a = left[2 * i], b = left[2 * i + 1], c = factors[2 * i * step], d = factors[2 * i * step + 1];
    left[2 * i] = a * c - b * d;
    left[2 * i + 1] = a * d + b * c;
  }
}

template <typename T>
void reduce_complex_tiles(const ReduceCall& call) {
  const size_t size = 2 * sizeof(T), tile = kTileBytes / size;
  Scratch& memory = scratch();
  auto* left = reinterpret_cast<T*>(memory.left);
  auto* right = reinterpret_cast<T*>(memory.right);
  for (size_t done = 0; done < call.count; done += tile) {
    const size_t now = std::min(tile, call.count - done), bytes = now * size;
    const auto load = [&](T* to, size_t s) {
      std::memcpy(to, source_at(call, s, done * size), bytes);
      if ((call.flags_of(s) & kScaledSource) != 0) multiply(to, static_cast<const T*>(call.scale), now, 0);
    };
    load(left, 0);
    for (size_t s = 1; s < call.source_count; ++s) {
      load(right, s);
      if (call.op == trProd) {
        multiply(left, right, now, 1);
      } else {
        for (size_t i = 0; i < 2 * now; ++i) left[i] += right[i];
      }
    }
    if (call.op == trAvg && call.divisor > 1)
      for (size_t i = 0; i < 2 * now; ++i) left[i] /= static_cast<T>(call.divisor);
    store(call, memory.left, done * size, bytes);
  }
}

}  // namespace

void reduce_complex(const ReduceCall& call) {
  // Without products the parts are as many floats.
  if (call.op != trProd && call.scale == nullptr) {
    ReduceCall parts = call;
    parts.type = find_type(call.type)->part;
    parts.count = 2 * call.count;
    return reduce_float(parts);
  }
  switch (call.type) {
#define TR_CASE(code, kernels, name, storage, ...) \
  case code:                                       \
    return reduce_complex_tiles<std::remove_extent_t<storage>>(call);
    TR_DATA_TYPES(TR_NO_ROW, TR_NO_ROW, TR_CASE, TR_NO_ROW)
#undef TR_CASE
    default:
      break;
  }
}

void reduce_user(const ReduceCall& call) {
  const size_t size = find_type(call.type)->size, tile = kTileBytes / size;
  Scratch& memory = scratch();
  std::byte *left = memory.left, *right = memory.right;
  for (size_t done = 0; done < call.count; done += tile) {
    const size_t now = std::min(tile, call.count - done), bytes = now * size;
    std::memcpy(left, source_at(call, 0, done * size), bytes);
    for (size_t s = 1; s < call.source_count; ++s) {
      // The function stores into its right operand, which then is the left one of the next.
      std::memcpy(right, source_at(call, s, done * size), bytes);
      call.user(left, right, now, call.type, call.user_context);
      std::swap(left, right);
    }
    store(call, left, done * size, bytes);
  }
}

}  // namespace treering
