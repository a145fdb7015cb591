// SPDX-License-Identifier: Apache-2.0
#include "device/cpu_kernels.h"

#include <memory>
#include <vector>

#include "device/kernels.h"

namespace treering::cuda {
namespace {

using RunBlock = void (*)(const DeviceLaunch& launch, uint32_t block, BlockShared* shared, const Thread& thread);

template <DeviceProtocol kProtocol>
RunBlock find(trDataType_t type) {
  switch (type) {
#define TR_CASE(code, kernels, name, storage, bits, Number, ...) \
  case code:                                                     \
    return run_block<Number, kProtocol>;
    TR_DEVICE_TYPES(TR_CASE)
#undef TR_CASE
    default:
      return nullptr;
  }
}

template <class Number>
void combine(trRedOp_t op, const std::vector<const std::byte*>& sources, uint64_t count, uint32_t divisor,
             const void* scale, std::byte* result) {
  typename Number::Storage factor{};
  if (scale != nullptr) std::memcpy(&factor, scale, sizeof factor);
  const Arithmetic<Number> how{op, divisor, scale != nullptr, &factor};
  ExtentOperands operands{};
  operands.messages_in = sources.data();
  operands.receives = static_cast<uint32_t>(sources.size()) - 1;
  operands.local = sources.back();
  operands.local_position = operands.receives;
  operands.stores[0] = result;
  operands.count = count;
  move_extent<Number>(operands, how, Thread(0, 1, nullptr, nullptr));
}

}  // namespace

void combine_on_cpu(trDataType_t type, trRedOp_t op, const std::vector<const std::byte*>& sources, uint64_t count,
                    uint32_t divisor, const void* scale, std::byte* result) {
  switch (type) {
#define TR_CASE(code, kernels, name, storage, bits, Number, ...) \
  case code:                                                     \
    return combine<Number>(op, sources, count, divisor, scale, result);
    TR_DEVICE_TYPES(TR_CASE)
#undef TR_CASE
    default:
      break;
  }
}

void launch_on_cpu(const DeviceLaunch& launch, trDataType_t type, DeviceProtocol protocol, uint32_t threads,
                   uint32_t seed) {
  RunBlock run = find<DeviceProtocol::kSimple>(type);
  if (protocol == DeviceProtocol::kLl) run = find<DeviceProtocol::kLl>(type);
  if (protocol == DeviceProtocol::kLl128) run = find<DeviceProtocol::kLl128>(type);
  struct CpuBlock {
    explicit CpuBlock(uint32_t threads) : barrier(threads), shared(std::make_unique<BlockShared>()) {}
    std::barrier<> barrier;
    std::unique_ptr<BlockShared> shared;
  };
  std::vector<std::unique_ptr<CpuBlock>> blocks;
  std::vector<std::thread> all;
  for (uint32_t block = 0; block < launch.channels; ++block) blocks.push_back(std::make_unique<CpuBlock>(threads));
  for (uint32_t block = 0; block < launch.channels; ++block)
    for (uint32_t index = 0; index < threads; ++index)
      all.emplace_back([&, block, index] {
        std::mt19937 delays(seed + (block * 131 + index) * 7919 + launch.call[0].rank);
        CpuBlock& mine = *blocks[block];
        const Thread thread(index, threads, &mine.barrier, seed == 0 ? nullptr : &delays);
        run(launch, block, mine.shared.get(), thread);
      });
  for (std::thread& thread : all) thread.join();
}

}  // namespace treering::cuda
