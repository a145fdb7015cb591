// SPDX-License-Identifier: Apache-2.0
#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "data.h"
#include "launcher.h"
#include "limit.h"

namespace treering::perf {
namespace {

double now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

}  // namespace

trConfig_t config_of(const Options& options) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.name = "perf";
  if (options.timeout_s >= 0) config.timeout_ms = options.timeout_s * 1000;
  return config;
}

RankRun::RankRun(const Options& options, RankGroup& group, Seat seat)
    : options_(options), group_(group), seat_(seat), memory_(make_memory(options, seat.gpu)) {}

RankRun::~RankRun() {
  if (comm_) trCommDestroy(comm_);
}

bool RankRun::ok(const std::string& error) const {
  if (!error.empty()) group_.tell(error);
  return error.empty();
}

bool RankRun::ok(trResult_t result, const char* call) const {
  return result == trSuccess || ok(error_of(result, call, comm_));
}

bool RankRun::initialise() {
  pin_to_core(seat_.core);
  if (!ok(trGetVersion(&library_version_), "trGetVersion")) return false;
  trConfig_t config = config_of(options_);
  if (seat_.gpu >= 0) config.device = seat_.gpu;
  if (!ok(group_.create(config, &comm_), "creating the communicator")) return false;
  return ok(memory_->open(options_.buffer_bytes() + options_.unalign * 16 + 16, comm_));
}

bool RankRun::finish() {
  if (!ok(memory_->leave(comm_)) || !ok(trCommFinalize(comm_), "trCommFinalize")) return false;
  group_.barrier();
  const trComm_t comm = comm_;
  comm_ = nullptr;
  return ok(trCommDestroy(comm), "trCommDestroy") && ok(memory_->close());
}

trResult_t RankRun::call_library(const Call& call) {
  return options_.collective->call(
      call.shape, {call.input, call.output, call.count, call.type->id, call.op, std::max(call.root, 0), group_.rank(),
                   group_.ranks(), comm_, memory_->stream()});
}

// In place the smaller buffer is this rank's block of the larger.
RankRun::Call RankRun::make_call(size_t count, const DataType& type, const Operation& operation, int root,
                                 bool in_place) {
  Call made{&type, operation.id, count, root, in_place, {}, nullptr, nullptr};
  made.shape = shape_of(*options_.collective, group_.rank(), group_.ranks(), root, count, options_.seed);
  const size_t offset = options_.unalign * type.bytes;
  char* send = memory_->send() + offset;
  char* recv = memory_->recv() + offset;
  made.input = send;
  made.output = recv;
  if (!in_place) return made;
  const Shape& shape = made.shape;
  made.input = made.output = recv;
  if (shape.input == 0 || shape.output == 0) return made;
  if (holds_all(options_.collective->input) && !options_.collective->exchanges())
    made.output = recv + shape.own * type.bytes;
  else
    made.input = recv + shape.own * type.bytes;
  return made;
}

bool RankRun::issue(const Call& call) {
  const bool grouped = options_.aggregated > 1;
  if (grouped && !ok(trGroupStart(), "trGroupStart")) return false;
  for (int i = 0; i < options_.aggregated; ++i) {
    const trResult_t result = call_library(call);
    if (result != trSuccess) return ok(result, options_.collective->name);
  }
  return !grouped || ok(trGroupEnd(), "trGroupEnd");
}

// A failure of kernels leaves the stream empty and the communicator failed.
bool RankRun::wait() {
  if (memory_->stream() == nullptr) return true;
  if (!ok(trStreamSynchronize(memory_->stream()), "trStreamSynchronize")) return false;
  if (options_.memory == MemoryKind::kHost) return true;
  trResult_t state = trSuccess;
  if (!ok(trCommGetAsyncError(comm_, &state), "trCommGetAsyncError")) return false;
  return state == trInProgress || ok(state, options_.collective->name);
}

bool RankRun::waits_for_each() const {
  return memory_->stream() == nullptr || options_.blocking != Blocking::kNone || options_.per_iteration;
}

// A step is so many calls. With `samples` each is timed by itself too, with `laps` each lap.
template <typename Step>
bool RankRun::timed_loop(Step step, int turns, double calls, double* samples, Laps* laps) {
  double begin_us = samples ? now_us() : 0;
  for (int i = 0; i < turns; ++i) {
    if (!step()) return false;
    if ((options_.blocking != Blocking::kNone || samples) && !wait()) return false;
    if (samples) {
      const double end_us = now_us();
      samples[i] = (end_us - begin_us) / calls;
      begin_us = end_us;
    }
    if (laps) laps->turn_done(now_us);
    if (options_.blocking == Blocking::kBarrier) group_.barrier();
  }
  if (laps) laps->end(now_us);
  return wait();
}

bool RankRun::capture(const Call& call) {
  if (!ok(memory_->begin_capture())) return false;
  for (int i = 0; i < options_.iterations; ++i)
    if (!issue(call)) return false;
  return ok(memory_->end_capture());
}

// What is timed as a graph is verified as one, of one call; which must have run by itself before, and not in a group
// alone.
bool RankRun::capture_one(const Call& call) {
  const char* name = options_.collective->name;
  if (options_.aggregated > 1 && (!ok(call_library(call), name) || !wait())) return false;
  group_.barrier();
  return ok(memory_->begin_capture()) && ok(call_library(call), name) && ok(memory_->end_capture());
}

bool RankRun::time_calls(const Call& call, PlaceResult* place) {
  const bool graph = options_.graph_launches > 0;
  const auto plain = [&] { return issue(call); };
  const auto launch = [&] { return ok(memory_->launch()); };
  // In place each call's result is the next one's input: zeros stay what they are, and no denormals come up.
  if (call.in_place && !ok(memory_->set(memory_->recv(), 0, memory_->bytes()))) return false;
  group_.barrier();
  // Before it is captured, a call of the kind and size must have run.
  const int warm_up = graph ? std::max(options_.warm_up, 1) : options_.warm_up;
  if (!timed_loop(plain, warm_up, options_.aggregated, nullptr, nullptr)) return false;
  group_.barrier();
  if (graph && !capture(call)) return false;
  group_.barrier();  // in the first a rank may have slept; out of the second all come within a spin
  const double calls = static_cast<double>(options_.iterations) * options_.aggregated;
  const int turns = graph ? options_.graph_launches : options_.iterations;
  const double calls_of_turn = graph ? calls : options_.aggregated;
  double* samples = options_.per_iteration ? group_.own_samples() : nullptr;
  Laps laps(turns);
  Laps* const timed_laps = waits_for_each() ? &laps : nullptr;
  const double begin_us = now_us();
  laps.begin(begin_us);
  const bool done = graph ? timed_loop(launch, turns, calls_of_turn, samples, timed_laps)
                          : timed_loop(plain, turns, calls_of_turn, samples, timed_laps);
  if (!done) return false;
  const double own_us = (now_us() - begin_us) / calls / (graph ? options_.graph_launches : 1);
  group_.barrier();
  const size_t blocks = options_.collective->many_blocks() ? static_cast<size_t>(group_.ranks()) : 1;
  const size_t bytes = call.count * call.type->bytes * blocks;
  place->time_us = combine(options_.averaging, group_.gather(own_us));
  if (timed_laps) place->median_us = combine(options_.averaging, group_.gather(laps.median_us() / calls_of_turn));
  place->algorithm_gbps = algorithm_bandwidth(bytes, place->time_us);
  place->bus_gbps = place->algorithm_gbps * bus_factor(*options_.collective, group_.ranks());
  if (options_.per_iteration) {
    place->iteration_us = group_.slowest_samples();
    place->stats = iteration_stats(place->iteration_us);
    group_.barrier();  // no rank writes new samples before all have read these
  }
  return true;
}

bool RankRun::fill(const Call& call, uint64_t seed) {
  const DataType& type = *call.type;
  return ok(memory_->write(call.input, call.shape.input * type.bytes, [&](char* part, size_t offset, size_t bytes) {
    fill_input(part, bytes / type.bytes, type, call.op, group_.rank(), group_.ranks(), seed, offset / type.bytes);
  }));
}

bool RankRun::count_wrong_values(const Call& call, uint64_t seed, size_t* wrong) {
  const DataType& type = *call.type;
  const int ranks = group_.ranks();
  for (const ExpectedBlock& block :
       expected_blocks(*options_.collective, call.shape, group_.rank(), ranks, call.root, call.count, options_.seed)) {
    const auto look = [&](const char* part, size_t offset, size_t bytes) {
      const size_t count = bytes / type.bytes, first = block.first + offset / type.bytes;
      *wrong += block.source < 0 ? count_wrong(part, count, type, call.op, ranks, seed, first)
                                 : count_different(part, count, type, call.op, block.source, ranks, seed, first);
    };
    const char* at = static_cast<const char*>(call.output) + block.at * type.bytes;
    if (!ok(memory_->read(at, block.count * type.bytes, look))) return false;
  }
  return true;
}

// Whether a narrower type on the wire rounds what is checked bit for bit.
bool RankRun::is_rounded(const Call& call) const {
  const char* wire = std::getenv("TREERING_WIRE");
  const bool sums = call.op == trSum || call.op == trAvg;
  return wire != nullptr && *wire != 0 && sums && call.type->id == trFloat32 &&
         std::string(options_.collective->name) == "allreduce";
}

bool RankRun::check(const Call& call, PlaceResult* place) {
  const bool graph = options_.graph_launches > 0;
  place->checked = options_.checks > 0 && !is_rounded(call);
  if (!place->checked) return true;
  if (graph && !capture_one(call)) return false;
  for (int i = 0; i < options_.checks; ++i) {
    const uint64_t seed = options_.seed + 0x9e3779b97f4a7c15u * ++checks_done_;
    if (!ok(memory_->set(memory_->recv(), kPoison, memory_->bytes())) || !fill(call, seed)) return false;
    group_.barrier();
    size_t wrong = 0;
    const bool started = graph ? ok(memory_->launch()) : ok(call_library(call), options_.collective->name);
    if (!started || !wait() || !count_wrong_values(call, seed, &wrong)) return false;
    for (const double of_rank : group_.gather(static_cast<double>(wrong))) {
      place->wrong += static_cast<uint64_t>(of_rank);
    }
  }
  return true;
}

// The library tells the selection of collectives alone; others are pairs, and how those move on GPUs it does not tell.
// On the host they move by the same transport as any collective.
bool RankRun::select(const Call& call, Row* row) {
  const CollectiveCase& c = *options_.collective;
  const bool pairs = c.is_pairs();
  const bool untold = pairs && options_.memory == MemoryKind::kGpu;
  trSelection_t selection = {};
  if (!untold && !ok(trGetSelection(comm_, pairs ? trCollBarrier : c.id, call.input, call.output,
                                    pairs ? 0 : row->bytes, call.type->id, &selection),
                     "trGetSelection")) {
    return false;
  }
  row->algorithm = pairs ? "pair" : selection.algorithm;
  const char* protocol = pairs ? "lanes" : selection.protocol;
  row->protocol = untold ? "-" : protocol;
  row->transport = untold ? "-" : selection.transport;
  row->channels = pairs ? 1 : selection.channels;
  if (untold) row->channels = 0;
  return true;
}

bool RankRun::measure(size_t bytes, const DataType& type, const Operation& operation, int root, Row* row) {
  const CollectiveCase& c = *options_.collective;
  const size_t blocks = c.many_blocks() ? static_cast<size_t>(group_.ranks()) : 1;
  row->count = bytes / type.bytes / blocks;
  row->bytes = bytes;
  row->type = type.name;
  row->operation = c.reduces ? operation.name : "none";
  row->root = root;
  const Call out_of_place = make_call(row->count, type, operation, root, false);
  if (!select(out_of_place, row) || !fill(out_of_place, options_.seed)) return false;
  if (options_.limit) {
    row->copy_gbps = measure_copy_bandwidth(group_, out_of_place.input, out_of_place.output, row->bytes);
    row->limit_us = limit_us(row->bytes, group_.ranks(), row->copy_gbps);
  }
  if (!time_calls(out_of_place, &row->out_of_place) || !check(out_of_place, &row->out_of_place)) return false;
  if (!c.can_be_in_place()) return true;
  PlaceResult& place = row->in_place.emplace();
  const Call in_place = make_call(row->count, type, operation, root, true);
  return time_calls(in_place, &place) && check(in_place, &place);
}

bool RankRun::explain(size_t bytes, const DataType& type, std::string* text) {
  const trCollective_t id = options_.collective->id;
  size_t needed = 0;
  if (!ok(trExplain(comm_, id, bytes, type.id, nullptr, 0, &needed), "trExplain")) return false;
  std::string whole(needed + 1, '\0');
  if (!ok(trExplain(comm_, id, bytes, type.id, whole.data(), whole.size(), &needed), "trExplain")) return false;
  *text = whole.substr(0, needed);
  return true;
}

}  // namespace treering::perf
