// SPDX-License-Identifier: Apache-2.0
#include "support/processes.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

namespace treering::testing {
namespace {

constexpr int kSanitizerExit = 66;  // tests/run sets it
constexpr int kException = 95;
bool rank_crashed = false;
int output_end = -1;
int reached_end = -1;

void make_pipe(int ends[2]) {
  if (pipe(ends) != 0) throw std::runtime_error("pipe failed");
}

std::string drain(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(got));
  return text;
}

// The child's life: the id from rank 0 through a pipe that all share, then the body.
int live(int rank, int ranks, int id_pipe[2], const RankProcesses::Body& body) {
  trUniqueId id;
  if (rank == 0) {
    if (trGetUniqueId(&id) != trSuccess) return 99;
    for (int i = 1; i < ranks; ++i)
      if (write(id_pipe[1], &id, sizeof id) != sizeof id) return 98;
  } else if (read(id_pipe[0], &id, sizeof id) != sizeof id) {
    return 97;
  }
  return body(rank, id);
}

bool is_crash(int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status) == kSanitizerExit || WEXITSTATUS(status) == kException;
  const int by = WTERMSIG(status);
  return by == SIGSEGV || by == SIGABRT || by == SIGBUS || by == SIGFPE || by == SIGILL;
}

}  // namespace

bool any_rank_crashed() { return std::exchange(rank_crashed, false); }

pid_t fork_when_quiet() {
  const std::filesystem::path own = std::to_string(gettid());
  const auto is_quiet = [&] {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      if (task.path().filename() == own) continue;
      std::ifstream file(task.path() / "stat");
      std::string line;
      std::getline(file, line);
      const size_t name_end = line.rfind(')');  // the state follows
      if (name_end != std::string::npos && line.compare(name_end, 3, ") S") != 0) return false;
    }
    return true;
  };
  for (int i = 0, quiet = 0; i < 2000 && quiet < 3; ++i, usleep(1000)) quiet = is_quiet() ? quiet + 1 : 0;
  return fork();
}

void say(const std::string& text) { (void)!write(output_end, text.data(), text.size()); }
void reached() { (void)!write(reached_end, "!", 1); }

RankProcesses::RankProcesses(int ranks, const Body& body) : waited_(static_cast<size_t>(ranks), false) {
  int id_pipe[2];
  make_pipe(id_pipe);
  pid_t parent = getpid();
  for (int rank = 0; rank < ranks; ++rank) {
    int output[2], mark[2];
    make_pipe(output);
    make_pipe(mark);
    pid_t pid = fork_when_quiet();
    if (pid < 0) throw std::runtime_error("fork failed");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(96);
      close(output[0]);
      close(mark[0]);
      output_end = output[1];
      reached_end = mark[1];
      int code = kException;
      try {
        code = live(rank, ranks, id_pipe, body);
      } catch (const std::exception& error) {
        say(std::string("exception: ") + error.what());
      }
      close(output[1]);
      _exit(code);
    }
    close(output[1]);
    close(mark[1]);
    pids_.push_back(pid);
    outputs_.push_back(output[0]);
    reached_.push_back(mark[0]);
  }
  close(id_pipe[0]);
  close(id_pipe[1]);
}

RankProcesses::~RankProcesses() {
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    if (!waited_[rank]) {
      kill(pids_[rank], SIGKILL);
      int status = 0;
      waitpid(pids_[rank], &status, 0);
      rank_crashed |= is_crash(status);
    }
    close(outputs_[rank]);
    close(reached_[rank]);
  }
}

bool RankProcesses::wait_until_reached(int rank, std::chrono::seconds timeout) {
  pollfd entry{reached_[static_cast<size_t>(rank)], POLLIN, 0};
  char mark = 0;
  return poll(&entry, 1, static_cast<int>(timeout.count() * 1000)) > 0 && read(entry.fd, &mark, 1) == 1;
}

void RankProcesses::stop(int rank) {
  ASSERT_EQ(kill(pid(rank), SIGSTOP), 0);
  siginfo_t info = {};
  for (int i = 0; i < 10'000 && info.si_pid == 0; ++i) {
    if (i > 0) usleep(1000);
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid(rank)), &info, WSTOPPED | WNOHANG), 0);
  }
  ASSERT_NE(info.si_pid, 0) << "rank " << rank << " has not stopped within 10 s";
}

RankResult RankProcesses::wait(int rank, std::chrono::seconds timeout) {
  auto index = static_cast<size_t>(rank);
  auto deadline = std::chrono::steady_clock::now() + timeout;
  int status = 0;
  while (waitpid(pids_[index], &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(pids_[index], SIGKILL);
      waitpid(pids_[index], &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  waited_[index] = true;
  rank_crashed |= is_crash(status);
  RankResult result;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.output = drain(outputs_[index]);
  return result;
}

std::vector<RankResult> RankProcesses::wait_all(std::chrono::seconds timeout) {
  std::vector<RankResult> results;
  for (size_t rank = 0; rank < pids_.size(); ++rank) results.push_back(wait(static_cast<int>(rank), timeout));
  return results;
}

void expect_all_succeed(int ranks, const RankProcesses::Body& body, std::chrono::seconds timeout) {
  RankProcesses processes(ranks, body);
  auto results = processes.wait_all(timeout);
  for (size_t rank = 0; rank < results.size(); ++rank)
    EXPECT_TRUE(results[rank].exit_code == 0)
        << "rank " << rank << " of " << ranks << ": exit code " << results[rank].exit_code << ", signal "
        << results[rank].signal << ": " << results[rank].output;
}

}  // namespace treering::testing
