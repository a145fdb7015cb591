// SPDX-License-Identifier: Apache-2.0
// The tree after the rendezvous: verdicts, losses, silence, questions, streams, clean ends.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <atomic>
#include <cstdlib>
#include <latch>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "bootstrap/jobs.h"
#include "support/attempts.h"

namespace treering::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Hosts : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Tree, Hosts, ::testing::Values(1, 3));

TEST_P(Hosts, OneVerdictReachesAllOnce) {
  const int hosts = GetParam();
  RankProcesses processes(20, [hosts](int rank, const trUniqueId& id) {
    Rank self;
    JOB_CHECK(self.start(rank, 20, id, hosts));
    if (rank % 3 == 1) self.membership->spread(7, "verdict of " + std::to_string(rank));
    JOB_EXPECT(soon([&] { return !self.seen.get(&Seen::verdicts).empty(); }));
    std::this_thread::sleep_for(milliseconds(200));
    JOB_EXPECT(self.seen.get(&Seen::verdicts).size() == 1);
    say(self.seen.get(&Seen::verdicts)[0]);
    return 0;
  });
  std::set<std::string> verdicts;
  for (const RankResult& result : processes.wait_all()) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    verdicts.insert(result.output);
  }
  EXPECT_EQ(verdicts.size(), 1u) << "the first of several is everybody's";
}

// The process lives, so no rank takes it for dead. The tree is whole again afterwards: a verdict reaches all.
TEST_P(Hosts, AConnectionThatBreaksIsNoDeath) {
  constexpr int kRanks = 7;
  const int hosts = GetParam();
  for (const int broken : {0, 1, kRanks - 1}) {
    Gate all_are_there;
    RankProcesses processes(kRanks, [&, broken](int rank, const trUniqueId& id) {
      all_are_there.inherit();
      Rank self;
      JOB_CHECK(self.start(rank, kRanks, id, hosts));
      reached();
      all_are_there.wait();
      if (rank == broken) JOB_EXPECT(shut_connections_down() > 0);
      std::this_thread::sleep_for(milliseconds(1300));  // one that does not come back is lost after 0.8 s
      for (const auto& [lost, reason] : self.seen.get(&Seen::lost)) say("wrongly " + reason);
      JOB_EXPECT(self.seen.get(&Seen::lost).empty());
      if (rank == 2) self.membership->spread(7, "verdict of 2");
      JOB_EXPECT(soon([&] { return !self.seen.get(&Seen::verdicts).empty(); }));
      say(self.seen.get(&Seen::verdicts)[0]);
      return 0;
    });
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(processes.wait_until_reached(rank));
    all_are_there.open();
    for (const RankResult& result : processes.wait_all()) {
      EXPECT_EQ(result.exit_code, 0) << "broken: " << broken << ": " << result.output;
      EXPECT_EQ(result.output, "7 verdict of 2") << "broken: " << broken;
    }
  }
}

struct Victim {
  int rank, hosts;
};
class Death : public ::testing::TestWithParam<Victim> {};
INSTANTIATE_TEST_SUITE_P(Victims, Death,
                         ::testing::Values(Victim{0, 1}, Victim{1, 1}, Victim{13, 1}, Victim{0, 3}, Victim{1, 3},
                                           Victim{4, 3}),
                         [](const auto& info) {
                           return "Rank" + std::to_string(info.param.rank) + "Of" + std::to_string(info.param.hosts) +
                                  "Hosts";
                         });

// Also the tree heals: a verdict spread afterwards reaches all.
TEST_P_IN_THREE_ATTEMPTS(Death, IsReportedByAllWithinASecond) {
  const auto [victim, hosts] = GetParam();
  RankProcesses processes(14, [victim = victim, hosts = hosts](int rank, const trUniqueId& id) {
    Rank self;
    JOB_CHECK(self.start(rank, 14, id, hosts));
    reached();
    JOB_EXPECT(soon([&] { return !self.seen.get(&Seen::lost).empty(); }));
    say("at " + std::to_string(std::chrono::steady_clock::now().time_since_epoch() / milliseconds(1)) + " ");
    const auto lost = self.seen.get(&Seen::lost);
    JOB_EXPECT(lost.size() == 1 && lost.begin()->first == static_cast<uint32_t>(victim));
    say(lost.begin()->second);
    if (rank == 13 - victim) {
      JOB_EXPECT(all_answer(self.membership.get(), all_but(victim, 14)));
      self.membership->spread(1, "after the death");
    }
    JOB_EXPECT(soon([&] { return !self.seen.get(&Seen::verdicts).empty(); }));
    for (const auto& [other, reason] : self.seen.get(&Seen::lost))
      if (other != static_cast<uint32_t>(victim)) say("; wrongly " + reason);
    JOB_EXPECT(self.seen.get(&Seen::lost).size() == 1);
    return 0;
  });
  for (int rank = 0; rank < 14; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  const auto killed = std::chrono::steady_clock::now().time_since_epoch() / milliseconds(1);
  kill(processes.pid(victim), SIGKILL);
  for (int rank = 0; rank < 14; ++rank) {
    if (rank == victim) continue;
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
    ASSERT_GT(result.output.size(), 3u);
    EXPECT_LT(std::stoll(result.output.substr(3)) - killed, 1000) << "rank " << rank;
    const std::string reason = "its process has ended without leaving (";
    EXPECT_EQ(result.output.substr(result.output.find(' ', 3) + 1).compare(0, reason.size(), reason), 0)
        << result.output;
  }
}

class Stop : public ::testing::TestWithParam<Victim> {};
INSTANTIATE_TEST_SUITE_P(Victims, Stop, ::testing::Values(Victim{0, 1}, Victim{1, 1}, Victim{7, 2}, Victim{0, 2}),
                         [](const auto& info) {
                           return "Rank" + std::to_string(info.param.rank) + "Of" + std::to_string(info.param.hosts) +
                                  "Hosts";
                         });

TEST_P_IN_THREE_ATTEMPTS(Stop, IsReportedAndWithdrawn) {
  const auto [victim, hosts] = GetParam();
  RankProcesses processes(8, [victim = victim, hosts = hosts](int rank, const trUniqueId& id) {
    Rank self;
    JOB_CHECK(self.start(rank, 8, id, hosts));
    reached();
    auto silent = [&] { return self.membership->silent(); };
    if (rank != victim) {
      JOB_EXPECT(soon([&] { return !silent().empty(); }, seconds(8)));
      const auto all = silent();
      JOB_EXPECT(all.size() == 1 && all[0].ranks == std::vector<uint32_t>{static_cast<uint32_t>(victim)});
      say(all[0].reason);
      JOB_EXPECT(all_answer(self.membership.get(), all_but(victim, 8)));  // its children have found other parents
      reached();
      JOB_EXPECT(soon([&] { return silent().empty(); }, seconds(30)));
      JOB_EXPECT(self.seen.get(&Seen::lost).empty());
      reached();
      if (rank == 3) self.membership->spread(1, "all are there");
    }
    JOB_EXPECT(soon([&] { return !self.seen.get(&Seen::verdicts).empty(); }, seconds(60)));  // the pause counts
    return 0;
  });
  for (int rank = 0; rank < 8; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  processes.stop(victim);
  for (int mark = 0; mark < 2; ++mark) {
    for (int rank = 0; rank < 8; ++rank)
      if (rank != victim) {
        EXPECT_TRUE(processes.wait_until_reached(rank)) << "rank " << rank;
      }
    if (mark == 0) kill(processes.pid(victim), SIGCONT);
  }
  for (int rank = 0; rank < 8; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
  }
}

// The root says when all other parts of an exchange are there.
std::jthread when_only_missing(int rank, int last, int ranks, const trUniqueId& id) {
  return std::jthread([=] {
    if (rank == 0 && soon([&] { return only_misses(unpacked(id), last, ranks); })) reached();
  });
}

// The answer of an exchange goes to a parent that does not run: its children have it from their next one.
TEST(Exchange, ReachesThoseWhoseParentPauses) {
  constexpr int kRanks = 7, kPaused = 1, kLast = 2;
  Arrivals arrivals;  // ranks 5 and 6 come as children of rank 1
  Gate pauses;
  RankProcesses processes(kRanks, [&](int rank, const trUniqueId& id) {
    pauses.inherit();
    pretend_hosts(rank, kRanks);
    JOB_EXPECT(arrivals.await(rank, kRanks, id));
    std::unique_ptr<Membership> membership;
    JOB_CHECK(Membership::join(unpacked(id), request_of(static_cast<uint32_t>(rank), kRanks), &membership));
    std::jthread watcher = when_only_missing(rank, kLast, kRanks, id);
    if (rank == kLast) pauses.wait();
    JOB_CHECK(check_round(membership.get(), static_cast<uint32_t>(rank), kRanks, 1));
    watcher.join();
    reached();
    JOB_CHECK(check_round(membership.get(), static_cast<uint32_t>(rank), kRanks, 9));
    return 0;
  });
  ASSERT_TRUE(processes.wait_until_reached(0));
  processes.stop(kPaused);
  pauses.open();
  for (int rank = 0; rank < kRanks; ++rank)
    if (rank != kPaused) {
      EXPECT_TRUE(processes.wait_until_reached(rank, seconds(15))) << "rank " << rank;
    }
  kill(processes.pid(kPaused), SIGCONT);
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
  }
}

// The others make another rank the top meanwhile, and their parts of the exchange come to it; the root has some, too.
TEST_P(Hosts, AnExchangeIsCompletedThoughTheRootPauses) {
  constexpr int kRanks = 7, kLast = 3;
  const int hosts = GetParam();
  Gate pauses, pause_is_over;
  RankProcesses processes(kRanks, [&](int rank, const trUniqueId& id) {
    for (Gate* gate : {&pauses, &pause_is_over}) gate->inherit();
    pretend_hosts(rank, hosts);
    Seen seen;
    std::unique_ptr<Membership> membership;
    JOB_CHECK(Membership::join(unpacked(id), request_of(static_cast<uint32_t>(rank), kRanks), &membership));
    membership->set_events(seen.events("here"));
    std::jthread watcher = when_only_missing(rank, kLast, kRanks, id);
    if (rank == kLast) {
      pauses.wait();
      JOB_EXPECT(soon([&] { return !membership->silent().empty(); }));
      JOB_EXPECT(all_answer(membership.get(), all_but(0, kRanks)));  // they have another top
      reached();
      pause_is_over.wait();
    }
    JOB_CHECK(check_round(membership.get(), static_cast<uint32_t>(rank), kRanks, 1));
    watcher.join();
    JOB_CHECK(check_round(membership.get(), static_cast<uint32_t>(rank), kRanks, 9));
    return 0;
  });
  ASSERT_TRUE(processes.wait_until_reached(0));
  processes.stop(0);
  pauses.open();
  EXPECT_TRUE(processes.wait_until_reached(kLast));
  kill(processes.pid(0), SIGCONT);
  pause_is_over.open();
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
  }
}

TEST_P(Hosts, QuestionsAreAnswered) {
  const int hosts = GetParam();
  expect_all_succeed(12, [hosts](int rank, const trUniqueId& id) {
    Rank self;
    JOB_CHECK(self.start(rank, 12, id, hosts));
    for (uint32_t peer = 0; peer < 12; ++peer) self.membership->request_status(peer);
    for (uint32_t peer = 0; peer < 12; ++peer) {
      std::string bytes;
      Clock::time_point when;
      JOB_EXPECT(soon([&] { return self.membership->latest_status(peer, &bytes, &when); }));
      JOB_EXPECT(bytes == "answer of " + std::to_string(peer));
    }
    JOB_CHECK(check_round(self.membership.get(), static_cast<uint32_t>(rank), 12, 1));
    return 0;
  });
}

// A rank that waits asks again and again. While the agent's thread does not get to run, the questions do not queue up
// before an introduction.
TEST(Questions, DoNotQueueUpAtABusyAgent) {
  constexpr uint32_t kRanks = 12, kUnderWay = 8;
  expect_all_succeed(1, [](int, const trUniqueId& id) {
    std::atomic<uint32_t> asked{0}, asked_before_introduction{0};
    std::atomic<bool> is_introduced{false};
    std::vector<std::unique_ptr<Membership>> ranks(kRanks);
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] { (void)Membership::join(unpacked(id), request_of(rank, kRanks), &ranks[rank]); });
    threads.clear();
    for (const auto& rank : ranks) {
      JOB_EXPECT(rank != nullptr);
      MemberEvents events;
      events.status = [&] { return std::to_string(++asked); };
      events.on_introduced = [&](uint32_t, const std::string&, int) {
        asked_before_introduction = asked.load();
        is_introduced = true;
      };
      rank->set_events(std::move(events));
    }
    std::latch busy(1);
    Agent::instance().post([&] { busy.wait(); });
    const auto end = Clock::now() + milliseconds(200);
    do
      for (uint32_t peer = 0; peer < kRanks; ++peer) ranks[0]->request_status(peer);
    while (Clock::now() < end);
    ranks[0]->introduce(1, {.bytes = "rank 0"});
    busy.count_down();
    JOB_EXPECT(soon([&] { return is_introduced.load(); }));
    JOB_EXPECT(asked_before_introduction <= kUnderWay);
    JOB_EXPECT(all_answer(ranks[0].get(), all_but(0, kRanks)));
    return 0;
  });
}

// Through the tree, from each rank to each, itself included: in order, of any length.
TEST_P(Hosts, IntroductionsReachTheRankTheyAreFor) {
  const int hosts = GetParam();
  expect_all_succeed(6, [hosts](int rank, const trUniqueId& id) {
    Rank self;
    JOB_CHECK(self.start(rank, 6, id, hosts));
    const auto text = [](int source, uint32_t peer, size_t bytes) {
      return std::string(bytes, static_cast<char>('a' + source + 6 * static_cast<int>(peer)));
    };
    constexpr size_t kLengths[] = {0, 1, 100, 500'000};
    for (uint32_t peer = 0; peer < 6; ++peer)
      for (const size_t length : kLengths) self.membership->introduce(peer, {.bytes = text(rank, peer, length)});
    self.membership->introduce(6, {.bytes = "to a rank that does not exist"});
    JOB_EXPECT(soon([&] {
      const auto introduced = self.seen.get(&Seen::introduced);
      size_t arrived = 0;
      for (const auto& [source, all] : introduced) arrived += all.size();
      return arrived == 6 * std::size(kLengths);
    }));
    for (const auto& [source, all] : self.seen.get(&Seen::introduced)) {
      JOB_EXPECT(all.size() == std::size(kLengths));
      for (size_t i = 0; i < all.size(); ++i)
        JOB_EXPECT(all[i] == text(static_cast<int>(source), static_cast<uint32_t>(rank), kLengths[i]));
    }
    JOB_CHECK(check_round(self.membership.get(), static_cast<uint32_t>(rank), 6, 1));
    return 0;
  });
}

// One that is too long for a frame is refused: it would end a connection of the tree.
TEST(Introduction, ThatIsTooLongIsRefused) {
  expect_all_succeed(2, [](int rank, const trUniqueId& id) {
    Rank self;
    JOB_CHECK(self.start(rank, 2, id));
    const std::string bytes(kMaxIntroductionBytes + kIntroductionOverhead + 1, 'x');
    self.membership->introduce(1 - rank, {.bytes = bytes});
    self.membership->introduce(1 - rank, {.bytes = bytes, .connects = true});
    JOB_EXPECT(soon([&] { return !self.seen.get(&Seen::stream_error).empty(); }));
    JOB_EXPECT(self.seen.get(&Seen::stream_error).find("33554689 bytes") != std::string::npos);
    JOB_CHECK(check_round(self.membership.get(), static_cast<uint32_t>(rank), 2, 1));
    JOB_EXPECT(self.seen.get(&Seen::introduced).empty());
    return 0;
  });
}

TEST_P(Hosts, StreamsConnectEveryPair) {
  const int hosts = GetParam();
  expect_all_succeed(4, [hosts](int rank, const trUniqueId& id) {
    Rank self;
    JOB_CHECK(self.start(rank, 4, id, hosts));
    for (uint32_t peer = 0; peer < 4; ++peer)
      for (uint32_t index = 0; index < 3; ++index)
        self.membership->introduce(peer, {.bytes = std::to_string(index), .connects = true, .way = index});
    JOB_EXPECT(soon(
        [&] { return self.seen.get(&Seen::outgoing).size() == 12 && self.seen.get(&Seen::incoming).size() == 12; }));
    JOB_EXPECT(self.seen.get(&Seen::stream_error).empty());
    // The acceptor speaks first: nothing of it may be lost to the handshake.
    for (auto [key, fd] : self.seen.get(&Seen::incoming)) {
      const std::string text = std::to_string(key.first) + ">" + std::to_string(rank) + "#" + key.second;
      JOB_EXPECT(send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
      int no_delay = 0;
      socklen_t length = sizeof no_delay;
      JOB_EXPECT(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &length) == 0 && no_delay != 0);
      JOB_EXPECT((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    }
    for (auto [key, fd] : self.seen.get(&Seen::outgoing)) {
      pollfd entry{fd, POLLIN, 0};
      JOB_EXPECT(poll(&entry, 1, 10'000) == 1);
      char text[32] = {};
      JOB_EXPECT(recv(fd, text, sizeof text - 1, 0) > 0);
      JOB_EXPECT(text == std::to_string(rank) + ">" + std::to_string(key.first) + "#" + key.second);
      int no_delay = 0;
      socklen_t length = sizeof no_delay;
      JOB_EXPECT(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &length) == 0 && no_delay != 0);
      JOB_EXPECT((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    }
    JOB_CHECK(check_round(self.membership.get(), static_cast<uint32_t>(rank), 4, 1));
    for (const auto& fds : {self.seen.get(&Seen::incoming), self.seen.get(&Seen::outgoing)})
      for (auto [key, fd] : fds) close(fd);
    return 0;
  });
}

TEST(Stream, FailureNamesEveryAddress) {
  Gate is_gone;
  RankProcesses processes(2, [&](int rank, const trUniqueId& id) {
    is_gone.inherit();
    Rank self;
    JOB_CHECK(self.start(rank, 2, id));
    if (rank == 1) {
      self.membership.reset();
      _exit(0);
    }
    is_gone.wait();
    self.membership->introduce(1, {.connects = true});
    JOB_EXPECT(soon([&] { return !self.seen.get(&Seen::stream_error).empty(); }));
    const std::string text = self.seen.get(&Seen::stream_error);
    say(text);
    JOB_EXPECT(text.find("no connection to rank 1 (pid ") == 0);
    JOB_EXPECT(text.find(" port ") != std::string::npos && text.find("Connection refused") != std::string::npos);
    return 0;
  });
  EXPECT_EQ(processes.wait(1).exit_code, 0);
  is_gone.open();
  const RankResult result = processes.wait(0);
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

// Ranks leave in any order and their processes end at once: no rank is reported as lost, or as silent, which one is that
// stands still for seconds.
TEST_P_IN_THREE_ATTEMPTS(Hosts, CleanEndsAreNoLosses) {
  const int hosts = GetParam();
  expect_all_succeed(12, [hosts](int rank, const trUniqueId& id) {
    Rank self;
    JOB_CHECK(self.start(rank, 12, id, hosts));
    if (rank != 11) std::this_thread::sleep_for(milliseconds(rank * 37 % 12 * 30));
    if (rank == 11) JOB_EXPECT(soon([&] { return self.seen.get(&Seen::left).size() == 11; }));
    JOB_EXPECT(self.seen.get(&Seen::lost).empty());
    JOB_EXPECT(self.membership->silent().empty());
    return 0;
  });
}

TEST(Fork, AChildIsNoMember) {
  expect_all_succeed(2, [](int rank, const trUniqueId& id) {
    Rank self;
    JOB_CHECK(self.start(rank, 2, id));
    const pid_t child = fork_when_quiet();
    if (child == 0) {
      self.membership.reset();  // does nothing to the parent's
      UniqueId other;
      _exit(Membership::make_rendezvous_root(&other).ok() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    JOB_EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    JOB_CHECK(check_round(self.membership.get(), static_cast<uint32_t>(rank), 2, 1));
    JOB_EXPECT(self.seen.get(&Seen::lost).empty());
    return 0;
  });
}

// As a data loader's worker does, whose trainer is killed.
TEST_P(Hosts, AChildThatOutlivesItsRankDoesNotHideItsDeath) {
  constexpr int kRanks = 3;
  const int hosts = GetParam();
  for (const int victim : {0, 2}) {
    int until_closed[2];
    ASSERT_EQ(pipe2(until_closed, O_CLOEXEC), 0);
    RankProcesses processes(kRanks, [=](int rank, const trUniqueId& id) {
      close(until_closed[1]);
      Rank self;
      JOB_CHECK(self.start(rank, kRanks, id, hosts));
      if (rank == victim && fork_when_quiet() == 0) {
        char byte;
        _exit(static_cast<int>(read(until_closed[0], &byte, 1)));
      }
      reached();
      JOB_EXPECT(soon([&] { return !self.seen.get(&Seen::lost).empty(); }));
      return 0;
    });
    for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
    kill(processes.pid(victim), SIGKILL);
    for (int rank = 0; rank < kRanks; ++rank)
      if (rank != victim) {
        const RankResult result = processes.wait(rank);
        EXPECT_EQ(result.exit_code, 0) << "victim " << victim << ", rank " << rank << ": " << result.output;
      }
    for (int end : until_closed) close(end);
  }
}

}  // namespace
}  // namespace treering::testing
