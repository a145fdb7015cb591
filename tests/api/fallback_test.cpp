// SPDX-License-Identifier: Apache-2.0
// What a communicator does when the machine really refuses a transport: seccomp filters take system calls
// away, and namespaces take away what one process sees of another.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "support/processes.h"
#include "support/sanitized.h"
#include "support/seccomp.h"

namespace treering::testing {
namespace {

constexpr int kCannot = 77;  // exit code: the kernel forbids what the test needs

// Sums in several sizes over the communicator; 0 or an exit code.
int check_sums(trComm_t comm, int rank, int ranks, float* input, float* output, size_t capacity) {
  for (size_t count : {size_t{1}, size_t{1000}, capacity}) {
    for (size_t i = 0; i < count; ++i) input[i] = static_cast<float>((i + static_cast<size_t>(rank)) % 100);
    TR_CHECK(trAllReduce(input, output, count, trFloat32, trSum, comm, nullptr));
    for (size_t i = 0; i < count; ++i) {
      float expected = 0;
      for (int r = 0; r < ranks; ++r) expected += static_cast<float>((i + static_cast<size_t>(r)) % 100);
      if (output[i] != expected) return say("element " + std::to_string(i) + " is wrong"), 50;
    }
  }
  return 0;
}

int run_rank(int rank, int ranks, const trUniqueId& id) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.timeout_ms = 30'000;
  trComm_t comm = nullptr;
  TR_CHECK(trCommInitRankConfig(&comm, ranks, id, rank, &config));
  std::vector<float> input(200'003), output(200'003);
  if (int code = check_sums(comm, rank, ranks, input.data(), output.data(), input.size()); code != 0) return code;
  TR_CHECK(trCommDestroy(comm));
  return 0;
}

class Fallback : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/treering-fallback-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    setenv("TREERING_DEBUG", "INFO", 1);
    setenv("TREERING_DEBUG_FILE", (directory_ + "/%p.log").c_str(), 1);
  }
  void TearDown() override {
    unsetenv("TREERING_DEBUG");
    unsetenv("TREERING_DEBUG_FILE");
    std::filesystem::remove_all(directory_);
  }
  // Lines of a rank's log with `word`.
  std::vector<std::string> logged(pid_t pid, const std::string& word) {
    std::ifstream file(directory_ + "/" + std::to_string(pid) + ".log");
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);)
      if (line.find(word) != std::string::npos) lines.push_back(line);
    return lines;
  }
  std::string directory_;
};

void expect_success(RankProcesses* processes, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    RankResult result = processes->wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ", signal " << result.signal << ": " << result.output;
  }
}

TEST_F(Fallback, WithoutMemfdCrossMemoryAttachIsUsedAndTheLogSaysWhyOnce) {
  RankProcesses processes(3, [](int rank, const trUniqueId& id) {
    if (!deny_system_calls({SYS_memfd_create})) return say("no seccomp filter"), 51;
    return run_rank(rank, 3, id);
  });
  expect_success(&processes, 3);
  for (int rank = 0; rank < 3; ++rank) {
    auto lines = logged(processes.pid(rank), "by cma");
    ASSERT_EQ(lines.size(), 1u) << "rank " << rank;
    EXPECT_NE(lines[0].find("memfd_create"), std::string::npos) << lines[0];
  }
}

TEST_F(Fallback, WithoutCrossMemoryAttachSharedMemoryIsUsed) {
  RankProcesses processes(3, [](int rank, const trUniqueId& id) {
    if (!deny_system_calls({SYS_process_vm_readv, SYS_process_vm_writev})) return say("no seccomp filter"), 51;
    return run_rank(rank, 3, id);
  });
  expect_success(&processes, 3);
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(logged(processes.pid(rank), "by cma").empty());
}

TEST_F(Fallback, WithoutEitherTcpIsUsed) {
  RankProcesses processes(3, [](int rank, const trUniqueId& id) {
    if (!deny_system_calls({SYS_memfd_create, SYS_process_vm_readv})) return say("no seccomp filter"), 51;
    return run_rank(rank, 3, id);
  });
  expect_success(&processes, 3);
  for (int rank = 0; rank < 3; ++rank) EXPECT_FALSE(logged(processes.pid(rank), "by tcp").empty());
}

TEST_F(Fallback, WithoutAnyTheErrorNamesBothRanksAndTheCauses) {
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    setenv("TREERING_TRANSPORTS", "^tcp", 1);
    if (!deny_system_calls({SYS_memfd_create, SYS_process_vm_readv})) return say("no seccomp filter"), 51;
    trComm_t comm = nullptr;
    trResult_t result = trCommInitRank(&comm, 2, id, rank);
    say(trGetLastError(nullptr));
    return 10 + result;
  });
  for (int rank : {0, 1}) {
    RankResult result = processes.wait(rank, std::chrono::seconds(20));
    EXPECT_EQ(result.exit_code, 10 + trSystemError) << result.output;
    std::string pair = rank == 0 ? "rank 0 and rank 1" : "rank 1 and rank 0";
    for (const std::string& word : {pair, std::to_string(processes.pid(1 - rank)), std::string("memfd_create"),
                                    std::string("process_vm_readv"), std::string("Operation not permitted")})
      EXPECT_NE(result.output.find(word), std::string::npos) << "\"" << word << "\" is not in: " << result.output;
  }
}

// What creation says when two ranks may use no other transport.
int refused_with(const char* transports, int rank, const trUniqueId& id) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.transports = transports;
  config.timeout_ms = 20'000;
  trComm_t comm = nullptr;
  const trResult_t result = trCommInitRankConfig(&comm, 2, id, rank, &config);
  say(trGetLastError(nullptr));
  return 10 + result;
}

TEST_F(Fallback, WhenOneRankAloneLacksCrossMemoryAttachThePairAgrees) {
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    if (rank == 1 && !deny_system_calls({SYS_process_vm_readv, SYS_process_vm_writev})) return say("no filter"), 51;
    return refused_with("cma", rank, id);
  });
  for (int rank : {0, 1}) {
    RankResult result = processes.wait(rank, std::chrono::seconds(30));
    EXPECT_EQ(result.exit_code, 10 + trSystemError) << result.output;
    EXPECT_NE(result.output.find("share no transport"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("allows ('cma'): "), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("; allow shared-memory or tcp too, or leave it unset"), std::string::npos)
        << result.output;
  }
}

// What joins threads does not join processes, and the error says so.
TEST_F(Fallback, ATransportOfThreadsAloneIsRefusedBetweenProcesses) {
  RankProcesses processes(2, [](int rank, const trUniqueId& id) { return refused_with("in-process", rank, id); });
  for (int rank : {0, 1}) {
    RankResult result = processes.wait(rank, std::chrono::seconds(30));
    EXPECT_EQ(result.exit_code, 10 + trInvalidUsage) << result.output;
    for (const char* words :
         {"share no transport of those that TREERING_TRANSPORTS or config->transports allows",
          "('in-process'): they are two processes, and what is allowed joins threads of one process",
          "; allow shared-memory or cma or tcp too, or leave it unset"})
      EXPECT_NE(result.output.find(words), std::string::npos) << result.output;
    EXPECT_NE(result.output.find(rank == 0 ? "rank 0 and rank 1 (pid " : "rank 1 and rank 0 (pid "), std::string::npos)
        << result.output;
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which need address space without end
// A limit that some of the threads of a group fit into, but not all.
TEST(ThreadsOfAGroup, WhenSomeCannotBeStartedTheErrorSaysSo) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    trComm_t first[2];
    if (trCommInitAll(first, 2) != trSuccess) _exit(2);
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlim_t most = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (96u << 20);
    const rlimit limit{most, most};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(3);
    trComm_t comms[64];
    if (trCommInitAll(comms, 64) != trSystemError) _exit(4);
    if (std::string(trGetLastError(nullptr)).find("of the 63 threads") == std::string::npos) _exit(5);
    float values[2] = {1, 2};
    trGroupStart();
    for (int rank = 0; rank < 2; ++rank)
      trAllReduce(&values[rank], &values[rank], 1, trFloat32, trSum, first[rank], nullptr);
    _exit(trGroupEnd() == trSuccess && values[0] == 3 ? 0 : 6);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "4: another result, 5: another message, 6: the process is harmed";
}
#endif

// The next child is the first process of another.
bool leave_pid_namespace() { return unshare(CLONE_NEWPID) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0; }

// Runs `body` in a process that is the first of a pid namespace of its own: a grandchild, for a user without privileges
// needs a process of one thread to leave, and rank 0 has made the id already.
int in_pid_namespace(const std::function<int()>& body) {
  const auto in_child = [](const std::function<int()>& run) {
    const pid_t child = fork();
    if (child < 0) return kCannot;
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(run());
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 60;
  };
  return in_child([&] { return leave_pid_namespace() ? in_child(body) : kCannot; });
}

// Whether a process here may do what the body needs; asked first, in a child, so that no rank waits in vain.
bool kernel_allows(const std::function<bool()>& attempt) {
  pid_t child = fork();
  if (child == 0) _exit(attempt() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(Fallback, RanksInDifferentPidNamespacesShareMemory) {
  if (!kernel_allows(leave_pid_namespace)) GTEST_SKIP() << "the kernel forbids unshare(CLONE_NEWPID) to this user";
  RankProcesses processes(3, [](int rank, const trUniqueId& id) {
    if (rank == 0) return run_rank(rank, 3, id);
    return in_pid_namespace([&] { return run_rank(rank, 3, id); });
  });
  expect_success(&processes, 3);
  const auto lines = logged(processes.pid(0), "without registered buffers");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("registered buffers: the ranks are in different pid namespaces"), std::string::npos)
      << lines[0];
}

constexpr uid_t kOtherUser = 65533;

bool become_other_user() {
  return setresgid(kOtherUser, kOtherUser, kOtherUser) == 0 && setresuid(kOtherUser, kOtherUser, kOtherUser) == 0;
}

// Has uid 0, which is kOtherUser outside. A process outside writes the map: this one, for its child.
int in_user_namespace(const std::function<int()>& body) {
  int left[2], mapped[2];
  if (pipe(left) != 0 || pipe(mapped) != 0) return kCannot;
  const pid_t child = fork();
  if (child < 0) return kCannot;
  char byte = 0;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(mapped[1]);  // or it waits for itself
    const bool ready = unshare(CLONE_NEWUSER) == 0 && write(left[1], &byte, 1) == 1 && read(mapped[0], &byte, 1) == 1 &&
                       setresgid(0, 0, 0) == 0 && setresuid(0, 0, 0) == 0;
    _exit(ready ? body() : kCannot);
  }
  close(left[1]);
  if (read(left[0], &byte, 1) == 1) {
    const std::string of_child = "/proc/" + std::to_string(child);
    for (const char* map : {"/uid_map", "/gid_map"}) std::ofstream(of_child + map) << "0 " << kOtherUser << " 1";
    if (write(mapped[1], &byte, 1) != 1) kill(child, SIGKILL);
  }
  for (int end : {left[0], mapped[0], mapped[1]}) close(end);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 60;
}

// The line of a log about the way between ranks 0 and 1.
std::string only(const std::vector<std::string>& lines) {
  return lines.size() == 1 ? lines[0] : std::to_string(lines.size()) + " lines";
}

TEST_F(Fallback, BetweenUserNamespacesTheLogNamesThemAsTheCause) {
  if (kThreadSanitizer)
    GTEST_SKIP() << "ThreadSanitizer has a thread, and a process with one may not unshare(CLONE_NEWUSER)";
  if (!kernel_allows([] { return in_user_namespace([] { return 0; }) == 0; }))
    GTEST_SKIP() << "the kernel forbids unshare(CLONE_NEWUSER) and maps to this user";
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    if (rank == 0) return run_rank(rank, 2, id);
    return in_user_namespace([&] { return run_rank(rank, 2, id); });
  });
  expect_success(&processes, 2);
  const std::string line = only(logged(processes.pid(0), "rank 0 reaches rank 1 by "));
  EXPECT_NE(line.find("ranks 0 and 1 are in different user namespaces"), std::string::npos) << line;
  EXPECT_EQ(line.find("memfd_create"), std::string::npos) << line;
}

TEST_F(Fallback, BetweenUsersTheLogNamesThemAsTheCause) {
  if (!kernel_allows(become_other_user)) GTEST_SKIP() << "this user cannot become another";
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    if (rank == 1 && !become_other_user()) return kCannot;
    return run_rank(rank, 2, id);
  });
  expect_success(&processes, 2);
  const std::string line = only(logged(processes.pid(0), "rank 0 reaches rank 1 by "));
  const std::string cause = "ranks 0 and 1 are of different users (uid " + std::to_string(geteuid()) + " and 65533)";
  EXPECT_NE(line.find(cause), std::string::npos) << line;
  EXPECT_EQ(line.find("memfd_create"), std::string::npos) << line;
}

// Its pid says nothing to the others, which notice its end all the same: containers on a host's network are such. Rank
// 0 is the top of the tree.
TEST_F(Fallback, ADeathInAnotherPidNamespaceIsNoticed) {
  if (!kernel_allows(leave_pid_namespace)) GTEST_SKIP() << "the kernel forbids unshare(CLONE_NEWPID) to this user";
  for (int victim : {2, 0}) {
    SCOPED_TRACE(victim);
    RankProcesses processes(3, [victim](int rank, const trUniqueId& id) {
      return in_pid_namespace([&]() -> int {
        trComm_t comm = nullptr;
        trConfig_t config = TR_CONFIG_INITIALIZER;
        config.timeout_ms = 30'000;
        TR_CHECK(trCommInitRankConfig(&comm, 3, id, rank, &config));
        float value = 1;
        TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr));
        if (rank == victim) _exit(0);  // the first process of a namespace cannot kill itself
        const auto begin = std::chrono::steady_clock::now();
        const trResult_t result = trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr);
        const bool soon = std::chrono::steady_clock::now() - begin < std::chrono::seconds(5);
        const bool named =
            std::string(trGetLastError(comm)).find("rank " + std::to_string(victim) + " ") != std::string::npos;
        trCommDestroy(comm);
        if (result != trRemoteError) return 2;
        if (!soon) return 3;
        return named ? 0 : 4;
      });
    });
    for (int rank : {1, 2 - victim})
      EXPECT_EQ(processes.wait(rank).exit_code, 0) << "2: another result, 3: late, 4: not named";
  }
}

bool hide_proc() {
  return unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("none", "/proc", "tmpfs", 0, nullptr) == 0;
}

TEST_F(Fallback, WithoutProcAllocatedMemoryStillWorks) {
  if (!kernel_allows(hide_proc)) GTEST_SKIP() << "the kernel forbids mount namespaces to this user";
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    if (rank == 1 && !hide_proc()) return 61;
    trConfig_t config = TR_CONFIG_INITIALIZER;
    config.timeout_ms = 30'000;
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    constexpr size_t kCount = 300'000;
    void *input = nullptr, *output = nullptr;
    TR_CHECK(trMemAlloc(&input, kCount * sizeof(float)));
    TR_CHECK(trMemAlloc(&output, kCount * sizeof(float)));
    int code = check_sums(comm, rank, 2, static_cast<float*>(input), static_cast<float*>(output), kCount);
    if (code != 0) return code;
    TR_CHECK(trCommDestroy(comm));
    TR_CHECK(trMemFree(input));
    TR_CHECK(trMemFree(output));
    return 0;
  });
  expect_success(&processes, 2);
}

// It would count as another host, were it not for TREERING_HOSTID.
TEST_F(Fallback, WithoutProcTheLogSaysSo) {
  if (!kernel_allows(hide_proc)) GTEST_SKIP() << "the kernel forbids mount namespaces to this user";
  setenv("TREERING_HOSTID", "one", 1);
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    if (rank == 1 && !hide_proc()) return kCannot;
    return run_rank(rank, 2, id);
  });
  unsetenv("TREERING_HOSTID");
  expect_success(&processes, 2);
  const std::string line = only(logged(processes.pid(0), "rank 0 reaches rank 1 by "));
  EXPECT_NE(line.find("no segment (rank 1 has no /proc"), std::string::npos) << line;
  EXPECT_NE(line.find("cma: rank 1 has no /proc"), std::string::npos) << line;
}

}  // namespace
}  // namespace treering::testing
