// SPDX-License-Identifier: Apache-2.0
/*
 * A rank of Treering for bench/netlab: a process that is started on a host, with the variables of
 * trCommInitFromEnvironment(), and serves commands (serve.h), or measures the points that it is given (bench/rdma).
 *
 * With --make-id it is the one that the others meet at: it prints the id, in hex, before anything else. Variants of the
 * training loop (loop.h): plain, fused (a group) and double (a double buffer that owns nothing).
 */
#include "../peers/serve.h"
#include "../peers/treering_calls.h"

struct context {
  struct calls calls; /* first: tr_call takes a context */
  char variant;       /* 'p', 'f' or 'd' */
  trDoubleBuffer_t buffer;
};

static void all_reduce(void* opaque, const float* send, float* recv, size_t count) {
  trComm_t comm = ((struct calls*)opaque)->comm;
  tr_check(trAllReduce(send, recv, count, trFloat32, trSum, comm, NULL), "trAllReduce", comm);
}

static void barrier(void* opaque) {
  trComm_t comm = ((struct calls*)opaque)->comm;
  tr_check(trBarrier(comm, NULL), "trBarrier", comm);
}

static double largest(void* opaque, double value) {
  trComm_t comm = ((struct calls*)opaque)->comm;
  tr_check(trAllReduce(&value, &value, 1, trFloat64, trMax, comm, NULL), "trAllReduce", comm);
  return value;
}

static struct trainer g_trainer;

static int start(void* opaque, const char* variant, struct gradients* gradients) {
  struct context* context = opaque;
  if (strcmp(variant, "plain") && strcmp(variant, "fused") && strcmp(variant, "double")) return 0;
  context->variant = variant[0];
  g_trainer.overlaps = context->variant == 'd';
  tr_check(trDoubleBufferDestroy(context->buffer), "trDoubleBufferDestroy", context->calls.comm);
  context->buffer = NULL;
  if (context->variant != 'd') return 1;
  gradients->scale = 1.0f / (float)context->calls.ranks;
  tr_check(trDoubleBufferCreate(&context->buffer, context->calls.comm, trFloat32, 0, NULL), "trDoubleBufferCreate",
           context->calls.comm);
  return 1;
}

static void exchange_double(struct context* context, struct gradients* gradients) {
  int ready = 0;
  tr_check(trDoubleBufferExchange(context->buffer, gradients->count, gradients->tensors, gradients->counts, &ready),
           "trDoubleBufferExchange", context->calls.comm);
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
  if (context->variant == 'f') tr_check(trGroupStart(), "trGroupStart", NULL);
  for (int i = 0; i < gradients->count; ++i)
    all_reduce(context, gradients->tensors[i], gradients->tensors[i], gradients->counts[i]);
  if (context->variant == 'f') tr_check(trGroupEnd(), "trGroupEnd", NULL);
}

/* Also the second set's addresses come back right: the flush gives those of the last exchange. */
static void finish(void* opaque, struct gradients* gradients) {
  struct context* context = opaque;
  if (context->variant != 'd') return;
  int ready = 0;
  void* free_set[kMaxTensors];
  memcpy(free_set, gradients->tensors, sizeof free_set);
  tr_check(trDoubleBufferFlush(context->buffer, gradients->count, gradients->tensors, &ready), "trDoubleBufferFlush",
           context->calls.comm);
  if (!ready) usage_error("no result in the double buffer", "flush");
  memcpy(gradients->second, free_set, sizeof free_set);
}

static struct trainer g_trainer = {.start = start, .exchange = exchange_gradients, .finish = finish};

static float* allocate(const struct points* points, int ranks) {
  void* buffer = NULL;
  if (!strcmp(points->buffers, "mem_alloc"))
    tr_check(trMemAlloc(&buffer, buffer_bytes(points, ranks)), "trMemAlloc", NULL);
  else if (!strcmp(points->buffers, "malloc"))
    buffer = malloc(buffer_bytes(points, ranks));
  if (!buffer) usage_error("no memory; --buffers may be malloc or mem_alloc", points->buffers);
  return buffer;
}

static void measure(const struct library* library, const struct points* points) {
  float* send = allocate(points, library->ranks);
  float* recv = allocate(points, library->ranks);
  measure_all(library, points, send, recv);
}

static void make_id(void) {
  trUniqueId id;
  char hex[2 * sizeof id + 1];
  tr_check(trGetUniqueId(&id), "trGetUniqueId", NULL);
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
  struct library library = {.call = tr_call, .barrier = barrier, .max = largest, .context = &context};
  trComm_t comm = NULL;
  tr_check(trCommInitFromEnvironment(&comm, NULL), "trCommInitFromEnvironment", NULL);
  tr_check(trCommRank(comm, &library.rank), "trCommRank", comm);
  tr_check(trCommCount(comm, &library.ranks), "trCommCount", comm);
  context.calls = make_calls(&points, library.ranks);
  context.calls.comm = comm;
  if (points.commands)
    serve(&library, &points, &g_trainer);
  else
    measure(&library, &points);
  tr_check(trDoubleBufferDestroy(context.buffer), "trDoubleBufferDestroy", context.calls.comm);
  tr_check(trCommDestroy(context.calls.comm), "trCommDestroy", NULL);
  return 0;
}
