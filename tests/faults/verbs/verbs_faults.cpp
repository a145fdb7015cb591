// SPDX-License-Identifier: Apache-2.0
// Faults of verbs devices, injected into ranks over the stand-in for libibverbs:
//   faults_verbs [--runs N] [--seed S] [--replay S:N] [--jobs N] [--only KIND]
// Each run is a process of its own, which is ended when it hangs. Exit status 1 when a run failed.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "../say.h"
#include "judge.h"
#include "support/seed.h"

// A child ends by _Exit, which does not look at what was reported.
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }

namespace faults::verbs {
namespace {

constexpr double kHang = 45;  // seconds of a run
constexpr uint64_t kMaxDraws = 100'000;

struct Options {
  uint64_t runs = 132, seed = 1, jobs = 2, replay = 0;
  bool is_replay = false;
  std::string only;
};

// In a process of its own: lines "KIND text" of what was found.
[[noreturn]] void run_child(const Scenario& scenario, int out, bool is_verbose) {
  const Record record = run(scenario);
  std::string text;
  for (size_t rank = 0; rank < record.ranks.size() && is_verbose; ++rank) {
    const Report& report = record.ranks[rank];
    for (const Error& error : report.errors)
      fmt::print(stderr, "{:+.3f} rank {}: {}: {}\n", error.when - record.fault_at, rank, error.call, error.text);
    fmt::print(stderr, "rank {}: {} calls{}{}\n", rank, report.calls, report.is_ok ? ", all agreed to stop" : "",
               report.is_gone ? ", left" : "");
  }
  if (is_verbose) fmt::print(stderr, "hit: {}\n", fmt::join(record.victims, ", "));
  for (Finding& finding : judge(scenario, record)) {
    for (char& letter : finding.text) letter = letter == '\n' ? ' ' : letter;
    text += finding.kind + ": " + finding.text + "\n";
  }
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(out, text.data() + done, text.size() - done);
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  std::_Exit(0);
}

struct Child {
  Scenario scenario;
  pid_t pid = -1;
  int out = -1;
  double until = 0;
  std::string text;
};

Child start(const Scenario& scenario, bool is_verbose) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  Child child{scenario, fork(), ends[0], now() + kHang, ""};
  if (child.pid == 0) run_child(scenario, ends[1], is_verbose);
  close(ends[1]);
  return child;
}

// What it has said so far; true: it has ended.
bool follow(Child* child) {
  pollfd ready{child->out, POLLIN, 0};
  poll(&ready, 1, 5);
  if (ready.revents != 0) {
    char data[4096];
    const ssize_t got = read(child->out, data, sizeof data);
    if (got > 0) return child->text.append(data, static_cast<size_t>(got)), false;
  } else if (now() < child->until) {
    return false;
  }
  if (ready.revents == 0) {
    kill(child->pid, SIGKILL);
    child->text += "hang: it did not end\n";
  }
  int status = 0;
  waitpid(child->pid, &status, 0);
  close(child->out);
  if (WIFSIGNALED(status) && ready.revents != 0) child->text += fmt::format("crash: {}\n", strsignal(WTERMSIG(status)));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
    child->text += fmt::format("crash: status {}\n", WEXITSTATUS(status));
  return true;
}

class Table {
 public:
  void add(const Child& child) {
    auto& [runs, failed] = rows_[{name_of(child.scenario.kind), name_of(child.scenario.phase)}];
    ++runs, failed += !child.text.empty();
    ++runs_, failed_ += !child.text.empty();
    if (child.text.empty()) return;
    fmt::print("FAILED {}\n{}", child.scenario.describe(), child.text);
    std::fflush(stdout);
  }
  int print() const {
    fmt::print("{:<16}{:<10}{:>6}{:>8}\n", "kind", "phase", "runs", "failed");
    for (const auto& [key, row] : rows_)
      fmt::print("{:<16}{:<10}{:>6}{:>8}\n", key.first, key.second, row.first,
                 row.second == 0 ? "" : std::to_string(row.second));
    fmt::print("{} runs, {} failed\n", runs_, failed_);
    return failed_ == 0 && runs_ > 0 ? 0 : 1;
  }

 private:
  std::map<std::pair<std::string, std::string>, std::pair<int, int>> rows_;
  int runs_ = 0, failed_ = 0;
};

int run_all(const Options& options) {
  fmt::print("seed {}; {} jobs\n", options.seed, options.jobs);
  std::fflush(stdout);
  Table table;
  std::deque<Child> running;
  uint64_t index = options.replay, found = 0;
  const uint64_t wanted = options.is_replay ? 1 : options.runs;
  while (found < wanted || !running.empty()) {
    while (found < wanted && running.size() < options.jobs && index < options.replay + kMaxDraws) {
      const Scenario scenario = draw(options.seed, index++);
      if (!options.is_replay && !options.only.empty() && options.only != name_of(scenario.kind)) continue;
      ++found;
      if (options.is_replay) fmt::print("{}\n", scenario.describe());
      std::fflush(stdout);
      running.push_back(start(scenario, options.is_replay));
    }
    for (auto child = running.begin(); child != running.end();) {
      if (!follow(&*child)) {
        ++child;
        continue;
      }
      table.add(*child);
      child = running.erase(child);
    }
  }
  return table.print();
}

bool parse(int argc, char** argv, Options* options) {
  const auto number = [](const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); };
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--runs") {
      options->runs = number(value);
    } else if (name == "--seed") {
      options->seed = number(value);
    } else if (name == "--jobs") {
      options->jobs = number(value);
    } else if (name == "--only") {
      options->only = value;
    } else if (name == "--replay" && value.find(':') != value.npos) {
      options->is_replay = true;
      options->seed = number(value);
      options->replay = number(value.substr(value.find(':') + 1));
    } else {
      return false;
    }
  }
  return argc % 2 == 1 && options->jobs > 0;
}

}  // namespace
}  // namespace faults::verbs

int main(int argc, char** argv) {
  using namespace faults::verbs;
  Options options;
  options.seed = treering::test_seed(1);
  if (const char* all = std::getenv("TREERING_LONG_TESTS"); all != nullptr && std::strcmp(all, "1") == 0)
    options.runs = 1320;
  if (!parse(argc, argv, &options)) {
    fmt::print(stderr, "usage: faults_verbs [--runs N] [--seed S] [--replay S:N] [--jobs N] [--only KIND]\n");
    return 2;
  }
  return run_all(options);
}
