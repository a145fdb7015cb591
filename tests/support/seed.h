// SPDX-License-Identifier: Apache-2.0
// The seed of a test that draws numbers: TREERING_TEST_SEED repeats a run.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>

namespace treering {

// From the environment; else `usual`, where a test is to draw the same in every run; else a new one. Prints it.
inline uint64_t test_seed(std::optional<uint64_t> usual = {}) {
  const char* const given = std::getenv("TREERING_TEST_SEED");
  uint64_t seed = usual ? *usual : std::random_device()();
  if (given != nullptr) {
    const std::string text = given;
    if (text.empty() || text.size() > 19 || text.find_first_not_of("0123456789") != std::string::npos)
      throw std::invalid_argument("TREERING_TEST_SEED is '" + text + "': give a whole number of at most 19 digits");
    seed = std::stoull(text);
  }
  std::cout << "seed " << seed << " (TREERING_TEST_SEED repeats it)" << std::endl;
  return seed;
}

// SplitMix64, for many short series: its state is one word. std::mt19937_64 fills 312 words from each seed.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t operator()() {
    uint64_t word = state_ += 0x9E3779B97F4A7C15u;
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
    word = (word ^ word >> 27) * 0x94D049BB133111EBu;
    return word ^ word >> 31;
  }

 private:
  uint64_t state_;
};

}  // namespace treering
