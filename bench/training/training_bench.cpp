// SPDX-License-Identifier: Apache-2.0
// What training sees: computation and communication at once, double buffering, fused gradients, the fixed order, the
// wire types. Each table compares variants that ran in turn; docs/performance.md says what they mean.
#include <CLI/CLI.hpp>
#include <numeric>

#include "ranks.h"
#include "resnet50.h"

namespace {

using bench::check;
using bench::Compute;
using bench::Rank;

struct Options {
  int ranks = 4;
  int rounds = 7;
  int link_mbps = 0;
  size_t bytes = size_t{4} << 20;
};

struct Ratio {
  double compute;  // for 1 of communication
  const char* text;
};
constexpr Ratio kRatios[] = {{0.25, "1:4"}, {1, "1:1"}, {4, "4:1"}};
constexpr double kSteps = 30;

trConfig_t config_of(const Options& options) {
  trConfig_t config = bench::default_config();
  config.link_mbps = options.link_mbps;
  return config;
}

// A step that computes while the allreduce of the step before, or of this one, is under way.
void overlap(Rank& rank, const Options& options, bool double_buffer) {
  const size_t count = options.bytes / sizeof(float);
  trComm_t comm = rank.communicator(config_of(options));
  trStream_t stream = nullptr;
  check(trStreamCreate(&stream));
  std::vector<float> sets[2] = {std::vector<float>(count, 1), std::vector<float>(count, 1)};
  const auto all_reduce = [&] {
    check(trAllReduce(sets[0].data(), sets[0].data(), count, trFloat32, trAvg, comm, stream));
  };
  const auto wait = [&] { check(trStreamSynchronize(stream)); };
  const double communication = rank.time({{[&] { all_reduce(), wait(); }}})[0];
  rank.print("%s, %d ranks, %zu bytes, link %s%d Mbit/s\n", double_buffer ? "double buffer" : "stream", rank.ranks,
             options.bytes, options.link_mbps ? "" : "not limited, ", options.link_mbps);
  rank.print("%-12s %12s %12s %12s %22s %12s\n", "compute:comm", "compute us", "comm us", "both us",
             "both / larger of two", "both / sum");
  for (const Ratio& ratio : kRatios) {
    Compute compute(ratio.compute * communication);
    trDoubleBuffer_t buffer = nullptr;
    check(trDoubleBufferCreate(&buffer, comm, trFloat32, 0, nullptr));
    int step = 0;
    const auto both = [&] {
      if (!double_buffer) {
        all_reduce(), compute.run(), wait();
        return;
      }
      void* tensors[] = {sets[step++ % 2].data()};
      int ready = 0;
      compute.run();
      check(trDoubleBufferExchange(buffer, 1, tensors, &count, &ready));
      bench::expect(!ready || static_cast<float*>(tensors[0])[count - 1] == 1.0f, "the mean of ones");
    };
    // What a double buffer has under way when the last step ends is waited for in the time of the steps.
    const auto finish = [&] {
      void* tensors[1];
      int ready = 0;
      check(trDoubleBufferFlush(buffer, 1, tensors, &ready));
    };
    const auto times = rank.time({{[&] { compute.run(); }}, {[&] { all_reduce(), wait(); }}, {both, finish}},
                                 kSteps * std::max(1.0, ratio.compute) * communication);
    check(trDoubleBufferDestroy(buffer));
    rank.print("%-12s %12.0f %12.0f %12.0f %22.2f %12.2f\n", ratio.text, times[0], times[1], times[2],
               times[2] / std::max(times[0], times[1]), times[2] / (times[0] + times[1]));
  }
  check(trStreamDestroy(stream));
  check(trCommDestroy(comm));
}

// Zeros, in memory that the peers of `comm` can reach (trCommRegister) or cannot.
struct Tensor {
  Tensor(size_t elements, trComm_t comm, bool registered) : values(elements, 0.0f), comm(comm) {
    if (registered) check(trCommRegister(comm, values.data(), elements * sizeof(float), &handle));
  }
  Tensor(Tensor&& other) noexcept
      : values(std::move(other.values)), comm(other.comm), handle(std::exchange(other.handle, nullptr)) {}
  ~Tensor() {
    if (handle != nullptr) check(trCommDeregister(comm, handle));
  }
  std::vector<float> values;
  trComm_t comm;
  void* handle = nullptr;
};

void fusion(Rank& rank, const Options& options, size_t largest, bool registered) {
  trComm_t comm = rank.communicator(config_of(options));
  std::vector<size_t> sizes = bench::resnet50_gradients();
  std::erase_if(sizes, [&](size_t size) { return size > largest; });
  std::vector<Tensor> tensors;
  for (size_t size : sizes) tensors.emplace_back(size, comm, registered);
  const size_t total = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  std::vector<Tensor> all;
  all.emplace_back(total, comm, registered);
  const auto call = [&](Tensor& tensor, trStream_t stream) {
    std::vector<float>& values = tensor.values;
    check(trAllReduce(values.data(), values.data(), values.size(), trFloat32, trAvg, comm, stream));
  };
  trStream_t stream = nullptr;
  check(trStreamCreate(&stream));
  const auto times = rank.time({{[&] { call(all[0], nullptr); }},
                                {[&] {
                                  check(trGroupStart());
                                  for (auto& tensor : tensors) call(tensor, nullptr);
                                  check(trGroupEnd());
                                }},
                                {[&] {
                                  for (auto& tensor : tensors) call(tensor, nullptr);
                                }},
                                {[&] {
                                  for (auto& tensor : tensors) call(tensor, stream);
                                  check(trStreamSynchronize(stream));
                                }},
                                {[&] {
                                  for (auto& tensor : tensors) call(tensor, stream), check(trStreamSynchronize(stream));
                                }}},
                               300'000);
  rank.print("%zu gradients of ResNet-50, %zu bytes%s, %d ranks, link %s%d Mbit/s\n", sizes.size(),
             total * sizeof(float), registered ? " (registered)" : "", rank.ranks,
             options.link_mbps ? "" : "not limited, ", options.link_mbps);
  const char* names[] = {"one buffer of the total", "a group", "a blocking call each", "a call each on a stream",
                         "a call each on a stream, waited for"};
  for (size_t i = 0; i < times.size(); ++i)
    rank.print("%-36s %10.0f us  %6.2f x the group\n", names[i], times[i], times[i] / times[1]);
  check(trStreamDestroy(stream));
  tensors.clear(), all.clear();
  check(trCommDestroy(comm));
}

// The same call on several communicators with different settings.
void settings(Rank& rank, const std::vector<std::pair<const char*, trConfig_t>>& rows,
              const std::vector<size_t>& sizes) {
  std::vector<trComm_t> comms;
  for (const auto& row : rows) comms.push_back(rank.communicator(row.second));
  std::vector<float> in(sizes.back() / sizeof(float), 1), out(in.size(), 0.0f);
  rank.print("%-12s", "bytes");
  for (const auto& row : rows) rank.print(" %12s", row.first);
  rank.print("   us, and x the first\n");
  for (size_t bytes : sizes) {
    std::vector<bench::Variant> variants;
    for (trComm_t comm : comms)
      variants.push_back({[&, comm] {
        check(trAllReduce(in.data(), out.data(), bytes / sizeof(float), trFloat32, trSum, comm, nullptr));
      }});
    const auto times = rank.time(variants);
    bench::expect(out[0] == static_cast<float>(rank.ranks), "the sum of ones");
    rank.print("%-12zu", bytes);
    for (double time : times) rank.print(" %12.2f", time);
    for (double time : times) rank.print(" %6.2f", time / times[0]);
    rank.print("\n");
  }
  for (trComm_t comm : comms) check(trCommDestroy(comm));
}

void fixed_order(Rank& rank) {
  trConfig_t fixed = bench::default_config();
  fixed.deterministic = 1;
  settings(rank, {{"free", bench::default_config()}, {"fixed order", fixed}},
           {8, 256, 4096, 65536, size_t{1} << 20, size_t{16} << 20, size_t{64} << 20});
}

void wire(Rank& rank, const Options& options) {
  std::vector<std::pair<const char*, trConfig_t>> rows;
  for (const char* type : {static_cast<const char*>(nullptr), "fp16", "bf16", "fp8-e4m3"}) {
    trConfig_t config = config_of(options);
    config.wire = type;
    rows.emplace_back(type ? type : "fp32", config);
  }
  settings(rank, rows, {65536, size_t{1} << 20, size_t{4} << 20, size_t{16} << 20});
}

void persistent(Rank& rank) {
  trComm_t comm = rank.communicator(bench::default_config());
  rank.print("%-12s %12s %12s   us\n", "bytes", "call", "persistent");
  for (size_t bytes : {8, 1024, 16384, 262144}) {
    std::vector<float> data(bytes / sizeof(float), 0.0f);
    const auto call = [&] {
      check(trAllReduce(data.data(), data.data(), data.size(), trFloat32, trSum, comm, nullptr));
    };
    trPersistent_t planned = nullptr;
    check(trPersistentBegin());
    call();
    check(trPersistentEnd(&planned));
    const auto times = rank.time({{call}, {[&] { check(trPersistentStart(planned)); }}});
    rank.print("%-12zu %12.2f %12.2f\n", bytes, times[0], times[1]);
    check(trPersistentDestroy(planned));
  }
  check(trCommDestroy(comm));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What training sees of the library: overlap, double buffering, fusion, the fixed order, wire types");
  app.set_version_flag("--version", "training_bench " TREERING_VERSION_STRING);
  Options options;
  app.add_option("--ranks", options.ranks, "ranks, as processes")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--rounds", options.rounds, "rounds, of which medians are taken")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--link", options.link_mbps, "Mbit/s of each rank's link, 0: not limited")
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--bytes", options.bytes, "bytes of overlap and double-buffer")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(size_t{4}, size_t{1} << 32));
  app.fallthrough()->require_subcommand(1);
  size_t largest = SIZE_MAX;
  bool registered = false;
  const auto* stream = app.add_subcommand("overlap", "computation with an allreduce on a stream");
  const auto* double_buffer = app.add_subcommand("double-buffer", "computation with trDoubleBufferExchange()");
  auto* fused = app.add_subcommand("fusion", "the gradients of ResNet-50: one buffer, a group, a call each");
  fused->add_option("--largest", largest, "leave out gradients of more elements");
  fused->add_flag("--registered", registered, "in memory that the peers can reach");
  const auto* order = app.add_subcommand("fixed-order", "what the fixed-order mode costs");
  const auto* types = app.add_subcommand("wire", "float32 travelling as it is, and compressed");
  const auto* planned = app.add_subcommand("persistent", "a blocking call against a persistent operation");
  CLI11_PARSE(app, argc, argv);
  return bench::run_ranks(options.ranks, options.rounds, [&](Rank& rank) {
    if (*stream) overlap(rank, options, false);
    if (*double_buffer) overlap(rank, options, true);
    if (*fused) fusion(rank, options, largest, registered);
    if (*order) fixed_order(rank);
    if (*types) wire(rank, options);
    if (*planned) persistent(rank);
  });
}
