// SPDX-License-Identifier: Apache-2.0
#include "data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace treering::perf {
namespace {

static_assert(std::endian::native == std::endian::little, "store() and load() copy the low bytes");

// splitmix64's finaliser: every bit of the result depends on every bit of the argument.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t hash_of(size_t index, uint64_t seed) { return mix(mix(seed) ^ index); }
uint64_t hash_of(size_t index, int rank, uint64_t seed) {
  return mix(hash_of(index, seed) ^ (0x517cc1b727220a95u * (static_cast<uint64_t>(rank) + 1)));
}

// An integer whose sum over all ranks has magnitude up to 2^exact_bits. With more ranks than that, only every
// k-th rank gives something. Every fourth index all ranks give the same, so that averages are not all near
// zero.
int64_t bounded_integer(const DataType& type, size_t index, int rank, int ranks, uint64_t seed) {
  const uint64_t whole = uint64_t{1} << std::min(type.exact_bits, 40);
  uint64_t most = whole / static_cast<uint64_t>(ranks);
  if (most == 0) {
    const uint64_t every = (static_cast<uint64_t>(ranks) + whole - 1) / whole;
    if (static_cast<uint64_t>(rank) % every != 0) return 0;
    most = 1;
  }
  const uint64_t common = hash_of(index, seed);
  const uint64_t own = common % 4 == 0 ? common >> 8 : hash_of(index, rank, seed);
  if (!type.is_signed) return static_cast<int64_t>(own % (most + 1));
  return static_cast<int64_t>(own % (2 * most + 1)) - static_cast<int64_t>(most);
}

// Four ranks give 3 (81 in all: 7 bits), four a half or 2, all others 1; every sign is free. So any partial
// product is exact and far from overflow even in bfloat16 and float16.
double exact_factor(int exact_bits, size_t index, int rank, int ranks, uint64_t seed) {
  const uint64_t start = hash_of(index, seed) % static_cast<uint64_t>(ranks);
  const uint64_t distance =
      (static_cast<uint64_t>(rank) + static_cast<uint64_t>(ranks) - start) % static_cast<uint64_t>(ranks);
  const uint64_t own = hash_of(index, rank, seed);
  // A float of few bits has room for a single 3.
  const uint64_t threes = exact_bits < 7 ? 1 : 4;
  double value = 1;
  if (distance < threes) {
    value = 3;
  } else if (distance < threes + 4 && exact_bits >= 7) {
    value = own & 2 ? 2 : 0.5;
  }
  return own & 1 ? -value : value;
}

double value_in_range(const DataType& type, size_t index, int rank, uint64_t seed) {
  const int64_t span = int64_t{1} << type.exact_bits;
  return static_cast<double>(static_cast<int64_t>(hash_of(index, rank, seed) % static_cast<uint64_t>(2 * span)) - span);
}

uint64_t mask_of(const DataType& type) {
  return type.bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * type.bytes)) - 1;
}

int64_t sign_extended(const DataType& type, uint64_t bits) {
  const int shift = 64 - 8 * static_cast<int>(type.bytes);
  return static_cast<int64_t>(bits << shift) >> shift;
}

// A float of 8 or 16 bits: a sign, an exponent with the usual bias, a fraction.
struct NarrowFormat {
  int fraction_bits, exponent_bits;
  explicit NarrowFormat(const DataType& type)
      : fraction_bits(type.fraction_bits), exponent_bits(8 * static_cast<int>(type.bytes) - type.fraction_bits - 1) {}
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint64_t infinity() const { return ((uint64_t{1} << exponent_bits) - 1) << fraction_bits; }
};

// Normal and subnormal values, ties to even by nearbyint in the unit of the last place; what overflows is infinite.
// (No value here comes near the largest of a format without infinity.)
uint64_t narrow_of(const DataType& type, double value) {
  const NarrowFormat format(type);
  const uint64_t sign = std::signbit(value) ? uint64_t{1} << (8 * type.bytes - 1) : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return sign | format.infinity();
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent, 2 - format.bias());
  const double units = std::nearbyint(std::ldexp(magnitude, format.fraction_bits + 1 - exponent));
  // The hidden bit, and a carry out of the fraction, move into the exponent by themselves.
  const uint64_t bits =
      (static_cast<uint64_t>(exponent - 2 + format.bias()) << format.fraction_bits) + static_cast<uint64_t>(units);
  return sign | std::min(bits, format.infinity());
}

double narrow_to_double(const DataType& type, uint64_t bits) {
  const NarrowFormat format(type);
  const double sign = bits >> (8 * type.bytes - 1) & 1 ? -1 : 1;
  const int64_t hidden = int64_t{1} << format.fraction_bits;
  const auto exponent = static_cast<int>(bits >> format.fraction_bits) & ((1 << format.exponent_bits) - 1);
  const auto fraction = static_cast<int64_t>(bits) & (hidden - 1);
  // The formats of 8 bits differ in what is special.
  if (type.bytes == 2 && exponent == (1 << format.exponent_bits) - 1) return fraction != 0 ? NAN : sign * INFINITY;
  const auto units = static_cast<double>(exponent == 0 ? fraction : fraction + hidden);
  return sign * std::ldexp(units, std::max(exponent, 1) - format.bias() - format.fraction_bits);
}

void store(std::vector<char>& table, size_t index, const DataType& type, uint64_t bits) {
  std::memcpy(table.data() + index * type.bytes, &bits, type.bytes);  // little endian: the low bytes
}

uint64_t load(const char* at, const DataType& type) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, type.bytes);
  return bits;
}

uint64_t expected_float(const DataType& type, trRedOp_t op, size_t index, int ranks, uint64_t seed) {
  double result = input_float(type, op, index, 0, ranks, seed);
  for (int rank = 1; rank < ranks; ++rank) {
    const double value = input_float(type, op, index, rank, ranks, seed);
    switch (op) {
      case trSum:
      case trAvg:
      default:
        result += value;
        break;
      case trProd:
        result *= value;
        break;
      case trMax:
        result = std::max(result, value);
        break;
      case trMin:
        result = std::min(result, value);
        break;
    }
  }
  return encode_float(type, op == trAvg ? result / ranks : result);
}

uint64_t expected_integer(const DataType& type, trRedOp_t op, size_t index, int ranks, uint64_t seed) {
  const auto less = [&](uint64_t a, uint64_t b) {
    return type.is_signed ? sign_extended(type, a) < sign_extended(type, b) : a < b;
  };
  uint64_t result = input_bits(type, op, index, 0, ranks, seed);
  for (int rank = 1; rank < ranks; ++rank) {
    const uint64_t value = input_bits(type, op, index, rank, ranks, seed);
    switch (op) {
      case trSum:
      case trAvg:
      default:
        result += value;
        break;
      case trProd:
        result *= value;
        break;
      case trMax:
        result = less(result, value) ? value : result;
        break;
      case trMin:
        result = less(value, result) ? value : result;
        break;
      case trBitAnd:
        result &= value;
        break;
      case trBitOr:
        result |= value;
        break;
      case trBitXor:
        result ^= value;
        break;
      case trLogicalAnd:
        result = result != 0 && value != 0;
        break;
      case trLogicalOr:
        result = result != 0 || value != 0;
        break;
      case trLogicalXor:
        result = (result != 0) != (value != 0);
        break;
    }
    result &= mask_of(type);
  }
  if (op != trAvg) return result;
  if (!type.is_signed) return result / static_cast<uint64_t>(ranks);
  return static_cast<uint64_t>(sign_extended(type, result) / ranks) & mask_of(type);
}

// The bits as a number line: neighbours in value are neighbours in number, and both zeros are 0.
int64_t ordered(const DataType& type, uint64_t bits) {
  const uint64_t sign_bit = uint64_t{1} << (8 * type.bytes - 1);
  const auto magnitude = static_cast<int64_t>(bits & (sign_bit - 1));
  return bits & sign_bit ? -magnitude : magnitude;
}

bool differs(const DataType& type, trRedOp_t op, const char* a, const char* b) {
  if (std::memcmp(a, b, type.bytes) == 0) return false;
  if (op != trAvg || !type.is_float) return true;
  const int64_t distance = ordered(type, load(a, type)) - ordered(type, load(b, type));
  return distance < -2 || distance > 2;
}

}  // namespace

uint64_t encode_float(const DataType& type, double value) {
  if (type.bytes < sizeof(float)) return narrow_of(type, value);
  return type.bytes == sizeof(float) ? std::bit_cast<uint32_t>(static_cast<float>(value))
                                     : std::bit_cast<uint64_t>(value);
}

double decode_float(const DataType& type, uint64_t bits) {
  if (type.bytes < sizeof(float)) return narrow_to_double(type, bits);
  return type.bytes == sizeof(float) ? std::bit_cast<float>(static_cast<uint32_t>(bits)) : std::bit_cast<double>(bits);
}

double input_float(const DataType& type, trRedOp_t op, size_t index, int rank, int ranks, uint64_t seed) {
  if (op == trProd) return exact_factor(type.exact_bits, index, rank, ranks, seed);
  if (op == trMax || op == trMin) return value_in_range(type, index, rank, seed);
  return static_cast<double>(bounded_integer(type, index, rank, ranks, seed));
}

uint64_t input_bits(const DataType& type, trRedOp_t op, size_t index, int rank, int ranks, uint64_t seed) {
  if (type.is_float) return encode_float(type, input_float(type, op, index, rank, ranks, seed));
  uint64_t bits = hash_of(index, rank, seed);
  if (type.is_truth) return bits & 1;
  if (op >= trLogicalAnd && bits % 3 == 0) return 0;
  if (op == trProd) bits |= 1;  // a product of odd numbers never collapses to zero
  if (op == trAvg) bits = static_cast<uint64_t>(bounded_integer(type, index, rank, ranks, seed));
  return bits & mask_of(type);
}

namespace {

// The floats that a complex type is made of.
DataType lane_type(const DataType& type) {
  if (type.lanes == 1) return type;
  DataType lane = type;
  lane.lanes = 1;
  lane.bytes = type.bytes / 2;
  lane.id = type.part;
  return lane;
}

// One period of elements; `bits_of` gives lane l of element i.
template <typename BitsOf>
std::vector<char> make_table(const DataType& type, size_t period, BitsOf bits_of) {
  const DataType lane = lane_type(type);
  std::vector<char> table(period * type.bytes);
  for (size_t i = 0; i < period; ++i)
    for (size_t l = 0; l < static_cast<size_t>(type.lanes); ++l)
      store(table, i * static_cast<size_t>(type.lanes) + l, lane, bits_of(lane, i, l));
  return table;
}

std::vector<char> input_table(const DataType& type, trRedOp_t op, int rank, int ranks, uint64_t seed, size_t period) {
  return make_table(type, period, [&](const DataType& lane, size_t i, size_t l) -> uint64_t {
    if (l == 1 && op == trProd) return 0;
    return input_bits(lane, op, i + l * kPeriod, rank, ranks, seed);
  });
}

// Visits runs of at most a period: offset in the buffer, offset in the table, length; in elements.
template <typename Visit>
void for_runs(size_t count, size_t first, Visit visit) {
  for (size_t at = 0; at < count;) {
    const size_t phase = (first + at) % kPeriod, length = std::min(count - at, kPeriod - phase);
    visit(at, phase, length);
    at += length;
  }
}

// As much of a period as the elements from `first` on touch.
size_t period_of(size_t count, size_t first) {
  return first % kPeriod + count > kPeriod ? kPeriod : first % kPeriod + count;
}

size_t compare(const void* result, size_t count, const DataType& type, trRedOp_t op, const std::vector<char>& table,
               size_t first) {
  const DataType lane = lane_type(type);
  size_t wrong = 0;
  for_runs(count, first, [&](size_t at, size_t phase, size_t length) {
    const char* got = static_cast<const char*>(result) + at * type.bytes;
    const char* want = table.data() + phase * type.bytes;
    if (std::memcmp(got, want, length * type.bytes) == 0) return;
    for (size_t i = 0; i < length; ++i) {
      bool different = false;
      for (int l = 0; l < type.lanes; ++l) {
        const size_t offset = i * type.bytes + static_cast<size_t>(l) * lane.bytes;
        const bool same_number =
            type.lanes == 2 && ordered(lane, load(got + offset, lane)) == ordered(lane, load(want + offset, lane));
        different |= !same_number && differs(lane, op, got + offset, want + offset);
      }
      wrong += different ? 1 : 0;
    }
  });
  return wrong;
}

}  // namespace

void fill_input(void* buffer, size_t count, const DataType& type, trRedOp_t op, int rank, int ranks, uint64_t seed,
                size_t first) {
  const std::vector<char> table = input_table(type, op, rank, ranks, seed, period_of(count, first));
  for_runs(count, first, [&](size_t at, size_t phase, size_t length) {
    std::memcpy(static_cast<char*>(buffer) + at * type.bytes, table.data() + phase * type.bytes, length * type.bytes);
  });
}

size_t count_wrong(const void* result, size_t count, const DataType& type, trRedOp_t op, int ranks, uint64_t seed,
                   size_t first) {
  const std::vector<char> table =
      make_table(type, period_of(count, first), [&](const DataType& lane, size_t i, size_t l) -> uint64_t {
        if (l == 1 && op == trProd) return 0;
        const size_t index = i + l * kPeriod;
        return lane.is_float ? expected_float(lane, op, index, ranks, seed)
                             : expected_integer(lane, op, index, ranks, seed);
      });
  return compare(result, count, type, op, table, first);
}

size_t count_different(const void* result, size_t count, const DataType& type, trRedOp_t op, int source, int ranks,
                       uint64_t seed, size_t first) {
  const trRedOp_t exact = op == trAvg ? trSum : op;  // a copy is exact: no tolerance
  return compare(result, count, type, exact, input_table(type, op, source, ranks, seed, period_of(count, first)),
                 first);
}

}  // namespace treering::perf
