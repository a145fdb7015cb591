// SPDX-License-Identifier: Apache-2.0
// treering-perf and allreduce-perf: time and verify collectives between processes and threads of this machine, or of
// several hosts.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

#include "baseline.h"
#include "gpus.h"
#include "hosts.h"
#include "interrupt.h"
#include "json_report.h"
#include "launcher.h"
#include "measure.h"
#include "once.h"
#include "options.h"
#include "output.h"
#include "progress.h"

namespace treering::perf {
namespace {

enum ExitStatus { kGood = 0, kFailed = 1, kUsage = 2, kRegressed = 3 };

struct Run {
  Options options;
  std::optional<Baseline> baseline;
  SharedState* shared = nullptr;
  std::vector<Seat> seats;
  std::vector<Gpu> gpus;  // of this machine
};

// What can be known to fail is said before any process is started.
bool prepare_files(Run& run) {
  Options& options = run.options;
  if (!options.baseline_file.empty()) {
    std::string error;
    run.baseline = read_baseline(options.baseline_file, &error);
    if (!run.baseline) {
      fprintf(stderr, "error: --baseline %s: %s\n", options.baseline_file.c_str(), error.c_str());
      return false;
    }
  }
  const auto writable = [](const char* option, const std::string& file) {
    if (file.empty() || std::ofstream(file, std::ios::app)) return true;
    fprintf(stderr, "error: %s %s: cannot be written: %s\n", option, file.c_str(), strerror(errno));
    return false;
  };
  return writable("-J", options.json_file) && (options.csv_file == "-" || writable("--csv", options.csv_file));
}

// Once the number of ranks is known.
std::string why_no_comparison(const Run& run) {
  const std::string why = run.baseline ? why_not_comparable(*run.baseline, run.options) : "";
  return why.empty() ? "" : "--baseline " + run.options.baseline_file + ": " + why;
}

bool seat_on_cores(Run& run) {
  const Options& options = run.options;
  const double wanted = 2.0 * options.ranks() * static_cast<double>(options.buffer_bytes());
  const double present = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  if (present > 0 && wanted > present) {
    fprintf(stderr, "error: -e %s: the buffers of %d ranks need %.1f GiB, this machine has %.1f GiB\n",
            format_size(options.max_bytes).c_str(), options.ranks(), wanted / (1 << 30), present / (1 << 30));
    return false;
  }
  for (const int core : assign_cores(options.ranks())) run.seats.push_back({.core = core});
  return true;
}

// Ranks are not pinned: threads of the driver and of the library would inherit it.
bool seat_on_gpus(Run& run) {
  std::string error;
  run.gpus = list_gpus_elsewhere(&error);
  if (run.gpus.empty()) error = "--memory gpu: no GPU can be used: " + error;
  const int gpus = static_cast<int>(run.gpus.size()), ranks = run.options.ranks();
  for (int rank = 0; rank < ranks && error.empty(); ++rank) run.seats.push_back({.gpu = gpu_of(rank, run.gpus.size())});
  for (int gpu = 0; gpu < gpus && error.empty(); ++gpu) {
    const int sharing = ranks / gpus + (gpu < ranks % gpus ? 1 : 0);
    error = check_gpu_memory(run.options, sharing, gpu, run.gpus[static_cast<size_t>(gpu)]);
  }
  if (!error.empty()) fprintf(stderr, "error: %s\n", error.c_str());
  return error.empty();
}

bool prepare(Run& run) {
  Options& options = run.options;
  if (!prepare_files(run)) return false;
  if (const std::string error = why_no_comparison(run); !error.empty()) {
    fprintf(stderr, "error: %s\n", error.c_str());
    return false;
  }
  if (options.memory == MemoryKind::kGpu ? !seat_on_gpus(run) : !seat_on_cores(run)) return false;
  run.shared = create_shared_state(options.ranks(), static_cast<uint64_t>(options.samples()));
  if (!run.shared) fprintf(stderr, "error: no shared memory for the ranks: %s\n", strerror(errno));
  return run.shared != nullptr;
}

bool told(const std::string& error) {
  if (!error.empty()) fprintf(stderr, "error: %s\n", error.c_str());
  return error.empty();
}

// On rank 0, at the end: the footer, the files, the comparison.
int conclude(const Run& run, Output& output, const RunResults& results) {
  if (!told(output.end(results))) return kFailed;
  const int status = results.wrong() ? kFailed : kGood;
  if (!run.baseline) return status;
  const Comparison comparison = compare(*run.baseline, results, run.options.tolerance_percent);
  print_comparison(output.table(), run.options, comparison);
  if (comparison.compared == 0) {
    fprintf(stderr, "error: --baseline %s: no row in common with this run\n", run.options.baseline_file.c_str());
    return kFailed;
  }
  return status == kGood && !comparison.regressed.empty() ? kRegressed : status;
}

RankPlace place_of(const Run& run, Seat seat) {
  RankPlace place = place_here(seat.core);
  place.gpu = seat.gpu;
  if (seat.gpu < 0) return place;
  const Gpu& gpu = run.gpus[static_cast<size_t>(seat.gpu)];
  memcpy(place.gpu_name, gpu.name, sizeof place.gpu_name);
  memcpy(place.gpu_bus, gpu.bus, sizeof place.gpu_bus);
  return place;
}

RunResults begin_results(const Run& run, RankRun& rank_run, Seat seat) {
  RunResults results;
  results.start_time = time_text();
  results.library_version = rank_run.library_version();
  results.places = rank_run.group().gather_places(place_of(run, seat));
  return results;
}

bool explain_all(const Run& run, RankRun& rank_run) {
  for (const Point& point : run.options.points()) {
    std::string text;
    if (!rank_run.explain(point.bytes, *point.type, &text)) return false;
    if (rank_run.group().rank() != 0) continue;
    printf("# %s %s\n%s%s", format_size(point.bytes).c_str(), point.type->name, text.c_str(),
           text.empty() || text.back() != '\n' ? "\n" : "");
  }
  return true;
}

// What rank 0 shows of the run; on the others `output` is nullptr and the progress has no terminal.
struct Show {
  Output* output;
  Progress* progress;
};

// `more` is false, on all ranks, once a SIGINT of an endless run came.
bool run_cycle(const Run& run, RankRun& rank_run, const Show& show, RunResults* results, bool* more) {
  const std::vector<RowPlan> plans = run.options.rows();
  for (size_t i = 0; i < plans.size() && *more; ++i) {
    const RowPlan& plan = plans[i];
    show.progress->set("row " + std::to_string(i + 1) + " of " + std::to_string(plans.size()) + ": " +
                       format_size(plan.point.bytes) + " " + plan.point.type->name);
    Row row;
    if (!rank_run.measure(plan.point.bytes, *plan.point.type, *plan.operation, plan.root, &row)) return false;
    if (show.output != nullptr) show.progress->print([&] { show.output->row(row); });
    results->rows.push_back(std::move(row));
    if (run.options.cycles != 0) continue;
    for (const double came : rank_run.group().gather(interrupted() ? 1 : 0)) *more &= came == 0;
  }
  return true;
}

// Until SIGINT. Keeps the rows of the last whole cycle, and of the others what was wrong in them.
bool run_endless(const Run& run, RankRun& rank_run, const Show& show, RunResults* results) {
  for (bool more = true; more;) {
    RunResults cycle;
    if (!run_cycle(run, rank_run, show, &cycle, &more)) return false;
    const bool whole = cycle.rows.size() >= results->rows.size();
    if (whole) std::swap(results->rows, cycle.rows);
    results->wrong_before += cycle.wrong();
  }
  return true;
}

bool run_cycles(const Run& run, RankRun& rank_run, const Show& show, RunResults* results) {
  if (run.options.cycles == 0) return run_endless(run, rank_run, show, results);
  bool more = true;
  for (int cycle = 0; cycle < run.options.cycles; ++cycle)
    if (!run_cycle(run, rank_run, show, results, &more)) return false;
  return true;
}

// The whole life of one rank, in its thread. Returns an exit status.
int rank_main(const Run& run, RankGroup& group) {
  const int rank = group.rank();
  const Seat seat = run.seats[static_cast<size_t>(rank)];
  Output output(run.options);
  // It comes before this thread is pinned: the line's thread shall not take the time of this rank's core.
  Progress progress(rank == 0 ? STDERR_FILENO : -1);
  progress.set("the communicator of " + std::to_string(group.ranks()) + " ranks is created");
  RankRun rank_run(run.options, group, seat);
  if (!rank_run.initialise()) return kFailed;
  group.barrier();
  if (run.options.cycles == 0) note_interrupts();  // before, there is nothing that a summary could have
  RunResults results = begin_results(run, rank_run, seat);
  if (run.options.explain) progress.set("");
  if (run.options.explain) return explain_all(run, rank_run) && rank_run.finish() ? kGood : kFailed;
  std::string error;
  if (rank == 0) progress.print([&] { error = output.begin(results); });
  if (!told(error)) return kFailed;
  if (!run_cycles(run, rank_run, {rank == 0 ? &output : nullptr, &progress}, &results)) return kFailed;
  if (!rank_run.finish()) return kFailed;
  if (rank == 0) progress.print([&] { group.conclude(conclude(run, output, results)); });
  return kGood;
}

int process_main(const Run& run, int process) {
  const int ranks = run.options.ranks_per_process(), first = process * ranks;
  std::vector<int> statuses(static_cast<size_t>(ranks), kGood);
  std::vector<std::thread> threads;
  // As many queues as there are streams whose kernels may wait for one another.
  if (static_cast<size_t>(ranks) > run.gpus.size()) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const auto guarded = [&](int thread) {
    SharedGroup group(run.shared, first + thread, run.options.ranks());
    statuses[thread] = rank_main(run, group);
    // The others of this process wait for a rank that has given up; the launcher ends the rest of the run.
    if (statuses[thread] != kGood) {
      fflush(nullptr);
      _exit(statuses[thread]);
    }
  };
  for (int thread = 1; thread < ranks; ++thread) threads.emplace_back(guarded, thread);
  guarded(0);
  for (std::thread& thread : threads) thread.join();
  return kGood;
}

// Ranks of a host take its GPUs in turn.
std::string seat_launched(Run& run, RankGroup& group) {
  run.seats.assign(static_cast<size_t>(group.ranks()), Seat{});  // the launcher binds
  if (run.options.memory == MemoryKind::kHost) return "";
  const auto rank = static_cast<size_t>(group.rank());
  const auto count = [&](const std::vector<RankPlace>& places, size_t end) {  // of those like this one
    int alike = 0;
    for (size_t other = 0; other < end; ++other)
      alike += strcmp(places[other].host, places[rank].host) == 0 &&
               strcmp(places[other].gpu_bus, places[rank].gpu_bus) == 0;
    return alike;
  };
  RankPlace own = place_here(-1);
  const int local_rank = count(group.gather_places(own), rank);
  const int gpu = run.seats[rank].gpu = gpu_of(local_rank, run.gpus.size());
  // Processes may see GPUs of their own: which share one, its address tells.
  memcpy(own.gpu_bus, run.gpus[static_cast<size_t>(gpu)].bus, sizeof own.gpu_bus);
  const std::vector<RankPlace> seated = group.gather_places(own);
  return check_gpu_memory(run.options, count(seated, seated.size()), gpu, run.gpus[static_cast<size_t>(gpu)]);
}

// One process of a run that mpirun, srun or --hosts has started.
int launched_main(Run& run) {
  if (run.options.memory == MemoryKind::kGpu) {
    std::string why_not;
    run.gpus = list_gpus(&why_not);
    if (run.gpus.empty()) {
      print_error_once("", "--memory gpu: no GPU can be used: " + why_not);
      return kUsage;
    }
  }
  const trConfig_t config = config_of(run.options);
  trComm_t comm = nullptr;
  int rank = 0, ranks = 0;
  if (trCommInitFromEnvironment(&comm, &config) != trSuccess || trCommRank(comm, &rank) != trSuccess ||
      trCommCount(comm, &ranks) != trSuccess) {
    const char* error = trGetLastError(nullptr);
    const bool alone = strstr(error, "which rank this process is") != nullptr;
    if (alone) fprintf(stderr, "error: %s\n(%s)\n", one_rank_advice(), error);
    if (!alone) print_error_once("", error);
    return kUsage;
  }
  run.options.procs = ranks;
  LaunchedGroup group(comm, rank, ranks, static_cast<uint64_t>(run.options.samples()));
  std::string error = check_known_ranks(run.options);
  if (error.empty()) error = why_no_comparison(run);
  const bool of_all = !error.empty();
  if (error.empty()) error = seat_launched(run, group);
  if (!error.empty()) {
    if (rank == 0 || !of_all) fprintf(stderr, "error: %s\n", error.c_str());
    return kUsage;
  }
  const int status = rank_main(run, group);
  return status != kGood ? status : group.status();
}

int main_of(int argc, char** argv) {
  Run run;
  const int parsed = parse_options(argc, argv, &run.options);
  if (parsed >= 0) return parsed;
  if (!run.options.hosts.empty()) return run_on_hosts(run.options);
  if (run.options.launched) return prepare_files(run) ? launched_main(run) : kUsage;
  if (!prepare(run)) return kUsage;
  return launch(run.options, run.shared, [&](int process) { return process_main(run, process); });
}

}  // namespace
}  // namespace treering::perf

int main(int argc, char** argv) { return treering::perf::main_of(argc, argv); }
