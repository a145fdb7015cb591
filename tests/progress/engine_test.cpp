// SPDX-License-Identifier: Apache-2.0
// The streams' engine by itself, with tasks of the test's own.
#include "progress/engine.h"

#include <gtest/gtest.h>

#include <semaphore>

#include "api/handles.h"

namespace treering {
namespace {

// A place where a thread of the library stops until it is let go.
struct Gate {
  std::binary_semaphore entered{0}, open{0};
  void pass() {
    entered.release();
    open.acquire();
  }
};

Operation sum_of(float* input, float* output) {
  Operation operation;
  operation.function = "sum";
  operation.input = input;
  operation.output = output;
  operation.in_place = input == output;
  operation.count = 1;
  return operation;
}

Communicator* communicator_of(trComm_t handle) {
  CommunicatorLease lease;
  EXPECT_TRUE(lease.acquire(handle).ok());
  return lease.get();
}

void give(Task* task, StreamId stream, Communicator* communicator, float* input, float* output) {
  task->owned = false;
  task->stream = stream;
  task->communicator = communicator;
  task->operation = sum_of(input, output);
  EXPECT_TRUE(Engine::instance().enqueue(task).ok());
}

// While the engine is inside an operation, the next one that it was to advance is forgotten, and its memory becomes
// that of an operation behind another of its stream.
TEST(Engine, AnOperationInTheMemoryOfAForgottenOneWaitsForItsTurn) {
  Engine& engine = Engine::instance();
  trComm_t busy[2], gone[2], held[2], alone;
  for (trComm_t* pair : {busy, gone, held}) ASSERT_EQ(trCommInitAll(pair, 2), trSuccess) << trGetLastError(nullptr);
  ASSERT_EQ(trCommInitAll(&alone, 1), trSuccess);
  StreamId streams[5];
  for (StreamId& stream : streams) stream = engine.create_stream();

  // All are given while the engine is in a callback, so that it meets them in this order.
  Gate callback, reduction;
  auto pass = [](trResult_t, void* gate) { static_cast<Gate*>(gate)->pass(); };
  ASSERT_TRUE(engine.add_callback(streams[4], pass, &callback).ok());
  callback.entered.acquire();
  float values[2] = {1, 1}, never = 1, early = 1, result = 0, waiting[2] = {1, 1};
  for (int rank = 0; rank < 2; ++rank) {
    trRedOp_t op = trSum;
    auto stop = [](const void*, void*, size_t, trDataType_t, void* gate) {
      auto* at = static_cast<Gate*>(gate);
      if (at->open.try_acquire()) return at->open.release();  // only the first time
      at->pass();
      at->open.release();
    };
    ASSERT_EQ(trRedOpCreateUser(&op, stop, &reduction, 1, busy[rank]), trSuccess);
    ASSERT_EQ(trAllReduce(&values[rank], &values[rank], 1, trFloat32, op, busy[rank],
                          reinterpret_cast<trStream_t>(streams[rank])),
              trSuccess);
  }
  Task task;
  give(&task, streams[2], communicator_of(gone[0]), &never, &never);
  callback.open.release();
  reduction.entered.acquire();

  ASSERT_EQ(trCommDestroy(gone[0]), trSuccess);
  EXPECT_FALSE(engine.is_queued(task));
  Task first;  // cannot end: the other rank has not called
  give(&first, streams[3], communicator_of(held[0]), &waiting[0], &waiting[0]);
  give(&task, streams[3], communicator_of(alone), &early, &result);
  reduction.open.release();
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(engine.synchronize(streams[rank]).ok());
  // Once more around the loop.
  ASSERT_TRUE(engine
                  .add_callback(
                      streams[4], [](trResult_t, void*) {}, nullptr)
                  .ok());
  ASSERT_TRUE(engine.synchronize(streams[4]).ok());
  EXPECT_TRUE(engine.is_queued(task)) << "it is behind an operation that has not ended";
  EXPECT_EQ(result, 0);

  EXPECT_EQ(trAllReduce(&waiting[1], &waiting[1], 1, trFloat32, trSum, held[1], nullptr), trSuccess);
  EXPECT_TRUE(engine.synchronize(streams[3]).ok());
  EXPECT_EQ(result, 1);
  for (trComm_t comm : {busy[0], busy[1], gone[1], held[0], held[1], alone}) EXPECT_EQ(trCommDestroy(comm), trSuccess);
  for (StreamId stream : streams) (void)engine.destroy_stream(stream);
}

}  // namespace
}  // namespace treering
