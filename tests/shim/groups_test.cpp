// SPDX-License-Identifier: Apache-2.0
// Groups, simulations, and operations made by the user.
#include "shim/helpers.h"

namespace treering::testing {
namespace {

TEST(Groups, OneThreadDrivesAllRanksAndGroupsNest) {
  AllRanks ranks(3);
  int values[3] = {1, 2, 3}, broadcast[3] = {7, 0, 0};
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclAllReduce(&values[rank], &values[rank], 1, ncclInt32, ncclSum, ranks[rank], nullptr));
    EXPECT_NCCL(ncclBcast(&broadcast[rank], 1, ncclInt32, 0, ranks[rank], nullptr));
    ASSERT_NCCL(ncclGroupEnd());
  }
  EXPECT_EQ(values[0], 1) << "an inner end starts nothing";
  ASSERT_NCCL(ncclGroupEnd());
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(values[rank], 6);
    EXPECT_EQ(broadcast[rank], 7);
  }
}

TEST(Groups, EndWithoutStart) {
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("ncclGroupStart"), std::string::npos);
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidUsage);
}

TEST(Groups, WrongCallLetsNothingStart) {
  AllRanks ranks(2);
  int values[2] = {1, 2};
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&values[0], &values[0], 1, ncclInt32, ncclSum, ranks[0], nullptr));
  EXPECT_EQ(ncclAllReduce(&values[1], &values[1], 1, static_cast<ncclDataType_t>(12), ncclSum, ranks[1], nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_EQ(values[0], 1);
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_NCCL(ncclAllReduce(&values[rank], &values[rank], 1, ncclInt32, ncclSum, ranks[rank], nullptr));
  ASSERT_NCCL(ncclGroupEnd()) << "the failure is over with its group";
  EXPECT_EQ(values[1], 3);
}

TEST(Groups, OverlapIsFoundAtTheEnd) {
  AllRanks ranks(2);
  int values[2][4] = {};
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_NCCL(ncclAllReduce(values[rank], values[rank] + 1, 2, ncclInt32, ncclSum, ranks[rank], nullptr));
  EXPECT_NE(ncclGroupEnd(), ncclSuccess);
  EXPECT_NE(std::string(ncclGetLastError(ranks[0])), "");
}

TEST(Groups, SendToItself) {
  AllRanks ranks(1);
  int from = 5, to = 0;
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclSend(&from, 1, ncclInt32, 0, ranks[0], nullptr));
  EXPECT_NCCL(ncclRecv(&to, 1, ncclInt32, 0, ranks[0], nullptr));
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_EQ(to, 5);
}

TEST(Groups, SplitsOfOneCommunicatorAreMadeInOrder) {
  AllRanks ranks(2);
  ncclComm_t first[2], second[2];
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NCCL(ncclCommSplit(ranks[rank], 0, rank, &first[rank], nullptr));
    EXPECT_NCCL(ncclCommSplit(ranks[rank], rank, 0, &second[rank], nullptr));
  }
  ASSERT_NCCL(ncclGroupEnd()) << ncclGetLastError(nullptr);
  for (int rank = 0; rank < 2; ++rank) {
    int count = 0;
    EXPECT_NCCL(ncclCommCount(first[rank], &count));
    EXPECT_EQ(count, 2);
    EXPECT_NCCL(ncclCommCount(second[rank], &count));
    EXPECT_EQ(count, 1);
    EXPECT_NCCL(ncclCommDestroy(first[rank]));
    EXPECT_NCCL(ncclCommDestroy(second[rank]));
  }
}

TEST(Groups, MemoryInsideOfAGroup) {
  AllRanks ranks(2);
  void* memory[2];
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_NCCL(ncclMemAlloc(&memory[rank], 1 << 20));
    EXPECT_NCCL(ncclAllReduce(memory[rank], memory[rank], 1 << 18, ncclFloat32, ncclSum, ranks[rank], nullptr));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (void* pointer : memory) EXPECT_NCCL(ncclMemFree(pointer));
  EXPECT_NCCL(ncclMemFree(nullptr));
  void* nothing = memory;
  EXPECT_NCCL(ncclMemAlloc(&nothing, 0));
  EXPECT_EQ(nothing, nullptr);
}

TEST(Simulation, AddsUpAndRunsNothing) {
  AllRanks ranks(2);
  std::vector<float> small(1), large(1 << 20);
  auto simulate = [&](std::vector<float>& buffer, int times) {
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    EXPECT_NCCL(ncclGroupStart());
    for (int i = 0; i < times; ++i)
      EXPECT_NCCL(ncclAllReduce(buffer.data(), buffer.data(), buffer.size(), ncclFloat32, ncclSum, ranks[0], nullptr));
    EXPECT_NCCL(ncclGroupSimulateEnd(&info));
    return info.estimatedTime;
  };
  small[0] = 1;
  const float once = simulate(small, 1), thrice = simulate(small, 3), much = simulate(large, 1);
  EXPECT_GT(once, 0);
  EXPECT_NEAR(thrice, 3 * once, 0.01 * once);
  EXPECT_GT(much, once);
  EXPECT_EQ(small[0], 1);
  EXPECT_EQ(simulate(small, 0), 0);
}

// Ranks of one thread run at the same time.
TEST(Simulation, TellsTheTimeOfTheSlowestCommunicator) {
  AllRanks ranks(2);
  std::vector<float> buffer(1000);
  auto simulate = [&](int count) {
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    EXPECT_NCCL(ncclGroupStart());
    for (int r = 0; r < count; ++r)
      EXPECT_NCCL(ncclAllReduce(buffer.data(), buffer.data(), buffer.size(), ncclFloat32, ncclSum, ranks[r], nullptr));
    EXPECT_NCCL(ncclGroupSimulateEnd(&info));
    return info.estimatedTime;
  };
  const float one = simulate(1);
  EXPECT_GT(one, 0);
  EXPECT_NEAR(simulate(2), one, 0.01 * one);
}

TEST(Operations, OfAnotherCommunicatorAreRefused) {
  AllRanks ranks(2);
  float factor = 2, value = 1;
  ncclRedOp_t ops[2];
  for (int r = 0; r < 2; ++r)
    ASSERT_NCCL(ncclRedOpCreatePreMulSum(&ops[r], &factor, ncclFloat32, ncclScalarHostImmediate, ranks[r]));
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclFloat32, ops[1], ranks[0], nullptr), ncclInvalidArgument);
  for (int r = 0; r < 2; ++r) EXPECT_NCCL(ncclRedOpDestroy(ops[r], ranks[r]));
}

TEST(Simulation, SendsAndReceivesTakeTime) {
  AllRanks ranks(2);
  std::vector<float> buffer(1 << 20);
  auto simulate = [&](size_t count, int peer, bool both) {
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(buffer.data(), count, ncclFloat32, peer, ranks[0], nullptr));
    if (both) {
      EXPECT_NCCL(ncclRecv(buffer.data(), count, ncclFloat32, peer, ranks[0], nullptr));
    }
    EXPECT_NCCL(ncclGroupSimulateEnd(&info));
    return info.estimatedTime;
  };
  const float small = simulate(1, 1, false), large = simulate(1 << 20, 1, false);
  EXPECT_GT(small, 0);
  EXPECT_GT(large, small);  // by how much depends on latencies that were measured while other work ran
  EXPECT_EQ(simulate(1 << 20, 1, true), large) << "both directions at once";
  EXPECT_LE(simulate(1 << 20, 0, true), small) << "a copy within the rank passes no link";
}

TEST(Simulation, ArgumentsAndNothingCreated) {
  AllRanks ranks(2);
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  info.magic = 1;
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidArgument);
  EXPECT_EQ(info.estimatedTime, NCCL_UNDEF_FLOAT);
  ncclComm_t child = nullptr;
  EXPECT_NCCL(ncclCommSplit(ranks[0], 0, 0, &child, nullptr));
  EXPECT_NCCL(ncclGroupSimulateEnd(nullptr));
  EXPECT_EQ(child, nullptr);
}

class PreMulSum : public ::testing::TestWithParam<ncclScalarResidence_t> {};

TEST_P(PreMulSum, DestroyedBeforeTheGroupEnds) {
  AllRanks ranks(3);
  float scalars[3] = {2, 10, 100}, values[3] = {1, 1, 1}, again[3] = {1, 2, 3};
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 3; ++rank) {
    ncclRedOp_t op, second;
    ASSERT_NCCL(ncclRedOpCreatePreMulSum(&op, &scalars[rank], ncclFloat32, GetParam(), ranks[rank]));
    EXPECT_NCCL(ncclAllReduce(&values[rank], &values[rank], 1, ncclFloat32, op, ranks[rank], nullptr));
    EXPECT_NCCL(ncclRedOpDestroy(op, ranks[rank]));
    // Another one in the place of the first must not change what the first was given to.
    static float one = 1;
    ASSERT_NCCL(ncclRedOpCreatePreMulSum(&second, &one, ncclFloat32, GetParam(), ranks[rank]));
    EXPECT_NE(op, second);
    EXPECT_NCCL(ncclAllReduce(&again[rank], &again[rank], 1, ncclFloat32, second, ranks[rank], nullptr));
    EXPECT_NCCL(ncclRedOpDestroy(second, ranks[rank]));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(values[rank], 112);
    EXPECT_EQ(again[rank], 6);
  }
}

INSTANTIATE_TEST_SUITE_P(Residence, PreMulSum, ::testing::Values(ncclScalarDevice, ncclScalarHostImmediate));

TEST(PreMulSumScalar, IsReadWhenItsResidenceSays) {
  with_ranks(2, [](int, ncclComm_t comm) {
    for (bool device : {false, true}) {
      double scalar = 3, value = 1;
      ncclRedOp_t op;
      ASSERT_NCCL(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat64,
                                           device ? ncclScalarDevice : ncclScalarHostImmediate, comm));
      scalar = 5;
      EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclFloat64, op, comm, nullptr));
      EXPECT_EQ(value, device ? 10 : 6);
      EXPECT_NCCL(ncclRedOpDestroy(op, comm));
    }
  });
}

TEST(PreMulSumScalar, WrongUses) {
  AllRanks ranks(2);
  float scalar = 2, value = 1;
  ncclRedOp_t op;
  ASSERT_NCCL(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, ranks[0]));
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclFloat16, op, ranks[0], nullptr), ncclInvalidArgument) << "type";
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclFloat32, op, ranks[1], nullptr), ncclInvalidArgument) << "comm";
  EXPECT_EQ(ncclRedOpDestroy(ncclSum, ranks[0]), ncclInvalidArgument);
  EXPECT_EQ(ncclRedOpDestroy(op, ranks[1]), ncclInvalidArgument);
  EXPECT_NCCL(ncclRedOpDestroy(op, ranks[0]));
  EXPECT_EQ(ncclRedOpDestroy(op, ranks[0]), ncclInvalidArgument);
  EXPECT_EQ(ncclRedOpCreatePreMulSum(&op, nullptr, ncclFloat32, ncclScalarDevice, ranks[0]), ncclInvalidArgument);
  EXPECT_EQ(ncclRedOpCreatePreMulSum(&op, &scalar, static_cast<ncclDataType_t>(99), ncclScalarDevice, ranks[0]),
            ncclInvalidArgument);
  EXPECT_EQ(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32, static_cast<ncclScalarResidence_t>(2), ranks[0]),
            ncclInvalidArgument);
}

}  // namespace
}  // namespace treering::testing
