// SPDX-License-Identifier: Apache-2.0
/*
 * The collectives of Treering for bench/peers: forks its ranks itself, each pinned to a core of its own when there are
 * enough.
 *
 * The ranks' barrier and maximum are a few words of shared memory, so that what is timed is the library alone.
 */
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "treering_calls.h"

struct shared {
  _Atomic unsigned arrived;
  _Atomic unsigned generation;
  _Atomic double values[1024];
};

struct context {
  struct calls calls; /* first: tr_call takes a context */
  struct shared* shared;
  int rank;
};

static void shared_barrier(void* opaque) {
  struct context* context = opaque;
  struct shared* shared = context->shared;
  const unsigned generation = atomic_load(&shared->generation);
  if (atomic_fetch_add(&shared->arrived, 1) + 1 == (unsigned)context->calls.ranks) {
    atomic_store(&shared->arrived, 0);
    atomic_fetch_add(&shared->generation, 1);
    return;
  }
  for (unsigned spins = 0; atomic_load(&shared->generation) == generation; ++spins)
    if (spins > 1000) sched_yield();
}

static double shared_max(void* opaque, double value) {
  struct context* context = opaque;
  atomic_store(&context->shared->values[context->rank], value);
  shared_barrier(opaque);
  double result = value;
  for (int rank = 0; rank < context->calls.ranks; ++rank) {
    const double other = atomic_load(&context->shared->values[rank]);
    if (other > result) result = other;
  }
  shared_barrier(opaque);
  return result;
}

/* The rank-th core of the inherited affinity; none when there are more ranks than cores. */
static void pin(int rank, int ranks) {
  cpu_set_t inherited;
  if (sched_getaffinity(0, sizeof(inherited), &inherited) != 0 || CPU_COUNT(&inherited) < ranks) return;
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &inherited) || seen++ != rank) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

static float* allocate(const struct points* points, struct context* context) {
  void* buffer = NULL;
  if (!strcmp(points->buffers, "mem_alloc")) {
    tr_check(trMemAlloc(&buffer, buffer_bytes(points, points->ranks)), "trMemAlloc", NULL);
    return buffer;
  }
  buffer = malloc(buffer_bytes(points, points->ranks));
  if (!buffer) usage_error("no memory for a buffer", points->buffers);
  if (!strcmp(points->buffers, "registered")) {
    void* handle = NULL; /* ends with the communicator */
    memset(buffer, 0, buffer_bytes(points, points->ranks));
    tr_check(trCommRegister(context->calls.comm, buffer, buffer_bytes(points, points->ranks), &handle),
             "trCommRegister", context->calls.comm);
  }
  return buffer;
}

static int run_rank(const struct points* points, struct shared* shared, trUniqueId id, int rank) {
  struct context context = {.calls = make_calls(points, points->ranks), .shared = shared, .rank = rank};
  pin(rank, points->ranks);
  tr_check(trCommInitRank(&context.calls.comm, points->ranks, id, rank), "trCommInitRank", NULL);
  float* send = allocate(points, &context);
  float* recv = allocate(points, &context);
  const struct library library = {.rank = rank,
                                  .ranks = points->ranks,
                                  .call = tr_call,
                                  .barrier = shared_barrier,
                                  .max = shared_max,
                                  .context = &context};
  measure_all(&library, points, send, recv);
  shared_barrier(&context);
  tr_check(trCommDestroy(context.calls.comm), "trCommDestroy", NULL);
  return 0;
}

/* Rank 0 makes the id and is therefore the process that listens; the others read it from a pipe each. */
static int start_rank(const struct points* points, struct shared* shared, int id_pipe[2], int rank) {
  alarm(0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  trUniqueId id;
  if (rank == 0) {
    tr_check(trGetUniqueId(&id), "trGetUniqueId", NULL);
    for (int other = 1; other < points->ranks; ++other)
      if (write(id_pipe[1], &id, sizeof(id)) != sizeof(id)) return 1;
  } else if (read(id_pipe[0], &id, sizeof(id)) != sizeof(id)) {
    return 1;
  }
  return run_rank(points, shared, id, rank);
}

static int wait_for_ranks(const pid_t* pids, int ranks) {
  for (int left = ranks; left > 0; --left) {
    int status = 0;
    const pid_t pid = wait(&status);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    for (int rank = 0; rank < ranks; ++rank) {
      if (pids[rank] == pid) fprintf(stderr, "error: rank %d (pid %d) ended with status %d\n", rank, pid, status);
      kill(pids[rank], SIGKILL);
    }
    return 1;
  }
  return 0;
}

int main(int argc, char** argv) {
  const struct points points = parse_arguments(argc, argv);
  if (points.ranks > 1024) usage_error("--ranks must be 1 to 1024", "--ranks");
  if (strcmp(points.buffers, "malloc") && strcmp(points.buffers, "mem_alloc") && strcmp(points.buffers, "registered"))
    usage_error("--buffers must be malloc, mem_alloc or registered", points.buffers);
  struct shared* shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int id_pipe[2];
  pid_t pids[1024];
  if (shared == MAP_FAILED || pipe(id_pipe) != 0) usage_error("no shared memory or pipe", strerror(errno));
  for (int rank = 0; rank < points.ranks; ++rank) {
    pids[rank] = fork();
    if (pids[rank] < 0) usage_error("fork failed", strerror(errno));
    if (pids[rank] == 0) exit(start_rank(&points, shared, id_pipe, rank));
  }
  return wait_for_ranks(pids, points.ranks);
}
