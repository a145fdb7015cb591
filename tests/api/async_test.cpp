// SPDX-License-Identifier: Apache-2.0
// Streams, events, callbacks, descriptors, persistent operations.
#include <poll.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "support/ranks.h"

namespace treering::testing {
namespace {

constexpr int kRanks = 3;

struct Async : ::testing::Test {
  RankGroup ranks{kRanks};
  trStream_t streams[kRanks] = {};
  void SetUp() override {
    for (trStream_t& stream : streams) ASSERT_EQ(trStreamCreate(&stream), trSuccess);
  }
  void TearDown() override {
    for (trStream_t stream : streams) EXPECT_EQ(trStreamDestroy(stream), trSuccess);
  }
  void sum_all(std::vector<std::vector<float>>* buffers, int first = 0, int last = kRanks) {
    for (int rank = first; rank < last; ++rank) {
      auto& buffer = (*buffers)[static_cast<size_t>(rank)];
      ASSERT_EQ(
          trAllReduce(buffer.data(), buffer.data(), buffer.size(), trFloat32, trSum, ranks.comm(rank), streams[rank]),
          trSuccess);
    }
  }
};

bool readable(int fd, int timeout_ms) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, timeout_ms) == 1;
}

TEST_F(Async, EventIsCompleteWhenWhatCameBeforeHasEnded) {
  std::vector<std::vector<float>> buffers(kRanks, std::vector<float>(10'000, 1.0f));
  trEvent_t event = nullptr;
  int fd = -1;
  ASSERT_EQ(trEventCreate(&event), trSuccess);
  EXPECT_EQ(trEventQuery(event), trSuccess) << "never recorded";
  ASSERT_EQ(trEventGetFd(event, &fd), trSuccess);
  EXPECT_TRUE(readable(fd, 0));
  sum_all(&buffers, 0, 1);  // rank 0 alone: it cannot end yet
  ASSERT_EQ(trEventRecord(event, streams[0]), trSuccess);
  EXPECT_EQ(trEventQuery(event), trInProgress);
  EXPECT_FALSE(readable(fd, 20));
  sum_all(&buffers, 1, kRanks);
  EXPECT_TRUE(readable(fd, 10'000));
  EXPECT_EQ(trEventSynchronize(event), trSuccess);
  EXPECT_EQ(trEventQuery(event), trSuccess);
  EXPECT_EQ(buffers[0][9999], 3.0f);
  for (trStream_t stream : streams) EXPECT_EQ(trStreamSynchronize(stream), trSuccess);
  EXPECT_EQ(trEventDestroy(event), trSuccess);
  EXPECT_EQ(trEventQuery(event), trInvalidUsage);
}

TEST_F(Async, StreamWaitsForAnEventOfAnother) {
  trStream_t other = nullptr;
  trEvent_t event = nullptr;
  ASSERT_EQ(trStreamCreate(&other), trSuccess);
  ASSERT_EQ(trEventCreate(&event), trSuccess);
  std::atomic<int> order{0};
  int first = 0, second = 0;
  struct Note {
    std::atomic<int>* order;
    int* at;
  } before{&order, &first}, after{&order, &second};
  auto note = [](trResult_t, void* context) {
    auto* n = static_cast<Note*>(context);
    *n->at = ++*n->order;
  };
  std::vector<std::vector<float>> buffers(kRanks, std::vector<float>(100, 1.0f));
  sum_all(&buffers, 0, 1);
  ASSERT_EQ(trStreamAddCallback(streams[0], note, &before), trSuccess);
  ASSERT_EQ(trEventRecord(event, streams[0]), trSuccess);
  ASSERT_EQ(trStreamWaitEvent(other, event), trSuccess);
  ASSERT_EQ(trStreamAddCallback(other, note, &after), trSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(order.load(), 0) << "nothing may run before the event";
  sum_all(&buffers, 1, kRanks);
  EXPECT_EQ(trStreamSynchronize(other), trSuccess);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 2);
  for (trStream_t stream : streams) EXPECT_EQ(trStreamSynchronize(stream), trSuccess);
  EXPECT_EQ(trEventDestroy(event), trSuccess);
  EXPECT_EQ(trStreamDestroy(other), trSuccess);
}

TEST_F(Async, RecordingAgainMovesTheMark) {
  trEvent_t event = nullptr;
  ASSERT_EQ(trEventCreate(&event), trSuccess);
  std::vector<std::vector<float>> a(kRanks, std::vector<float>(8, 1.0f)), b(a);
  sum_all(&a);
  ASSERT_EQ(trEventRecord(event, streams[0]), trSuccess);
  EXPECT_EQ(trEventSynchronize(event), trSuccess);
  sum_all(&b, 0, 1);
  ASSERT_EQ(trEventRecord(event, streams[0]), trSuccess);
  EXPECT_EQ(trEventQuery(event), trInProgress);
  sum_all(&b, 1, kRanks);
  EXPECT_EQ(trEventSynchronize(event), trSuccess);
  EXPECT_EQ(b[0][7], 3.0f);
  for (trStream_t stream : streams) EXPECT_EQ(trStreamSynchronize(stream), trSuccess);
  EXPECT_EQ(trEventRecord(event, nullptr), trSuccess) << "calls without a stream have ended already";
  EXPECT_EQ(trEventQuery(event), trSuccess);
  EXPECT_EQ(trEventDestroy(event), trSuccess);
}

// Neither a later mark of the event, on an idle stream, nor its end lets go what waits for the earlier mark.
TEST_F(Async, AWaitHoldsThoughTheEventIsRecordedElsewhereOrDestroyed) {
  for (bool destroy : {false, true}) {
    SCOPED_TRACE(destroy ? "destroyed" : "recorded elsewhere");
    std::vector<std::vector<float>> buffers(kRanks, std::vector<float>(1000, 1.0f));
    trEvent_t event = nullptr;
    trStream_t waiting = nullptr, idle = nullptr;
    ASSERT_EQ(trEventCreate(&event), trSuccess);
    ASSERT_EQ(trStreamCreate(&waiting), trSuccess);
    ASSERT_EQ(trStreamCreate(&idle), trSuccess);
    sum_all(&buffers, 0, 1);
    ASSERT_EQ(trEventRecord(event, streams[0]), trSuccess);
    ASSERT_EQ(trStreamWaitEvent(waiting, event), trSuccess);
    if (destroy)
      ASSERT_EQ(trEventDestroy(event), trSuccess);
    else
      ASSERT_EQ(trEventRecord(event, idle), trSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_EQ(trStreamQuery(waiting), trInProgress);
    if (!destroy) {
      EXPECT_EQ(trEventQuery(event), trSuccess) << "its last mark is on the idle stream";
    }
    sum_all(&buffers, 1, kRanks);
    EXPECT_EQ(trStreamSynchronize(waiting), trSuccess);
    EXPECT_EQ(buffers[0][999], 3.0f);
    for (trStream_t stream : streams) EXPECT_EQ(trStreamSynchronize(stream), trSuccess);
    EXPECT_EQ(trStreamDestroy(waiting), trSuccess);
    EXPECT_EQ(trStreamDestroy(idle), trSuccess);
    if (!destroy) {
      EXPECT_EQ(trEventDestroy(event), trSuccess);
    }
  }
}

TEST_F(Async, WhatActsAtOnceIsNotKept) {
  trEvent_t event = nullptr;
  ASSERT_EQ(trEventCreate(&event), trSuccess);
  const auto callback = [](trResult_t, void*) {};
  const std::function<trResult_t()> calls[] = {[&] { return trEventRecord(event, streams[0]); },
                                               [&] { return trStreamWaitEvent(streams[0], event); },
                                               [&] { return trStreamAddCallback(streams[0], callback, nullptr); }};
  for (const auto& call : calls) {
    trPersistent_t kept = nullptr;
    ASSERT_EQ(trPersistentBegin(), trSuccess);
    EXPECT_EQ(call(), trInvalidUsage);
    EXPECT_EQ(trPersistentEnd(&kept), trInvalidUsage);
  }
  EXPECT_EQ(trEventDestroy(event), trSuccess);
}

// Rank 0 sends on one stream and receives on another; rank 1 the other way round. The second group is matched in the
// order of the calls, whatever their streams.
TEST_F(Async, TransfersOfAGroupRunAtOnceOnWhateverStreams) {
  constexpr size_t kCount = 1 << 20;  // more than is under way without the receiver
  std::vector<std::vector<float>> out(2, std::vector<float>(kCount)), in(2, std::vector<float>(kCount, 0.0f));
  trStream_t other[2] = {};
  for (int rank : {0, 1}) {
    ASSERT_EQ(trStreamCreate(&other[rank]), trSuccess);
    std::fill(out[static_cast<size_t>(rank)].begin(), out[static_cast<size_t>(rank)].end(),
              static_cast<float>(rank + 1));
  }
  for (size_t rank : {0u, 1u}) {
    const int self = static_cast<int>(rank), peer = 1 - self;
    ASSERT_EQ(trGroupStart(), trSuccess);
    ASSERT_EQ(trSend(out[rank].data(), kCount, trFloat32, peer, ranks.comm(self), streams[rank]), trSuccess);
    ASSERT_EQ(trRecv(in[rank].data(), kCount, trFloat32, peer, ranks.comm(self), other[rank]), trSuccess);
    ASSERT_EQ(trGroupEnd(), trSuccess);
  }
  for (size_t rank : {0u, 1u}) {  // both streams wait for both
    EXPECT_EQ(trStreamSynchronize(other[rank]), trSuccess) << trGetLastError(nullptr);
    EXPECT_EQ(in[rank][kCount - 1], static_cast<float>(2 - rank));
  }
  float sent[] = {1, 2, 3}, got[] = {0, 0, 0};
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (int i : {0, 1, 2})
    ASSERT_EQ(trSend(&sent[i], 1, trFloat32, 1, ranks.comm(0), i == 1 ? other[0] : streams[0]), trSuccess);
  ASSERT_EQ(trGroupEnd(), trSuccess);
  for (int i : {0, 1, 2}) ASSERT_EQ(trRecv(&got[i], 1, trFloat32, 0, ranks.comm(1), streams[1]), trSuccess);
  EXPECT_EQ(trStreamSynchronize(streams[1]), trSuccess);
  for (int i : {0, 1, 2}) EXPECT_EQ(got[i], sent[i]);
  for (trStream_t stream : other) EXPECT_EQ(trStreamDestroy(stream), trSuccess);
}

TEST_F(Async, CallbackGetsTheFailure) {
  trStream_t stream = nullptr;
  ASSERT_EQ(trStreamCreate(&stream), trSuccess);
  RankGroup pair(2);
  float value = 1;
  std::atomic<int> seen{-1};
  ASSERT_EQ(trAllReduce(&value, &value, 1, trFloat32, trSum, pair.comm(0), stream), trSuccess);
  ASSERT_EQ(
      trStreamAddCallback(
          stream, [](trResult_t result, void* context) { *static_cast<std::atomic<int>*>(context) = result; }, &seen),
      trSuccess);
  double other = 1;  // another type: the ranks' calls differ
  EXPECT_EQ(trAllReduce(&other, &other, 1, trFloat64, trSum, pair.comm(1), nullptr), trInvalidUsage);
  EXPECT_EQ(trStreamSynchronize(stream), trInvalidUsage);
  EXPECT_EQ(seen.load(), trInvalidUsage);
  EXPECT_EQ(trStreamDestroy(stream), trSuccess);
}

TEST_F(Async, PersistentOperationsOnStreamsAndWithout) {
  for (bool streamed : {false, true}) {
    std::vector<std::vector<float>> buffers(kRanks, std::vector<float>(5000)), small(kRanks, std::vector<float>(3));
    std::vector<float> gathered[kRanks];
    ASSERT_EQ(trPersistentBegin(), trSuccess);
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      gathered[rank].resize(9);
      trStream_t stream = streamed ? streams[rank] : nullptr;
      ASSERT_EQ(trAllReduce(buffers[r].data(), buffers[r].data(), 5000, trFloat32, trSum, ranks.comm(rank), stream),
                trSuccess);
      ASSERT_EQ(trAllGather(small[r].data(), gathered[rank].data(), 3, trFloat32, ranks.comm(rank), stream), trSuccess);
    }
    trPersistent_t persistent = nullptr;
    ASSERT_EQ(trPersistentEnd(&persistent), trSuccess) << trGetLastError(nullptr);
    EXPECT_EQ(buffers[0][0], 0.0f) << "nothing runs before the start";
    for (int round = 1; round <= 20; ++round) {
      for (size_t r = 0; r < kRanks; ++r) {
        std::fill(buffers[r].begin(), buffers[r].end(), static_cast<float>(round));
        std::fill(small[r].begin(), small[r].end(), static_cast<float>(round * 10 + static_cast<int>(r)));
      }
      ASSERT_EQ(trPersistentStart(persistent), trSuccess) << trGetLastError(nullptr);
      for (trStream_t stream : streams) ASSERT_EQ(trStreamSynchronize(stream), trSuccess);
      ASSERT_EQ(buffers[1][4999], static_cast<float>(3 * round));
      ASSERT_EQ(gathered[0][8], static_cast<float>(round * 10 + 2));
    }
    EXPECT_EQ(trPersistentDestroy(persistent), trSuccess);
  }
  trPersistent_t persistent = nullptr;
  EXPECT_EQ(trPersistentEnd(&persistent), trInvalidUsage);
  EXPECT_EQ(trPersistentStart(nullptr), trInvalidArgument);
}

TEST_F(Async, OneStartAtATime) {
  float value[kRanks] = {1, 1, 1};
  ASSERT_EQ(trPersistentBegin(), trSuccess);
  ASSERT_EQ(trAllReduce(&value[0], &value[0], 1, trFloat32, trSum, ranks.comm(0), streams[0]), trSuccess);
  trPersistent_t persistent = nullptr;
  ASSERT_EQ(trPersistentEnd(&persistent), trSuccess);
  ASSERT_EQ(trPersistentStart(persistent), trSuccess);
  EXPECT_EQ(trPersistentStart(persistent), trInvalidUsage);
  for (int rank = 1; rank < kRanks; ++rank)
    ASSERT_EQ(trAllReduce(&value[rank], &value[rank], 1, trFloat32, trSum, ranks.comm(rank), streams[rank]), trSuccess);
  for (trStream_t stream : streams) EXPECT_EQ(trStreamSynchronize(stream), trSuccess);
  EXPECT_EQ(value[0], 3.0f);
  EXPECT_EQ(trPersistentDestroy(persistent), trSuccess);
}

// One of the communicators is gone: the start fails, and the others are not kept busy.
TEST(Persistent, AStartThatFailsLeavesTheOtherCommunicatorsFree) {
  RankGroup pair(2), kept(1);
  trComm_t gone = nullptr;
  ASSERT_EQ(trCommInitAll(&gone, 1), trSuccess);
  float value = 1, sum[2] = {1, 1};
  trPersistent_t persistent = nullptr;
  ASSERT_EQ(trPersistentBegin(), trSuccess);
  for (trComm_t comm : {kept.comm(0), gone})
    ASSERT_EQ(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr), trSuccess);
  for (int rank = 0; rank < 2; ++rank)
    ASSERT_EQ(trAllReduce(&sum[rank], &sum[rank], 1, trFloat32, trSum, pair.comm(rank), nullptr), trSuccess);
  ASSERT_EQ(trPersistentEnd(&persistent), trSuccess);
  ASSERT_EQ(trPersistentStart(persistent), trSuccess) << trGetLastError(nullptr);
  ASSERT_EQ(trCommDestroy(gone), trSuccess);
  EXPECT_EQ(trPersistentStart(persistent), trInvalidUsage);
  EXPECT_EQ(sum[0], 2) << "nothing of a start that fails has begun";
  EXPECT_EQ(trAllReduce(&value, &value, 1, trFloat32, trSum, kept.comm(0), nullptr), trSuccess)
      << trGetLastError(nullptr);
  EXPECT_EQ(trPersistentDestroy(persistent), trSuccess);
}

// A group with calls on a stream and without, in both orders: one of the ranks gives the same calls one by one.
TEST_F(Async, GroupsMixStreamsAndNone) {
  for (bool stream_first : {true, false}) {
    float one[kRanks] = {1, 1, 1}, other[kRanks] = {2, 2, 2};
    auto calls = [&](int rank) {
      trResult_t failure = trSuccess;
      for (bool streamed : {stream_first, !stream_first}) {
        float* at = streamed ? &one[rank] : &other[rank];
        const trResult_t result = trAllReduce(at, at, 1, trFloat32, streamed ? trMax : trSum, ranks.comm(rank),
                                              streamed ? streams[rank] : nullptr);
        if (failure == trSuccess) failure = result;
      }
      return failure;
    };
    std::thread by_one([&] { EXPECT_EQ(calls(0), trSuccess) << trGetLastError(nullptr); });
    ASSERT_EQ(trGroupStart(), trSuccess);
    for (int rank = 1; rank < kRanks; ++rank) EXPECT_EQ(calls(rank), trSuccess);
    EXPECT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
    by_one.join();
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(trStreamSynchronize(streams[rank]), trSuccess);
      EXPECT_EQ(one[rank], 1);
      EXPECT_EQ(other[rank], 6);
    }
  }
}

// Two threads use two communicators in opposite orders: each makes progress by itself.
TEST(Independence, CommunicatorsInDifferentOrdersOnDifferentThreads) {
  RankGroup x(2), y(2);
  std::atomic<int> wrong{0};
  auto body = [&](int rank, bool x_first) {
    std::vector<float> a(50'000, 1.0f), b(50'000, 2.0f);
    trStream_t stream = nullptr;
    if (trStreamCreate(&stream) != trSuccess) ++wrong;
    for (int i = 0; i < 20; ++i) {
      const trComm_t first = (x_first ? x : y).comm(rank), second = (x_first ? y : x).comm(rank);
      auto& one = x_first ? a : b;
      auto& two = x_first ? b : a;
      std::fill(a.begin(), a.end(), 1.0f);
      std::fill(b.begin(), b.end(), 2.0f);
      // The first without waiting: only the second call blocks.
      wrong += trAllReduce(one.data(), one.data(), one.size(), trFloat32, trSum, first, stream) != trSuccess;
      wrong += trAllReduce(two.data(), two.data(), two.size(), trFloat32, trSum, second, nullptr) != trSuccess;
      wrong += trStreamSynchronize(stream) != trSuccess;
      wrong += a[49'999] != 2.0f || b[49'999] != 4.0f;
    }
    wrong += trStreamDestroy(stream) != trSuccess;
  };
  std::thread one(body, 0, true), two(body, 1, false);
  one.join();
  two.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace treering::testing
