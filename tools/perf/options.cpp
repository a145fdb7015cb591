// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <algorithm>
#include <cstdio>
#include <optional>

#include "arguments.h"

namespace treering::perf {
namespace {

// What data types go by, too (datatypes.cpp).
constexpr const char* kTypeAliases = "; also float32, float64, float16, fp16, bf16";
constexpr double kMaxTolerance = 1e6;

constexpr const char* kDefaultSize = "32M";

// The words as typed; turned into Options once CLI11 has seen them all.
struct Words {
  std::string hosts;
  std::string collective = "allreduce";
  std::optional<std::string> min, max, operation;  // nothing: not given
  std::string step = "1M", type = "float", memory = "host";
  size_t factor = 1;
  int blocking = 0, averaging = 1, registration = 0, per_iteration = 0, parallel_init = 0;
};

CLI::Validator in_range(int64_t least, int64_t most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        char* end = nullptr;
        errno = 0;
        const int64_t value = std::strtoll(text.c_str(), &end, 10);
        if (!text.empty() && *end == '\0' && errno == 0 && value >= least && value <= most) return "";
        return "value \"" + text + "\" is not a whole number from " + std::to_string(least) + " to " +
               std::to_string(most);
      },
      "");
}

CLI::Validator a_seed() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size()) return "";
        return "value \"" + text + "\" is not a whole number from 0 to " + std::to_string(UINT64_MAX);
      },
      "");
}

CLI::Validator percent() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= kMaxTolerance) return "";
        return "value \"" + text + "\" is not a number of percent from 0 to 1000000";
      },
      "");
}

void add_nccl_options(CLI::App& app, Options& options, Words& words) {
  app.add_option("-b,--minbytes", words.min,
                 "least size (K, M, G, T: powers of 1024); one element for each rank at least [32M]");
  app.add_option("-e,--maxbytes", words.max, "largest size [32M, or -b where that is more]");
  app.add_option("-i,--stepbytes", words.step, "from a size to the next, when -f is 1 [1M]");
  app.add_option("-f,--stepfactor", words.factor, "factor from a size to the next [1]")->check(in_range(1, 1 << 20));
  app.add_option("-n,--iters", options.iterations, "timed calls of each size [20]")->check(in_range(1, 100000000));
  app.add_option("-w,--warmup_iters", options.warm_up, "calls before the timed ones [1]")
      ->check(in_range(0, 100000000));
  app.add_option("-m,--agg_iters", options.aggregated, "operations in one group [1]")->check(in_range(1, 65536));
  app.add_option(
         "-N,--run_cycles", options.cycles,
         "times the whole table is run, 0 = until SIGINT (Ctrl-C), which ends it with the summary and the files [1]")
      ->check(in_range(0, 1000000000));
  app.add_option("-c,--check", options.checks, "verified calls of each size, 0 = none [1]")
      ->check(in_range(0, 1000000));
  app.add_option("-o,--op", words.operation, operation_names() + " or all; of collectives that combine [sum]");
  app.add_option("-d,--datatype", words.type, data_type_names() + kTypeAliases + "; or all [float]");
  app.add_option("-r,--root", options.root, "root rank, -1 = all of them in turn [0]")
      ->check(in_range(-1, kMaxRanks - 1));
  app.add_option("-z,--blocking", words.blocking,
                 "after each call, or graph launch: 0 nothing, 1 a barrier, 2 wait for it [0]")
      ->check(in_range(0, 2));
  app.add_option("-t,--nthreads", options.threads, "ranks as threads in each process [1]")
      ->check(in_range(1, kMaxRanks));
  app.add_option("-g,--ngpus", options.gpus,
                 "with --memory gpu: ranks for each of -t, each a thread here: ranks = procs x -t x -g [1]")
      ->check(in_range(1, kMaxRanks));
  app.add_option("-a,--average", words.averaging, "time over ranks: 0 rank 0, 1 mean, 2 min, 3 max [1]")
      ->check(in_range(0, 3));
  app.add_option("-G,--cudagraph", options.graph_launches,
                 "with --memory gpu: capture the -n calls into a CUDA graph and launch it so many times [0]")
      ->check(in_range(0, 1000000));
  app.add_option("-T,--timeout", options.timeout_s, "deadline of every wait in seconds, 0 = none [the library's]")
      ->check(in_range(0, 2000000));
  app.add_option("-R,--local_register", words.registration,
                 "buffers on the host: 0 malloc, 1 registered (trCommRegister), 2 trMemAlloc [0]")
      ->check(in_range(0, 2));
  app.add_option("-u,--unalign", options.unalign, "elements that the buffers start after an aligned address [0]")
      ->check(in_range(0, 4096));
  app.add_option("-I,--per_iter", words.per_iteration, "statistics over the iterations: 0 or 1 [0]; -I alone is 1")
      ->check(in_range(0, 1))
      ->expected(0, 1)
      ->default_str("1");
  app.add_option("-p,--parallel_init", words.parallel_init, "accepted; every rank initialises in its own thread [0]")
      ->check(in_range(0, 1));
  app.add_option("-J,--output_file,--json", options.json_file, "write the results as JSON");
}

void add_own_options(CLI::App& app, Options& options, Words& words) {
  app.add_option(
      "--memory", words.memory,
      "of the buffers: host, or gpu: the ranks of a machine take its GPUs in turn; calls on a CUDA stream [host]");
  app.add_option("--procs", options.procs, "processes on this machine [1]")->check(in_range(1, kMaxRanks));
  app.add_option("--hosts", words.hosts, "hosts and their numbers of processes: a:4,b:4; started through --launcher");
  app.add_option("--launcher", options.launcher,
                 "command that runs {command} on {host}; without {command}, sh -c COMMAND is appended [ssh]");
  app.add_flag("--allow-one-rank", options.allow_one_rank, "run with a single rank, which measures a copy");
  app.add_flag("--stream", options.stream,
               "give the calls to a host stream and wait at the end (GPU memory: always a CUDA stream)");
  app.add_flag("--limit", options.limit,
               "allreduce alone; columns: the least time by memory traffic, and the part of it reached");
  app.add_flag("--explain", options.explain, "print what would be done for each size and why; nothing is timed");
  app.add_option("--csv", options.csv_file, "write a line of comma-separated values for each row; - = standard output");
  auto* baseline = app.add_option("--baseline", options.baseline_file,
                                  "earlier -J file, whose medians are compared: exit status 3 when a row got slower");
  app.add_option("--tolerance", options.tolerance_percent, "percent that a row may be slower than the baseline [20]")
      ->check(percent())
      ->needs(baseline);
  app.add_option("--seed", options.seed, "of the verified data, from 0 [1]")->check(a_seed());
}

std::string take_size(const char* name, const std::string& text, size_t* bytes) {
  const auto size = parse_size(text);
  if (!size) {
    return std::string(name) + ": value \"" + text +
           "\" is not a size: a number of bytes up to 8191T, with K, M, G or T if wanted";
  }
  *bytes = *size;
  return "";
}

template <typename Row, typename Rows>
std::string take_rows(const char* name, const std::string& text, Rows all, const Row* found, const std::string& known,
                      std::vector<const Row*>* rows) {
  if (text == "all") {
    for (const Row& row : all) rows->push_back(&row);
  } else if (found) {
    rows->push_back(found);
  } else {
    return std::string(name) + ": value \"" + text + "\" is not one of " + known + ", all";
  }
  return "";
}

std::string take_sizes(const Words& words, Options* options) {
  std::string error = take_size("-b", words.min.value_or(kDefaultSize), &options->min_bytes);
  if (error.empty()) error = take_size("-e", words.max.value_or(kDefaultSize), &options->max_bytes);
  if (!words.max) options->max_bytes = std::max(options->max_bytes, options->min_bytes);
  return error.empty() ? take_size("-i", words.step, &options->step_bytes) : error;
}

std::string check_sizes(const Words& words, const Options& options) {
  if (options.min_bytes > options.max_bytes) {
    const std::string most = words.max.value_or(kDefaultSize);
    return "-b " + words.min.value_or(kDefaultSize + std::string(" (the default)")) + " is above -e " + most +
           ": give -b " + most + " or less, or a larger -e";
  }
  if (options.min_bytes == 0) return "-b: value \"0\": must be 1 or more";
  if (options.step_factor == 1 && options.step_bytes == 0 && options.min_bytes != options.max_bytes) {
    return "-i: value \"0\": the next size would be the same; give a step, or -f 2";
  }
  return "";
}

// What goes with one kind of memory alone.
std::string take_memory(const Words& words, Options& options) {
  if (words.memory != "host" && words.memory != "gpu") {
    return "--memory: value \"" + words.memory + "\" is not one of host, gpu";
  }
  if (words.memory == "host") {
    if (options.gpus != 1)
      return "-g: value \"" + std::to_string(options.gpus) +
             "\": host memory has no GPUs; use --procs or -t, or --memory gpu";
    if (options.graph_launches != 0)
      return "-G: value \"" + std::to_string(options.graph_launches) +
             "\": CUDA graphs need --memory gpu; leave it out";
    return "";
  }
  options.memory = MemoryKind::kGpu;
  options.stream = true;
  if (options.buffers != Buffers::kMalloc) {
    return "-R: value \"" + std::to_string(words.registration) +
           "\": registration and trMemAlloc are of host memory; buffers of --memory gpu are trDeviceMemAlloc's; leave it out";
  }
  if (options.limit) return "--limit: compares with copies in host memory; leave it out with --memory gpu";
  return "";
}

std::string check_ranks(Options& options) {
  if (int64_t{options.procs} * options.threads * options.gpus > kMaxRanks) {
    const std::string gpus = options.gpus > 1 ? " x -g " + std::to_string(options.gpus) : "";
    return "--procs " + std::to_string(options.procs) + " x -t " + std::to_string(options.threads) + gpus +
           ": more than " + std::to_string(kMaxRanks) + " ranks";
  }
  if (options.launcher.find("{host}") == std::string::npos)
    return "--launcher: value \"" + options.launcher + "\" lacks {host}";
  if (!options.hosts.empty() && options.ranks() != 1)
    return "--hosts tells the processes of each host; leave out --procs, -t and -g";
  if (options.hosts.size() == 1 && options.hosts[0].procs == 1 && !options.allow_one_rank)
    return std::string("--hosts: ") + one_rank_advice();
  // No other process to talk to here: a launcher may have started others.
  options.launched = options.ranks() == 1 && !options.allow_one_rank;
  return options.launched ? "" : check_known_ranks(options);
}

// a:4,b:4
std::string take_hosts(const std::string& text, std::vector<HostRanks>* hosts) {
  for (size_t at = 0; at < text.size();) {
    const std::string item = text.substr(at, text.find(',', at) - at);
    at += item.size() + 1;
    // An IPv6 address stands in brackets, which are for this list alone.
    const bool bracketed = item.starts_with('[') && item.find(']') != std::string::npos;
    const size_t colon = item.find(':', bracketed ? item.find(']') : 0);
    HostRanks host{bracketed ? item.substr(1, item.find(']') - 1) : item.substr(0, colon), 1};
    const std::string count = colon == std::string::npos ? "1" : item.substr(colon + 1);
    const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), host.procs);
    const bool odd = host.host.find_first_of(" \t;'\"") != std::string::npos ||
                     (bracketed && item.find(']') + 1 != std::min(colon, item.size()));
    if (host.host.empty() || odd || error != std::errc() || end != count.data() + count.size() || host.procs < 1 ||
        host.procs > kMaxRanks)
      return "--hosts: \"" + item + "\" is not HOST:PROCESSES, as in a:4,b:4 or [fd00::1]:4";
    hosts->push_back(host);
  }
  return "";
}

std::vector<std::string> names_of_collectives() {
  std::vector<std::string> names;
  for (const CollectiveCase& row : collective_cases()) names.push_back(row.name);
  return names;
}

// What the parser did not take.
std::string text_of(const CLI::App& app, const CLI::ParseError& error, const Words& words, bool any_collective) {
  const std::vector<std::string> extras = app.remaining();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !extras.empty() && find_case(extras[0]) != nullptr) {
    if (!any_collective)
      return "\"" + extras[0] + "\": this program measures allreduce; use treering-perf " + extras[0];
    return "\"" + extras[0] + "\": one run measures one collective, and \"" + words.collective +
           "\" is given already; run it once for each";
  }
  const bool lacks = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (lacks && extras.empty()) return "the collective is missing; give one of " + case_names();
  return tools::text_of(app, error);
}

std::string finish(const Words& words, Options& options) {
  std::string error;
  const auto first = [&](const std::string& next) {
    if (error.empty()) error = next;
  };
  options.collective = find_case(words.collective);
  if (options.collective == nullptr)
    return "collective \"" + words.collective + "\" is not one of " + case_names() +
           tools::suggestion(words.collective, names_of_collectives());
  const std::string operation = words.operation.value_or("sum");
  first(take_sizes(words, &options));
  first(take_rows("-o", operation, operations(), find_operation(operation), operation_names(), &options.operations));
  first(take_rows("-d", words.type, data_types(), find_data_type(words.type), data_type_names() + kTypeAliases,
                  &options.types));
  options.step_factor = words.factor;
  options.blocking = static_cast<Blocking>(words.blocking);
  options.averaging = static_cast<Averaging>(words.averaging);
  options.buffers = static_cast<Buffers>(words.registration);
  options.per_iteration = words.per_iteration != 0;
  if (!options.collective->reduces) {  // as nccl-tests take it
    if (words.operation) options.unused_operation = operation;
    options.operations.resize(1);
  }
  if (!options.collective->has_data()) {
    options.min_bytes = options.max_bytes = 1;
    options.types.resize(1);
  }
  if (options.limit && options.collective->id != trCollAllReduce)
    first("--limit: known for allreduce alone; leave it out");
  if (options.explain && options.collective->id == trCollForceInt)
    first("--explain: sends and receives have no algorithms to choose from; leave it out");
  for (const auto& [option, file] : {std::pair{"-J", &options.json_file}, std::pair{"--csv", &options.csv_file},
                                     std::pair{"--baseline", &options.baseline_file}})
    if (options.explain && !file->empty())
      first(std::string(option) + ": --explain times nothing that could be written or compared; leave one of both out");
  bool any = !options.collective->reduces;
  for (const DataType* type : options.types)
    for (const Operation* operation : options.operations) any |= is_defined(*type, *operation);
  if (!any && error.empty())
    first("-o: value \"" + operation + "\" is not defined for -d " + words.type + "; give one of " +
          operation_names(options.types[0]));
  if (options.json_file == "-") first("-J: value \"-\": standard output has the table; give a file");
  if (!options.csv_file.empty() && options.csv_file == options.json_file)
    first("--csv: value \"" + options.csv_file + "\" is the file of -J too; give another file");
  first(take_memory(words, options));
  first(take_hosts(words.hosts, &options.hosts));
  first(check_sizes(words, options));
  first(check_ranks(options));
  return error;
}

}  // namespace

size_t Options::usable_bytes(size_t bytes, const DataType& type) const {
  if (!collective->has_data()) return 0;
  const size_t unit = type.bytes * (collective->many_blocks() ? static_cast<size_t>(ranks()) : 1);
  return std::max<size_t>(bytes / unit, 1) * unit;
}

size_t Options::buffer_bytes() const {
  size_t most = max_bytes;
  for (const DataType* type : types) most = std::max(most, usable_bytes(max_bytes, *type));
  return collective->variable ? 2 * most + 64 : most;
}

std::vector<Point> Options::points() const {
  std::vector<Point> points;
  std::vector<size_t> last(types.size(), SIZE_MAX);
  for (const size_t size : size_sequence(min_bytes, max_bytes, step_bytes, step_factor)) {
    for (size_t i = 0; i < types.size(); ++i) {
      const size_t bytes = usable_bytes(size, *types[i]);
      if (bytes != last[i]) points.push_back({bytes, types[i]});
      last[i] = bytes;
    }
  }
  return points;
}

std::vector<RowPlan> Options::rows() const {
  std::vector<RowPlan> rows;
  for (const Point& point : points())
    for (const Operation* operation : operations)
      for (const int one : roots())
        if (!collective->reduces || is_defined(*point.type, *operation)) rows.push_back({point, operation, one});
  return rows;
}

std::string versions() {
  int library = 0;
  if (trGetVersion(&library) != trSuccess) return TREERING_VERSION_STRING;
  char text[64];
  snprintf(text, sizeof text, "%s, library %d.%d.%d", TREERING_VERSION_STRING, library / 10000, library / 100 % 100,
           library % 100);
  return text;
}

const char* memory_name(MemoryKind memory) { return memory == MemoryKind::kGpu ? "gpu" : "host"; }

const char* one_rank_advice() {
  return "1 rank has no peer and measures a copy; give --procs N (processes), -t N (threads), -g N (GPUs) or "
         "--hosts a:4,b:4, start with mpirun or srun, or give --allow-one-rank if that is what you want";
}

std::string check_known_ranks(const Options& options) {
  if (options.root >= options.ranks()) {
    return "-r: value \"" + std::to_string(options.root) + "\" is not from -1 to " +
           std::to_string(options.ranks() - 1);
  }
  return "";
}

int parse_options(int argc, char** argv, Options* options) {
  Words words;
  const std::string program = std::string(argv[0]).substr(std::string(argv[0]).rfind('/') + 1);
  const bool any_collective = program != "allreduce-perf";
  CLI::App app("Times and verifies " + std::string(any_collective ? "a collective" : "allreduce") +
                   " between processes and threads of this machine, or of several hosts.",
               program);
  if (any_collective) app.add_option("collective", words.collective, case_names())->required();
  app.set_version_flag("--version", [&program] { return program + " " + versions(); });
  app.option_defaults()->always_capture_default(false);
  add_nccl_options(app, *options, words);
  add_own_options(app, *options, words);
  app.footer("Exit status: 0 good, 1 wrong values or a failed rank, 2 bad options, 3 slower than the baseline.");
  options->arguments.assign(argv, argv + argc);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::string more;
    for (int i = 1; i < argc; ++i)
      if (const std::string word = argv[i]; word == "-np" || word == "--np")
        more += "(" + word + " is an option of mpirun; here it is --procs)\n";
    return tools::refuse(app, error, text_of(app, error, words, any_collective), more);
  }
  const std::string error = finish(words, *options);
  if (error.empty()) return -1;
  std::fprintf(stderr, "error: %s\n", error.c_str());
  return tools::kBadArguments;
}

}  // namespace treering::perf
