// SPDX-License-Identifier: Apache-2.0
/* A communicator that loses a rank and gets a new one: shrink, then grow. The ranks are processes; the program that starts them
 * hands the id to the new one, as a cluster's scheduler would. */
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"

enum { kRanks = 3 };

static int sum_of_ones(trComm_t comm) {
  int ones = 1;
  CHECK(trAllReduce(&ones, &ones, 1, trInt32, trSum, comm, NULL));
  return ones;
}

/* A rank of the first communicator. One survivor makes the id for the new rank and sends it through `ids`. */
static int old_rank(int rank, trUniqueId id, int ids) {
  trComm_t comm, rest, grown;
  CHECK(trCommInitRank(&comm, kRanks, id, rank));
  trResult_t result;
  do { /* until a call fails; a call that one rank is through with may still fail on another */
    int ones = 1;
    result = trAllReduce(&ones, &ones, 1, trInt32, trSum, comm, NULL);
    if (result == trSuccess && rank == kRanks - 1) return 0; /* it ends without a word */
  } while (result == trSuccess);
  EXPECT(result == trRemoteError);
  do { /* the others may know of another death, or of this one a moment later: then the sets differ, and all call again */
    int lost[kRanks - 1], count = 0;
    CHECK(trCommGetLost(comm, lost, &count));
    result = trCommShrink(comm, lost, count, &rest, NULL, TR_SHRINK_ABORT);
  } while (result == trInvalidUsage || result == trRemoteError);
  CHECK(result);
  CHECK(trCommDestroy(comm));

  int number; /* survivors are numbered anew: one of them is rank 0 */
  CHECK(trCommRank(rest, &number));
  trUniqueId invitation;
  if (number == 0) {
    CHECK(trGetUniqueId(&invitation));
    EXPECT(write(ids, &invitation, sizeof invitation) == sizeof invitation);
  }
  CHECK(trCommGrow(rest, kRanks, number == 0 ? &invitation : NULL, &grown, NULL));
  CHECK(trCommDestroy(rest));
  EXPECT(sum_of_ones(grown) == kRanks);
  CHECK(trCommDestroy(grown));
  return 0;
}

/* It follows the ranks that are there. */
static int new_rank(int ids) {
  trComm_t grown;
  trUniqueId invitation;
  EXPECT(read(ids, &invitation, sizeof invitation) == sizeof invitation);
  CHECK(trCommInitRank(&grown, kRanks, invitation, kRanks - 1));
  EXPECT(sum_of_ones(grown) == kRanks);
  CHECK(trCommDestroy(grown));
  return 0;
}

int main(void) {
  int ids[2], first[2], status, failed = 0;
  EXPECT(pipe(ids) == 0 && pipe(first) == 0);
  for (int rank = 0; rank < kRanks; ++rank)
    if (fork() == 0) {
      trUniqueId id;
      if (rank == 0) {
        CHECK(trGetUniqueId(&id));
        for (int i = 1; i < kRanks; ++i) EXPECT(write(first[1], &id, sizeof id) == sizeof id);
      } else {
        close(first[1]); /* a read ends when no writer is left */
        close(ids[1]);
        EXPECT(read(first[0], &id, sizeof id) == sizeof id);
      }
      return old_rank(rank, id, ids[1]);
    }
  close(first[1]);
  if (fork() == 0) {
    close(ids[1]);
    return new_rank(ids[0]);
  }
  close(ids[1]);
  while (wait(&status) > 0) failed |= status;
  if (failed == 0) printf("ok\n");
  return failed != 0;
}
