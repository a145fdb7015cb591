// SPDX-License-Identifier: Apache-2.0
/*
 * Two ranks for bench/rdma, started with the variables of trCommInitFromEnvironment():
 *
 *   verbs_ping latency BYTES ROUNDS MEMORY     a message there and one back; a line for each round: us one way
 *   verbs_ping rate BYTES ROUNDS MEMORY        WINDOW messages to rank 1, and one back; a line for each round: us for each message
 *
 * MEMORY: malloc or registered. Rank 0 prints; what has arrived is checked after each round.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "treering/treering.h"

enum { kWindow = 16, kWarmUp = 5 };

static void check(trResult_t result, const char* what) {
  if (result == trSuccess) return;
  fprintf(stderr, "%s: %s\n", what, trGetLastError(NULL));
  exit(1);
}

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* Messages of a group move at the same time. */
static void move(trComm_t comm, int rank, char* data, size_t bytes, int count) {
  if (count > 1) check(trGroupStart(), "trGroupStart");
  for (int i = 0; i < count; ++i) {
    char* place = data + (size_t)i * bytes;
    if (rank == 0)
      check(trSend(place, bytes, trInt8, 1, comm, NULL), "trSend");
    else
      check(trRecv(place, bytes, trInt8, 0, comm, NULL), "trRecv");
  }
  if (count > 1) check(trGroupEnd(), "trGroupEnd");
}

int main(int argc, char** argv) {
  if (argc != 5 || (strcmp(argv[1], "latency") && strcmp(argv[1], "rate")) ||
      (strcmp(argv[4], "malloc") && strcmp(argv[4], "registered"))) {
    fprintf(stderr, "usage: verbs_ping latency|rate BYTES ROUNDS malloc|registered\n");
    return 2;
  }
  const int window = strcmp(argv[1], "rate") == 0 ? kWindow : 1;
  const size_t bytes = strtoull(argv[2], NULL, 10);
  const int rounds = atoi(argv[3]);
  trComm_t comm;
  check(trCommInitFromEnvironment(&comm, NULL), "trCommInitFromEnvironment");
  int rank;
  check(trCommRank(comm, &rank), "trCommRank");
  void* memory = NULL;
  if (strcmp(argv[4], "registered") == 0)
    check(trMemAlloc(&memory, bytes * kWindow), "trMemAlloc");
  else
    memory = malloc(bytes * kWindow);
  char* const data = memory;
  if (data == NULL) return 1;
  for (int round = -kWarmUp; round < rounds; ++round) {
    const char mark = (char)(round + kWarmUp + 1);
    if (rank == 0) memset(data, mark, bytes * (size_t)window);
    /* Messages that follow one another are what perftest measures: none of its rounds begins with another exchange. */
    if (window > 1) check(trBarrier(comm, NULL), "trBarrier");
    const double begin = now_us();
    if (rank == 0) {
      move(comm, rank, data, bytes, window);
      check(trRecv(data, window == 1 ? bytes : 1, trInt8, 1, comm, NULL), "trRecv");
      const double us = now_us() - begin;
      if (round >= 0) printf("%.2f\n", window == 1 ? us / 2 : us / window);
    } else {
      move(comm, rank, data, bytes, window);
      check(trSend(data, window == 1 ? bytes : 1, trInt8, 0, comm, NULL), "trSend");
      for (size_t i = 0; i < bytes * (size_t)window; i += 61)
        if (data[i] != mark) {
          fprintf(stderr, "round %d: byte %zu is wrong\n", round, i);
          return 1;
        }
    }
  }
  fflush(stdout);
  check(trCommDestroy(comm), "trCommDestroy");
  return 0;
}
