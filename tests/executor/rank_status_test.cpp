// SPDX-License-Identifier: Apache-2.0
// What a rank shows of itself, as others copy it.
#include "executor/rank_status.h"

#include <gtest/gtest.h>

#include <memory>

#include "treering/treering.h"

namespace treering {
namespace {

TEST(RankStatus, SnapshotHasWhatWasShown) {
  RankStatus status{};
  status.operation = 41;
  status.completed = 40;
  status.calls[41 % kCallsKept].store({.tag = call_tag(41, 99),
                                       .count = 12345,
                                       .root = 6,
                                       .fused = 2,
                                       .type = trFloat16,
                                       .op = trMax,
                                       .collective = 3});
  status.waiting_for = 3;
  RankStatusSnapshot snapshot = snapshot_of(status);
  EXPECT_EQ(snapshot.operation, 41u);
  EXPECT_EQ(snapshot.completed, 40u);
  const CallCopy& call = snapshot.call(41);
  EXPECT_EQ(call.tag, call_tag(41, 99));
  EXPECT_EQ(operation_of(call.tag), 41u);
  EXPECT_EQ(call.count, 12345u);
  EXPECT_EQ(call.root, 6u);
  EXPECT_EQ(call.fused, 2u);
  EXPECT_EQ(call.type, trFloat16);
  EXPECT_EQ(call.op, trMax);
  EXPECT_EQ(call.collective, 3u);
  EXPECT_EQ(snapshot.call(40).tag, 0u);
  EXPECT_EQ(snapshot.waiting_for, 3u);
  EXPECT_FALSE(snapshot.left);
  EXPECT_FALSE(snapshot.failed);
  EXPECT_TRUE(claim_failure(&status.failure, trRemoteError, "first"));
  EXPECT_FALSE(claim_failure(&status.failure, trSystemError, "second"));
  status.left = 1;
  snapshot = snapshot_of(status);
  EXPECT_TRUE(snapshot.left);
  EXPECT_TRUE(snapshot.failed);
  EXPECT_EQ(snapshot.failure_code, static_cast<uint32_t>(trRemoteError));
  EXPECT_EQ(snapshot.failure_text, "first");
}

// Transports find them at the begin of a rank's area.
TEST(RankStatus, BeginsWithTheOpenBuffers) {
  auto status = std::make_unique<RankStatus>();
  EXPECT_EQ(static_cast<const void*>(static_cast<const OpenBuffers*>(status.get())), status.get());
}

}  // namespace
}  // namespace treering
