// SPDX-License-Identifier: Apache-2.0
// Rounds of notices between ranks that read one another's status in memory, each in a thread.
#include "communicator/notice_exchange.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace treering {
namespace {

constexpr uint32_t kRanks = 3;
constexpr const char* kCall = "trCommShrink";
const std::vector<uint32_t> kAll{0, 1, 2};

class Statuses final : public StatusReader {
 public:
  Statuses() {
    for (uint32_t rank = 0; rank < kRanks; ++rank) statuses_.push_back(std::make_unique<RankStatus>());
  }
  RankStatus& of(uint32_t rank) { return *statuses_[rank]; }
  const RankStatus* mapped_status(uint32_t peer) const override { return statuses_[peer].get(); }
  bool read_status(uint32_t peer, RankStatusSnapshot* snapshot) const override {
    *snapshot = snapshot_of(*statuses_[peer]);
    return true;
  }
  bool reads_status(uint32_t) const override { return true; }

 private:
  std::vector<std::unique_ptr<RankStatus>> statuses_;
};

// One rank's part: its failures stay its own, as after a failure of the communicator.
class Rank {
 public:
  Rank(Statuses* statuses, uint32_t rank, int timeout_ms = 60'000) : timeout_ms_(timeout_ms) {
    context_.rank = rank;
    context_.ranks = kRanks;
    context_.status = &statuses->of(rank);
    PeerIdentity here;
    here.pid = static_cast<uint32_t>(getpid());
    watch_ = std::make_unique<Watch>(&context_, statuses, &context_.status->failure,
                                     std::make_shared<std::vector<PeerIdentity>>(kRanks, here),
                                     WaitTimes{timeout_ms, 0}, "", nullptr, false);
    notices_ =
        std::make_unique<NoticeExchange>(&context_, watch_.get(), statuses, nullptr, timeout_ms, [this] { ++turns_; });
  }

  // `color` tells the ranks apart.
  Status split() {
    return exchange(kAll, {static_cast<int32_t>(10 + context_.rank), 0, context_.rank, SplitInfo::kNothing, {}},
                    nullptr);
  }
  Status shrink(const std::vector<uint32_t>& members) {
    RankSet set;
    for (uint32_t member : members) set.set(member);
    SplitInfo own{0, 0, context_.rank, SplitInfo::kNothing, {}};
    own.hold(SplitInfo::kMembers, set);
    return exchange(members, own, &set);
  }
  NoticeExchange& notices() { return *notices_; }
  const std::vector<SplitInfo>& infos() const { return infos_; }
  int turns() const { return turns_; }

 private:
  Status exchange(const std::vector<uint32_t>& members, const SplitInfo& own, const RankSet* set) {
    watch_->set_call_deadline(Clock::now() + std::chrono::milliseconds(timeout_ms_));
    return notices_->exchange(members, kCall, own, set, &infos_);
  }

  const int timeout_ms_;
  ExecutorContext context_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<NoticeExchange> notices_;
  std::vector<SplitInfo> infos_;
  int turns_ = 0;
};

class NoticeExchangeTest : public ::testing::Test {
 protected:
  NoticeExchangeTest() {
    for (uint32_t rank = 0; rank < kRanks; ++rank) ranks_.push_back(std::make_unique<Rank>(&statuses_, rank));
  }
  // What each rank's call returns; the calls run at the same time.
  template <typename Call>
  std::vector<Status> run_all(const Call& call) {
    std::vector<Status> results(kRanks);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] { results[rank] = call(*ranks_[rank], rank); });
    for (std::thread& thread : threads) thread.join();
    return results;
  }
  std::vector<Status> split_all() {
    return run_all([](Rank& rank, uint32_t) { return rank.split(); });
  }

  Statuses statuses_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_F(NoticeExchangeTest, TellsEachRankWhatTheOthersShowRoundByRound) {
  for (uint64_t round = 1; round <= 20; ++round) {
    for (const Status& result : split_all()) ASSERT_TRUE(result.ok()) << result.message();
    for (const auto& rank : ranks_) {
      EXPECT_EQ(rank->notices().rounds(), round);
      for (uint32_t peer = 0; peer < kRanks; ++peer) {
        EXPECT_EQ(rank->infos()[peer].rank, peer);
        EXPECT_EQ(rank->infos()[peer].color, static_cast<int32_t>(10 + peer));
      }
    }
  }
}

TEST_F(NoticeExchangeTest, OfOtherSetsIsAnErrorOnAllThatNamesWhoDiffers) {
  const auto results = run_all([](Rank& rank, uint32_t number) {
    return rank.shrink(number == 0 ? std::vector<uint32_t>{0, 1} : kAll);
  });
  for (const Status& result : results) {
    EXPECT_EQ(result.code(), trInvalidUsage);
    EXPECT_NE(result.message().find("the ranks' sets differ: rank 0 excludes 2, rank "), std::string::npos)
        << result.message();
  }
}

TEST_F(NoticeExchangeTest, OfASplitAndAShrinkSaysWhoDoesWhat) {
  const auto results =
      run_all([](Rank& rank, uint32_t number) { return number == 2 ? rank.split() : rank.shrink(kAll); });
  EXPECT_NE(results[0].message().find("rank 2 splits the communicator"), std::string::npos) << results[0].message();
  EXPECT_NE(results[2].message().find(" shrinks the communicator"), std::string::npos) << results[2].message();
}

TEST_F(NoticeExchangeTest, WithARankThatHasMadeAnotherCallIsAnError) {
  statuses_.of(1).notices[0].round = 1 + kRoundsOfSplit + 1;  // of its next call
  statuses_.of(1).notices[1].round = 1 + kRoundsOfSplit;
  const Status result = ranks_[0]->split();
  EXPECT_EQ(result.code(), trInvalidUsage);
  EXPECT_NE(result.message().find("rank 1 has ended this call, and made another one"), std::string::npos)
      << result.message();
}

TEST_F(NoticeExchangeTest, IsSkippedToTheNextCallByAllAlike) {
  ranks_[0]->notices().skip_to(kRoundsOfSplit);
  ranks_[0]->notices().skip_to(1);  // never back
  EXPECT_EQ(ranks_[0]->notices().rounds(), kRoundsOfSplit);
  for (uint32_t rank : {1, 2}) ranks_[rank]->notices().skip_to(kRoundsOfSplit);
  for (const Status& result : split_all()) EXPECT_TRUE(result.ok()) << result.message();
}

TEST_F(NoticeExchangeTest, NamesARankThatHasLeft) {
  statuses_.of(1).left = kLeft;
  const Status result = ranks_[0]->split();
  EXPECT_EQ(result.code(), trRemoteError);
  EXPECT_NE(result.message().find("rank 1 (pid"), std::string::npos) << result.message();
  EXPECT_NE(result.message().find("destroyed its communicator"), std::string::npos) << result.message();
}

TEST_F(NoticeExchangeTest, NamesARankThatDoesNotCallAtTheDeadlineAndServesOthersMeanwhile) {
  Rank alone(&statuses_, 0, 200);
  const auto begin = Clock::now();
  const Status result = alone.split();
  EXPECT_EQ(result.code(), trTimeout);
  EXPECT_NE(result.message().find("rank 1 (pid"), std::string::npos) << result.message();
  EXPECT_NE(result.message().find("has not called it within 0.2 s"), std::string::npos) << result.message();
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(200));
  EXPECT_GT(alone.turns(), 0);
}

}  // namespace
}  // namespace treering
