// SPDX-License-Identifier: Apache-2.0
/*
 * A training loop without the training: a step is a computation of a given time and the exchange of a list of
 * gradients.
 *
 *     plain     an allreduce for each gradient, blocking
 *     fused     the gradients packed into buckets of 25 MiB (as PyTorch's DDP does), an allreduce for each bucket
 *     others    the trainer's own; they may leave an exchange under way while the next step computes
 *
 * What is timed are steps in the middle of a long loop: the first two are not counted, nor what the last leaves under
 * way. Afterwards one exchange of known values is checked, with room for the rounding of 16-bit floats.
 */
#ifndef TREERING_BENCH_PEERS_LOOP_H_
#define TREERING_BENCH_PEERS_LOOP_H_

#include <math.h>

#include "measure.h"

enum { kMaxTensors = 4096, kBucketFloats = 25 << 18 };

struct loop {
  char variant[32];
  char file[1024]; /* numbers of elements, one to a line */
  int work;        /* the computation is arithmetic instead of sleep */
  double compute_us;
  size_t units; /* of work that take so long */
  size_t steps;
};

/* `tensors` are the gradients of this step. A trainer that keeps them gives others, of the same counts, in their place:
 * after the first exchange of a double buffer the second set. */
struct gradients {
  int count;
  size_t counts[kMaxTensors];
  size_t elements;
  void* tensors[kMaxTensors];
  void* second[kMaxTensors];
  float* bucket;
  float scale; /* the result of an exchange is the sum over the ranks times this */
};

struct trainer {
  /* 0 where the variant is unknown. */
  int (*start)(void* context, const char* variant, struct gradients* gradients);
  void (*exchange)(void* context, struct gradients* gradients);
  /* Nothing is under way afterwards, and `tensors` hold the result of the last exchange. */
  void (*finish)(void* context, struct gradients* gradients);
  int overlaps; /* set by start: no barrier between the steps before the timed ones and these */
};

static inline void compute_units(size_t units) {
  static float values[1024];
  for (size_t u = 0; u < units; ++u)
    for (int i = 0; i < 1024; ++i) values[i] = values[i] * 0.999f + 0.5f;
  __asm__ volatile("" : : "m"(values) : "memory");
}

static inline int compare_doubles(const void* a, const void* b) {
  return (*(const double*)a > *(const double*)b) - (*(const double*)a < *(const double*)b);
}

/* As much as takes so long where all ranks compute at the same time: the median of runs of about that length. A virtual
 * machine's cores are not the same from one millisecond to the next: the best of short runs was wrong by half. */
static inline size_t units_of(const struct library* library, double us) {
  enum { kRuns = 5 };
  double rates[kRuns], rough = 0;
  for (int run = -1; run < kRuns; ++run) {
    const size_t units = run < 0 ? 20000 : (size_t)(us * rough) + 1;
    library->barrier(library->context);
    const double begin_us = now_us();
    compute_units(units);
    *(run < 0 ? &rough : &rates[run]) = (double)units / (now_us() - begin_us);
  }
  qsort(rates, kRuns, sizeof *rates, compare_doubles);
  return (size_t)(us * rates[kRuns / 2]);
}

static inline void compute(const struct loop* loop) {
  if (loop->work) {
    compute_units(loop->units);
    return;
  }
  const struct timespec time = {(time_t)(loop->compute_us / 1e6), (long)fmod(loop->compute_us * 1e3, 1e9)};
  nanosleep(&time, NULL);
}

static inline void read_gradients(const char* file, struct gradients* gradients) {
  FILE* list = fopen(file, "r");
  if (!list) usage_error(strerror(errno), file);
  size_t count = 0;
  while (fscanf(list, "%zu", &count) == 1) {
    if (gradients->count == kMaxTensors || count == 0) usage_error("too many tensors, or one of 0 elements", file);
    gradients->counts[gradients->count] = count;
    gradients->elements += count;
    gradients->tensors[gradients->count] = calloc(count, sizeof(float));
    gradients->second[gradients->count] = calloc(count, sizeof(float));
    if (!gradients->tensors[gradients->count] || !gradients->second[gradients->count++])
      usage_error("no memory for the gradients", file);
  }
  fclose(list);
  if (gradients->count == 0) usage_error("no tensors", file);
}

static inline void all_reduce_each(const struct library* library, struct gradients* gradients) {
  for (int i = 0; i < gradients->count; ++i)
    library->call(library->context, gradients->tensors[i], gradients->tensors[i], gradients->counts[i]);
}

/* Copies a bucket's gradients into it, or back: those that lie in the elements [begin, begin + kBucketFloats) of all. */
static inline void copy_bucket(struct gradients* gradients, size_t begin, int back) {
  size_t at = 0;
  for (int i = 0; i < gradients->count; at += gradients->counts[i++]) {
    const size_t first = at > begin ? at : begin, end = at + gradients->counts[i];
    const size_t last = end < begin + kBucketFloats ? end : begin + kBucketFloats;
    if (first >= last) continue;
    float* tensor = (float*)gradients->tensors[i] + (first - at);
    float* bucket = gradients->bucket + (first - begin);
    memcpy(back ? tensor : bucket, back ? bucket : tensor, (last - first) * sizeof(float));
  }
}

static inline void all_reduce_buckets(const struct library* library, struct gradients* gradients) {
  for (size_t begin = 0; begin < gradients->elements; begin += kBucketFloats) {
    const size_t left = gradients->elements - begin, count = left < kBucketFloats ? left : kBucketFloats;
    copy_bucket(gradients, begin, 0);
    library->call(library->context, gradients->bucket, gradients->bucket, count);
    copy_bucket(gradients, begin, 1);
  }
}

static inline void exchange(const struct library* library, const struct trainer* trainer, const struct loop* loop,
                            struct gradients* gradients) {
  if (trainer)
    trainer->exchange(library->context, gradients);
  else if (!strcmp(loop->variant, "plain"))
    all_reduce_each(library, gradients);
  else
    all_reduce_buckets(library, gradients);
}

static inline size_t wrong_gradients(const struct library* library, struct gradients* gradients) {
  size_t wrong = 0;
  for (int i = 0; i < gradients->count; ++i)
    for (size_t at = 0; at < gradients->counts[i]; at += at < 4096 ? 1 : 37) {
      float expected = 0;
      for (int r = 0; r < library->ranks; ++r) expected += input_value(r, at + (size_t)i) * gradients->scale;
      wrong += !(fabsf(((float*)gradients->tensors[i])[at] - expected) <= 2e-3f * expected);
    }
  return wrong;
}

static inline double timed_steps(const struct library* library, const struct trainer* trainer, const struct loop* loop,
                                 struct gradients* gradients) {
  for (int warm_up = 0; warm_up < 2; ++warm_up) exchange(library, trainer, loop, gradients);
  if (!trainer || !trainer->overlaps) library->barrier(library->context);
  const double begin_us = now_us();
  for (size_t step = 0; step < loop->steps; ++step) {
    compute(loop);
    exchange(library, trainer, loop, gradients);
  }
  const double mine_us = (now_us() - begin_us) / (double)loop->steps;
  if (trainer) trainer->finish(library->context, gradients);
  return library->max(library->context, mine_us);
}

static inline void run_loop(const struct library* library, const struct trainer* trainer, struct loop* loop) {
  static struct gradients gradients;
  gradients = (struct gradients){.scale = 1, .bucket = calloc(kBucketFloats, sizeof(float))};
  read_gradients(loop->file, &gradients);
  if (loop->work) loop->units = units_of(library, loop->compute_us);
  if (trainer && !trainer->start(library->context, loop->variant, &gradients)) usage_error("--loop", loop->variant);
  if (!trainer && strcmp(loop->variant, "plain") && strcmp(loop->variant, "fused"))
    usage_error("a library has the variants plain and fused", loop->variant);
  const double time_us = timed_steps(library, trainer, loop, &gradients);
  for (int i = 0; i < gradients.count; ++i)
    for (size_t at = 0; at < gradients.counts[i]; ++at)
      ((float*)gradients.tensors[i])[at] = input_value(library->rank, at + (size_t)i);
  exchange(library, trainer, loop, &gradients);
  if (trainer) trainer->finish(library->context, &gradients);
  const double wrong = library->max(library->context, (double)wrong_gradients(library, &gradients));
  if (library->rank == 0) {
    printf("%zu %zu %.4f %zu\n", gradients.elements * sizeof(float), loop->steps, time_us, (size_t)wrong);
    fflush(stdout);
  }
  for (int i = 0; i < gradients.count; ++i) free(gradients.tensors[i]), free(gradients.second[i]);
  free(gradients.bucket);
}

#endif /* TREERING_BENCH_PEERS_LOOP_H_ */
