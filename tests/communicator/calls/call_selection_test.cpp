// SPDX-License-Identifier: Apache-2.0
// What the settings of a communicator make of its calls: compression, the order of sums, which schedules are left.
#include "communicator/calls/call_selection.h"

#include <gtest/gtest.h>

namespace treering {
namespace {

constexpr uint32_t kRanks = 4;

struct Chooses {
  explicit Chooses(const Config& config, uint32_t ranks = kRanks) : selection(config, ranks, &schedules) {}
  ScheduleCache schedules{flat_plan(kRanks), 0, Machine(), "", 0};
  CallSelection selection;
};

Config config_of(const std::string& wire, bool deterministic = false) {
  Config config;
  config.wire = wire;
  config.deterministic = deterministic;
  return config;
}

Operation operation_of(Collective collective, trDataType_t type, trRedOp_t op = trSum) {
  Operation operation;
  operation.collective = collective;
  operation.type = type;
  operation.op = op;
  return operation;
}

TEST(CallSelection, TheWireTypeIsForSumsOfFloat32InWholeBuffers) {
  const Chooses float16(config_of("fp16")), none(config_of(""));
  const auto is_compressed = [](const Chooses& chooses, Operation operation) {
    chooses.selection.apply_settings(&operation);
    return operation.compression != nullptr;
  };
  EXPECT_TRUE(is_compressed(float16, operation_of(Collective::kAllReduce, trFloat32)));
  EXPECT_TRUE(is_compressed(float16, operation_of(Collective::kAllReduce, trFloat32, trAvg)));
  EXPECT_FALSE(is_compressed(float16, operation_of(Collective::kAllReduce, trFloat32, trMax)));
  EXPECT_FALSE(is_compressed(float16, operation_of(Collective::kAllReduce, trFloat64)));
  EXPECT_FALSE(is_compressed(float16, operation_of(Collective::kAllGather, trFloat32)));
  EXPECT_FALSE(is_compressed(none, operation_of(Collective::kAllReduce, trFloat32)));
}

TEST(CallSelection, ACallsOwnCompressionStays) {
  const Chooses chooses(config_of("fp16"));
  Operation operation = operation_of(Collective::kAllReduce, trFloat32);
  const auto own = operation.compression = std::make_shared<Compression>();
  chooses.selection.apply_settings(&operation);
  EXPECT_EQ(operation.compression, own);
}

TEST(CallSelection, WhatACallNeedsOfASchedule) {
  const Chooses free(config_of("")), fixed(config_of("", true));
  Operation sum = operation_of(Collective::kAllReduce, trFloat32);
  EXPECT_EQ(free.selection.constraints_of(sum), 0u);
  EXPECT_EQ(fixed.selection.constraints_of(sum), kRankOrdered);
  EXPECT_EQ(fixed.selection.constraints_of(operation_of(Collective::kAllGather, trFloat32)), 0u);
  auto reduction = std::make_shared<Reduction>();
  reduction->commutative = false;
  sum.reduction = reduction;
  EXPECT_EQ(free.selection.constraints_of(sum), kRankOrdered);
  sum.compression = std::make_shared<Compression>();
  sum.blocks = std::make_shared<Blocks>();
  EXPECT_EQ(free.selection.constraints_of(sum), kRankOrdered | kComputedOnce | kUnequalParts);
}

TEST(CallSelection, AQueryCountsTheBytesThatTravel) {
  Chooses chooses(config_of("fp16"));
  const SelectionQuery query = chooses.selection.query(Collective::kAllReduce, 1000, trFloat32);
  EXPECT_EQ(query.bytes, 500u);
  EXPECT_TRUE(query.compressed());
  EXPECT_TRUE(chooses.selection.choose(query).candidate.algorithm->computed_once);
  EXPECT_EQ(chooses.selection.query(Collective::kAllReduce, 1000, trFloat64).bytes, 1000u);
  EXPECT_EQ(Chooses(config_of("fp16"), 1).selection.query(Collective::kAllReduce, 1000, trFloat32).bytes, 1000u)
      << "nothing travels";
  std::string text;
  ASSERT_TRUE(chooses.selection.explain(query, "shm+tcp", &text).ok());
  EXPECT_EQ(text.find("float that travels as half, chosen as 500 B would be\n"), 0u) << text;
  EXPECT_NE(text.find("\ntransport between the ranks: shm+tcp\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace treering
