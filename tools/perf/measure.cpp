#include "measure.h"

#include <unistd.h>

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

RankRun::RankRun(const Options& options, RankGroup group, int core)
    : options_(options), group_(group), core_(core) {}

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
      fprintf(stderr, "error: rank %d: no memory for a buffer of %zu bytes\n", group_.rank(),
              allocated_bytes_);
      return nullptr;
    }
  }
  std::memset(buffer, 0,
              allocated_bytes_);  // the pages are there, on this core's side, before anything is timed
  return buffer;
}

bool RankRun::initialise() {
  pin_to_core(core_);
  group_.shared().places[group_.rank()] = {static_cast<int32_t>(getpid()), core_};
  if (!ok(trGetVersion(&library_version_), "trGetVersion")) return false;
  // Rank 0's process is the one that listens for the others.
  if (group_.rank() == 0 && !ok(trGetUniqueId(&group_.shared().id), "trGetUniqueId")) return false;
  group_.barrier();

  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.name = "allreduce-perf";
  if (options_.timeout_s >= 0) config.timeout_ms = options_.timeout_s * 1000;
  const trUniqueId id = group_.shared().id;
  if (!ok(trCommInitRankConfig(&comm_, group_.ranks(), id, group_.rank(), &config), "trCommInitRankConfig")) {
    return false;
  }
  if (options_.stream && !ok(trStreamCreate(&stream_), "trStreamCreate")) return false;

  allocated_bytes_ = options_.max_bytes + options_.unalign * 8 + 8;
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

bool RankRun::issue(const Call& call) {
  const bool grouped = options_.aggregated > 1;
  if (grouped && !ok(trGroupStart(), "trGroupStart")) return false;
  for (int i = 0; i < options_.aggregated; ++i) {
    const trResult_t result =
        trAllReduce(call.input, call.output, call.count, call.type->id, call.op, comm_, stream_);
    if (result != trSuccess) return ok(result, "trAllReduce");
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
  if (call.input == call.output) std::memset(call.output, 0, call.count * call.type->bytes);
  group_.barrier();
  if (!timed_loop(call, options_.warm_up, nullptr)) return false;
  group_.barrier();
  group_.barrier();  // in the first a rank may have slept; out of the second all come within a spin
  const double begin_us = now_us();
  if (!timed_loop(call, options_.iterations, options_.per_iteration ? group_.own_samples() : nullptr))
    return false;
  const double calls = static_cast<double>(options_.iterations) * options_.aggregated;
  const double own_us = (now_us() - begin_us) / calls;
  group_.barrier();
  const size_t bytes = call.count * call.type->bytes;
  place->time_us = combine(options_.averaging, group_.gather(own_us));
  place->algorithm_gbps = algorithm_bandwidth(bytes, place->time_us);
  place->bus_gbps = allreduce_bus_bandwidth(bytes, place->time_us, group_.ranks());
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
    poison(call.output, call.count * call.type->bytes);
    fill_input(call.input, call.count, *call.type, call.op, group_.rank(), group_.ranks(), seed);
    group_.barrier();
    const trResult_t result =
        trAllReduce(call.input, call.output, call.count, call.type->id, call.op, comm_, stream_);
    if (!ok(result, "trAllReduce")) return false;
    if (stream_ && !ok(trStreamSynchronize(stream_), "trStreamSynchronize")) return false;
    const size_t wrong = count_wrong(call.output, call.count, *call.type, call.op, group_.ranks(), seed);
    for (const double of_rank : group_.gather(static_cast<double>(wrong))) {
      place->wrong += static_cast<uint64_t>(of_rank);
    }
  }
  return true;
}

bool RankRun::measure(size_t bytes, const DataType& type, const Operation& operation, Row* row) {
  row->count = bytes / type.bytes;
  row->bytes = row->count * type.bytes;
  row->type = type.name;
  row->operation = operation.name;
  const size_t offset = options_.unalign * type.bytes;
  char* send = static_cast<char*>(send_) + offset;
  char* recv = static_cast<char*>(recv_) + offset;

  trSelection_t selection = {};
  if (!ok(trGetSelection(comm_, trCollAllReduce, send, recv, row->bytes, type.id, &selection), "trGetSelection")) return false;
  row->algorithm = selection.algorithm;
  row->protocol = selection.protocol;
  row->channels = selection.channels;

  const Call out_of_place = {&type, operation.id, row->count, send, recv};
  const Call in_place = {&type, operation.id, row->count, recv, recv};
  fill_input(send, row->count, type, operation.id, group_.rank(), group_.ranks(), options_.seed);
  if (options_.limit) {
    row->copy_gbps = measure_copy_bandwidth(group_, send, recv, row->bytes);
    row->limit_us = limit_us(row->bytes, group_.ranks(), row->copy_gbps);
  }
  return time_calls(out_of_place, &row->out_of_place) && check(out_of_place, &row->out_of_place) &&
         time_calls(in_place, &row->in_place) && check(in_place, &row->in_place);
}

bool RankRun::explain(size_t bytes, const DataType& type, std::string* text) {
  size_t needed = 0;
  if (!ok(trExplain(comm_, trCollAllReduce, bytes, type.id, nullptr, 0, &needed), "trExplain")) return false;
  text->resize(needed + 1);
  if (!ok(trExplain(comm_, trCollAllReduce, bytes, type.id, text->data(), text->size(), &needed), "trExplain")) return false;
  text->resize(needed);
  return true;
}

}  // namespace treering::perf
