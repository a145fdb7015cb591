// SPDX-License-Identifier: Apache-2.0
/* Asynchronous use: streams, events, a callback, a descriptor for poll(), a persistent operation. Two ranks. */
#include <poll.h>

#include "ranks.h"

static void ended(trResult_t result, void* context) { *(trResult_t*)context = result; }

static void ranks(trComm_t comm, int rank, int nranks) {
  trStream_t first, second;
  CHECK(trStreamCreate(&first));
  CHECK(trStreamCreate(&second));
  trEvent_t summed;
  CHECK(trEventCreate(&summed));

  /* Both calls return at once. The second stream goes on when the first has reached the event. */
  float gradients[1000], copy[1000];
  for (int i = 0; i < 1000; ++i) gradients[i] = 1.0f;
  CHECK(trAllReduce(gradients, gradients, 1000, trFloat32, trSum, comm, first));
  CHECK(trEventRecord(summed, first));
  CHECK(trStreamWaitEvent(second, summed));
  CHECK(trBroadcast(gradients, copy, 1000, trFloat32, 0, comm, second));
  trResult_t outcome = trInProgress;
  CHECK(trStreamAddCallback(second, ended, &outcome)); /* on the library's thread */
  CHECK(trStreamSynchronize(second));
  EXPECT(outcome == trSuccess && copy[999] == (float)nranks);

  /* An event loop waits for the event's descriptor, together with its others. */
  struct pollfd waiting = {.events = POLLIN};
  CHECK(trEventGetFd(summed, &waiting.fd));
  EXPECT(poll(&waiting, 1, 10000) == 1);
  EXPECT(trEventQuery(summed) == trSuccess && trStreamQuery(first) == trSuccess);
  CHECK(trEventSynchronize(summed));

  /* Planned once, started many times. */
  double value = rank;
  trPersistent_t each_step;
  CHECK(trPersistentBegin());
  CHECK(trAllReduce(&value, &value, 1, trFloat64, trMax, comm, NULL));
  CHECK(trPersistentEnd(&each_step));
  for (int step = 0; step < 10; ++step) {
    value += 1;
    CHECK(trPersistentStart(each_step));
  }
  EXPECT(value == nranks - 1 + 10);
  CHECK(trPersistentDestroy(each_step));

  CHECK(trEventDestroy(summed));
  CHECK(trStreamDestroy(first));
  CHECK(trStreamDestroy(second));
}

int main(void) {
  run_ranks(2, ranks);
  return 0;
}
