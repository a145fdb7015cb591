// SPDX-License-Identifier: Apache-2.0
// What the deadline's verdict says of ranks that wait for each other, by what they show while it is found, and of a rank
// to which there is no connection. Rank 0 asks.
#include "failure/watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/log_file.h"

namespace treering {
namespace {

using std::chrono::milliseconds;

// Three ranks of this process. All but `lifeless` show a sign of life whenever they are looked at.
class Ranks final : public StatusReader {
 public:
  const RankStatus* mapped_status(uint32_t) const override { return nullptr; }
  bool read_status(uint32_t peer, RankStatusSnapshot* snapshot) const override {
    if (lifeless.count(peer) == 0) ++shown[peer].heartbeat;
    *snapshot = shown[peer];
    if (after_a_look) after_a_look(peer);
    return true;
  }
  bool reads_status(uint32_t) const override { return true; }

  mutable std::vector<RankStatusSnapshot> shown{3};
  std::set<uint32_t> lifeless;
  std::function<void(uint32_t peer)> after_a_look;
};

// A link whose connection is away.
class AwayQueue final : public SendQueue {
 public:
  bool flush() override { return false; }
  Status health() const override { return {}; }
  std::optional<Clock::time_point> away_since() const override { return since; }

  std::optional<Clock::time_point> since;
};

// The verdict of rank 0 in a receive from `peer`, or in `operation`, which moves whenever it is looked at or not at all.
std::string verdict(const Ranks& ranks, uint32_t peer, uint64_t operation = 0, SendQueue* queue = nullptr,
                    bool moves = false, int timeout_ms = 50, trResult_t code = trTimeout) {
  auto status = std::make_unique<RankStatus>();
  status->operation = operation;
  ExecutorContext context;
  context.ranks = 3;
  context.status = status.get();
  if (queue != nullptr) context.add_queue(peer, queue);
  PeerIdentity here;
  here.pid = static_cast<uint32_t>(getpid());
  Watch watch(&context, &ranks, &status->failure, std::make_shared<std::vector<PeerIdentity>>(3, here), {timeout_ms, 0},
              "", nullptr, true);
  Call call;
  call.operation = operation;
  watch.start(&call);
  Status found;
  uint64_t steps = 0;
  for (const auto until = Clock::now() + std::chrono::seconds(20); found.ok() && Clock::now() < until; usleep(1000))
    found = watch.check(peer, moves ? ++steps : 0);
  EXPECT_EQ(found.code(), code);
  return found.message();
}

std::string name_of(int rank) { return "rank " + std::to_string(rank) + " (pid " + std::to_string(getpid()) + ")"; }

void expect_contains(const std::string& text, const std::string& words) {
  EXPECT_NE(text.find(": " + words + ". Rank 0 waited for rank 1"), std::string::npos) << text;
}

TEST(TwoRanksThatWait, InSendsAndReceives) {
  Ranks ranks;
  ranks.shown[1].waiting_for = 2 + 1;
  ranks.shown[2].waiting_for = 1 + 1;
  expect_contains(verdict(ranks, 1),
                  name_of(1) +
                      " waits for rank 2 in a send or receive, which waits for it in a send or receive: their calls do "
                      "not match, or what they sent has not arrived");
}

// One of them may have to connect to the other first.
TEST(TwoRanksThatWait, AreNotNamedBesideOneThatTakesNoConnection) {
  Ranks ranks;
  ranks.shown[1].waiting_for = 2 + 1;
  ranks.shown[2].waiting_for = 1 + 1;
  ranks.shown[2].takes_no_connection = true;
  expect_contains(verdict(ranks, 1, 0, nullptr, false, 50, trSystemError),
                  name_of(2) +
                      ": connections to its process wait, because no file descriptor is left for them (see "
                      "ulimit -n)");
}

// The receive's deadline comes first.
TEST(TwoRanksThatWait, ACollectiveAndTheReceiveThatAsks) {
  Ranks ranks;
  ranks.shown[1].operation = 1;
  ranks.shown[1].waiting_for = 0 + 1;
  expect_contains(verdict(ranks, 1), name_of(0) +
                                         " waits for rank 1 in a send or receive, which waits for it in operation 1 "
                                         "(allreduce of 0 x int8, sum): their calls do not match, or what they sent "
                                         "has not arrived");
}

// The collective's deadline comes first.
TEST(TwoRanksThatWait, AReceiveAndTheCollectiveThatAsks) {
  Ranks ranks;
  ranks.shown[1].waiting_for = 0 + 1;
  ranks.shown[2].operation = 1;
  expect_contains(
      verdict(ranks, 1, 1),
      name_of(1) + " has not entered it (its last is operation 0; it waits in a send or receive for rank 0)");
}

TEST(TwoRanksThatWait, ACollectiveAndAReceiveOfOthers) {
  Ranks ranks;
  ranks.shown[1].waiting_for = 2 + 1;
  ranks.shown[2].operation = 1;
  ranks.shown[2].waiting_for = 1 + 1;
  expect_contains(verdict(ranks, 1), name_of(1) +
                                         " waits for rank 2 in a send or receive, which waits for it in operation 1 "
                                         "(allreduce of 0 x int8, sum): their calls do not match, or what they sent "
                                         "has not arrived");
}

// Each waits for the other when it is looked at, but not both at one time.
TEST(TwoRanksThatWait, AreNotSaidToWhereOneHasGoneOnMeanwhile) {
  for (const bool in_operations : {false, true}) {
    Ranks ranks;
    ranks.shown[1].operation = in_operations ? 1 : 0;
    ranks.shown[1].waiting_for = 2 + 1;
    ranks.shown[2].waiting_for = 1 + 1;
    ranks.after_a_look = [&](uint32_t peer) {
      if (!in_operations) ranks.shown[1].waiting_for = peer == 2 ? 0 + 1 : 2 + 1;
      if (in_operations && peer == 2) ranks.shown[1].completed = ranks.shown[1].operation++;
    };
    expect_contains(verdict(ranks, 1),
                    name_of(2) + " is alive, waiting for rank 1, which has gone on or left meanwhile");
  }
}

// A rank shows one of those that it waits for. The one that holds up both is named, unless it has done its part.
TEST(TwoRanksThatWait, AreNotNamedWhereAThirdOneShowsNoSignOfLife) {
  for (const uint64_t completed : {0, 1}) {
    Ranks ranks;
    ranks.shown[1].operation = ranks.shown[2].operation = 1;
    ranks.shown[1].waiting_for = 0 + 1;
    ranks.shown[2].completed = completed;
    ranks.lifeless = {2};
    const std::string text = verdict(ranks, 1, 1);
    const std::string named = ": " + name_of(2) + " has shown no sign of life for ";
    EXPECT_EQ(text.find(named) != std::string::npos, completed == 0) << text;
    EXPECT_EQ(text.find(" wait for each other") != std::string::npos, completed == 1) << text;
  }
}

// Both show nothing at the deadline. The one that is asked about waits for the other, and showed it for a while.
TEST(ARankThatWaitsForASilentOne, IsNotNamedForIt) {
  struct Case {
    bool shows_life;     // rank 1, for a while
    uint64_t completed;  // by rank 2: it has done its part
    int named;
  };
  for (const Case& one : {Case{true, 0, 2}, Case{false, 0, 1}, Case{true, 1, 1}}) {
    Ranks ranks;
    ranks.shown[1].operation = ranks.shown[2].operation = 1;
    ranks.shown[2].completed = one.completed;
    ranks.shown[1].waiting_for = 2 + 1;
    ranks.lifeless = {1, 2};
    std::optional<Clock::time_point> first_look;
    bool shows_it = one.shows_life;
    ranks.after_a_look = [&](uint32_t peer) {
      if (!first_look) first_look = Clock::now();
      if (peer != 1 || !shows_it) return;
      ++ranks.shown[1].heartbeat;
      shows_it = Clock::now() < *first_look + milliseconds(1500);
    };
    const std::string text = verdict(ranks, 1, 1, nullptr, false, one.shows_life ? 3000 : 50);
    EXPECT_NE(text.find(": " + name_of(one.named) + " has shown no sign of life for "), std::string::npos) << text;
  }
}

// What others sent before they failed and left still comes, and gives the one that waits no other deadline.
TEST(ARankWithoutAConnection, IsNotWaitedForLongerBecauseOthersMove) {
  Ranks ranks;
  AwayQueue queue;
  queue.since = Clock::now();
  const std::string text = verdict(ranks, 1, 0, &queue, true);
  EXPECT_EQ(text.rfind("no connection to " + name_of(1) + " within 0.05 s in a send or receive: ", 0), 0u) << text;
}

TEST(ARankWithoutAConnection, IsNotSaidToHaveNoneWhereNothingElseMoves) {
  Ranks ranks;
  AwayQueue queue;
  queue.since = Clock::now();
  const std::string text = verdict(ranks, 1, 0, &queue);
  EXPECT_EQ(text.rfind("no progress within 0.05 s in a send or receive: ", 0), 0u) << text;
}

// What rank 1 says in the log, which waits in an operation as rank 0 does, while rank 2 is late.
std::string warning_of_rank_1(const Ranks& ranks) {
  static const testing::LogFile log;
  log.take();
  const size_t before = log.text().size();
  auto status = std::make_unique<RankStatus>();
  status->operation = 1;
  ExecutorContext context;
  context.rank = 1;
  context.ranks = 3;
  context.status = status.get();
  Watch watch(&context, &ranks, &status->failure, std::make_shared<std::vector<PeerIdentity>>(3), WaitTimes{0, 20}, "a",
              nullptr, true);
  Call call;
  call.operation = 1;
  watch.start(&call);
  // Until it has spoken, or would have.
  const auto until = Clock::now() + milliseconds(20) + WaitWarning::kTimeForAnswers + milliseconds(200);
  for (; Clock::now() < until && log.text().size() == before; usleep(1000)) EXPECT_TRUE(watch.check(2, 0).ok());
  return log.text().substr(before);
}

TEST(AWarning, ComesOfTheFirstThatWaits) {
  Ranks ranks;
  ranks.shown[0].operation = 1;
  ranks.shown[0].waiting_for = 2 + 1;
  EXPECT_EQ(warning_of_rank_1(ranks), "");
}

// It still shows the wait in which it was stopped.
TEST(AWarning, ComesThoughTheFirstThatWaitedIsStopped) {
  Ranks ranks;
  ranks.shown[0].operation = 1;
  ranks.shown[0].waiting_for = 2 + 1;
  ranks.lifeless = {0};
  const std::string text = warning_of_rank_1(ranks);
  EXPECT_NE(text.find("communicator 'a': operation 1 ("), std::string::npos) << text;
  EXPECT_NE(
      text.find(" s (there is no deadline): rank 2 (pid 0) has not entered it (its last is operation 0). Rank 1 waits "
                "for rank 2"),
      std::string::npos)
      << text;
}

// A rank outside of calls that proposes failures and gets no answer: the shared record is never written, as if its writer
// had ended. A proposal takes effect kWriter after the limit (failure_agreement.cpp).
struct UnansweredRank {
  static constexpr milliseconds kWriter{500};
  explicit UnansweredRank(int timeout_ms)
      : watch(&context, &ranks, &shared, std::make_shared<std::vector<PeerIdentity>>(3), WaitTimes{timeout_ms, 0}, "",
              nullptr, true) {
    context.ranks = 3;
    shared.state = static_cast<uint32_t>(FailureState::kWriting);
  }
  // By how much after `begin` the proposal holds, to 10 ms.
  milliseconds limit(Clock::time_point begin) {
    milliseconds after{-20'000};
    while (watch.verdict(begin + after + kWriter).ok() && after < milliseconds(30'000)) after += milliseconds(10);
    return after;
  }

  Ranks ranks;
  std::unique_ptr<RankStatus> status = std::make_unique<RankStatus>();
  FailureRecord shared{};
  ExecutorContext context = [this] {
    ExecutorContext made;
    made.status = status.get();
    return made;
  }();
  Watch watch;
};

constexpr milliseconds kNews = std::chrono::duration_cast<milliseconds>(kMaxNewsTime), kLate{2000};

TEST(AProposal, AtADeadlineHoldsWithinTheTimeForNews) {
  UnansweredRank rank(10'000);
  const auto deadline = Clock::now();
  rank.watch.propose({trTimeout, "late"}, deadline);
  const auto limit = rank.limit(deadline);
  EXPECT_GE(limit, kNews);
  EXPECT_LT(limit, kNews + kLate);
}

TEST(AProposal, BeforeADeadlineHoldsBySoMuchAfterIt) {
  UnansweredRank rank(10'000);
  const auto deadline = Clock::now() + milliseconds(5000);
  rank.watch.propose({trRemoteError, "dead"}, deadline);
  const auto limit = rank.limit(deadline);
  EXPECT_GE(limit, kNews);
  EXPECT_LT(limit, kNews + milliseconds(20));
}

// An abort while no operation waits: as for one that would begin now. A search for a parent in the tree is no longer.
TEST(AProposal, WithoutADeadlineHasThatOfAWaitWhichBegins) {
  for (const int timeout_ms : {10'000, 0, 300'000}) {
    UnansweredRank rank(timeout_ms);
    const auto begin = Clock::now();
    rank.watch.propose({trRemoteError, "aborted"});
    const auto limit = rank.limit(begin), expected = timeout_ms == 10'000 ? milliseconds(11'000) : milliseconds(13'500);
    EXPECT_GE(limit, expected);
    EXPECT_LT(limit, expected + kLate);
  }
}

// An abort by another thread, or the news that a rank has left, while this one waits.
TEST(AProposal, DuringAWaitHasItsDeadline) {
  for (const bool ended : {false, true}) {
    UnansweredRank rank(10'000);
    Call call;
    rank.watch.start(&call);
    (void)rank.watch.check(1, 0);
    const auto begun = Clock::now();
    for (; rank.status->heartbeat == 0 || Clock::now() < begun + milliseconds(100); usleep(1000))
      ASSERT_TRUE(rank.watch.check(1, 0).ok());
    if (ended) rank.watch.stop();
    const auto now = Clock::now();
    rank.watch.note_left(2, {trRemoteError, "failed"});
    EXPECT_EQ(rank.limit(now) >= milliseconds(11'000), ended);
  }
}

// What it sent before may have come since this rank looked for it, which it does between two looks.
TEST(APeerThatLeaves, EndsAReceiveOnlyAtTheSecondLook) {
  Ranks ranks;
  auto status = std::make_unique<RankStatus>();
  ExecutorContext context;
  context.ranks = 3;
  context.status = status.get();
  PeerIdentity here;
  here.pid = static_cast<uint32_t>(getpid());
  Watch watch(&context, &ranks, &status->failure, std::make_shared<std::vector<PeerIdentity>>(3, here), {0, 0}, "",
              nullptr, true);
  const Call call;
  watch.start(&call);
  ranks.shown[1].left = true;
  int looks = 0;  // checks in which rank 1 was looked at
  Status found;
  for (const auto until = Clock::now() + std::chrono::seconds(20); found.ok() && Clock::now() < until; usleep(1000)) {
    bool looked = false;
    ranks.after_a_look = [&](uint32_t peer) { looked |= peer == 1; };
    found = watch.check(1, 0);
    looks += looked;
  }
  EXPECT_EQ(looks, 2);
  EXPECT_NE(found.message().find("destroyed its communicator before a send or receive was complete"), std::string::npos)
      << found.message();
}

// What the network tells may come of the peer's leaving. What a call in this process says is told besides.
TEST(ABrokenConnection, OfAPeerThatHasLeftIsToldWhereACallOfThisProcessFailed) {
  for (const bool is_own : {true, false}) {
    UnansweredRank rank(10'000);
    rank.shared.state = 0;
    const Call call;
    rank.watch.start(&call);
    rank.watch.note_left(1, {});
    rank.watch.suspect_link(1, {is_own ? trSystemError : trRemoteError, "by a device: it failed"});
    const Status found = rank.watch.await_failure([] {});
    EXPECT_EQ(found.code(), trRemoteError);
    EXPECT_EQ(found.message().find("rank 1 (pid 0) destroyed its communicator in or before "), 0u) << found.message();
    const std::string own = ". The connection of rank 0 (pid 0) to it failed: by a device: it failed";
    EXPECT_EQ(found.message().find(own) != std::string::npos, is_own) << found.message();
  }
}

// A shrink looks so for its members. The cause alone would be taken for what the shrink found: "rank 0 does not answer", on
// rank 0.
TEST(APeerThatLeaves, IsNamedBesideTheCauseForWhichItLeft) {
  UnansweredRank rank(10'000);
  rank.watch.note_left(1, {trTimeout, "no progress: rank 0 does not answer"});
  const Status found = rank.watch.check_peer(1, "trCommShrink");
  EXPECT_EQ(found.code(), trTimeout);
  EXPECT_EQ(found.message(),
            "no progress: rank 0 does not answer. rank 1 (pid 0) has left since, and takes no part in trCommShrink");
}

}  // namespace
}  // namespace treering
