#include "measure.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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

RankRun::RankRun(const Options& options, RankGroup& group, int core) : options_(options), group_(group), core_(core) {}

RankRun::~RankRun() {
  if (comm_) trCommDestroy(comm_);
}

bool RankRun::ok(trResult_t result, const char* call) const {
  if (result == trSuccess) return true;
  const char* message = trGetLastError(comm_);
  if (!*message) message = trGetLastError(nullptr);
  fprintf(stderr, "error: rank %d: %s: %s: %s\n", group_.rank(), call, trGetErrorString(result), message);
  return false;
}

void* RankRun::allocate() {
  void* buffer = nullptr;
  if (options_.buffers == Buffers::kMemAlloc) {
    if (!ok(trMemAlloc(&buffer, allocated_bytes_), "trMemAlloc")) return nullptr;
  } else {
    buffer = std::malloc(allocated_bytes_);
    if (!buffer) {
      fprintf(stderr, "error: rank %d: no memory for a buffer of %zu bytes\n", group_.rank(), allocated_bytes_);
      return nullptr;
    }
  }
  std::memset(buffer, 0,
              allocated_bytes_);  // the pages are there, on this core's side, before anything is timed
  return buffer;
}

bool RankRun::initialise() {
  pin_to_core(core_);
  if (!ok(trGetVersion(&library_version_), "trGetVersion")) return false;
  if (!ok(group_.create(config_of(options_), &comm_), "creating the communicator")) return false;
  if (options_.stream && !ok(trStreamCreate(&stream_), "trStreamCreate")) return false;

  allocated_bytes_ = options_.buffer_bytes() + options_.unalign * 16 + 16;
  send_ = allocate();
  recv_ = allocate();
  if (!send_ || !recv_) return false;
  if (options_.buffers != Buffers::kRegistered) return true;
  return ok(trCommRegister(comm_, send_, allocated_bytes_, &handles_[0]), "trCommRegister") &&
         ok(trCommRegister(comm_, recv_, allocated_bytes_, &handles_[1]), "trCommRegister");
}

bool RankRun::finish() {
  for (void*& handle : handles_) {
    if (handle && !ok(trCommDeregister(comm_, handle), "trCommDeregister")) return false;
    handle = nullptr;
  }
  if (stream_ && !ok(trStreamDestroy(stream_), "trStreamDestroy")) return false;
  stream_ = nullptr;
  if (!ok(trCommFinalize(comm_), "trCommFinalize")) return false;
  group_.barrier();
  const trComm_t comm = comm_;
  comm_ = nullptr;
  if (!ok(trCommDestroy(comm), "trCommDestroy")) return false;
  for (void* buffer : {send_, recv_}) {
    if (options_.buffers != Buffers::kMemAlloc) {
      std::free(buffer);
    } else if (!ok(trMemFree(buffer), "trMemFree")) {
      return false;
    }
  }
  return true;
}

trResult_t RankRun::call_library(const Call& call) {
  return perf::call(*options_.collective, call.shape,
                    {call.input, call.output, call.count, call.type->id, call.op, std::max(call.root, 0), group_.rank(),
                     group_.ranks(), comm_, stream_});
}

// In place the smaller buffer is this rank's block of the larger.
RankRun::Call RankRun::make_call(size_t count, const DataType& type, const Operation& operation, int root,
                                 bool in_place) {
  Call made{&type, operation.id, count, root, {}, nullptr, nullptr};
  made.shape = shape_of(*options_.collective, group_.rank(), group_.ranks(), root, count, options_.seed);
  const size_t offset = options_.unalign * type.bytes;
  char* send = static_cast<char*>(send_) + offset;
  char* recv = static_cast<char*>(recv_) + offset;
  made.input = send;
  made.output = recv;
  if (!in_place) return made;
  const Shape& shape = made.shape;
  made.input = made.output = recv;
  if (shape.input == 0 || shape.output == 0) return made;
  if (shape.input > shape.output || (shape.input == shape.output && options_.collective->kind == Kind::kReduceScatter))
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

// With `samples` each iteration is timed by itself too.
bool RankRun::timed_loop(const Call& call, int iterations, double* samples) {
  double begin_us = samples ? now_us() : 0;
  for (int i = 0; i < iterations; ++i) {
    if (!issue(call)) return false;
    const bool wait = options_.blocking != Blocking::kNone || samples;
    if (stream_ && wait && !ok(trStreamSynchronize(stream_), "trStreamSynchronize")) return false;
    if (samples) {
      const double end_us = now_us();
      samples[i] = (end_us - begin_us) / options_.aggregated;
      begin_us = end_us;
    }
    if (options_.blocking == Blocking::kBarrier) group_.barrier();
  }
  return !stream_ || ok(trStreamSynchronize(stream_), "trStreamSynchronize");
}

bool RankRun::time_calls(const Call& call, PlaceResult* place) {
  // In place each call's result is the next one's input: zeros stay what they are, and no denormals come up.
  if (call.input != send_) std::memset(recv_, 0, allocated_bytes_);
  group_.barrier();
  if (!timed_loop(call, options_.warm_up, nullptr)) return false;
  group_.barrier();
  group_.barrier();  // in the first a rank may have slept; out of the second all come within a spin
  const double begin_us = now_us();
  if (!timed_loop(call, options_.iterations, options_.per_iteration ? group_.own_samples() : nullptr)) return false;
  const double calls = static_cast<double>(options_.iterations) * options_.aggregated;
  const double own_us = (now_us() - begin_us) / calls;
  group_.barrier();
  const size_t blocks = options_.collective->many_blocks ? static_cast<size_t>(group_.ranks()) : 1;
  const size_t bytes = call.count * call.type->bytes * blocks;
  place->time_us = combine(options_.averaging, group_.gather(own_us));
  place->algorithm_gbps = algorithm_bandwidth(bytes, place->time_us);
  place->bus_gbps = place->algorithm_gbps * bus_factor(options_.collective->kind, group_.ranks());
  if (options_.per_iteration) {
    place->iteration_us = group_.slowest_samples();
    place->stats = iteration_stats(place->iteration_us);
    group_.barrier();  // nobody writes new samples before all have read these
  }
  return true;
}

bool RankRun::check(const Call& call, PlaceResult* place) {
  place->checked = options_.checks > 0;
  for (int i = 0; i < options_.checks; ++i) {
    const uint64_t seed = options_.seed + 0x9e3779b97f4a7c15u * ++checks_done_;
    const CollectiveCase& c = *options_.collective;
    poison(recv_, allocated_bytes_);
    fill_input(call.input, call.shape.input, *call.type, call.op, group_.rank(), group_.ranks(), seed);
    group_.barrier();
    if (!ok(call_library(call), c.name)) return false;
    if (stream_ && !ok(trStreamSynchronize(stream_), "trStreamSynchronize")) return false;
    size_t wrong = 0;
    for (const ExpectedBlock& block :
         expected_blocks(c, call.shape, group_.rank(), group_.ranks(), call.root, call.count, options_.seed)) {
      const char* at = static_cast<const char*>(call.output) + block.at * call.type->bytes;
      wrong += block.source < 0 ? count_wrong(at, block.count, *call.type, call.op, group_.ranks(), seed, block.first)
                                : count_different(at, block.count, *call.type, call.op, block.source, group_.ranks(),
                                                  seed, block.first);
    }
    for (const double of_rank : group_.gather(static_cast<double>(wrong))) {
      place->wrong += static_cast<uint64_t>(of_rank);
    }
  }
  return true;
}

bool RankRun::measure(size_t bytes, const DataType& type, const Operation& operation, int root, Row* row) {
  const CollectiveCase& c = *options_.collective;
  const size_t blocks = c.many_blocks ? static_cast<size_t>(group_.ranks()) : 1;
  row->count = bytes / type.bytes / blocks;
  row->bytes = bytes;
  row->type = type.name;
  row->operation = c.reduces ? operation.name : "none";
  row->root = root;
  const Call out_of_place = make_call(row->count, type, operation, root, false);
  row->algorithm = "pair";
  row->protocol = "lanes";
  row->channels = 1;
  const bool lanes =
      c.id == trCollForceInt || (c.variable && c.kind != Kind::kAllGather && c.kind != Kind::kReduceScatter);
  if (!lanes) {
    trSelection_t selection = {};
    if (!ok(trGetSelection(comm_, c.id, out_of_place.input, out_of_place.output, row->bytes, type.id, &selection),
            "trGetSelection")) {
      return false;
    }
    row->algorithm = selection.algorithm;
    row->protocol = selection.protocol;
    row->channels = selection.channels;
  }
  fill_input(out_of_place.input, out_of_place.shape.input, type, operation.id, group_.rank(), group_.ranks(),
             options_.seed);
  if (options_.limit) {
    row->copy_gbps = measure_copy_bandwidth(group_, out_of_place.input, out_of_place.output, row->bytes);
    row->limit_us = limit_us(row->bytes, group_.ranks(), row->copy_gbps);
  }
  if (!time_calls(out_of_place, &row->out_of_place) || !check(out_of_place, &row->out_of_place)) return false;
  if (c.kind == Kind::kSendRecv || (c.variable && c.kind == Kind::kAllToAll)) return true;  // in place it means nothing
  PlaceResult& place = row->in_place.emplace();
  const Call in_place = make_call(row->count, type, operation, root, true);
  return time_calls(in_place, &place) && check(in_place, &place);
}

bool RankRun::explain(size_t bytes, const DataType& type, std::string* text) {
  size_t needed = 0;
  if (!ok(trExplain(comm_, options_.collective->id, bytes, type.id, nullptr, 0, &needed), "trExplain")) return false;
  text->resize(needed + 1);
  if (!ok(trExplain(comm_, options_.collective->id, bytes, type.id, text->data(), text->size(), &needed), "trExplain"))
    return false;
  text->resize(needed);
  return true;
}

}  // namespace treering::perf
