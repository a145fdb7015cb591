// SPDX-License-Identifier: Apache-2.0
// A verdict reaches those who lose their parent in the tree meanwhile: late ones, those of late ones, and if those who
// gave it end at once.
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>

#include <cstdlib>

#include "bootstrap/jobs.h"
#include "support/attempts.h"
#include "support/descriptor_limit.h"
#include "support/log_file.h"

namespace treering::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Gives its own verdict, says which one came, leaves, and ends as a program does.
[[noreturn]] void give_and_end(Rank* self, int rank) {
  self->membership->spread(1, "of rank " + std::to_string(rank));
  const bool came = soon([&] { return !self->seen.get(&Seen::verdicts).empty(); }, seconds(40));
  say(came ? self->seen.get(&Seen::verdicts)[0] : "no verdict");
  reached();
  self->membership.reset();
  std::exit(0);
}

struct Root {
  bool leaves;  // or is killed
  int hosts;
};

class RootEnds : public ::testing::TestWithParam<Root> {};
INSTANTIATE_TEST_SUITE_P(Orphans, RootEnds,
                         ::testing::Values(Root{false, 1}, Root{false, 3}, Root{true, 1}, Root{true, 3}),
                         [](const auto& info) {
                           return std::string(info.param.leaves ? "Leaving" : "Killed") + "Of" +
                                  std::to_string(info.param.hosts) + "Hosts";
                         });

// A slow network, or a busy machine, makes the other one late.
TEST_P_IN_THREE_ATTEMPTS(RootEnds, ALateOrphanHearsTheVerdict) {
  constexpr int kRanks = 3, kRoot = 0;
  const auto [leaves, hosts] = GetParam();
  for (const int late : {2, 1}) {
    Gate gate;
    const LogFile log;
    Arrivals arrivals;  // the first to come is the parent after the root
    RankProcesses processes(kRanks, [&, hosts = hosts](int rank, const trUniqueId& id) {
      gate.inherit();
      log.take("INFO");
      JOB_EXPECT(arrivals.await(rank, kRanks, id));
      Rank self;
      JOB_CHECK(self.start(rank, kRanks, id, hosts));
      const auto root = static_cast<int>(syscall(SYS_pidfd_open, self.membership->peers()[kRoot].pid, 0));
      JOB_EXPECT(root >= 0);
      reached();
      if (rank == late) {
        JOB_EXPECT(soon([&] { return !self.seen.get(&Seen::verdicts).empty(); }));
        say(self.seen.get(&Seen::verdicts)[0]);
        return 0;
      }
      gate.wait();
      if (rank == kRoot) return 0;
      pollfd root_ends{root, POLLIN, 0};
      JOB_EXPECT(poll(&root_ends, 1, 20'000) == 1);
      std::this_thread::sleep_for(milliseconds(200));  // it knows of that
      give_and_end(&self, rank);
    });
    for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
    processes.stop(late);
    if (!leaves) kill(processes.pid(kRoot), SIGKILL);
    gate.open();
    if (late == 1) {  // the other one has asked it in vain for 2 s
      EXPECT_TRUE(soon([&] { return log.text().find("cannot attach to process 1") != std::string::npos; }));
    } else {  // the other one has had a verdict for a while, and would end meanwhile if it did not wait
      EXPECT_TRUE(processes.wait_until_reached(3 - late));
      std::this_thread::sleep_for(milliseconds(500));
    }
    kill(processes.pid(late), SIGCONT);
    for (int rank : {1, 2}) {
      const RankResult result = processes.wait(rank);
      EXPECT_EQ(result.exit_code, 0) << "late: " << late << ", rank " << rank << ": " << result.output;
      EXPECT_EQ(result.output, "1 of rank " + std::to_string(3 - late)) << "late: " << late << ", rank " << rank;
    }
  }
}

// Those who hang from a stopped one look for another parent a while after those who hung from the dead one.
TEST(Orphans, OfStoppedProcessesHearTheSameVerdict) {
  constexpr int kRanks = 7, kStopped[] = {1, 2};
  for (const int hosts : {1, kRanks}) {
    Gate gate;
    Arrivals arrivals;
    RankProcesses processes(kRanks, [&](int rank, const trUniqueId& id) {
      gate.inherit();
      JOB_EXPECT(arrivals.await(rank, kRanks, id));
      Rank self;
      JOB_CHECK(self.start(rank, kRanks, id, hosts));
      reached();
      gate.wait();
      give_and_end(&self, rank);
    });
    for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
    for (int rank : kStopped) processes.stop(rank);
    kill(processes.pid(0), SIGKILL);
    gate.open();
    std::string verdict;
    for (int rank = 3; rank < kRanks; ++rank) {
      const RankResult result = processes.wait(rank);
      EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
      if (rank == 3) verdict = result.output;
      EXPECT_EQ(result.output, verdict) << hosts << " hosts, rank " << rank;
      EXPECT_EQ(result.output.find("no verdict"), std::string::npos);
    }
    for (int rank : kStopped) kill(processes.pid(rank), SIGKILL);
  }
}

// It answers again when the others have failed and left, before it has a place in the tree again.
TEST(Untold, OneThatDidNotAnswerHearsTheVerdictOfThoseWhoEnd) {
  constexpr int kRanks = 3, kSilent = 0;
  Arrivals arrivals;
  RankProcesses processes(kRanks, [&](int rank, const trUniqueId& id) {
    JOB_EXPECT(arrivals.await(rank, kRanks, id));
    Rank self;
    JOB_CHECK(self.start(rank, kRanks, id, kRanks));
    reached();
    if (rank != kSilent) {
      JOB_EXPECT(soon([&] { return !self.membership->silent().empty(); }));
      self.membership->spread(1, "of the others");
    }
    JOB_EXPECT(soon([&] { return !self.seen.get(&Seen::verdicts).empty(); }));
    say(self.seen.get(&Seen::verdicts)[0]);
    self.membership.reset();
    reached();
    std::exit(0);
  });
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  processes.stop(kSilent);
  for (int rank = 1; rank < kRanks; ++rank) EXPECT_TRUE(processes.wait_until_reached(rank));
  kill(processes.pid(kSilent), SIGCONT);
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
    EXPECT_EQ(result.output, "1 of the others") << "rank " << rank;
  }
}

constexpr int kRanks = 3;

// Process 0 made the id and connects the others, but holds no rank; process n holds rank n - 1.
RankProcesses below_relay(const std::function<int(int number, Rank& self)>& body) {
  Arrivals arrivals(true);
  return RankProcesses(kRanks + 1, [&](int number, const trUniqueId& id) {
    JOB_EXPECT(arrivals.await(number, kRanks + 1, id));
    if (number == 0) {
      reached();
      while (true) pause();
    }
    Rank self;
    JOB_CHECK(self.start(number - 1, kRanks, id));
    reached();
    return body(number, self);
  });
}

class RelayEnds : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Orphans, RelayEnds, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Stopped" : "Killed"; });

// A rank ends together with it, and no other process can know of that end.
TEST_P(RelayEnds, ARankThatEndsAtTheSameTimeIsMissed) {
  const bool stops = GetParam();          // or is killed
  for (const int victim : {1, kRanks}) {  // a parent of the others later, or a child
    SharedNumber done;
    RankProcesses processes = below_relay([&](int, Rank& self) {
      const auto missed = static_cast<uint32_t>(victim - 1);
      JOB_EXPECT(soon([&] { return !self.seen.get(&Seen::lost).empty(); }));
      const auto lost = self.seen.get(&Seen::lost);
      JOB_EXPECT(lost.size() == 1 && lost.begin()->first == missed);
      say(lost.begin()->second);
      ++*done;  // the other one could miss this one, too
      JOB_EXPECT(soon([&] { return *done == kRanks - 1; }));
      return 0;
    });
    for (int number = 0; number <= kRanks; ++number) ASSERT_TRUE(processes.wait_until_reached(number));
    processes.stop(0);
    kill(processes.pid(victim), SIGKILL);
    if (!stops) kill(processes.pid(0), SIGKILL);
    for (int number = 1; number <= kRanks; ++number) {
      if (number == victim) continue;
      const RankResult result = processes.wait(number);
      EXPECT_EQ(result.exit_code, 0) << "victim " << victim << ": " << result.output;
      EXPECT_NE(result.output.find("nothing listens at its addresses any more"), std::string::npos) << result.output;
    }
  }
}

// One that finds no process there any more, and no word of it, takes it for lost.
TEST_IN_THREE_ATTEMPTS(Relay, ThatEndsHoldsUpARankThatLeavesForThoseThatHaveYetToHearOfIt) {
  constexpr int kLeaver = 1, kLate = 3;  // the processes; the first becomes the top
  Gate gate;
  RankProcesses processes = below_relay([&](int number, Rank& self) {
    gate.inherit();
    if (number != kLate && number != kLeaver) return 0;  // leaves while all hear of it
    JOB_EXPECT(soon([&] { return self.seen.get(&Seen::left).count(1) != 0; }));
    if (number == kLate) {
      reached();
      JOB_EXPECT(soon([&] { return self.seen.get(&Seen::left).count(0) != 0; }));
      JOB_EXPECT(self.seen.get(&Seen::lost).empty());
      return 0;
    }
    gate.wait();
    JOB_EXPECT(soon([&] { return self.membership->heard_through().empty(); }));  // it is a top
    self.membership.reset();
    reached();
    std::exit(0);
  });
  for (int number = 0; number <= kRanks; ++number) ASSERT_TRUE(processes.wait_until_reached(number));
  ASSERT_TRUE(processes.wait_until_reached(kLate));
  processes.stop(kLate);
  kill(processes.pid(0), SIGKILL);
  gate.open();
  ASSERT_TRUE(processes.wait_until_reached(kLeaver));
  std::this_thread::sleep_for(milliseconds(300));  // it would have ended
  kill(processes.pid(kLate), SIGCONT);
  for (int number : {kLeaver, kLate}) {
    const RankResult result = processes.wait(number);
    EXPECT_EQ(result.exit_code, 0) << "process " << number << ": " << result.output;
  }
}

// The first rank after the relay loses its connection to it and can make none for a moment: the tree parts, with the
// relay at the top of the other part.
TEST(Relay, ThatCouldNotBeReachedForAMomentIsFoundAgain) {
  SharedNumber done;
  RankProcesses processes = below_relay([&](int number, Rank& self) {
    if (number == 1) {
      JOB_EXPECT(limit_descriptors(3));
      JOB_EXPECT(shut_connections_down() > 0);
      JOB_EXPECT(soon([&] { return self.membership->heard_through().empty(); }));  // it is a top
      allow_descriptors();
      JOB_EXPECT(all_answer(self.membership.get(), {1, 2}));
      ++*done;
    }
    JOB_EXPECT(soon([&] { return *done == 1; }, seconds(60)));
    JOB_EXPECT(self.seen.get(&Seen::lost).empty());
    return 0;
  });
  for (int number = 1; number <= kRanks; ++number) {
    const RankResult result = processes.wait(number);
    EXPECT_EQ(result.exit_code, 0) << "rank " << number - 1 << ": " << result.output;
  }
}

// The rendezvous root, which has ended and held no rank, is at no fault: the one that does not give its part is.
TEST(Orphans, OneThatGivesNoPartOfAnExchangeIsNamed) {
  constexpr int kTimeoutMs = 8000;  // more than the search for another parent
  Gate gate;
  RankProcesses processes(kRanks + 1, [&](int number, const trUniqueId& id) {
    gate.inherit();
    if (number == 0) {
      reached();
      while (true) pause();
    }
    const auto rank = static_cast<uint32_t>(number - 1);
    std::unique_ptr<Membership> membership;
    JOB_CHECK(Membership::join(unpacked(id), request_of(rank, kRanks, kTimeoutMs), &membership));
    JOB_CHECK(check_round(membership.get(), rank, kRanks, 1));
    reached();
    gate.wait();
    if (number == kRanks) pause();
    say(check_round(membership.get(), rank, kRanks, 1).message());
    return 0;
  });
  for (int number = 0; number <= kRanks; ++number) ASSERT_TRUE(processes.wait_until_reached(number));
  kill(processes.pid(0), SIGKILL);
  gate.open();
  const std::string missing = "missing: rank 2 (pid " + std::to_string(processes.pid(kRanks)) + " on ";
  for (int number = 1; number < kRanks; ++number) {
    const RankResult result = processes.wait(number);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find(missing), std::string::npos) << result.output;
  }
  kill(processes.pid(kRanks), SIGKILL);
}

// It comes back to the tree, or to be another top of its own; no process takes it for dead, and it takes none for dead.
TEST(Orphans, OneThatIsStoppedWhenARelayEndsIsNotLost) {
  for (const int stopped : {1, kRanks}) {
    SharedNumber done;
    RankProcesses processes = below_relay([&](int number, Rank& self) {
      const auto silent = [&] { return self.membership->silent(); };
      if (number == stopped) {
        JOB_EXPECT(soon([&] { return self.membership->own_pause().length > seconds(1); }, seconds(60)));
      } else {
        JOB_EXPECT(soon([&] { return !silent().empty(); }));
        reached();
        JOB_EXPECT(soon([&] { return silent().empty(); }));
      }
      std::this_thread::sleep_for(milliseconds(1200));  // it asks after the others 0.4 s after it has noticed
      for (const auto& [rank, reason] : self.seen.get(&Seen::lost)) say("wrongly " + reason);
      JOB_EXPECT(self.seen.get(&Seen::lost).empty());
      if (stopped == kRanks) {  // it came back to the others, who have a top
        if (number == 1) self.membership->spread(1, "of all");
        JOB_EXPECT(soon([&] { return !self.seen.get(&Seen::verdicts).empty(); }));
      }
      ++*done;  // one that left earlier would be missed
      JOB_EXPECT(soon([&] { return *done == kRanks; }));
      return 0;
    });
    for (int number = 0; number <= kRanks; ++number) ASSERT_TRUE(processes.wait_until_reached(number));
    processes.stop(stopped);
    kill(processes.pid(0), SIGKILL);
    for (int number = 1; number <= kRanks; ++number)
      if (number != stopped) {
        EXPECT_TRUE(processes.wait_until_reached(number)) << "rank " << number - 1;
      }
    kill(processes.pid(stopped), SIGCONT);
    for (int number = 1; number <= kRanks; ++number) {
      const RankResult result = processes.wait(number);
      EXPECT_EQ(result.exit_code, 0) << "stopped " << stopped << ", rank " << number - 1 << ": " << result.output;
    }
  }
}

}  // namespace
}  // namespace treering::testing
