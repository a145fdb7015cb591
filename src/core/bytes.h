// SPDX-License-Identifier: Apache-2.0
// Writer and Reader: values to bytes and back, for everything that processes tell one another. A message names its
// fields once, in visit(), and both directions follow it. The reader takes any bytes: it never reads past the
// end and never allocates more than a small multiple of what it was given.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace treering {

class Writer {
 public:
  template <typename T>
  void operator()(const T& value) {
    if constexpr (std::is_integral_v<T> || std::is_enum_v<T>)
      out_.append(reinterpret_cast<const char*>(&value), sizeof value);
    else
      visit(*this, const_cast<T&>(value));  // it is only read
  }
  void operator()(const std::string& text) {
    (*this)(static_cast<uint32_t>(text.size()));
    out_ += text;
  }
  template <typename T>
  void operator()(const std::vector<T>& list) {
    (*this)(static_cast<uint32_t>(list.size()));
    for (const T& value : list) (*this)(value);
  }
  template <size_t N>
  void operator()(const std::array<unsigned char, N>& bytes) {
    out_.append(reinterpret_cast<const char*>(bytes.data()), N);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      unsigned char byte = 0;
      take(&byte, 1);
      value = byte != 0;
    } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      take(&value, sizeof value);
    } else {
      visit(*this, value);
    }
  }
  void operator()(std::string& text) {
    uint32_t bytes = 0;
    (*this)(bytes);
    if (!ok_ || bytes > left_.size()) return fail();
    text.assign(left_.data(), bytes);
    left_.remove_prefix(bytes);
  }
  template <typename T>
  void operator()(std::vector<T>& list) {
    uint32_t count = 0;
    (*this)(count);
    list.clear();
    // Every value takes at least a byte, so a false count ends at the end of the bytes.
    for (uint32_t i = 0; ok_ && i < count; ++i) {
      if (left_.empty()) return fail();
      list.emplace_back();
      (*this)(list.back());
    }
  }
  template <size_t N>
  void operator()(std::array<unsigned char, N>& bytes) {
    take(bytes.data(), N);
  }
  // Everything was there, and nothing more.
  bool complete() const { return ok_ && left_.empty(); }

 private:
  void fail() { ok_ = false; }
  void take(void* to, size_t bytes) {
    if (!ok_ || bytes > left_.size()) return fail();
    std::memcpy(to, left_.data(), bytes);
    left_.remove_prefix(bytes);
  }

  std::string_view left_;
  bool ok_ = true;
};

}  // namespace treering
