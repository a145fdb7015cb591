// SPDX-License-Identifier: Apache-2.0
// Ranks as forked processes, each on a core of its own when there are enough, that time variants of a step in turn.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <treering/treering.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace bench {

inline double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void check(trResult_t result) {
  if (result == trSuccess) return;
  std::fprintf(stderr, "error: %s: %s\n", trGetErrorString(result), trGetLastError(nullptr));
  std::exit(1);
}

inline void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "error: wrong result: %s\n", what);
  std::exit(1);
}

// A fixed amount of arithmetic on the first-level cache, in units that calibrate() times once.
class Compute {
 public:
  explicit Compute(double us) {
    const double start = now_us();
    run_units(kCalibration);
    units_ = static_cast<size_t>(us * kCalibration / (now_us() - start)) + 1;
  }
  void run() { run_units(units_); }

 private:
  static constexpr size_t kCalibration = 20'000;
  [[gnu::noinline]] void run_units(size_t units) {  // one copy, so that every variant computes with the same code
    for (size_t u = 0; u < units; ++u)
      for (float& value : values_) value = value * 0.999f + 0.5f;
    asm volatile("" : : "m"(values_) : "memory");
  }
  float values_[1024] = {};
  size_t units_ = 0;
};

// What the ranks share: a barrier and the time of each.
class Shared {
 public:
  explicit Shared(int ranks) : ranks_(static_cast<unsigned>(ranks)) {}
  void barrier() {
    const unsigned generation = generation_.load();
    if (arrived_.fetch_add(1) + 1 == ranks_) {
      arrived_.store(0);
      generation_.fetch_add(1);
    } else {
      while (generation_.load() == generation) sched_yield();
    }
  }
  double max(int rank, double value) {
    times_[rank].store(value);
    barrier();
    double largest = 0;
    for (unsigned r = 0; r < ranks_; ++r) largest = std::max(largest, times_[r].load());
    barrier();
    return largest;
  }
  trUniqueId id;

 private:
  unsigned ranks_;
  std::atomic<unsigned> arrived_{0}, generation_{0};
  std::atomic<double> times_[64] = {};
};

struct Variant {
  std::function<void()> step;
  std::function<void()> finish = [] {};  // timed with the steps: what they left under way
};

class Rank {
 public:
  Rank(Shared* shared, int rank, int ranks, int rounds) : rank(rank), ranks(ranks), shared_(shared), rounds_(rounds) {}

  const int rank, ranks;

  trComm_t communicator(const trConfig_t& config) {
    if (rank == 0) check(trGetUniqueId(&shared_->id));
    shared_->barrier();
    trComm_t comm = nullptr;
    check(trCommInitRankConfig(&comm, ranks, shared_->id, rank, &config));
    return comm;
  }

  // Medians over the rounds of the time of a step, largest over the ranks, in us. In a round every variant runs in
  // turn, for `budget_us` each, so that what disturbs the machine disturbs all.
  std::vector<double> time(const std::vector<Variant>& variants, double budget_us = 100'000) {
    std::vector<std::vector<double>> times(variants.size());
    std::vector<size_t> steps;
    for (const Variant& variant : variants) {
      timed(variant, 1);  // first call: plans, pages
      steps.push_back(1 + static_cast<size_t>(budget_us / timed(variant, 3)));
    }
    for (int round = 0; round < rounds_; ++round)
      for (size_t v = 0; v < variants.size(); ++v) times[v].push_back(timed(variants[v], steps[v]));
    std::vector<double> medians;
    for (std::vector<double>& of_variant : times) {
      std::nth_element(of_variant.begin(), of_variant.begin() + rounds_ / 2, of_variant.end());
      medians.push_back(of_variant[static_cast<size_t>(rounds_) / 2]);
    }
    return medians;
  }

  template <typename... Arguments>
  void print(const char* format, Arguments... arguments) const {
    if (rank == 0) std::printf(format, arguments...), std::fflush(stdout);
  }

 private:
  double timed(const Variant& variant, size_t steps) {
    shared_->barrier();
    const double start = now_us();
    for (size_t i = 0; i < steps; ++i) variant.step();
    variant.finish();
    return shared_->max(rank, (now_us() - start) / static_cast<double>(steps));
  }

  Shared* shared_;
  int rounds_;
};

inline trConfig_t default_config() {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.timeout_ms = 60'000;
  return config;
}

// Forks the ranks and waits for them; the exit status of the program.
inline int run_ranks(int ranks, int rounds, const std::function<void(Rank&)>& body) {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* shared = new (memory) Shared(ranks);
  std::vector<pid_t> children;
  for (int r = 0; r < ranks; ++r) {
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    alarm(600);
    if (sysconf(_SC_NPROCESSORS_ONLN) >= ranks) {
      cpu_set_t cpus;
      CPU_ZERO(&cpus);
      CPU_SET(r, &cpus);
      sched_setaffinity(0, sizeof cpus, &cpus);  // without it the figures are noisier, not wrong
    }
    Rank rank(shared, r, ranks, rounds);
    body(rank);
    std::_Exit(0);
  }
  int failed = 0;
  for (pid_t child : children) {
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) failed = 1;
  }
  return failed;
}

}  // namespace bench
