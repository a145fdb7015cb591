// SPDX-License-Identifier: Apache-2.0
// The reduction kernels against the scalar reference, bit for bit, on every target that this machine
// supports.
#include "executor/reduce/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <span>
#include <vector>

#include "core/types.h"
#include "executor/reduce/reduce_reference.h"
#include "executor/reduce/reduce_targets.h"
#include "hwy/highway.h"
#include "support/sanitized.h"
#include "support/seed.h"

namespace treering {
namespace {

using reference::Bfloat;
using reference::E4m3;
using reference::E5m2;
using reference::Half;
using reference::PlainFormat;
using Random = std::mt19937_64;

constexpr size_t kGuardBytes = 64;
constexpr uint8_t kGuard = 0xa5;

size_t below(Random& random, size_t limit) { return random() % limit; }

// `bytes` bytes at a chosen distance from a cache line, with guards on both sides.
class Buffer {
 public:
  Buffer(size_t bytes, size_t misalignment) : bytes_(bytes), memory_(bytes + 3 * kGuardBytes, kGuard) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    start_ = (kGuardBytes - address % kGuardBytes) + kGuardBytes / 2 + misalignment;
    start_ = std::min(start_, memory_.size() - bytes - 1);
  }
  uint8_t* data() { return memory_.data() + start_; }
  const uint8_t* data() const { return memory_.data() + start_; }
  bool guards_intact() const {
    const auto is_guard = [](uint8_t b) { return b == kGuard; };
    const auto begin = memory_.begin(), first = begin + static_cast<ptrdiff_t>(start_);
    return std::all_of(begin, first, is_guard) &&
           std::all_of(first + static_cast<ptrdiff_t>(bytes_), memory_.end(), is_guard);
  }

 private:
  size_t bytes_;
  size_t start_;
  std::vector<uint8_t> memory_;
};

// Values that meet: ordinary ones of similar size, and now and then zeros, denormals, extremes, infinities,
// NaN.
template <class T>
T random_value(Random& random) {
  if constexpr (!std::is_floating_point_v<T>) {
    return static_cast<T>(random() >> below(random, 8 * sizeof(T)));
  } else {
    using Limits = std::numeric_limits<T>;
    static constexpr T kSpecial[] = {T(0),
                                     -T(0),
                                     Limits::denorm_min(),
                                     Limits::min() / 2,
                                     Limits::max(),
                                     Limits::lowest(),
                                     Limits::infinity(),
                                     -Limits::infinity(),
                                     Limits::quiet_NaN(),
                                     T(6e-8),
                                     T(65520),
                                     T(65519.996),
                                     T(-65504),
                                     T(1e-40)};
    if (below(random, 16) == 0) return kSpecial[below(random, std::size(kSpecial))];
    const T mantissa = static_cast<T>(static_cast<int64_t>(random())) / static_cast<T>(INT64_MAX);
    return std::ldexp(mantissa, static_cast<int>(below(random, 12)) - 4);
  }
}

// A shape of call; the contents follow from the random generator.
struct Shape {
  trRedOp_t op;
  size_t sources;
  size_t destinations;
  size_t count;
  bool byte_unaligned = false;
};

template <class Format>
class Case {
 public:
  using Compute = typename Format::Compute;

  Case(trDataType_t type, const Shape& shape, Random& random) {
    call_.type = type;
    call_.op = shape.op;
    call_.count = shape.count;
    const uint32_t divisors[] = {static_cast<uint32_t>(shape.sources), 1, 2, 3, 8, 1000003, UINT32_MAX};
    if (shape.op == trAvg) call_.divisor = divisors[below(random, std::size(divisors))];
    call_.streaming = below(random, 2) ? random() : 0;
    if (Format::kNarrow) {
      call_.wide_destinations = below(random, 2) ? random() : 0;
    }
    const size_t unit = shape.byte_unaligned ? 1 : 0;
    flags_.resize(shape.sources);
    if (Format::kNarrow && below(random, 2) != 0)
      for (uint8_t& flags : flags_) flags = below(random, 2) ? kWideSource : 0;
    call_.source_flags = flags_.data();
    for (uint8_t flags : flags_) add_source(flags != 0, unit, random);
    for (size_t k = 0; k < shape.destinations; ++k) add_destination(k, unit, random);
  }

  void run_and_check() {
    const std::vector<Compute> expected = expect();
    std::vector<const void*> sources;
    for (uint8_t* source : sources_) sources.push_back(source);
    std::vector<void*> destinations(destinations_.begin(), destinations_.end());
    call_.sources = sources.data();
    call_.source_count = sources.size();
    call_.destinations = destinations.data();
    call_.destination_count = destinations.size();
    reduce(call_);
    streaming_fence();
    for (size_t k = 0; k < destinations_.size(); ++k) {
      if (wide(call_.wide_destinations, k)) {
        compare<PlainFormat<float>>(expected, k);
      } else {
        compare<Format>(expected, k);
      }
    }
    for (const Buffer& buffer : buffers_) ASSERT_TRUE(buffer.guards_intact()) << describe();
  }

 private:
  static bool wide(uint64_t mask, size_t i) { return Format::kNarrow && i < 64 && ((mask >> i) & 1) != 0; }

  uint8_t* new_buffer(size_t element_bytes, size_t unit, Random& random) {
    const size_t step = unit == 0 ? element_bytes : unit;
    const size_t misalignment = below(random, 3) == 0 ? 32 : below(random, 64 / step) * step;
    buffers_.emplace_back(call_.count * element_bytes, misalignment);
    return buffers_.back().data();
  }

  void add_source(bool is_wide, size_t unit, Random& random) {
    const size_t bytes = is_wide ? sizeof(float) : Format::kBytes;
    uint8_t* data = new_buffer(bytes, unit, random);
    for (size_t i = 0; i < call_.count; ++i) {
      const auto value = random_value<Compute>(random);
      if (is_wide) {
        PlainFormat<float>::store(static_cast<float>(value), data + i * bytes);
      } else {
        Format::store(value, data + i * bytes);
      }
    }
    sources_.push_back(data);
  }

  // A third of the first destinations is in place.
  void add_destination(size_t k, size_t unit, Random& random) {
    const bool is_wide = wide(call_.wide_destinations, k);
    const size_t source = below(random, sources_.size());
    if (k == 0 && below(random, 3) == 0 && (flags_[source] != 0) == is_wide) {
      destinations_.push_back(sources_[source]);
      return;
    }
    destinations_.push_back(new_buffer(is_wide ? sizeof(float) : Format::kBytes, unit, random));
  }

  std::vector<Compute> expect() const {
    std::vector<Compute> result(call_.count);
    for (size_t s = 0; s < sources_.size(); ++s) {
      for (size_t i = 0; i < call_.count; ++i) {
        Compute value;
        if (flags_[s] != 0) {
          value = static_cast<Compute>(PlainFormat<float>::load(sources_[s] + i * sizeof(float)));
        } else {
          value = Format::load(sources_[s] + i * Format::kBytes);
        }
        result[i] = s == 0 ? value : reference::combine(operation(), result[i], value);
      }
    }
    if (sources_.size() == 1 && gives_truth(call_.type, call_.op))
      for (Compute& value : result) value = value != 0;
    if (call_.op == trAvg)
      for (Compute& value : result) value = reference::divide(value, call_.divisor);
    return result;
  }

  // The bits of truth values do not count.
  trRedOp_t operation() const {
    const bool bits = call_.type == trBool && call_.op <= trBitXor;
    return bits ? static_cast<trRedOp_t>(call_.op + (trLogicalAnd - trBitAnd)) : call_.op;
  }

  template <class Stored>
  void compare(const std::vector<Compute>& expected, size_t destination) {
    for (size_t i = 0; i < expected.size(); ++i) {
      uint8_t want[8] = {};
      Stored::store(static_cast<typename Stored::Compute>(expected[i]), want);
      const uint8_t* got = destinations_[destination] + i * Stored::kBytes;
      if (std::memcmp(want, got, Stored::kBytes) == 0) continue;
      ASSERT_TRUE(Stored::is_nan(want) && Stored::is_nan(got))
          << describe() << " destination " << destination << " element " << i << ": expected " << +Stored::load(want)
          << ", got " << +Stored::load(got);
    }
  }

  std::string describe() const {
    return std::string(reduce_target()) + " " + find_type(call_.type)->name + " " + find_op(call_.op)->name +
           " sources " + std::to_string(sources_.size()) + " destinations " + std::to_string(destinations_.size()) +
           " count " + std::to_string(call_.count) + " divisor " + std::to_string(call_.divisor) + " wide " +
           std::to_string(std::count(flags_.begin(), flags_.end(), kWideSource)) + "/" +
           std::to_string(call_.wide_destinations) + " streaming " + std::to_string(call_.streaming);
  }

  ReduceCall call_;
  std::vector<uint8_t> flags_;
  std::vector<Buffer> buffers_;
  std::vector<uint8_t*> sources_;
  std::vector<uint8_t*> destinations_;
};

void run_case(trDataType_t type, const Shape& shape, Random& random) {
  switch (type) {
    case trInt8:
      return Case<PlainFormat<int8_t>>(type, shape, random).run_and_check();
    case trUint8:
      return Case<PlainFormat<uint8_t>>(type, shape, random).run_and_check();
    case trInt32:
      return Case<PlainFormat<int32_t>>(type, shape, random).run_and_check();
    case trUint32:
      return Case<PlainFormat<uint32_t>>(type, shape, random).run_and_check();
    case trInt64:
      return Case<PlainFormat<int64_t>>(type, shape, random).run_and_check();
    case trUint64:
      return Case<PlainFormat<uint64_t>>(type, shape, random).run_and_check();
    case trFloat16:
      return Case<Half>(type, shape, random).run_and_check();
    case trFloat32:
      return Case<PlainFormat<float>>(type, shape, random).run_and_check();
    case trFloat64:
      return Case<PlainFormat<double>>(type, shape, random).run_and_check();
    case trBfloat16:
      return Case<Bfloat>(type, shape, random).run_and_check();
    case trFloat8e4m3:
      return Case<E4m3>(type, shape, random).run_and_check();
    case trFloat8e5m2:
      return Case<E5m2>(type, shape, random).run_and_check();
    case trBool:
      return Case<PlainFormat<uint8_t>>(type, shape, random).run_and_check();
    default:
      FAIL() << "no type";
  }
}

// Every test runs once for each target that the library was built for and the machine supports.
class ReduceTest : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    ASSERT_STREQ(reduce_target(), hwy::TargetName(GetParam()));
    random_.seed(test_seed());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  Random random_;
};

// Complex numbers are in reduce_extras_test.
bool tested(const DataTypeInfo& type, const OpInfo& op) {
  return supports(type, op) && type.kind != TypeKind::kComplex;
}

TEST_P(ReduceTest, EveryTypeAndOpMatchesTheReference) {
  const auto source_counts =
      testing::kSanitized ? std::vector<size_t>{1, 2, 3, 8, 20} : std::vector<size_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 20};
  const auto counts = testing::kSanitized ? std::vector<size_t>{0, 1, 3, 16, 31, 257}
                                          : std::vector<size_t>{0, 1, 2, 3, 7, 16, 31, 64, 127, 257, 1009, 2048};
  for (const DataTypeInfo& type : kDataTypes)
    for (const OpInfo& op : kOps)
      for (size_t sources : tested(type, op) ? std::span<const size_t>(source_counts) : std::span<const size_t>())
        for (size_t destinations = 1; destinations <= 4; ++destinations)
          for (size_t count : counts) {
            run_case(type.type, {op.op, sources, destinations, count}, random_);
            if (HasFatalFailure()) return;
          }
}

TEST_P(ReduceTest, LargeAndManySources) {
  for (const DataTypeInfo& type : kDataTypes)
    for (const OpInfo& op : kOps) {
      if (!tested(type, op)) continue;
      run_case(type.type, {op.op, 3, 2, 50021}, random_);
      run_case(type.type, {op.op, 70, 2, 601}, random_);  // more sources than a machine word has bits
      if (HasFatalFailure()) return;
    }
}

TEST_P(ReduceTest, AddressesThatAreNoMultipleOfTheElement) {
  for (const DataTypeInfo& type : kDataTypes)
    for (const OpInfo& op : kOps)
      for (size_t count : {1, 5, 33, 700}) {
        if (tested(type, op)) run_case(type.type, {op.op, 3, 2, count, true}, random_);
        if (HasFatalFailure()) return;
      }
}

// Every bit pattern to float32 and back, and every rounding boundary between neighbours.
template <class Format, class Storage>
void check_conversions(trDataType_t type) {
  std::vector<Storage> narrow(size_t{1} << 8 * sizeof(Storage));
  std::vector<float> wide(narrow.size());
  for (size_t i = 0; i < narrow.size(); ++i) narrow[i] = static_cast<Storage>(i);
  const void* source = narrow.data();
  void* destination = wide.data();
  ReduceCall call;
  call.type = type;
  call.sources = &source;
  call.source_count = 1;
  call.destinations = &destination;
  call.destination_count = 1;
  call.wide_destinations = 1;
  call.count = narrow.size();
  reduce(call);
  std::vector<float> boundaries;
  for (size_t i = 0; i < narrow.size(); ++i) {
    const float expected = Format::load(reinterpret_cast<const uint8_t*>(&narrow[i]));
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(wide[i]) : std::memcmp(&expected, &wide[i], 4) == 0) << i;
    if (i == 0 || !std::isfinite(wide[i]) || !std::isfinite(wide[i - 1])) continue;
    const float middle = wide[i - 1] / 2 + wide[i] / 2;
    for (float value : {middle, std::nextafter(middle, wide[i]), std::nextafter(middle, wide[i - 1])})
      boundaries.push_back(value);
  }
  for (float beyond : {449.0f, 464.0f, 465.0f, 480.0f, 57345.0f, 61440.0f, 61441.0f, 65535.0f, 1e30f, -1e30f,
                       std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), 1e-30f})
    boundaries.push_back(beyond);
  std::vector<Storage> rounded(boundaries.size());
  source = boundaries.data();
  destination = rounded.data();
  constexpr uint8_t kWide = kWideSource;
  call.source_flags = &kWide;
  call.wide_destinations = 0;
  call.count = boundaries.size();
  reduce(call);
  for (size_t i = 0; i < boundaries.size(); ++i) {
    Storage expected;
    Format::store(boundaries[i], reinterpret_cast<uint8_t*>(&expected));
    ASSERT_EQ(rounded[i], expected) << find_type(type)->name << " " << boundaries[i];
  }
}

TEST_P(ReduceTest, ConversionsRoundToNearestEven) {
  check_conversions<Half, uint16_t>(trFloat16);
  check_conversions<Bfloat, uint16_t>(trBfloat16);
  check_conversions<E4m3, uint8_t>(trFloat8e4m3);
  check_conversions<E5m2, uint8_t>(trFloat8e5m2);
}

TEST_P(ReduceTest, NarrowSumsRoundOnce) {
  // 2048 + 1 + 1: rounding after each addition would stay at 2048, as float16 has no 2049.
  const uint16_t half_2048 = 0x6800, half_1 = 0x3c00, half_2050 = 0x6801;
  const void* sources[] = {&half_2048, &half_1, &half_1};
  uint16_t result = 0;
  void* destination = &result;
  ReduceCall call;
  call.type = trFloat16;
  call.sources = sources;
  call.source_count = 3;
  call.destinations = &destination;
  call.destination_count = 1;
  call.count = 1;
  reduce(call);
  EXPECT_EQ(result, half_2050);
}

TEST_P(ReduceTest, CopyMovesEveryByte) {
  for (size_t bytes : {0, 1, 8, 63, 64, 100, 1023, 1024, 4097, 100003}) {
    for (bool streaming : {false, true}) {
      Buffer from(bytes, below(random_, 64)), to(bytes, below(random_, 64));
      for (size_t i = 0; i < bytes; ++i) from.data()[i] = static_cast<uint8_t>(random_());
      copy(to.data(), from.data(), bytes, streaming);
      streaming_fence();
      ASSERT_EQ(std::memcmp(to.data(), from.data(), bytes), 0) << bytes;
      ASSERT_TRUE(to.guards_intact()) << bytes;
      copy(from.data(), from.data(), bytes, streaming);
      ASSERT_EQ(std::memcmp(to.data(), from.data(), bytes), 0) << bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ReduceTest, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

}  // namespace
}  // namespace treering
