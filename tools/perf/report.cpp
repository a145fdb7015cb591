// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <cinttypes>

namespace treering::perf {
namespace {

const char* buffers_name(const Options& options) {
  if (options.memory == MemoryKind::kGpu) return "GPU memory (trDeviceMemAlloc)";
  switch (options.buffers) {
    case Buffers::kRegistered:
      return "registered";
    case Buffers::kMemAlloc:
      return "trMemAlloc";
    case Buffers::kMalloc:
      break;
  }
  return "malloc";
}

const char* averaging_name(Averaging averaging) {
  switch (averaging) {
    case Averaging::kRankZero:
      return "rank 0";
    case Averaging::kMin:
      return "least of ranks";
    case Averaging::kMax:
      return "largest of ranks";
    case Averaging::kMean:
      break;
  }
  return "mean of ranks";
}

void print_place_titles(std::FILE* out, const Options& options, const char* a, const char* b, const char* c,
                        const char* d, bool names) {
  fprintf(out, "  %7s  %6s  %6s  %6s", a, b, c, d);
  if (!options.per_iteration) return;
  if (names) {
    fprintf(out, "  %7s  %7s  %7s  %7s", "i_min", "i_max", "i_p99", "i_cv%");
  } else {
    fprintf(out, "  %7s  %7s  %7s  %7s", "(us)", "(us)", "(us)", "(%)");
  }
}

void print_place(std::FILE* out, const Options& options, const PlaceResult& place) {
  fprintf(out, "  %7s  %6s  %6s", fit(place.time_us, 7).c_str(), fit(place.algorithm_gbps, 6).c_str(),
          fit(place.bus_gbps, 6).c_str());
  if (place.checked) {
    fprintf(out, "  %6" PRIu64, place.wrong);
  } else {
    fprintf(out, "     N/A");
  }
  if (!options.per_iteration) return;
  fprintf(out, "  %7s  %7s  %7s  %7s", fit(place.stats.min, 7).c_str(), fit(place.stats.max, 7).c_str(),
          fit(place.stats.p99, 7).c_str(), fit(place.stats.cv_percent, 7).c_str());
}

void print_no_place(std::FILE* out, const Options& options) {
  fprintf(out, "  %7s  %6s  %6s  %6s", "n/a", "n/a", "n/a", "n/a");
  if (options.per_iteration) fprintf(out, "  %7s  %7s  %7s  %7s", "n/a", "n/a", "n/a", "n/a");
}

// Behind all columns of nccl-tests, whose readers count from the left.
void print_median(std::FILE* out, const PlaceResult* place) {
  const bool known = place != nullptr && place->median_us;
  fprintf(out, "  %7s", known ? fit(*place->median_us, 7).c_str() : "n/a");
}

// What is not measured although it was asked for.
void print_exceptions(std::FILE* out, const Options& options) {
  for (const DataType* type : options.types) {
    std::string missing;
    for (const Operation* operation : options.operations)
      if (options.collective->reduces && !is_defined(*type, *operation))
        missing += (missing.empty() ? "" : ", ") + std::string(operation->name);
    if (!missing.empty()) fprintf(out, "# %s is left out with %s: not defined for it\n", type->name, missing.c_str());
  }
  if (!options.unused_operation.empty())
    fprintf(out, "# -o %s changes nothing: %s combines nothing\n", options.unused_operation.c_str(),
            options.collective->name);
  const bool steps_past =
      size_sequence(options.min_bytes, options.max_bytes, options.step_bytes, options.step_factor).size() == 1;
  if (steps_past && options.min_bytes < options.max_bytes)
    fprintf(out, "# one size alone: the step (-i) goes past -e %s; -f 2 doubles the size from row to row\n",
            format_size(options.max_bytes).c_str());
  const std::vector<Point> points = options.points();
  if (options.collective->has_data() && !points.empty() && points.front().bytes > options.min_bytes)
    fprintf(out, "# sizes begin at %zu bytes: one element%s\n", points.front().bytes,
            options.collective->many_blocks() ? " for each rank" : "");
}

}  // namespace

std::string fit(double value, int width) {
  char text[64];
  for (int digits = 2; digits >= 0; --digits) {
    const int length = snprintf(text, sizeof(text), "%.*f", digits, value);
    if (length <= width) return text;
  }
  snprintf(text, sizeof(text), "%.*e", width > 6 ? 1 : 0, value);
  return text;
}

void print_header(std::FILE* out, const Options& options, const RunResults& results) {
  fprintf(out, "# %s by treering-perf %s\n", options.collective->name, versions().c_str());
  const std::string step = options.step_factor > 1 ? std::to_string(options.step_factor) + "(factor)"
                                                   : std::to_string(options.step_bytes) + "(bytes)";
  fprintf(out,
          "# %d ranks: nProc %d nThread %d nGpus %d minBytes %zu maxBytes %zu step: %s warmup iters: %d iters: %d agg "
          "iters: %d "
          "validation: %d graph: %d unalign: %zu\n",
          options.ranks(), options.procs, options.threads, options.gpus, options.min_bytes, options.max_bytes,
          step.c_str(), options.warm_up, options.iterations, options.aggregated, options.checks, options.graph_launches,
          options.unalign);
  const char* stream = options.stream ? ", on a stream" : "";
  if (options.memory == MemoryKind::kGpu) stream = ", on a CUDA stream";
  fprintf(out, "# buffers: %s, time: %s, seed: %" PRIu64 "%s\n", buffers_name(options),
          averaging_name(options.averaging), options.seed, stream);
  print_exceptions(out, options);
  fprintf(out, "#\n# Ranks\n");
  for (size_t rank = 0; rank < results.places.size(); ++rank) {
    const RankPlace& place = results.places[rank];
    if (place.gpu >= 0) {
      fprintf(out, "#  Rank %2zu Pid %6d on %s device %2d [%s] %s\n", rank, place.pid, place.host, place.gpu,
              place.gpu_bus, place.gpu_name);
      continue;
    }
    const std::string core = place.core < 0 ? "not pinned" : "core " + std::to_string(place.core);
    fprintf(out, "#  Rank %2zu Pid %6d on %s %s\n", rank, place.pid, place.host, core.c_str());
  }
  const int place_width = options.per_iteration ? 67 : 31;
  fprintf(out, "#\n# %10s  %12s  %10s  %6s  %6s  %*s  %*s\n", "", "", "", "", "", place_width, "out-of-place      ",
          place_width, "in-place        ");
  fprintf(out, "# %10s  %12s  %10s  %6s  %6s", "size", "count", "type", "redop", "root");
  for (int i = 0; i < 2; ++i) print_place_titles(out, options, "time", "algbw", "busbw", "#wrong", true);
  fprintf(out, "  %-32s  %7s  %7s%s\n", "algorithm", "med_out", "med_in", options.limit ? "    limit  of limit" : "");
  fprintf(out, "# %10s  %12s  %10s  %6s  %6s", "(B)", "(elements)", "", "", "");
  for (int i = 0; i < 2; ++i) print_place_titles(out, options, "(us)", "(GB/s)", "(GB/s)", "", false);
  fprintf(out, "  %-32s  %7s  %7s%s\n", "", "(us)", "(us)", options.limit ? "     (us)          " : "");
  fflush(out);
}

void print_row(std::FILE* out, const Options& options, const Row& row) {
  fprintf(out, "%12zu  %12zu  %10s  %6s  %6d", row.bytes, row.count, row.type.c_str(), row.operation.c_str(), row.root);
  print_place(out, options, row.out_of_place);
  if (row.in_place)
    print_place(out, options, *row.in_place);
  else
    print_no_place(out, options);
  fprintf(out, "  %-32s",
          (row.algorithm + "/" + row.protocol + "/" + row.transport + "/" + std::to_string(row.channels)).c_str());
  print_median(out, &row.out_of_place);
  print_median(out, row.in_place ? &*row.in_place : nullptr);
  if (options.limit) {
    fprintf(out, "  %7s  %8.3f", fit(row.limit_us, 7).c_str(),
            row.out_of_place.time_us > 0 ? row.limit_us / row.out_of_place.time_us : 0.0);
  }
  fprintf(out, "\n");
  fflush(out);
}

void print_footer(std::FILE* out, const RunResults& results) {
  const uint64_t wrong = results.wrong();
  if (results.checked())
    fprintf(out, "# Out of bounds values : %" PRIu64 " %s\n", wrong, wrong ? "FAILED" : "OK");
  else
    fprintf(out, "# Out of bounds values : not checked (-c 0, or TREERING_WIRE rounds them)\n");
  fprintf(out, "# Avg bus bandwidth    : %g\n#\n", results.average_bus_gbps());
  fflush(out);
}

}  // namespace treering::perf
