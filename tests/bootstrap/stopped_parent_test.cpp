// SPDX-License-Identifier: Apache-2.0
// A process whose parent in the tree is stopped: before the ranks have met, or in an exchange after that.
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "bootstrap/jobs.h"

namespace {
bool stops_at_first_child = false;
}

// Stands in for the C library's, by which the library takes the connection of a child.
extern "C" __attribute__((visibility("default"))) int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  if (stops_at_first_child) raise(SIGSTOP);  // to this thread: it goes no further
  return static_cast<int>(syscall(SYS_accept4, fd, address, length, flags));
}

namespace treering::testing {
namespace {

// Less than the timeout of a parent that is dialled: then the rendezvous root would be asked, which knows more.
constexpr int kTimeoutMs = 3000;

// Ranks 1 and 2 are on one host: the one that comes first is the parent of the other, and is stopped when that one
// dials it.
TEST(StoppedParent, IsNamedByItsChild) {
  RankProcesses processes(3, [](int rank, const trUniqueId& id) {
    pretend_hosts(rank == 0 ? 0 : 1, 2);
    stops_at_first_child = rank != 0;
    std::unique_ptr<Membership> membership;
    const Status status =
        Membership::join(unpacked(id), request_of(static_cast<uint32_t>(rank), 3, kTimeoutMs), &membership);
    say(status.message());
    return status.code() == trTimeout ? 0 : 1;
  });
  int parent = 0;
  for (const int rank : {1, 2}) {
    siginfo_t info = {};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(processes.pid(rank)), &info, WSTOPPED | WEXITED | WNOWAIT), 0);
    if (info.si_code == CLD_STOPPED) parent = rank;
  }
  ASSERT_NE(parent, 0);
  const RankResult result = processes.wait(3 - parent);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const std::string name = "rank " + std::to_string(parent) + " (pid " + std::to_string(processes.pid(parent));
  EXPECT_NE(result.output.find(name), std::string::npos) << result.output << "; expected: " << name;
}

// The rendezvous root is stopped, and rank 2 hears of the others through rank 1, whose deadline is the earlier one.
TEST(StoppedRoot, IsNamedByARankWhoseParentGaveUp) {
  Arrivals arrivals;
  RankProcesses processes(3, [&](int rank, const trUniqueId& packed) {
    pretend_hosts(rank == 0 ? 0 : 1, 2);
    JOB_EXPECT(arrivals.await(rank, 3, packed));
    if (rank == 0) {
      reached();
      pause();
    }
    std::unique_ptr<Membership> membership;
    const Status status = Membership::join(
        unpacked(packed), request_of(static_cast<uint32_t>(rank), 3, rank == 1 ? 8000 : 20'000), &membership);
    say(status.message());
    return status.code() == trTimeout ? 0 : 1;
  });
  ASSERT_TRUE(processes.wait_until_reached(0));
  processes.stop(0);
  const std::string name = "the process that made the unique id (pid " + std::to_string(processes.pid(0));
  for (const int rank : {1, 2}) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find(name), std::string::npos) << result.output;
  }
}

// The top is stopped before it has all parts of an exchange. The last one waits in its socket, whose sender has become
// the top meanwhile. When it goes on, it completes the exchange, and its rank leaves.
class StoppedTop : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Process, StoppedTop, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Ends" : "LivesOn"; });

TEST_P(StoppedTop, TellsWhatAllGaveAlsoIfItsRankLeavesAtOnce) {
  const bool ends = GetParam();
  constexpr int kGive = 1, kDone = 2;
  SharedNumber step;
  RankProcesses processes(2, [&, ends](int rank, const trUniqueId& packed) {
    const UniqueId id = unpacked(packed);
    Rank self;
    JOB_CHECK(self.start(rank, 2, packed));
    JOB_EXPECT(rank == 0 || soon([&] { return *step >= kGive; }));
    Status status(trInternalError, "has not ended");
    std::thread round([&] { status = check_round(self.membership.get(), static_cast<uint32_t>(rank), 2, 2); });
    const bool comes = soon([&] { return only_misses(id, 1 - rank, 2); }, std::chrono::seconds(60));
    reached();
    round.join();
    JOB_EXPECT(comes);
    JOB_CHECK(status);
    if (rank == 1) {
      *step = kDone;
      return 0;
    }
    self.membership->dissolve();
    self.membership.reset();
    if (ends) std::exit(0);
    JOB_EXPECT(soon([&] { return *step >= kDone; }, std::chrono::seconds(60)));
    return 0;
  });
  ASSERT_TRUE(processes.wait_until_reached(0));
  processes.stop(0);
  *step = kGive;
  const bool has_another_top = processes.wait_until_reached(1);
  kill(processes.pid(0), SIGCONT);
  EXPECT_TRUE(has_another_top);
  for (int rank : {0, 1}) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

}  // namespace
}  // namespace treering::testing
