// SPDX-License-Identifier: Apache-2.0
#include "json_report.h"

#include <ctime>
#include <nlohmann/json.hpp>

extern char** environ;

namespace treering::perf {
namespace {

using Json = nlohmann::ordered_json;

Json config_of(const Options& options, const RunResults& results) {
  Json config = {{"collective", options.collective->name},
                 {"nthreads", options.threads},
                 {"ngpus", options.gpus},
                 {"nprocs", options.procs},
                 {"minimum_bytes", options.min_bytes},
                 {"maximum_bytes", options.max_bytes}};
  if (options.step_factor > 1) {
    config["step_factor"] = options.step_factor;
  } else {
    config["step_bytes"] = options.step_bytes;
  }
  config["warmup_iters"] = options.warm_up;
  config["iterations"] = options.iterations;
  config["aggregated_iterations"] = options.aggregated;
  config["validation"] = options.checks;
  config["graph"] = options.graph_launches;
  config["blocking_collectives"] = options.blocking != Blocking::kNone;
  config["per_iter_timing"] = options.per_iteration;
  config["parallel_init"] = true;
  config["memory"] = memory_name(options.memory);
  config["buffers"] = static_cast<int>(options.buffers);
  config["devices"] = Json::array();
  for (size_t rank = 0; rank < results.places.size(); ++rank) {
    const RankPlace& place = results.places[rank];
    const char* host_memory = place.core < 0 ? "host memory, not pinned" : "host memory";
    config["devices"].push_back({{"rank", rank},
                                 {"group", 0},
                                 {"pid", place.pid},
                                 {"hostname", place.host},
                                 {"device", place.gpu < 0 ? place.core : place.gpu},
                                 {"device_hex", place.gpu_bus},
                                 {"device_info", place.gpu >= 0 ? place.gpu_name : host_memory}});
  }
  return config;
}

Json place_of(const PlaceResult& place) {
  Json json = {{"time", place.time_us}, {"alg_bw", place.algorithm_gbps}, {"bus_bw", place.bus_gbps}};
  json["median"] = place.median_us ? Json(*place.median_us) : Json(nullptr);
  json["nwrong"] = place.checked ? Json(place.wrong) : Json(nullptr);
  return json;
}

Json iterations_of(const PlaceResult& place) {
  const IterationStats& stats = place.stats;
  return {{"min_us", stats.min},     {"max_us", stats.max},        {"avg_us", stats.average},
          {"p50_us", stats.p50},     {"p95_us", stats.p95},        {"p99_us", stats.p99},
          {"stdev_us", stats.stdev}, {"cv_pct", stats.cv_percent}, {"times_us", place.iteration_us}};
}

Json row_of(const Options& options, const Row& row) {
  Json json = {{"size", row.bytes},
               {"count", row.count},
               {"type", row.type},
               {"redop", row.operation},
               {"root", std::to_string(row.root)},
               {"out_of_place", place_of(row.out_of_place)}};
  if (options.per_iteration) json["out_of_place_per_iter"] = iterations_of(row.out_of_place);
  if (row.in_place) {
    json["in_place"] = place_of(*row.in_place);
    if (options.per_iteration) json["in_place_per_iter"] = iterations_of(*row.in_place);
  }
  json["actual_iterations"] = options.iterations;
  json["experiment_name"] = std::string(options.collective->name) + "-perf";
  json["algorithm"] = row.algorithm;
  json["protocol"] = row.protocol;
  json["transport"] = row.transport;
  json["channels"] = row.channels;
  if (options.limit) {
    json["copy_bw"] = row.copy_gbps;
    json["limit_us"] = row.limit_us;
    json["limit_fraction"] = row.out_of_place.time_us > 0 ? row.limit_us / row.out_of_place.time_us : 0;
  }
  return json;
}

Json environment() {
  Json variables = Json::array();
  for (char** variable = environ; variable && *variable; ++variable) {
    if (std::string(*variable).rfind("TREERING_", 0) == 0) variables.push_back(*variable);
  }
  return variables;
}

}  // namespace

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  char text[64];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

std::string json_report(const Options& options, const RunResults& results) {
  Json document;
  document["version"] = 3;
  document["start_time"] = results.start_time;
  document["args"] = options.arguments;
  document["env"] = environment();
  // The key that readers of nccl-tests files look for; the number is this library's.
  document["nccl_version"] = results.library_version;
  document["config"] = config_of(options, results);
  document["results"] = Json::array();
  for (const Row& row : results.rows) document["results"].push_back(row_of(options, row));
  document["out_of_bounds"] = {{"count", results.wrong()},
                               {"okay", results.checked() ? Json(results.wrong() == 0) : Json(nullptr)}};
  document["average_bus_bandwidth"] = {{"bandwidth", results.average_bus_gbps()}, {"okay", "unchecked"}};
  document["errors"] = Json::array();
  document["end_time"] = time_text();
  // An argument need not be UTF-8.
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace treering::perf
