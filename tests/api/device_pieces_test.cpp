// SPDX-License-Identifier: Apache-2.0
// Staged operations as only the stand-in shows them: the pinned memory that they take, that no kernel is launched.
#include <gtest/gtest.h>

#include <vector>

#include "support/cpu_device.h"
#include "support/device_rank_checks.h"
#include "support/sanitized.h"

namespace treering::testing {
namespace {

// Six slots of a rank, the flags, and what is rounded up to pages.
constexpr size_t kPinnedOfRank = 6 * kSmallPiece + (16 << 10);

TEST(PiecesMemory, StaysBoundedHoweverLargeTheBuffers) {
  DeviceRanks ranks({0, -1, 1}, 60'000, with_small_pieces());
  constexpr size_t kCount = kSanitized ? 2 << 20 : 8 << 20;  // 512 pieces, or 128
  auto data = ranks.buffers(kCount);
  reset_cpu_pinned_peak();
  const size_t before = cpu_pinned_peak();
  // Several at once: they share the slots.
  for (int turn = 0; turn < 4; ++turn)
    for (int r = 0; r < 3; ++r)
      ASSERT_EQ(trAllReduce(data[r].data(), data[r].data(), kCount, trInt32, trMax, ranks.comm(r), ranks.stream(r)),
                trSuccess);
  ranks.synchronize();
  for (const Buffer& b : data) ASSERT_TRUE(b.all_equal([](size_t) { return 3; }));
  EXPECT_GT(cpu_pinned_peak(), before);
  EXPECT_LE(cpu_pinned_peak() - before, 2 * (kPinnedOfRank + 4 * 4096));
}

// The other rank never comes: all memory is given back.
TEST(PiecesMemory, IsGivenBackAfterAnAbort) {
  const size_t before = cpu_pinned_bytes();
  {
    DeviceRanks ranks({0, -1}, 60'000, with_small_pieces());
    check_abort(ranks, 300'000);
  }
  EXPECT_EQ(cpu_pinned_bytes(), before);
}

// What kernels do not do is staged on all ranks, those with buffers of the host among them.
TEST(PiecesPaths, FunctionsOfTheUser) {
  DeviceRanks ranks({0, 1, 2}, 60'000, with_small_pieces());
  constexpr size_t kCount = 90'001;
  const auto add = [](const void* in, void* inout, size_t count, trDataType_t, void*) {
    for (size_t i = 0; i < count; ++i) static_cast<int*>(inout)[i] += static_cast<const int*>(in)[i];
  };
  std::vector<trRedOp_t> ops(3);
  for (int r = 0; r < 3; ++r) ASSERT_EQ(trRedOpCreateUser(&ops[r], add, nullptr, 1, ranks.comm(r)), trSuccess);
  auto device = ranks.buffers(kCount), host = ranks.buffers(kCount, 0, true);
  const uint64_t launched = cpu_launches();
  ranks.run(true, [&](int r, trComm_t comm, trStream_t stream) {
    int* data = r == 1 ? host[r].data() : device[r].data();
    return trAllReduce(data, data, kCount, trInt32, ops[r], comm, stream);
  });
  EXPECT_EQ(cpu_launches(), launched);
  ASSERT_TRUE(host[1].all_equal([](size_t) { return 6; }));
  for (int r : {0, 2}) ASSERT_TRUE(device[r].all_equal([](size_t) { return 6; }));
}

}  // namespace
}  // namespace treering::testing
