// SPDX-License-Identifier: Apache-2.0
/* The collectives of Treering by their number in measure.h. */
#ifndef TREERING_BENCH_PEERS_TREERING_CALLS_H_
#define TREERING_BENCH_PEERS_TREERING_CALLS_H_

#include <treering/treering.h>

#include "measure.h"

struct calls {
  trComm_t comm;
  int ranks;
  enum collective collective;
  size_t* counts; /* of the v-variants: equal ones */
};

static inline struct calls make_calls(const struct points* points, int ranks) {
  struct calls calls = {.ranks = ranks, .collective = points->collective};
  calls.counts = calloc((size_t)ranks, sizeof(size_t));
  if (!calls.counts) usage_error("no memory", "counts");
  return calls;
}

static inline void tr_check(trResult_t result, const char* call, trComm_t comm) {
  if (result == trSuccess) return;
  fprintf(stderr, "error: %s: %s: %s\n", call, trGetErrorString(result), trGetLastError(comm));
  exit(1);
}

static inline const size_t* equal_counts(struct calls* calls, size_t count) {
  if (calls->counts[0] != count)
    for (int r = 0; r < calls->ranks; ++r) calls->counts[r] = count;
  return calls->counts;
}

static inline void tr_call(void* opaque, const float* send, float* recv, size_t count) {
  struct calls* calls = opaque;
  trComm_t comm = calls->comm;
  const trDataType_t f = trFloat32;
  trResult_t result = trInternalError;
  const size_t* counts = calls->counts;
  switch (calls->collective) {
    case kAllReduce:
      result = trAllReduce(send, recv, count, f, trSum, comm, NULL);
      break;
    case kReduce:
      result = trReduce(send, recv, count, f, trSum, 0, comm, NULL);
      break;
    case kBroadcast:
      result = trBroadcast(recv, recv, count, f, 0, comm, NULL);
      break;
    case kAllGather:
      result = trAllGather(send, recv, count, f, comm, NULL);
      break;
    case kReduceScatter:
      result = trReduceScatter(send, recv, count, f, trSum, comm, NULL);
      break;
    case kAllToAll:
      result = trAllToAll(send, recv, count, f, comm, NULL);
      break;
    case kGather:
      result = trGather(send, recv, count, f, 0, comm, NULL);
      break;
    case kScatter:
      result = trScatter(send, recv, count, f, 0, comm, NULL);
      break;
    case kBarrier:
      result = trBarrier(comm, NULL);
      break;
    case kAllGatherV:
      counts = equal_counts(calls, count);
      result = trAllGatherV(send, count, recv, counts, NULL, f, comm, NULL);
      break;
    case kReduceScatterV:
      counts = equal_counts(calls, count);
      result = trReduceScatterV(send, recv, counts, f, trSum, comm, NULL);
      break;
    case kAllToAllV:
      counts = equal_counts(calls, count);
      result = trAllToAllV(send, counts, NULL, recv, counts, NULL, f, comm, NULL);
      break;
    case kGatherV:
      counts = equal_counts(calls, count);
      result = trGatherV(send, count, recv, counts, NULL, f, 0, comm, NULL);
      break;
    case kScatterV:
      counts = equal_counts(calls, count);
      result = trScatterV(send, counts, NULL, recv, count, f, 0, comm, NULL);
      break;
    case kCollectives:
      break;
  }
  if (result != trSuccess) tr_check(result, kCollectiveNames[calls->collective], comm);
}

#endif /* TREERING_BENCH_PEERS_TREERING_CALLS_H_ */
