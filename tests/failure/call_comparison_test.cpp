// SPDX-License-Identifier: Apache-2.0
// How calls that differ are found, by what ranks show of their last ones, and what is said of them. Rank 0 compares.
#include "failure/call_comparison.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace treering {
namespace {

class NoRanks final : public StatusReader {
 public:
  const RankStatus* mapped_status(uint32_t peer) const override { return peer == 1 ? mapped : nullptr; }
  bool read_status(uint32_t, RankStatusSnapshot*) const override { return false; }
  bool reads_status(uint32_t) const override { return true; }

  const RankStatus* mapped = nullptr;
};

CallCopy barrier(uint64_t operation, uint32_t signature) {
  CallCopy call;
  call.tag = call_tag(operation, signature);
  call.collective = static_cast<uint16_t>(Collective::kBarrier);
  return call;
}
CallCopy broadcast(uint64_t operation, uint32_t signature, uint32_t root) {
  CallCopy call = barrier(operation, signature);
  call.collective = static_cast<uint16_t>(Collective::kBroadcast);
  call.count = 8;
  call.type = trFloat32;
  call.root = root;
  return call;
}

// This rank has made `calls`, numbered from 1, and is in the last.
struct Compares {
  explicit Compares(const std::vector<CallCopy>& calls) {
    context.ranks = 2;
    context.status = own.get();
    show(calls, own.get());
    call.operation = calls.size();
    current.start(&call);
  }
  static void show(const std::vector<CallCopy>& calls, RankStatus* status) {
    for (size_t i = 0; i < calls.size(); ++i) status->calls[(i + 1) % kCallsKept].store(calls[i]);
    status->operation = calls.size();
  }
  static RankStatusSnapshot snapshot(const std::vector<CallCopy>& calls) {
    const auto status = std::make_unique<RankStatus>();
    show(calls, status.get());
    return snapshot_of(*status);
  }

  NoRanks ranks;
  std::unique_ptr<RankStatus> own = std::make_unique<RankStatus>();
  ExecutorContext context;
  Call call;
  OwnCall current{own.get()};
  PeerStates peers{&context, &ranks, std::make_shared<std::vector<PeerIdentity>>(2), nullptr, {}};
  CallComparison comparison{own.get(), &peers, &current};
};

TEST(CallComparison, FindsTheFirstThatDiffers) {
  const Compares compares({barrier(1, 11), barrier(2, 12), barrier(3, 13)});
  EXPECT_FALSE(compares.comparison.first_difference(Compares::snapshot({barrier(1, 11), barrier(2, 12)})));
  const auto found = compares.comparison.first_difference(
      Compares::snapshot({barrier(1, 11), broadcast(2, 22, 0), broadcast(3, 23, 0)}));
  EXPECT_EQ(found, std::optional<uint64_t>(2));
}

TEST(CallComparison, ForgetsCallsThatAreNoLongerKept) {
  std::vector<CallCopy> ours;
  for (uint32_t i = 1; i <= kCallsKept + 1; ++i) ours.push_back(barrier(i, i));
  const Compares compares(ours);
  EXPECT_FALSE(compares.comparison.first_difference(Compares::snapshot({barrier(1, 99)})))
      << "call 1 lies where the last one does";
  EXPECT_EQ(compares.comparison.first_difference(Compares::snapshot({barrier(1, 99), barrier(2, 98)})),
            std::optional<uint64_t>(2));
}

TEST(CallComparison, SaysWhatEachCalled) {
  const Compares compares({barrier(1, 11), broadcast(2, 12, 0)});
  const auto other = Compares::snapshot({barrier(1, 11), broadcast(2, 22, 1), barrier(3, 23)});
  const Status differ = compares.comparison.calls_differ(1, other);
  EXPECT_EQ(differ.code(), trInvalidUsage);
  EXPECT_EQ(differ.message(),
            "the ranks' calls differ at operation 2: rank 0 (pid 0) called broadcast of 8 x float, root 0; rank 1 (pid "
            "0) called broadcast of 8 x float, root 1. All ranks must make the same calls in the same order");
}

TEST(CallComparison, SaysThatBothCalledTheSameWithOtherCountsOrDifferedBefore) {
  const Compares compares({barrier(1, 11), broadcast(2, 12, 0)});
  const auto other = Compares::snapshot({barrier(1, 11), broadcast(2, 22, 0)});
  EXPECT_EQ(compares.comparison.calls_differ(1, other).message(),
            "the ranks' calls differ at or before operation 2: rank 0 (pid 0) and rank 1 (pid 0) both called broadcast "
            "of 8 x float, root 0, but with other counts of the ranks or another compression, or an earlier call of "
            "theirs differed, as in its root. All ranks must make the same calls in the same order");
}

TEST(CallComparison, SaysWhichTransfersDoNotMatch) {
  Compares compares({broadcast(1, 11, 0)});
  const auto says = [&](const TransferSizes& sizes) {
    return compares.comparison.transfers_differ(1, sizes).message();
  };
  EXPECT_EQ(
      says({.expected = 8, .sent = 4}),
      "the ranks' calls differ in operation 1 (broadcast of 8 x float, root 0): rank 0 (pid 0) receives from rank 1 "
      "8 bytes, but rank 1 (pid 0) sends it 4 bytes. Their counts for one another must be equal");
  EXPECT_EQ(
      compares.comparison.meets_send(1, 4).message(),
      "the ranks' calls differ at operation 1: rank 0 (pid 0) called broadcast of 8 x float, root 0; rank 1 (pid 0) "
      "sends it 4 bytes, which it has not received before. Collectives must stand between the same sends and "
      "receives on all ranks");
  compares.call.operation = 0;  // sends and receives
  EXPECT_EQ(
      says({.expected = 8, .sent = 4}),
      "rank 0 (pid 0) receives from rank 1 8 bytes, but rank 1 (pid 0) sends it 4 bytes: the k-th receive must have "
      "as many bytes as the k-th send");
  EXPECT_EQ(
      says({.expected = 8, .sent = {}}),
      "rank 0 (pid 0) receives from rank 1 8 bytes that rank 1 (pid 0) does not send: the k-th receive must have as "
      "many bytes as the k-th send, and collectives must stand between the same ones");
}

TEST(CallComparison, LooksAtThoseThatItCanReadInPlace) {
  Compares compares({barrier(1, 11)});
  RankStatus other{};
  Compares::show({broadcast(1, 21, 0)}, &other);
  EXPECT_TRUE(compares.comparison.check_mapped(1).ok()) << "it cannot be read";
  compares.ranks.mapped = &other;
  EXPECT_EQ(compares.comparison.check_mapped(1).code(), trInvalidUsage);
  EXPECT_TRUE(compares.comparison.check_mapped(0).ok()) << "the rank itself";
  Compares::show({barrier(1, 11)}, &other);
  EXPECT_TRUE(compares.comparison.check_mapped(1).ok());
}

TEST(CallComparison, SaysWhereARankIsThatCalledSomethingElse) {
  const Compares compares({barrier(1, 11)});
  auto shown = Compares::snapshot({broadcast(1, 21, 0)});
  const auto says = [&](const std::string& where) {
    return "the ranks' calls differ at operation 1: rank 0 (pid 0) called barrier; rank 1 (pid 0), which called "
           "something else, " +
           where + ". All ranks must make the same calls in the same order";
  };
  EXPECT_EQ(compares.comparison.called_something_else(1, nullptr).message(), says("does not answer any more"));
  EXPECT_EQ(compares.comparison.called_something_else(1, &shown).message(),
            says("is in operation 1 (broadcast of 8 x float, root 0)"));
  shown.completed = 1;
  EXPECT_EQ(compares.comparison.called_something_else(1, &shown).message(),
            says("is no further than operation 1 (broadcast of 8 x float, root 0)"));
}

TEST(OwnCall, SaysWhereTheRankIs) {
  Compares compares({barrier(1, 11), broadcast(2, 12, 0)});
  EXPECT_EQ(compares.current.place(), "operation 2 (broadcast of 8 x float, root 0)");
  compares.call.operation = 0;
  EXPECT_EQ(compares.current.place(), "a send or receive");
  EXPECT_FALSE(compares.current.is_counted());
  EXPECT_EQ(OwnCall(compares.own.get()).place(), "the creation of the communicator");
}

}  // namespace
}  // namespace treering
