// SPDX-License-Identifier: Apache-2.0
/* What the examples share: ranks that are threads of one process, and checks that end the program. */
#ifndef TREERING_EXAMPLES_RANKS_H_
#define TREERING_EXAMPLES_RANKS_H_

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <treering/treering.h>

/* Ends the program with the library's own words when a call fails. */
#define CHECK(call)                                                                            \
  do {                                                                                         \
    trResult_t result_ = (call);                                                               \
    if (result_ != trSuccess) {                                                                \
      fprintf(stderr, "%s: %s: %s\n", #call, trGetErrorString(result_), trGetLastError(NULL)); \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)

/* Ends the program when a result is not what the example says. */
#define EXPECT(condition)                                                     \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

typedef void (*RankFunction)(trComm_t comm, int rank, int nranks);

typedef struct {
  RankFunction function;
  trUniqueId id;
  int rank, nranks;
} Rank;

static void* rank_thread(void* argument) {
  Rank* rank = argument;
  trComm_t comm = NULL;
  CHECK(trCommInitRank(&comm, rank->nranks, rank->id, rank->rank));
  rank->function(comm, rank->rank, rank->nranks);
  CHECK(trCommDestroy(comm));
  return NULL;
}

/* Runs `function` on the ranks of a new communicator, one thread each (8 at most). */
static inline void run_ranks(int nranks, RankFunction function) {
  pthread_t threads[8];
  Rank ranks[8];
  trUniqueId id;
  EXPECT(nranks <= 8);
  CHECK(trGetUniqueId(&id));
  for (int i = 0; i < nranks; ++i) {
    ranks[i] = (Rank){function, id, i, nranks};
    EXPECT(pthread_create(&threads[i], NULL, rank_thread, &ranks[i]) == 0);
  }
  for (int i = 0; i < nranks; ++i) EXPECT(pthread_join(threads[i], NULL) == 0);
  printf("ok\n");
}

#endif
