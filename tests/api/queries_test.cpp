// SPDX-License-Identifier: Apache-2.0
// What may be asked of a communicator at any time: it disturbs no call of another thread, and none disturbs it.
#include <atomic>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "support/ranks.h"

namespace treering::testing {
namespace {

struct Query {
  const char* name;
  trResult_t (*ask)(trComm_t comm, int rank, int ranks);
};
std::ostream& operator<<(std::ostream& out, const Query& query) { return out << query.name; }

trResult_t ask_for_state(trComm_t comm, int, int) {
  trResult_t state = trInternalError;
  const trResult_t result = trCommGetAsyncError(comm, &state);
  return result == trSuccess && state != trInProgress ? state : result;
}

trResult_t ask_for_place(trComm_t comm, int rank, int ranks) {
  int number = -1;
  if (trResult_t result = trCommRank(comm, &number); result != trSuccess || number != rank)
    return result != trSuccess ? result : trInternalError;
  if (trResult_t result = trCommCount(comm, &number); result != trSuccess || number != ranks)
    return result != trSuccess ? result : trInternalError;
  int parent = -1, children[2];
  std::vector<int> ring(static_cast<size_t>(ranks));
  const trResult_t result = trCommGetRing(comm, ring.data());
  return result != trSuccess ? result : trCommGetTree(comm, 0, &parent, children);
}

// Asks for ever larger calls, so that some are decided anew.
trResult_t ask_for_choice(trComm_t comm, int, int) {
  static std::atomic<uint32_t> turns{0};
  const size_t bytes = size_t{1} << turns.fetch_add(1) % 40;
  trSelection_t selection;
  char text[256];
  double microseconds = 0;
  if (trResult_t result = trGetSelection(comm, trCollAllReduce, nullptr, nullptr, bytes, trFloat32, &selection);
      result != trSuccess)
    return result;
  if (trResult_t result = trPredictTransfer(comm, bytes, &microseconds); result != trSuccess) return result;
  return trExplain(comm, trCollAllReduce, bytes, trFloat32, text, sizeof text, nullptr);
}

trResult_t register_a_buffer(trComm_t comm, int, int) {
  thread_local std::vector<float> buffer(16 << 10);  // with whole pages, which are moved
  void* handle = nullptr;
  if (trResult_t result = trCommRegister(comm, buffer.data(), sizeof(float) * buffer.size(), &handle);
      result != trSuccess)
    return result;
  return trCommDeregister(comm, handle);
}

TEST(Selection, NamesTheTransport) {
  for (const auto& [transports, ranks, expected] : {std::tuple{"", 1, "none"},
                                                    {"", 2, "in-process"},
                                                    {"shared-memory", 2, "shm"},
                                                    {"shm", 2, "shm"},
                                                    {"cma", 3, "cma"},
                                                    {"tcp", 2, "tcp"}}) {
    trConfig_t config = TR_CONFIG_INITIALIZER;
    config.transports = *transports == 0 ? nullptr : transports;
    RankGroup group(ranks, config);
    trSelection_t selection;
    ASSERT_EQ(trGetSelection(group.comm(0), trCollAllReduce, nullptr, nullptr, 1 << 20, trFloat32, &selection),
              trSuccess);
    EXPECT_STREQ(selection.transport, expected);
    std::string text(1 << 16, '\0');
    ASSERT_EQ(trExplain(group.comm(0), trCollAllReduce, 1 << 20, trFloat32, text.data(), text.size(), nullptr),
              trSuccess);
    EXPECT_NE(text.find(std::string("transport between the ranks: ") + expected + "\n"), std::string::npos)
        << text.c_str();
  }
}

class WhileAnotherThreadCalls : public ::testing::TestWithParam<std::tuple<int, Query>> {};

TEST_P(WhileAnotherThreadCalls, NothingFails) {
  const auto [count, query] = GetParam();
  constexpr int kCalls = 20000;
  RankGroup ranks(count);
  std::atomic<int> calling{count}, asking{0};
  std::atomic<long> failed_calls{0}, failed_queries{0}, queries{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      asking.fetch_add(1);
      while (calling.load() != 0) {
        if (query.ask(ranks.comm(rank), rank, count) != trSuccess) failed_queries.fetch_add(1);
        queries.fetch_add(1);
      }
    });
    threads.emplace_back([&, rank] {
      while (asking.load() != count) std::this_thread::yield();
      float value = 1;
      // After a failure the other ranks would wait in vain.
      for (int i = 0; i < kCalls && failed_calls.load() == 0; ++i)
        if (trAllReduce(&value, &value, 1, trFloat32, trMax, ranks.comm(rank), nullptr) != trSuccess) {
          ADD_FAILURE() << "call " << i << " of rank " << rank << ": " << trGetLastError(ranks.comm(rank));
          failed_calls.fetch_add(1);
          (void)trCommRevoke(ranks.comm(rank));
        }
      calling.fetch_sub(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed_calls.load(), 0);
  EXPECT_EQ(failed_queries.load(), 0) << "of " << queries.load();
}

INSTANTIATE_TEST_SUITE_P(
    OfRanks, WhileAnotherThreadCalls,
    ::testing::Combine(::testing::Values(1, 2),
                       ::testing::Values(Query{"State", ask_for_state}, Query{"Place", ask_for_place},
                                         Query{"Choice", ask_for_choice}, Query{"Registration", register_a_buffer})),
    [](const auto& info) {
      return std::string(std::get<1>(info.param).name) + std::to_string(std::get<0>(info.param));
    });

}  // namespace
}  // namespace treering::testing
