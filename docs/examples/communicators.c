// SPDX-License-Identifier: Apache-2.0
/* Settings, all ranks in one process, subsets, what a communicator says about itself, and how one is ended;
   which data types there are. */
#include "ranks.h"

static void explain(trComm_t comm) {
  size_t needed;
  CHECK(trExplain(comm, trCollAllReduce, 1 << 20, trFloat32, NULL, 0, &needed));
  char* text = malloc(needed + 1);
  EXPECT(text != NULL);
  CHECK(trExplain(comm, trCollAllReduce, 1 << 20, trFloat32, text, needed + 1, NULL));
  printf("%s\n", text);
  free(text);
  trSelection_t selection;
  CHECK(trGetSelection(comm, trCollBroadcast, NULL, NULL, 1 << 20, trFloat32, &selection));
  double microseconds = 0;
  CHECK(trPredictTransfer(comm, 1 << 20, &microseconds));
  printf("broadcast of 1 MiB: %s by %s, %d channels; to one rank: %.0f us\n", selection.algorithm, selection.transport,
         selection.channels, microseconds);
}

static void ranks(trComm_t comm, int rank, int nranks) {
  int count, own;
  CHECK(trCommCount(comm, &count));
  CHECK(trCommRank(comm, &own));
  EXPECT(count == nranks && own == rank);
  if (rank == 0) explain(comm);

  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.name = "parity";
  config.timeout_ms = 60000;
  trComm_t parity, same; /* even ranks and odd ranks, in descending order */
  CHECK(trCommSplit(comm, rank % 2, /*key=*/-rank, &parity, &config));
  CHECK(trCommRank(parity, &own));
  EXPECT(own == (rank < 2));
  CHECK(trCommDup(comm, &same));

  int sum = rank;
  CHECK(trAllReduce(&sum, &sum, 1, trInt32, trSum, parity, NULL));
  EXPECT(sum == (rank % 2 == 0 ? 0 + 2 : 1 + 3));

  trResult_t state;
  CHECK(trCommFinalize(parity));
  CHECK(trCommGetAsyncError(parity, &state));
  EXPECT(state == trSuccess);
  CHECK(trCommDestroy(parity));
  CHECK(trCommAbort(same)); /* ends what the others wait for, too */
}

/* The last rank is given up; the others go on without it, whatever the communicator was doing. */
static void survivors(trComm_t comm, int rank, int nranks) {
  int ring[8], parent, children[2];
  CHECK(trCommGetRing(comm, ring));
  CHECK(trCommGetTree(comm, 0, &parent, children));
  printf("rank %d: parent %d, children %d %d in the first tree\n", rank, parent, children[0], children[1]);

  const int lost = nranks - 1;
  if (rank == lost) return;
  CHECK(trCommRevoke(comm)); /* calls of the others end with trRemoteError */
  trComm_t rest;
  CHECK(trCommShrink(comm, &lost, 1, &rest, NULL, TR_SHRINK_ABORT));
  int ranks = 1;
  CHECK(trAllReduce(&ranks, &ranks, 1, trInt32, trSum, rest, NULL));
  EXPECT(ranks == nranks - 1);
  CHECK(trCommDestroy(rest));
}

static void list_types(void) {
  trDataTypeInfo_t info = TR_DATA_TYPE_INFO_INITIALIZER;
  for (int type = 0; trGetDataTypeInfo((trDataType_t)type, &info) == trSuccess; ++type)
    printf("type %d: %s, %zu bytes\n", type, info.name, info.bytes);
  CHECK(trGetDataTypeInfo(trFloat16, &info));
  EXPECT(info.bytes == 2 && info.kind == trKindFloat && info.significant_bits == 11);
}

int main(void) {
  list_types();

  /* One thread that drives two ranks: their calls are one group. */
  trComm_t both[2];
  int values[2] = {1, 2};
  CHECK(trCommInitAll(both, 2));
  CHECK(trGroupStart());
  for (int i = 0; i < 2; ++i) CHECK(trAllReduce(&values[i], &values[i], 1, trInt32, trSum, both[i], NULL));
  CHECK(trGroupEnd());
  EXPECT(values[0] == 3 && values[1] == 3);
  for (int i = 0; i < 2; ++i) CHECK(trCommDestroy(both[i]));

  /* The same with settings. */
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.deterministic = 1;
  trUniqueId id;
  CHECK(trGetUniqueId(&id));
  CHECK(trGroupStart());
  for (int i = 0; i < 2; ++i) CHECK(trCommInitRankConfig(&both[i], 2, id, i, &config));
  CHECK(trGroupEnd());
  for (int i = 0; i < 2; ++i) CHECK(trCommDestroy(both[i]));

  run_ranks(4, ranks);
  run_ranks(4, survivors);
  return 0;
}
