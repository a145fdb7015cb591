// SPDX-License-Identifier: Apache-2.0
/*
 * A driver that stays and does what it is told, so that libraries on several hosts take turns at every point without
 * being started anew for each. Commands are lines that every rank reads from its own named pipe, FOLDER/RANK; rank 0
 * answers each with one line on standard output.
 *
 *     point BYTES ITERATIONS                              ->  BYTES ITERATIONS US WRONG
 *     loop VARIANT FILE work|sleep COMPUTE_US STEPS       ->  BYTES STEPS US WRONG       (loop.h)
 *
 * A rank without a command sits in read(): it uses no core, however its library waits. The end of the pipe ends it.
 */
#ifndef TREERING_BENCH_PEERS_SERVE_H_
#define TREERING_BENCH_PEERS_SERVE_H_

#include "loop.h"
#include "measure.h"

static inline void serve_point(const struct library* library, const struct points* settings, size_t bytes,
                               size_t iterations) {
  struct points points = *settings;
  points.bytes[0] = points.max_bytes = bytes;
  points.iterations[0] = iterations;
  points.count = 1;
  float* send = malloc(buffer_bytes(&points, library->ranks));
  float* recv = malloc(buffer_bytes(&points, library->ranks));
  if (!send || !recv) usage_error("no memory for two buffers of a rank", "point");
  measure_all(library, &points, send, recv);
  free(send);
  free(recv);
}

/* `trainer` may be NULL: the variants that need nothing but the library's allreduce. */
static inline void serve(const struct library* library, const struct points* settings, const struct trainer* trainer) {
  char path[4096], line[4096];
  snprintf(path, sizeof path, "%s/%d", settings->commands, library->rank);
  alarm(0);
  FILE* pipe = fopen(path, "r");
  if (!pipe) usage_error(strerror(errno), path);
  while (fgets(line, sizeof line, pipe)) {
    size_t bytes = 0, iterations = 0;
    struct loop loop = {0};
    char compute[8];
    alarm(settings->deadline_s);
    if (sscanf(line, "point %zu %zu", &bytes, &iterations) == 2 && bytes >= sizeof(float) && iterations > 0) {
      serve_point(library, settings, bytes, iterations);
    } else if (sscanf(line, "loop %31s %1023s %7s %lf %zu", loop.variant, loop.file, compute, &loop.compute_us,
                      &loop.steps) == 5) {
      loop.work = !strcmp(compute, "work");
      run_loop(library, trainer, &loop);
    } else {
      usage_error("unknown command", line);
    }
    alarm(0);
  }
  fclose(pipe);
}

#endif /* TREERING_BENCH_PEERS_SERVE_H_ */
