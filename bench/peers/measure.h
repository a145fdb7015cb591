// SPDX-License-Identifier: Apache-2.0
/*
 * The measurement that every driver of bench/peers runs, so that all libraries are timed by the same code.
 *
 *   fill -> barrier -> warm-up calls -> barrier -> [t0  call call call ... t1] -> barrier -> poison, call, check
 *
 * A point's time is (t1 - t0) / calls of each rank, and of those the largest over the ranks. The buffers are the
 * driver's (malloc'ed unless it says otherwise), are touched before anything is timed, and are the same for every
 * size of one start. Inputs are small integers in float32, so the sum is exact and the check is for equality.
 */
#ifndef TREERING_BENCH_PEERS_MEASURE_H_
#define TREERING_BENCH_PEERS_MEASURE_H_

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { kMaxSizes = 128 };

/* The collectives, in the order of kCollectiveNames. The v-variants are called with equal counts. */
enum collective {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kAllGatherV,
  kReduceScatterV,
  kAllToAllV,
  kGatherV,
  kScatterV,
  kCollectives
};
static const char* const kCollectiveNames[] = {
    "allreduce", "reduce",  "broadcast",  "allgather",       "reduce-scatter", "alltoall", "gather",
    "scatter",   "barrier", "allgatherv", "reduce-scatterv", "alltoallv",      "gatherv",  "scatterv"};

struct points {
  enum collective collective;
  size_t bytes[kMaxSizes];
  size_t iterations[kMaxSizes];
  int count;
  size_t max_bytes;
  int in_place;
  const char* buffers;  /* how the driver allocates: "malloc" for all, more for Treering */
  int ranks;            /* for drivers that start their ranks themselves */
  const char* commands; /* folder of named pipes through which the points come instead (serve.h) */
  unsigned deadline_s;
};

/* What a library gives to the measurement. Every function returns 0, or ends the process with its own message. */
struct library {
  int rank;
  int ranks;
  /* count: elements of a block (of the buffer, where there is one block). Roots are rank 0. */
  void (*call)(void* context, const float* send, float* recv, size_t count);
  void (*barrier)(void* context);
  double (*max)(void* context, double value);
  void* context;
};

static inline double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static inline void usage_error(const char* text, const char* value) {
  fprintf(stderr, "error: %s: \"%s\"\n", text, value);
  exit(2);
}

/* "8:20000,16:20000": bytes and timed calls of each point. */
static inline void parse_point_list(const char* text, struct points* points) {
  const char* at = text;
  while (*at) {
    char* end = NULL;
    size_t bytes = strtoull(at, &end, 10);
    if (end == at || *end != ':') usage_error("--points wants BYTES:ITERATIONS,...", text);
    at = end + 1;
    size_t iterations = strtoull(at, &end, 10);
    if (end == at || (*end != ',' && *end != '\0')) usage_error("--points wants BYTES:ITERATIONS,...", text);
    at = *end == ',' ? end + 1 : end;
    if (bytes < sizeof(float) || bytes % sizeof(float) || iterations == 0 || points->count == kMaxSizes)
      usage_error("--points: bytes must be a multiple of 4, iterations above 0, at most 128 points", text);
    points->bytes[points->count] = bytes;
    points->iterations[points->count++] = iterations;
    if (bytes > points->max_bytes) points->max_bytes = bytes;
  }
  if (points->count == 0) usage_error("--points is empty", text);
}

static inline enum collective parse_collective(const char* name) {
  for (int i = 0; i < kCollectives; ++i)
    if (!strcmp(name, kCollectiveNames[i])) return (enum collective)i;
  usage_error("--collective is unknown", name);
  return kAllReduce;
}

/* Also arms an alarm: a driver that hangs in its library ends itself, however it was started. */
static inline struct points parse_arguments(int argc, char** argv) {
  struct points points = {.buffers = "malloc", .ranks = 1, .deadline_s = 300};
  for (int i = 1; i < argc; ++i) {
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (!strcmp(argv[i], "--in-place")) {
      points.in_place = 1;
      continue;
    }
    ++i;
    if (!strcmp(argv[i - 1], "--collective")) {
      points.collective = parse_collective(value);
    } else if (!strcmp(argv[i - 1], "--points")) {
      parse_point_list(value, &points);
    } else if (!strcmp(argv[i - 1], "--buffers")) {
      points.buffers = value;
    } else if (!strcmp(argv[i - 1], "--ranks")) {
      points.ranks = atoi(value);
    } else if (!strcmp(argv[i - 1], "--deadline")) {
      points.deadline_s = (unsigned)atoi(value);
    } else if (!strcmp(argv[i - 1], "--commands")) {
      points.commands = value;
    } else {
      usage_error("unknown option; known are --collective --points --commands --in-place --buffers --ranks --deadline",
                  argv[i - 1]);
    }
  }
  if (points.count == 0 && !points.commands) usage_error("missing option", "--points");
  if (points.in_place && points.collective != kAllReduce) usage_error("--in-place is for allreduce", "--in-place");
  if (points.ranks < 1) usage_error("--ranks must be 1 or more", "--ranks");
  alarm(points.deadline_s);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return points;
}

static inline float input_value(int rank, size_t i) { return (float)((i * 7 + (size_t)rank * 13) % 31); }

static inline void fill_input(float* buffer, size_t count, int rank) {
  for (size_t i = 0; i < count; ++i) buffer[i] = input_value(rank, i);
}

/* Sizes are those of the larger buffer: `ranks` blocks, where a collective has one for each rank. */
static inline int has_blocks(enum collective c) {
  return c != kAllReduce && c != kReduce && c != kBroadcast && c != kBarrier;
}
static inline size_t block_count(const struct points* points, int point, int ranks) {
  if (points->collective == kBarrier) return 0;
  const size_t all = points->bytes[point] / sizeof(float);
  if (!has_blocks(points->collective)) return all;
  return all < (size_t)ranks ? 1 : all / (size_t)ranks;
}

/* What element i of the output must be, of blocks of `count`. */
static inline float expected_value(enum collective c, int rank, int ranks, size_t i, size_t count) {
  const size_t own = (size_t)rank * count;
  float sum = 0;
  switch (c) {
    case kBroadcast:
      return input_value(0, i);
    case kScatter:
    case kScatterV:
      return input_value(0, own + i);
    case kAllGather:
    case kAllGatherV:
    case kGather:
    case kGatherV:
      return input_value((int)(i / count), i % count);
    case kAllToAll:
    case kAllToAllV:
      return input_value((int)(i / count), own + i % count);
    case kReduceScatter:
    case kReduceScatterV:
      i += own;
      break;
    default:
      break;
  }
  for (int r = 0; r < ranks; ++r) sum += input_value(r, i);
  return sum;
}

static inline size_t output_count(enum collective c, int rank, int ranks, size_t count) {
  switch (c) {
    case kBarrier:
      return 0;
    case kReduce:
      return rank == 0 ? count : 0;
    case kGather:
    case kGatherV:
      return rank == 0 ? count * (size_t)ranks : 0;
    case kAllGather:
    case kAllGatherV:
    case kAllToAll:
    case kAllToAllV:
      return count * (size_t)ranks;
    default:
      return count;
  }
}

/* The first and last elements and a sample between: the whole of large buffers would take longer than the calls. */
static inline size_t check_once(const struct library* library, const struct points* points, float* send, float* recv,
                                size_t count) {
  const size_t out = output_count(points->collective, library->rank, library->ranks, count);
  memset(recv, 0xff, out * sizeof(float));
  if (points->in_place) fill_input(recv, count, library->rank);
  if (points->collective == kBroadcast && library->rank == 0) fill_input(recv, count, 0); /* its one buffer */
  library->barrier(library->context);
  library->call(library->context, points->in_place ? recv : send, recv, count);
  size_t wrong = 0;
  for (size_t i = 0; i < out; i += (i < 4096 || i + 4096 > out) ? 1 : 37)
    wrong += recv[i] != expected_value(points->collective, library->rank, library->ranks, i, count);
  return (size_t)library->max(library->context, (double)wrong);
}

static inline void measure_point(const struct library* library, const struct points* points, int point, float* send,
                                 float* recv) {
  const size_t count = block_count(points, point, library->ranks);
  const size_t iterations = points->iterations[point];
  const size_t warm_up = iterations / 10 + 1;
  const float* input = points->in_place ? recv : send;
  /* In place the values grow with each call; zeros keep them finite without changing the work. */
  if (points->in_place) memset(recv, 0, points->bytes[point]);
  library->barrier(library->context);
  for (size_t i = 0; i < warm_up; ++i) library->call(library->context, input, recv, count);
  library->barrier(library->context);
  const double begin_us = now_us();
  for (size_t i = 0; i < iterations; ++i) library->call(library->context, input, recv, count);
  const double mine_us = (now_us() - begin_us) / (double)iterations;
  library->barrier(library->context);
  const double time_us = library->max(library->context, mine_us);
  const size_t wrong = check_once(library, points, send, recv, count);
  if (library->rank == 0) {
    printf("%zu %zu %.4f %zu\n", points->bytes[point], iterations, time_us, wrong);
    fflush(stdout);
  }
}

/* Bytes of each of the two buffers of a rank. */
static inline size_t buffer_bytes(const struct points* points, int ranks) {
  return points->max_bytes + (size_t)ranks * sizeof(float);
}

static inline void measure_all(const struct library* library, const struct points* points, float* send, float* recv) {
  const size_t bytes = buffer_bytes(points, library->ranks);
  fill_input(send, bytes / sizeof(float), library->rank);
  memset(recv, 0xff, bytes);
  for (int point = 0; point < points->count; ++point) measure_point(library, points, point, send, recv);
}

#endif /* TREERING_BENCH_PEERS_MEASURE_H_ */
