// SPDX-License-Identifier: Apache-2.0
// What a group or a persistent operation refuses while it is open, and how it ends.
#include <cstring>
#include <functional>
#include <string>

#include "support/ranks.h"

namespace treering::testing {
namespace {

TEST(Groups, RefuseCallsThatCannotBeCollected) {
  RankGroup ranks(2);
  const trComm_t comm = ranks.comm(0);
  const trBox_t box{{0}, {1}};
  trExchange_t exchange = nullptr;
  trDoubleBuffer_t buffer = nullptr;
  ASSERT_EQ(trDoubleBufferCreate(&buffer, comm, trFloat32, 0, nullptr), trSuccess);
  int64_t index = 0;
  float value = 1, sum = 0;
  void* tensor = &value;
  size_t count = 1, rows = 0;
  int ready = 0;
  struct Refused {
    trResult_t result;
    const char* text;
    std::function<trResult_t()> call;
  };
  const Refused calls[] = {
      {trInvalidUsage, "trExchangeCreate inside a group",
       [&] { return trExchangeCreate(&exchange, 1, 1, &box, 1, &box, trFloat32, comm); }},
      {trInvalidUsage, "trExchangeStart inside a group",
       [&] { return trExchangeStart(exchange, nullptr, nullptr, {}); }},
      {trInvalidUsage, "trSparseAllReduce inside a group",
       [&] { return trSparseAllReduce(&index, &value, 1, 1, trFloat32, trSum, &index, &sum, 1, &rows, comm); }},
      {trInvalidUsage, "trDoubleBufferExchange inside a group",
       [&] { return trDoubleBufferExchange(buffer, 1, &tensor, &count, &ready); }},
      {trInvalidArgument, "trAllReduceCompressed: compression is NULL",
       [&] { return trAllReduceCompressed(&value, &sum, 1, trSum, nullptr, comm, nullptr); }}};
  for (bool persistent : {false, true})
    for (const Refused& each : calls) {
      float sums[2] = {1, 2};
      ASSERT_EQ(persistent ? trPersistentBegin() : trGroupStart(), trSuccess);
      for (int rank = 0; rank < 2; ++rank)
        EXPECT_EQ(trAllReduce(&sums[rank], &sums[rank], 1, trFloat32, trSum, ranks.comm(rank), nullptr), trSuccess);
      for (int end = 0; end < 2; ++end) {  // the call itself, and the group that it belongs to
        trPersistent_t kept = nullptr;
        const auto end_group = [&] { return persistent ? trPersistentEnd(&kept) : trGroupEnd(); };
        const trResult_t result = end == 0 ? each.call() : end_group();
        EXPECT_EQ(result, each.result) << each.text;
        const std::string text = trGetLastError(nullptr);
        EXPECT_EQ(text.find(each.text), 0u) << text;
        if (each.result == trInvalidUsage) {
          EXPECT_NE(text.find(persistent ? "after trPersistentEnd" : "after trGroupEnd"), std::string::npos) << text;
        }
        EXPECT_EQ(kept, nullptr);
      }
      EXPECT_EQ(sums[0], 1) << each.text << ": nothing of the group runs";
    }
  EXPECT_EQ(trDoubleBufferDestroy(buffer), trSuccess);
}

// What the open group has calls of; its name, and the call that the user is to make first.
TEST(Groups, WhatHasCallsInTheOpenGroupIsNotDestroyed) {
  RankGroup ranks(2);
  trStream_t stream = nullptr;
  trPersistent_t kept = nullptr;
  ASSERT_EQ(trStreamCreate(&stream), trSuccess);
  const auto named = [](trResult_t result, const char* call, const void* handle, const std::string& end) {
    char text[200];
    std::snprintf(text, sizeof text, "%s %p has calls in the open %s first", call, handle, end.c_str());
    EXPECT_EQ(result, trInvalidUsage);
    EXPECT_STREQ(trGetLastError(nullptr), text);
  };
  for (bool persistent : {false, true}) {
    const std::string end = persistent ? "persistent operation; call trPersistentEnd" : "group; call trGroupEnd";
    float values[2] = {1, 2};
    ASSERT_EQ(persistent ? trPersistentBegin() : trGroupStart(), trSuccess);
    EXPECT_EQ(trAllReduce(&values[0], &values[0], 1, trFloat32, trSum, ranks.comm(0), stream), trSuccess);
    named(trCommDestroy(ranks.comm(0)), "trCommDestroy: comm", ranks.comm(0), end);
    named(trStreamDestroy(stream), "trStreamDestroy: stream", stream, end);
    EXPECT_EQ(trPersistentBegin(), trInvalidUsage);
    EXPECT_NE(std::strstr(trGetLastError(nullptr), persistent ? "call trPersistentEnd first" : "call trGroupEnd first"),
              nullptr)
        << trGetLastError(nullptr);
    EXPECT_EQ(trAllReduce(&values[1], &values[1], 1, trFloat32, trSum, ranks.comm(1), nullptr), trSuccess);
    EXPECT_EQ(persistent ? trPersistentEnd(&kept) : trGroupEnd(), trSuccess);
    if (persistent) {
      ASSERT_EQ(trPersistentStart(kept), trSuccess) << trGetLastError(nullptr);
    }
    EXPECT_EQ(trStreamSynchronize(stream), trSuccess);
    EXPECT_EQ(values[0], 3);
  }
  // The group holds no call of a kept operation, so that may end there.
  ASSERT_EQ(trGroupStart(), trSuccess);
  EXPECT_EQ(trPersistentDestroy(kept), trSuccess) << trGetLastError(nullptr);
  EXPECT_EQ(trGroupEnd(), trSuccess);
  EXPECT_EQ(trStreamDestroy(stream), trSuccess);
}

// They would come before what the group holds, and look as if they came after it.
TEST(Groups, NothingWaitsForOrMarksWhatTheOpenGroupHolds) {
  trComm_t comm = nullptr, half = nullptr;
  ASSERT_EQ(trCommInitAll(&comm, 1), trSuccess);
  trStream_t stream = nullptr, other = nullptr;
  trEvent_t event = nullptr;
  ASSERT_EQ(trStreamCreate(&stream), trSuccess);
  ASSERT_EQ(trStreamCreate(&other), trSuccess);
  ASSERT_EQ(trEventCreate(&event), trSuccess);
  float value = 1;
  int called = 0;
  const trCallback count = [](trResult_t, void* calls) { ++*static_cast<int*>(calls); };
  trPersistent_t started = nullptr;
  ASSERT_EQ(trPersistentBegin(), trSuccess);
  EXPECT_EQ(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, other), trSuccess);
  ASSERT_EQ(trPersistentEnd(&started), trSuccess);
  struct {
    const char* name;
    std::function<trResult_t()> call;
    bool fails_group;  // it was to have a place in the order of the group's calls
  } calls[] = {{"trStreamSynchronize", [&] { return trStreamSynchronize(stream); }, false},
               {"trStreamQuery", [&] { return trStreamQuery(stream); }, false},
               {"trStreamDestroy", [&] { return trStreamDestroy(stream); }, false},
               {"trCommFinalize", [&] { return trCommFinalize(comm); }, false},
               {"trCommDestroy", [&] { return trCommDestroy(comm); }, false},
               {"trStreamAddCallback", [&] { return trStreamAddCallback(stream, count, &called); }, true},
               {"trEventRecord", [&] { return trEventRecord(event, stream); }, true},
               {"trPersistentStart", [&] { return trPersistentStart(started); }, true},
               {"trStreamWaitEvent", [&] { return trStreamWaitEvent(stream, event); }, true}};
  for (const auto& each : calls) {
    ASSERT_EQ(trGroupStart(), trSuccess);
    EXPECT_EQ(trStreamWaitEvent(stream, event), trSuccess) << "the group holds nothing of it yet";
    EXPECT_EQ(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, stream), trSuccess);
    EXPECT_EQ(each.call(), trInvalidUsage) << each.name;
    const std::string text = trGetLastError(nullptr);
    EXPECT_NE(text.find(each.name), std::string::npos) << text;
    EXPECT_NE(text.find("trGroupEnd"), std::string::npos) << text;
    EXPECT_EQ(trEventRecord(event, other), trSuccess) << "another stream";
    EXPECT_EQ(trGroupEnd(), each.fails_group ? trInvalidUsage : trSuccess) << each.name;
    EXPECT_EQ(trStreamSynchronize(stream), trSuccess);
  }
  EXPECT_EQ(called, 0);
  trPersistent_t kept = nullptr;
  ASSERT_EQ(trPersistentBegin(), trSuccess);
  EXPECT_EQ(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, stream), trSuccess);
  EXPECT_EQ(trStreamSynchronize(stream), trSuccess) << "its calls begin when it is started";
  EXPECT_EQ(trCommFinalize(comm), trSuccess);
  EXPECT_EQ(trPersistentEnd(&kept), trSuccess);
  EXPECT_EQ(trPersistentDestroy(kept), trSuccess);
  EXPECT_EQ(trPersistentDestroy(started), trSuccess);
  ASSERT_EQ(trGroupStart(), trSuccess);
  EXPECT_EQ(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr), trSuccess);
  EXPECT_EQ(trEventRecord(event, nullptr), trInvalidUsage);
  EXPECT_EQ(trGroupEnd(), trInvalidUsage);
  ASSERT_EQ(trGroupStart(), trSuccess);
  EXPECT_EQ(trCommSplit(comm, 0, 0, &half, nullptr), trSuccess);
  EXPECT_EQ(trCommDestroy(comm), trInvalidUsage) << "it is to be split";
  EXPECT_EQ(trGroupEnd(), trSuccess);
  for (trComm_t each : {half, comm}) EXPECT_EQ(trCommDestroy(each), trSuccess);
  for (trStream_t each : {stream, other}) EXPECT_EQ(trStreamDestroy(each), trSuccess);
  EXPECT_EQ(trEventDestroy(event), trSuccess);
}

TEST(Groups, EndWithoutStartAndFailuresInside) {
  EXPECT_EQ(trGroupEnd(), trInvalidUsage);
  trComm_t comms[2];
  ASSERT_EQ(trCommInitAll(comms, 2), trSuccess);
  float a = 1, b = 2;
  ASSERT_EQ(trGroupStart(), trSuccess);
  EXPECT_EQ(trAllReduce(&a, &a, 1, trFloat32, trSum, comms[0], nullptr), trSuccess);
  EXPECT_EQ(trAllReduce(nullptr, &b, 1, trFloat32, trSum, comms[1], nullptr), trInvalidArgument);
  EXPECT_EQ(trGroupEnd(), trInvalidArgument);
  EXPECT_EQ(a, 1) << "nothing of a group with a wrong call starts";
  for (trComm_t comm : comms) EXPECT_EQ(trCommDestroy(comm), trSuccess);
}

}  // namespace
}  // namespace treering::testing
