// SPDX-License-Identifier: Apache-2.0
// Checks of the device code that need a Machine alone: the same for threads of the CPU and for a GPU.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "device/gpus.h"

namespace treering::cuda {

inline constexpr DeviceProtocol kAllProtocols[] = {DeviceProtocol::kLl, DeviceProtocol::kLl128,
                                                   DeviceProtocol::kSimple};
const char* name_of(DeviceProtocol protocol);
// This process's seed. Failures print it.
uint64_t random_seed();

// Every algorithm that a device runs; and a name for a test of one.
std::vector<const Algorithm*> all_algorithms();
std::string test_name(const Algorithm& algorithm);

// The buffers of all ranks, and what their outputs must be: by the rows of the collective, and nothing else.
struct Buffers {
  std::vector<Bytes> inputs, outputs, expected;
  GpuJob job;

  Buffers(const Algorithm& algorithm, uint32_t ranks, size_t count, uint32_t root, bool in_place, std::mt19937* random)
      : info_(info_of(algorithm.collective)), ranks_(ranks), count_(count), root_(root) {
    job.algorithm = &algorithm;
    job.count = count;
    job.root = root;
    job.input_bytes = bytes_of(info_.input_index);
    job.output_bytes = bytes_of(info_.output_index);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      inputs.emplace_back(bytes_of(info_.input_index));
      for (std::byte& b : inputs.back()) b = static_cast<std::byte>((*random)());
      outputs.emplace_back(bytes_of(info_.output_index), std::byte{0xEE});
    }
    expected = outputs;
    in_place_ = in_place && inputs[0].size() == outputs[0].size() && info_.input_index == info_.output_index;
    if (in_place_) outputs = expected = inputs;
    expect();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      job.outputs.push_back(outputs[rank].data());
      job.inputs.push_back(in_place_ ? outputs[rank].data() : inputs[rank].data());
    }
  }

  void check(const std::string& what) const {
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      const auto differ = std::mismatch(outputs[rank].begin(), outputs[rank].end(), expected[rank].begin());
      ASSERT_EQ(differ.first, outputs[rank].end())
          << what << ": rank " << rank << " byte " << differ.first - outputs[rank].begin() << " of "
          << outputs[rank].size();
    }
  }

 private:
  size_t bytes_of(BlockIndex index) const { return (index == BlockIndex::kAlone ? 1 : ranks_) * count_ * 4 + 4; }
  uint32_t* at(std::vector<Bytes>* buffers, uint32_t rank, BlockIndex index, uint32_t part) const {
    return reinterpret_cast<uint32_t*>((*buffers)[rank].data()) + block_index(index, part, ranks_) * count_;
  }
  // Wrapping sums of 32-bit integers; what moves only is a sum of one.
  void expect() {
    std::vector<uint32_t> sum(count_);
    for (uint32_t part = 0; part < info_.part_count(ranks_); ++part) {
      std::fill(sum.begin(), sum.end(), 0);
      for (uint32_t rank = 0; rank < ranks_; ++rank) {
        if (!info_.contributes({rank, part, ranks_, root_})) continue;
        const uint32_t* operand = at(&inputs, rank, info_.input_index, part);
        for (size_t i = 0; i < count_; ++i) sum[i] += operand[i];
      }
      for (uint32_t rank = 0; rank < ranks_; ++rank)
        if (info_.stores({rank, part, ranks_, root_}) && info_.collective != Collective::kBarrier)
          std::copy(sum.begin(), sum.end(), at(&expected, rank, info_.output_index, part));
    }
  }

  const CollectiveInfo& info_;
  uint32_t ranks_;
  size_t count_;
  uint32_t root_;
  bool in_place_ = false;
};

Bytes random_bits(size_t bytes, trDataType_t type, std::mt19937* random);
// Equal bits, or both not a number: which NaN a sum of two gives is the processor's choice.
bool same_element(trDataType_t type, const std::byte* a, const std::byte* b);

// Each of these fails the test that runs.
void check_algorithm(Machine* machine, const Algorithm& algorithm, const std::vector<uint32_t>& rank_counts);
// Every type and operation through every protocol; sums also with a scalar, in the call or in memory.
void check_types(Machine* machine);
void check_lanes(Machine* machine, const std::vector<uint32_t>& rank_counts);
void check_other_call_is_named(Machine* machine);
void check_abort(Machine* machine);

}  // namespace treering::cuda
