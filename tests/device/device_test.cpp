// SPDX-License-Identifier: Apache-2.0
// The device code of the CUDA executor, run on the CPU: every schedule, protocol, type and operation, with 2 to 8 ranks
// whose blocks are threads of this process.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "device/device_checks.h"
#include "executor/reduce/reduce.h"
#include "support/sanitized.h"

namespace treering::cuda {
namespace {

const std::vector<uint32_t> kRankCounts =
    testing::kSanitized ? std::vector<uint32_t>{2, 3, 5} : std::vector<uint32_t>{2, 3, 4, 5, 8};

CpuMachine machine;

class EveryAlgorithm : public ::testing::TestWithParam<const Algorithm*> {};

TEST_P(EveryAlgorithm, MovesAndReducesWhatTheCollectiveSays) { check_algorithm(&machine, *GetParam(), kRankCounts); }

INSTANTIATE_TEST_SUITE_P(Device, EveryAlgorithm, ::testing::ValuesIn(all_algorithms()),
                         [](const auto& info) { return test_name(*info.param); });

// On any bits at all, the device's arithmetic gives what the host's kernels give.
TEST(DeviceArithmetic, EqualsTheHosts) {
  std::mt19937 random(random_seed());
  constexpr size_t kCount = 1003;
  for (const DataTypeInfo& type : kDataTypes)
    for (const OpInfo& op : kOps) {
      if (!supports(type, op) || type.type == trBool) continue;
      for (size_t sources : {1u, 2u, 5u})
        for (bool scaled : {false, true}) {
          if (scaled && op.op != trSum) continue;
          if (sources == 1 && gives_truth(type.type, op.op)) continue;  // only sent: a rank alone leaves it to the host
          std::vector<Bytes> operands;
          std::vector<const std::byte*> addresses;
          std::vector<const void*> host_addresses;
          for (size_t s = 0; s < sources; ++s) operands.push_back(random_bits(kCount * type.size, type.type, &random));
          for (const Bytes& operand : operands) {
            addresses.push_back(operand.data());
            host_addresses.push_back(operand.data());
          }
          const Bytes scale = random_bits(16, type.type, &random);
          Bytes device(kCount * type.size), host(kCount * type.size);
          const uint32_t divisor = op.op == trAvg ? 3 : 1;
          combine_on_cpu(type.type, op.op, addresses, kCount, divisor, scaled ? scale.data() : nullptr, device.data());
          void* destination = host.data();
          ReduceCall call;
          call.type = type.type;
          call.op = op.op;
          call.divisor = divisor;
          call.sources = host_addresses.data();
          call.source_count = sources;
          call.destinations = &destination;
          call.destination_count = 1;
          call.count = kCount;
          std::vector<uint8_t> flags(sources);
          flags.back() = scaled ? kScaledSource : 0;
          call.source_flags = flags.data();
          call.scale = scaled ? scale.data() : nullptr;
          reduce(call);
          for (size_t i = 0; i < kCount; ++i)
            ASSERT_TRUE(same_element(type.type, device.data() + i * type.size, host.data() + i * type.size))
                << type.name << " " << op.name << " sources " << sources << (scaled ? " scaled" : "") << " element "
                << i << " seed " << random_seed();
        }
    }
}

TEST(DeviceTypes, EveryTypeOperationAndProtocol) { check_types(&machine); }

// Old words of a slot never look new: around the numbers where the flags of LL wrap, and where slots are filled for
// that.
TEST(DeviceProtocols, CountersWrap) {
  std::mt19937 random(random_seed());
  const Algorithm* algorithm = nullptr;
  ASSERT_TRUE(find_algorithm(Collective::kAllReduce, "one-shot", &algorithm).ok());
  constexpr uint32_t kOldFlag = 0x77777777;
  for (uint64_t start : {(uint64_t{1} << 31) - 2, (uint64_t{1} << 32) - 2, (uint64_t{1} << 40) - 2})
    for (DeviceProtocol protocol : kAllProtocols) {
      Gpus gpus(&machine, {.ranks = 2, .channels = 1, .depth = 3, .slot_bytes = 16384});
      const size_t words = 3 * ll_bytes(kLlSlotBytes) / 8;
      for (uint32_t rank : {0u, 1u}) {
        PeerFifos& fifos = gpus.fifos(rank, 0, 1 - rank);
        fifos.posted = fifos.received = start;
        *fifos.in_consumed = start;
        std::fill_n(fifos.out_ll, words, uint64_t{kOldFlag} << 32);
        std::fill_n(fifos.out_flags, 3, 12345);
      }
      for (int turn = 0; turn < 8; ++turn) {
        Buffers buffers(*algorithm, 2, 1 + random() % 500, 0, false, &random);
        buffers.job.protocol = protocol;
        ASSERT_EQ(gpus.run(buffers.job), "");
        ASSERT_NO_FATAL_FAILURE(buffers.check(name_of(protocol)));
      }
      if (protocol != DeviceProtocol::kLl) continue;
      for (uint32_t rank : {0u, 1u})
        for (size_t word = 0; word < words; ++word)
          ASSERT_NE(gpus.fifos(rank, 0, 1 - rank).in_ll[word] >> 32, kOldFlag)
              << "word " << word << " was never filled";
    }
}

TEST(DeviceLanes, SendsAndReceivesInAnyOrder) { check_lanes(&machine, kRankCounts); }

TEST(DeviceFailures, AnotherCallIsNamed) { check_other_call_is_named(&machine); }

TEST(DeviceFailures, AbortEndsEveryWait) { check_abort(&machine); }

}  // namespace
}  // namespace treering::cuda
