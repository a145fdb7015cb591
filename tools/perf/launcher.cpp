// SPDX-License-Identifier: Apache-2.0
#include "launcher.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace treering::perf {
namespace {

constexpr int kGraceMs = 2000;         // for the others to say what they saw, and to end themselves
constexpr int kNotReachedBySsh = 255;  // its own exit status

struct Child {
  pid_t pid = -1;
  bool running = false;
};

class Family {
 public:
  Family(const Options& options, const SharedState* shared) : options_(options), shared_(shared) {
    sigemptyset(&signals_);
    for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, number);
    sigprocmask(SIG_BLOCK, &signals_, &inherited_);
  }
  ~Family() { sigprocmask(SIG_SETMASK, &inherited_, nullptr); }

  bool start(const std::function<int(int)>& process_main);
  // Waits for all; on a failure or a signal ends the others. Returns 0, 1, or 128 + the signal.
  int wait_for_all();
  void signal_all(int number);

 private:
  void reap();
  void report_end(size_t process, int status);
  bool has_told(int first, int count) const;
  bool any_running() const;
  void take_signal(int number);

  const Options& options_;
  const SharedState* const shared_;
  std::vector<Child> children_;
  sigset_t signals_;
  sigset_t inherited_;
  bool failed_ = false;
  int interrupted_ = 0;  // the signal that ends all of them
  // SIGINT was handed on to an endless run, whose ranks then end by themselves, with a summary.
  bool asked_ = false;
};

bool Family::start(const std::function<int(int)>& process_main) {
  const pid_t launcher = getpid();
  fflush(nullptr);  // or every child would print what is still in the buffers
  for (int process = 0; process < options_.procs; ++process) {
    const pid_t pid = fork();
    if (pid < 0) {
      fprintf(stderr, "error: fork of process %d of %d failed: %s\n", process, options_.procs, strerror(errno));
      return false;
    }
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != launcher) _exit(1);  // it died before the line above
      sigprocmask(SIG_SETMASK, &inherited_, nullptr);
      const int status = process_main(process);
      fflush(nullptr);
      _exit(status);
    }
    children_.push_back({pid, true});
  }
  return true;
}

void Family::signal_all(int number) {
  for (const Child& child : children_) {
    if (child.running) kill(child.pid, number);
  }
}

bool Family::any_running() const {
  for (const Child& child : children_) {
    if (child.running) return true;
  }
  return false;
}

// The host on which a run with --hosts starts the process.
std::string host_of(const Options& options, size_t process) {
  for (const HostRanks& host : options.hosts) {
    if (process < static_cast<size_t>(host.procs)) return host.host;
    process -= static_cast<size_t>(host.procs);
  }
  return "";
}

// Whether one of these ranks has printed why it fails.
bool Family::has_told(int first, int count) const {
  for (int rank = first; rank < first + count; ++rank)
    if (shared_->has_told[rank]) return true;
  return false;
}

void Family::report_end(size_t process, int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  // It was not ready yet to end with a summary, or is a launcher such as ssh.
  if (asked_ && WIFSIGNALED(status) && WTERMSIG(status) == SIGINT && !failed_) take_signal(SIGINT);
  // What comes after the first failure is its consequence.
  if (failed_) return;
  failed_ = true;
  const int count = options_.ranks_per_process(), first = static_cast<int>(process) * count;
  std::string who = "the process of rank " + std::to_string(first);
  if (count > 1) who = "the process of ranks " + std::to_string(first) + " to " + std::to_string(first + count - 1);
  if (const std::string host = host_of(options_, process); !host.empty())
    who = "host " + host + ": the command for rank " + std::to_string(first);
  if (WIFSIGNALED(status)) {
    fprintf(stderr, "error: %s (pid %d) was ended by signal %d (%s); the run is over\n", who.c_str(),
            children_[process].pid, WTERMSIG(status), strsignal(WTERMSIG(status)));
  } else if (!has_told(first, count)) {
    const bool is_ssh =
        WEXITSTATUS(status) == kNotReachedBySsh && who.starts_with("host ") && options_.launcher.starts_with("ssh ");
    fprintf(stderr, "error: %s (pid %d) failed with exit status %d%s; the run is over\n", who.c_str(),
            children_[process].pid, WEXITSTATUS(status),
            is_ssh ? " (ssh could not connect? --launcher gives another way)" : "");
  }
}

void Family::reap() {
  for (size_t process = 0; process < children_.size(); ++process) {
    Child& child = children_[process];
    int status = 0;
    if (!child.running || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    child.running = false;
    report_end(process, status);
  }
}

void Family::take_signal(int number) {
  if (number == SIGINT && options_.cycles == 0 && !asked_ && !failed_) {
    asked_ = true;
    fprintf(stderr, "SIGINT: the run ends after the row at hand; another SIGINT ends it at once\n");
    signal_all(SIGINT);
    return;
  }
  interrupted_ = number;
  failed_ = true;  // the children's ends need no words
  signal_all(SIGTERM);
}

int Family::wait_for_all() {
  int left_ms = -1;  // until the rest is killed; below 0: not ending
  for (reap(); any_running(); reap()) {
    if (left_ms < 0 && failed_) left_ms = kGraceMs;
    if (left_ms == 0) signal_all(SIGKILL);
    const timespec wait = {0, 50'000'000};
    const int number = sigtimedwait(&signals_, nullptr, &wait);
    if (number < 0 && errno == EAGAIN && left_ms > 0) left_ms = left_ms > 50 ? left_ms - 50 : 0;
    if (number == SIGINT || number == SIGTERM || number == SIGHUP) {
      if (interrupted_) left_ms = 0;
      take_signal(number);
    }
  }
  if (interrupted_) return 128 + interrupted_;
  return failed_ ? 1 : 0;
}

}  // namespace

std::vector<int> assign_cores(int ranks) {
  std::vector<int> cores;
  cpu_set_t inherited;
  CPU_ZERO(&inherited);
  if (sched_getaffinity(0, sizeof(inherited), &inherited) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE && static_cast<int>(cores.size()) < ranks; ++cpu) {
      if (CPU_ISSET(cpu, &inherited)) cores.push_back(cpu);
    }
  }
  if (static_cast<int>(cores.size()) < ranks) cores.assign(static_cast<size_t>(ranks), -1);
  return cores;
}

void pin_to_core(int core) {
  if (core < 0) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  if (sched_setaffinity(0, sizeof(one), &one) != 0) {
    fprintf(stderr, "warning: cannot pin to core %d: %s\n", core, strerror(errno));
  }
}

int launch(const Options& options, SharedState* shared, const std::function<int(int process)>& process_main) {
  Family family(options, shared);
  if (!family.start(process_main)) {
    family.signal_all(SIGKILL);
    family.wait_for_all();
    return 1;
  }
  const int status = family.wait_for_all();
  return status != 0 ? status : shared->exit_status.load();
}

}  // namespace treering::perf
