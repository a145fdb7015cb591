// SPDX-License-Identifier: Apache-2.0
// schedule-dump: prints what each rank does in a collective, and verifies it.
//
//   schedule-dump --algorithm ring --ranks 4 [--rank r] [--channel c] [--pipeline k] [--compact] [--verify]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <numeric>
#include <random>

#include "algorithms/algorithm.h"
#include "algorithms/print.h"
#include "algorithms/properties.h"
#include "algorithms/verify.h"
#include "arguments.h"

namespace {

constexpr uint32_t kMaxVerified = 16384;  // memory grows with the square of the ranks

struct Options {
  std::string collective = "allreduce";
  std::string algorithm;
  uint32_t root = 0;
  uint32_t ranks = 0;
  int64_t rank = -1;  // -1: all
  uint32_t channel = 0;
  uint32_t pipeline = 4;
  uint64_t shuffle = 0;
  bool compact = false;
  bool verify = false;
  bool list = false;
};

int fail(const std::string& message) {
  fmt::print(stderr, "error: {}\n", message);
  return treering::tools::kBadArguments;
}

void print_list() {
  for (const treering::CollectiveInfo& info : treering::collectives())
    for (const treering::Algorithm* row : treering::algorithms_of(info.collective))
      fmt::print("{:<15}{:<19}{}\n{:<34}source: {}\n{:<34}rounds 16-bit floats {}; {} channel(s)\n", info.name,
                 row->name, row->description, "", row->source, "", row->rounding, row->channels);
}

treering::Plan make_plan(const Options& options) {
  treering::Plan plan;
  plan.ranks = options.ranks;
  plan.ring.resize(options.ranks);
  std::iota(plan.ring.begin(), plan.ring.end(), 0);
  if (options.shuffle != 0) {
    std::mt19937_64 random(options.shuffle);
    std::shuffle(plan.ring.begin(), plan.ring.end(), random);
    fmt::print("ring (seed {}): {}\n", options.shuffle, fmt::join(plan.ring, " "));
  }
  return plan;
}

void print_schedule(const treering::Schedule& schedule, bool compact) {
  const treering::ScheduleProperties p = treering::properties_of(schedule);
  fmt::print("{}", compact ? treering::compact_text(schedule) : treering::program_text(schedule));
  fmt::print("rank {}  in all: {} steps; sends {} messages of {} chunks, receives {} of {}; {} chunks in a slice\n",
             schedule.rank, p.steps, p.messages_sent, p.chunks_sent, p.messages_received, p.chunks_received,
             schedule.chunks);
}

int verify_all(const Options& options, const treering::Algorithm& algorithm, const treering::Plan& plan,
               const treering::Shape& shape) {
  std::vector<treering::Schedule> schedules;
  for (uint32_t r = 0; r < plan.ranks; ++r) schedules.push_back(algorithm.build(plan, r, shape));
  const treering::VerifyReport report = treering::verify(
      schedules, {.collective = algorithm.collective, .root = shape.root, .exact = options.ranks <= 64});
  if (!report.ok()) {
    fmt::print("verify: {}\n", report.error);
    return 1;
  }
  fmt::print("verify: all {} ranks end with the result; {} steps, {} messages, no deadlock at FIFO depth {}\n",
             plan.ranks, report.steps, report.messages, schedules[0].fifo_depth);
  return 0;
}

int run(const Options& options) {
  if (options.list) {
    print_list();
    return 0;
  }
  if (options.algorithm.empty()) return fail("--algorithm NAME is required (--list shows the names)");
  if (options.ranks == 0) return fail("--ranks N is required, 1 or more");
  const treering::CollectiveInfo* info = treering::find_collective(options.collective);
  if (info == nullptr)
    return fail(fmt::format("--collective '{}' is unknown; --list shows the names", options.collective));
  if (options.root >= options.ranks)
    return fail(fmt::format("--root {}: ranks are 0 to {}", options.root, options.ranks - 1));
  const treering::Algorithm* algorithm = nullptr;
  if (auto status = treering::find_algorithm(info->collective, options.algorithm, &algorithm); !status.ok())
    return fail(status.message());
  if (options.ranks > algorithm->max_ranks)
    return fail(fmt::format("--ranks {}: algorithm '{}' takes at most {}", options.ranks, algorithm->name,
                            algorithm->max_ranks));
  if (options.rank >= options.ranks)
    return fail(fmt::format("--rank {}: ranks are 0 to {}", options.rank, options.ranks - 1));
  if (options.verify && options.ranks > kMaxVerified)
    return fail(fmt::format("--ranks {}: --verify takes at most {}", options.ranks, kMaxVerified));
  const treering::Plan plan = make_plan(options);
  const treering::Shape shape = {.channel = options.channel,
                                 .channels = std::max(algorithm->channels, 2u),
                                 .pipeline_chunks = options.pipeline,
                                 .root = options.root};
  if (auto status = check_build(*algorithm, plan, 0, shape); !status.ok()) return fail(status.message());
  for (uint32_t r = 0; r < plan.ranks; ++r)
    if (options.rank < 0 || options.rank == r) print_schedule(algorithm->build(plan, r, shape), options.compact);
  return options.verify ? verify_all(options, *algorithm, plan, shape) : 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Prints what each rank does in a collective, step by step, and verifies it for all ranks.",
               "schedule-dump"};
  app.set_version_flag("--version", "schedule-dump " TREERING_VERSION_STRING);
  app.add_option("--collective", options.collective, "its name (default allreduce; --list shows them)");
  app.add_option("--root", options.root, "root of a rooted collective (default 0)");
  app.add_option("-a,--algorithm", options.algorithm, "name of the algorithm (--list shows them)");
  app.add_option("-n,--ranks", options.ranks, "number of ranks")->check(CLI::Range(1, 65536));
  app.add_option("-r,--rank", options.rank, "only this rank; all when left out")->check(CLI::NonNegativeNumber);
  app.add_option("-c,--channel", options.channel, "channel, from 0 on; an algorithm may use several (default 0)");
  app.add_option("-p,--pipeline", options.pipeline, "chunks of a pipelined algorithm (default 4)");
  app.add_option("--shuffle", options.shuffle, "seed that shuffles the order of the ring (0: rank order)");
  app.add_flag("--compact", options.compact, "print blocks and steps as they are stored, not expanded");
  app.add_flag("--verify", options.verify, "run all ranks against the collective's pre- and postcondition");
  app.add_flag("-l,--list", options.list, "list the algorithms");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return treering::tools::refuse(app, error, treering::tools::text_of(app, error));
  }
  return run(options);
}
