// SPDX-License-Identifier: Apache-2.0
/*
 * A rank of Treering for bench/netlab: a process that is started on a host, with the variables of
 * trCommInitFromEnvironment(), and serves commands (serve.h).
 *
 * With --make-id it is the one that the others meet at: it prints the id, in hex, before anything else. Variants of the
 * training loop (loop.h): plain, fused (a group) and double (a double buffer that owns nothing).
 */
#include <treering/treering.h>

#include "../peers/measure.h"
#include "../peers/serve.h"

struct context {
  trComm_t comm;
  int ranks;
  char variant; /* 'p', 'f' or 'd' */
  trDoubleBuffer_t buffer;
};

static void check(trResult_t result, const char* call, trComm_t comm) {
  if (result == trSuccess) return;
  fprintf(stderr, "error: %s: %s: %s\n", call, trGetErrorString(result), trGetLastError(comm));
  exit(1);
}

static void all_reduce(void* opaque, const float* send, float* recv, size_t count) {
  trComm_t comm = ((struct context*)opaque)->comm;
  check(trAllReduce(send, recv, count, trFloat32, trSum, comm, NULL), "trAllReduce", comm);
}

static void barrier(void* opaque) {
  trComm_t comm = ((struct context*)opaque)->comm;
  check(trBarrier(comm, NULL), "trBarrier", comm);
}

static double largest(void* opaque, double value) {
  trComm_t comm = ((struct context*)opaque)->comm;
  check(trAllReduce(&value, &value, 1, trFloat64, trMax, comm, NULL), "trAllReduce", comm);
  return value;
}

static struct trainer g_trainer;

static int start(void* opaque, const char* variant, struct gradients* gradients) {
  struct context* context = opaque;
  if (strcmp(variant, "plain") && strcmp(variant, "fused") && strcmp(variant, "double")) return 0;
  context->variant = variant[0];
  g_trainer.overlaps = context->variant == 'd';
  check(trDoubleBufferDestroy(context->buffer), "trDoubleBufferDestroy", context->comm);
  context->buffer = NULL;
  if (context->variant != 'd') return 1;
  gradients->scale = 1.0f / (float)context->ranks;
  check(trDoubleBufferCreate(&context->buffer, context->comm, trFloat32, 0, NULL), "trDoubleBufferCreate",
        context->comm);
  return 1;
}

static void exchange_double(struct context* context, struct gradients* gradients) {
  int ready = 0;
  check(trDoubleBufferExchange(context->buffer, gradients->count, gradients->tensors, gradients->counts, &ready),
        "trDoubleBufferExchange", context->comm);
  if (ready) return; /* the tensors are those of the step before, free to be written again */
  for (int i = 0; i < gradients->count; ++i) {
    void* given = gradients->tensors[i];
    gradients->tensors[i] = gradients->second[i];
    gradients->second[i] = given;
  }
}

static void exchange_gradients(void* opaque, struct gradients* gradients) {
  struct context* context = opaque;
  if (context->variant == 'd') {
    exchange_double(context, gradients);
    return;
  }
  if (context->variant == 'f') check(trGroupStart(), "trGroupStart", NULL);
  for (int i = 0; i < gradients->count; ++i)
    all_reduce(context, gradients->tensors[i], gradients->tensors[i], gradients->counts[i]);
  if (context->variant == 'f') check(trGroupEnd(), "trGroupEnd", NULL);
}

/* Also the second set's addresses come back right: the flush gives those of the last exchange. */
static void finish(void* opaque, struct gradients* gradients) {
  struct context* context = opaque;
  if (context->variant != 'd') return;
  int ready = 0;
  void* free_set[kMaxTensors];
  memcpy(free_set, gradients->tensors, sizeof free_set);
  check(trDoubleBufferFlush(context->buffer, gradients->count, gradients->tensors, &ready), "trDoubleBufferFlush",
        context->comm);
  if (!ready) usage_error("no result in the double buffer", "flush");
  memcpy(gradients->second, free_set, sizeof free_set);
}

static struct trainer g_trainer = {.start = start, .exchange = exchange_gradients, .finish = finish};

static void make_id(void) {
  trUniqueId id;
  char hex[2 * sizeof id + 1];
  check(trGetUniqueId(&id), "trGetUniqueId", NULL);
  for (size_t i = 0; i < sizeof id; ++i) sprintf(hex + 2 * i, "%02x", (unsigned char)id.internal[i]);
  setenv("TREERING_ID", hex, 1);
  printf("%s\n", hex);
  fflush(stdout);
}

int main(int argc, char** argv) {
  int own = 0;
  if (argc > 1 && !strcmp(argv[1], "--make-id")) make_id(), own = 1;
  const struct points points = parse_arguments(argc - own, argv + own);
  struct context context = {0};
  struct library library = {.call = all_reduce, .barrier = barrier, .max = largest, .context = &context};
  if (!points.commands) usage_error("missing option", "--commands");
  check(trCommInitFromEnvironment(&context.comm, NULL), "trCommInitFromEnvironment", NULL);
  check(trCommRank(context.comm, &library.rank), "trCommRank", context.comm);
  check(trCommCount(context.comm, &library.ranks), "trCommCount", context.comm);
  context.ranks = library.ranks;
  serve(&library, &points, &g_trainer);
  check(trDoubleBufferDestroy(context.buffer), "trDoubleBufferDestroy", context.comm);
  check(trCommDestroy(context.comm), "trCommDestroy", NULL);
  return 0;
}
