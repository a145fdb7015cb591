// SPDX-License-Identifier: Apache-2.0
// Reductions beyond a type and an op: complex numbers, scaled operands, rounded float32 results, functions of the user.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstring>
#include <random>
#include <vector>

#include "core/types.h"
#include "executor/reduce/reduce.h"
#include "hwy/highway.h"
#include "support/seed.h"

namespace treering {
namespace {

// Runs once for each target that the machine supports.
class ReduceExtras : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

template <class T>
struct Arrays {
  std::vector<std::vector<T>> sources;
  std::vector<T> results[2];
  std::vector<const void*> from;
  void* to[2];

  Arrays(size_t source_count, size_t count, std::mt19937_64* random) {
    std::uniform_int_distribution<int> small(-9, 9);
    for (size_t s = 0; s < source_count; ++s) {
      sources.emplace_back(count);
      for (T& value : sources.back()) {
        if constexpr (std::is_convertible_v<int, T> && sizeof(T) <= 8 && !requires { typename T::value_type; })
          value = static_cast<T>(small(*random));
        else
          value = T(static_cast<typename T::value_type>(small(*random)) / 4,
                    static_cast<typename T::value_type>(small(*random)));
      }
      from.push_back(sources.back().data());
    }
    for (size_t k = 0; k < 2; ++k) {
      results[k].resize(count);
      to[k] = results[k].data();
    }
  }
  ReduceCall call(trDataType_t type, trRedOp_t op) {
    ReduceCall call;
    call.type = type;
    call.op = op;
    call.sources = from.data();
    call.source_count = from.size();
    call.destinations = to;
    call.destination_count = 2;
    call.count = results[0].size();
    return call;
  }
};

constexpr size_t kCounts[] = {0, 1, 7, 64, 1009, 5000};

template <class T>
void check_complex(trDataType_t type, std::mt19937_64* random) {
  for (trRedOp_t op : {trSum, trProd, trAvg})
    for (size_t count : kCounts)
      for (bool scaled : {false, true}) {
        if (scaled && op == trProd) continue;
        Arrays<T> a(4, count, random);
        ReduceCall call = a.call(type, op);
        if (op == trAvg) call.divisor = 4;
        const T scale(3, -2);
        constexpr uint8_t kFirstAndThird[] = {kScaledSource, 0, kScaledSource, 0};
        if (scaled) call.source_flags = kFirstAndThird, call.scale = &scale;
        reduce(call);
        for (size_t i = 0; i < count; ++i) {
          T expected = 0;
          for (size_t s = 0; s < 4; ++s) {
            T value = a.sources[s][i];
            if (scaled && s % 2 == 0) value *= scale;
            const T next = op == trProd ? expected * value : expected + value;
            expected = s == 0 ? value : next;
          }
          if (op == trAvg) expected /= typename T::value_type{4};
          ASSERT_EQ(a.results[0][i], expected) << find_type(type)->name << " " << op << " element " << i;
          ASSERT_EQ(a.results[1][i], expected);
        }
      }
}

TEST_P(ReduceExtras, ComplexNumbers) {
  std::mt19937_64 random(test_seed(7));
  check_complex<std::complex<float>>(trComplex64, &random);
  check_complex<std::complex<double>>(trComplex128, &random);
}

template <class T>
void check_scaled(trDataType_t type, T scale, std::mt19937_64* random) {
  for (size_t sources : {1, 3})
    for (size_t count : kCounts) {
      Arrays<T> a(sources, count, random);
      ReduceCall call = a.call(type, trSum);
      constexpr uint8_t kFirst[] = {kScaledSource, 0, 0};
      call.source_flags = kFirst;
      call.scale = &scale;
      reduce(call);
      for (size_t i = 0; i < count; ++i) {
        T expected = static_cast<T>(a.sources[0][i] * scale);
        for (size_t s = 1; s < sources; ++s) expected = static_cast<T>(expected + a.sources[s][i]);
        ASSERT_EQ(a.results[0][i], expected) << find_type(type)->name << " element " << i << " of " << count;
      }
    }
}

TEST_P(ReduceExtras, ScaledOperands) {
  std::mt19937_64 random(test_seed(8));
  check_scaled<float>(trFloat32, 0.25f, &random);
  check_scaled<double>(trFloat64, -3, &random);
  check_scaled<int8_t>(trInt8, 3, &random);
  check_scaled<uint32_t>(trUint32, 7, &random);
  check_scaled<int64_t>(trInt64, -5, &random);
  check_scaled<_Float16>(trFloat16, 0.5f, &random);
}

// What is kept in float32 equals what a reader of the narrow message gets.
TEST_P(ReduceExtras, RoundedFloat32) {
  for (trDataType_t type : {trFloat16, trBfloat16, trFloat8e4m3, trFloat8e5m2})
    for (size_t sources : {1, 2}) {
      std::mt19937_64 random(test_seed(9));
      std::uniform_real_distribution<float> real(-3, 3);
      std::vector<float> a(1003), b(1003), wide(1003), again(1003);
      std::vector<uint16_t> narrow(1003);
      for (size_t i = 0; i < a.size(); ++i) a[i] = real(random), b[i] = real(random);
      const void* from[] = {a.data(), b.data()};
      void* to[] = {wide.data(), narrow.data()};
      ReduceCall call;
      call.type = type;
      call.sources = from;
      call.source_count = sources;
      constexpr uint8_t kBoth[] = {kWideSource, kWideSource};
      call.source_flags = kBoth;
      call.destinations = to;
      call.destination_count = 2;
      call.wide_destinations = 1;
      call.round_wide = true;
      call.count = a.size();
      reduce(call);
      const void* narrow_from = narrow.data();
      void* wide_to = again.data();
      ReduceCall read;
      read.type = type;
      read.sources = &narrow_from;
      read.source_count = 1;
      read.destinations = &wide_to;
      read.destination_count = 1;
      read.wide_destinations = 1;
      read.count = a.size();
      reduce(read);
      EXPECT_EQ(std::memcmp(wide.data(), again.data(), wide.size() * sizeof(float)), 0) << find_type(type)->name;
      size_t changed = 0;
      for (size_t i = 0; i < a.size(); ++i) changed += wide[i] != (sources == 1 ? a[i] : a[i] + b[i]);
      EXPECT_GT(changed, 900u) << "nothing was rounded: the test would not notice";
    }
}

// A source that is rounded, and a scaled one, count as what a reader of the narrow message would add.
TEST_P(ReduceExtras, RoundedSources) {
  for (trDataType_t type : {trFloat16, trBfloat16, trFloat8e4m3, trFloat8e5m2})
    for (bool scaled : {false, true}) {
      std::mt19937_64 random(test_seed(10));
      std::uniform_real_distribution<float> real(-3, 3);
      std::vector<float> own(1003), other(1003), sums(1003), expected(1003);
      for (size_t i = 0; i < own.size(); ++i) own[i] = real(random), other[i] = real(random);
      std::vector<uint16_t> sent(1003), factor(1);
      const auto run = [&](const void* a, uint8_t flags, const void* b, void* to, bool wide, size_t count) {
        const void* from[] = {a, b};
        const uint8_t all[] = {flags, kWideSource};
        ReduceCall call;
        call.type = type;
        call.sources = from;
        call.source_count = b == nullptr ? 1 : 2;
        call.source_flags = all;
        call.scale = (flags & kScaledSource) != 0 ? factor.data() : nullptr;
        call.destinations = &to;
        call.destination_count = 1;
        call.wide_destinations = wide;
        call.count = count;
        reduce(call);
      };
      const float third = 1 / 3.0f;
      run(&third, kWideSource, nullptr, factor.data(), false, 1);
      const uint8_t flags = kWideSource | (scaled ? kScaledSource : kRoundedSource);
      run(own.data(), flags, other.data(), sums.data(), true, own.size());
      run(own.data(), flags, nullptr, sent.data(), false, own.size());
      run(sent.data(), 0, other.data(), expected.data(), true, own.size());
      EXPECT_EQ(sums, expected) << find_type(type)->name << (scaled ? " scaled" : "");
      run(own.data(), flags, nullptr, sums.data(), true, own.size());
      run(sent.data(), 0, nullptr, expected.data(), true, own.size());
      EXPECT_EQ(sums, expected) << find_type(type)->name << (scaled ? " scaled" : "") << " alone";
    }
}

// a then b -> 10 a + b: neither commutative nor one that a kernel does.
void decimal(const void* in, void* inout, size_t count, trDataType_t, void* context) {
  const auto* a = static_cast<const int64_t*>(in);
  auto* b = static_cast<int64_t*>(inout);
  for (size_t i = 0; i < count; ++i) b[i] = 10 * a[i] + b[i];
  ++*static_cast<size_t*>(context);
}

TEST_P(ReduceExtras, FunctionsOfTheUser) {
  for (size_t count : kCounts) {
    std::vector<std::vector<int64_t>> sources;
    std::vector<const void*> from;
    for (int64_t s = 1; s <= 4; ++s) sources.emplace_back(count, s);
    for (auto& source : sources) from.push_back(source.data());
    std::vector<int64_t> other(count);
    void* to[] = {sources[1].data(), other.data()};  // the first in place
    size_t calls = 0;
    ReduceCall call;
    call.type = trInt64;
    call.sources = from.data();
    call.source_count = from.size();
    call.destinations = to;
    call.destination_count = 2;
    call.count = count;
    call.user = decimal;
    call.user_context = &calls;
    reduce(call);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(other[i], 1234) << i;
    EXPECT_EQ(sources[1], other);
    EXPECT_EQ(calls > 0, count > 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ReduceExtras, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

}  // namespace
}  // namespace treering
