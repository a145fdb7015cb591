// SPDX-License-Identifier: Apache-2.0
// What a call must hold to before it runs: types, roots, pointers, overlaps; and how large its buffers are.
#include "communicator/calls/operation.h"

#include <gtest/gtest.h>

#include <iterator>

#include "core/types.h"

namespace treering {
namespace {

constexpr uint32_t kRanks = 4;

Operation operation_of(Collective collective, const float* input, float* output, size_t count = 10) {
  Operation operation;
  operation.function = "trCall";
  operation.collective = collective;
  operation.input = input;
  operation.output = output;
  operation.count = count;
  return operation;
}

void expect_refused(Operation operation, uint32_t rank, const std::string& words) {
  const Status status = check_operation(&operation, rank, kRanks);
  EXPECT_EQ(status.code(), trInvalidArgument) << words;
  EXPECT_EQ(status.message().find("trCall on rank " + std::to_string(rank) + ": "), 0u) << status.message();
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
}

class Check : public ::testing::Test {
 protected:
  float memory_[200] = {};
  float* const a_ = memory_;
  float* const b_ = memory_ + 100;
};

TEST_F(Check, TypesOperationsAndRoots) {
  Operation operation = operation_of(Collective::kReduce, a_, b_);
  EXPECT_TRUE(check_operation(&operation, 0, kRanks).ok());
  operation.root = kRanks - 1;
  EXPECT_TRUE(check_operation(&operation, 0, kRanks).ok());
  operation.root = kRanks;
  expect_refused(operation, 1, "root is 4; give 0 to 3");
  operation.root = 0;
  operation.type = static_cast<trDataType_t>(std::size(kDataTypes));
  expect_refused(operation, 1, unknown_type(operation.type));
  operation.type = trFloat32;
  operation.op = static_cast<trRedOp_t>(11);
  expect_refused(operation, 1, "op is 11; known are 0 (sum) to 10");
  operation.op = trMax;
  operation.type = trComplex64;
  expect_refused(operation, 1, "is not defined for datatype");
  // What moves data only has no operation, and what has no root takes any.
  Operation moves = operation_of(Collective::kAllGather, a_, b_);
  moves.op = static_cast<trRedOp_t>(11);
  moves.root = 99;
  EXPECT_TRUE(check_operation(&moves, 0, kRanks).ok());
}

TEST_F(Check, PreMultipliedSumsTakeTheTypeThatTheyWereMadeFor) {
  Operation operation = operation_of(Collective::kAllReduce, a_, b_);
  auto reduction = std::make_shared<Reduction>();
  reduction->scale_type = trFloat64;
  operation.reduction = reduction;
  expect_refused(operation, 0, "datatype is float, but op was made for double");
  operation.type = trFloat64;
  EXPECT_TRUE(check_operation(&operation, 0, kRanks).ok());
}

TEST_F(Check, Compression) {
  Operation operation = operation_of(Collective::kAllReduce, a_, b_);
  operation.compression = std::make_shared<Compression>();
  operation.compression->error_feedback = true;
  operation.compression->residual.resize(10);
  EXPECT_TRUE(check_operation(&operation, 0, kRanks).ok());
  operation.count = 11;
  expect_refused(operation, 0, "count is 11, but the compression keeps the residue of 10 elements");
  operation.count = 10;
  operation.op = trMax;
  expect_refused(operation, 0, "only sum and avg travel compressed");
  operation.op = trSum;
  operation.type = trFloat64;
  expect_refused(operation, 0, "only float travels compressed");
}

TEST_F(Check, BuffersThatARankHasAreGiven) {
  expect_refused(operation_of(Collective::kAllReduce, nullptr, b_), 2, "sendbuf is NULL");
  expect_refused(operation_of(Collective::kAllReduce, a_, nullptr), 2, "recvbuf is NULL");
  Operation nothing = operation_of(Collective::kAllReduce, nullptr, nullptr, 0);
  EXPECT_TRUE(check_operation(&nothing, 2, kRanks).ok()) << "of no elements";
  // Another rank than the root has no output, and what it passes is not looked at, though it overlaps.
  Operation reduce = operation_of(Collective::kReduce, a_, a_ + 1);
  EXPECT_TRUE(check_operation(&reduce, 2, kRanks).ok());
  EXPECT_EQ(reduce.output, nullptr);
  expect_refused(operation_of(Collective::kReduce, a_, nullptr), 0, "recvbuf is NULL");
  expect_refused(operation_of(Collective::kReduce, a_, a_ + 1), 0, "overlap");
}

TEST_F(Check, CountsThatNoMemoryHolds) {
  Operation operation = operation_of(Collective::kAllReduce, a_, b_, SIZE_MAX / 32 / kRanks + 1);
  expect_refused(operation, 0, "more than any memory holds");
}

TEST_F(Check, InPlaceIsWhereTheOwnBlockLies) {
  const auto in_place = [&](Collective collective, uint32_t rank, const float* input, float* output) {
    Operation operation = operation_of(collective, input, output);
    const Status status = check_operation(&operation, rank, kRanks);
    EXPECT_TRUE(status.ok()) << status.message();
    return operation.in_place;
  };
  EXPECT_TRUE(in_place(Collective::kAllReduce, 3, a_, a_));
  EXPECT_FALSE(in_place(Collective::kAllReduce, 3, a_, a_ + 10)) << "side by side";
  EXPECT_FALSE(in_place(Collective::kAllReduce, 3, a_ + 10, a_)) << "side by side";
  EXPECT_TRUE(in_place(Collective::kAllGather, 3, a_ + 30, a_));
  EXPECT_TRUE(in_place(Collective::kReduceScatter, 1, a_, a_ + 10));
  expect_refused(operation_of(Collective::kAllReduce, a_ + 9, a_), 0, "overlap, but not so that the call is in place");
  expect_refused(operation_of(Collective::kAllGather, a_ + 30, a_), 2, "overlap");
  expect_refused(operation_of(Collective::kReduceScatter, a_, a_ + 10), 2, "overlap");
}

TEST_F(Check, BlocksOfDifferentSizesMayLieInTheGapsOfOthers) {
  auto blocks = std::make_shared<Blocks>();
  blocks->counts = {5, 0, 5, 5};
  blocks->offsets = {0, 1000, 20, 40};  // an empty block is nowhere
  blocks->parts.largest = 5;
  Operation gather = operation_of(Collective::kAllGather, a_ + 5, a_, 5);
  gather.blocks = blocks;
  EXPECT_EQ(buffer_elements(gather, 0, kRanks, true), 45u);
  EXPECT_EQ(buffer_elements(gather, 2, kRanks, false), 5u);
  EXPECT_EQ(buffer_elements(gather, 1, kRanks, false), 0u);
  EXPECT_EQ(gather.elements(kRanks), 20u);
  EXPECT_TRUE(check_operation(&gather, 0, kRanks).ok()) << "in the gap behind the first block";
  EXPECT_FALSE(gather.in_place);
  gather.input = a_ + 20;
  EXPECT_TRUE(check_operation(&gather, 2, kRanks).ok());
  EXPECT_TRUE(gather.in_place);
  gather.input = a_ + 16;
  expect_refused(gather, 2, "overlap");
}

TEST(Elements, OfBuffersFollowFromTheRow) {
  float memory[1];
  const auto elements = [&](Collective collective, uint32_t rank, bool output) {
    return buffer_elements(operation_of(collective, memory, memory, 7), rank, kRanks, output);
  };
  EXPECT_EQ(elements(Collective::kAllReduce, 1, false), 7u);
  EXPECT_EQ(elements(Collective::kAllGather, 1, false), 7u);
  EXPECT_EQ(elements(Collective::kAllGather, 1, true), 28u);
  EXPECT_EQ(elements(Collective::kReduceScatter, 1, false), 28u);
  EXPECT_EQ(elements(Collective::kReduceScatter, 1, true), 7u);
  EXPECT_EQ(elements(Collective::kAllToAll, 1, false), 28u);
  EXPECT_EQ(elements(Collective::kAllToAll, 1, true), 28u);
  EXPECT_EQ(elements(Collective::kGather, 0, true), 28u);
  EXPECT_EQ(elements(Collective::kGather, 1, true), 0u) << "the root alone";
  EXPECT_EQ(elements(Collective::kScatter, 0, false), 28u);
  EXPECT_EQ(elements(Collective::kScatter, 1, false), 0u);
  EXPECT_EQ(elements(Collective::kBroadcast, 1, false), 0u);
  EXPECT_EQ(operation_of(Collective::kAllReduce, memory, memory, 7).elements(kRanks), 7u);
  EXPECT_EQ(operation_of(Collective::kScatter, memory, memory, 7).elements(kRanks), 28u);
}

TEST(CompressedBlocks, AreWholeWhereAScaleIsShared) {
  Compression compression;
  EXPECT_EQ(compression.block_bytes(), sizeof(float));
  compression.wire = trFloat8e4m3;
  const size_t shared = compression.block_bytes();
  EXPECT_GT(shared, sizeof(float));
  EXPECT_EQ(shared % sizeof(float), 0u);
}

}  // namespace
}  // namespace treering
