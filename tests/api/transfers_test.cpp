// SPDX-License-Identifier: Apache-2.0
// Transfers whose two ends mean different sizes: what both ranks are told, and when.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "support/processes.h"
#include "support/texts.h"

namespace treering::testing {
namespace {

// Elements of int32 that rank 0 sends and that rank 1 receives.
struct Sizes {
  const char* name;
  size_t sent, received;
};

class TransfersThatDiffer : public ::testing::TestWithParam<Sizes> {
 protected:
  // What both ranks are told.
  static std::string text() {
    const auto& [name, sent, received] = GetParam();
    return "rank 1 receives from rank 0 " + std::to_string(received * 4) + " bytes" + ", but rank 0 sends it " +
           std::to_string(sent * 4) + " bytes";
  }
  // The exit code is the result of the last call.
  static void expect_told(RankProcesses* ranks) {
    for (int rank : {0, 1}) {
      const RankResult result = ranks->wait(rank, std::chrono::seconds(25));
      EXPECT_EQ(result.exit_code, trInvalidUsage) << "rank " << rank << ": " << result.output;
      EXPECT_NE(without_pids(result.output).find(text()), std::string::npos)
          << "rank " << rank << ": " << result.output;
    }
  }
  static trConfig_t config() {
    trConfig_t config = TR_CONFIG_INITIALIZER;
    config.timeout_ms = 30'000;
    return config;
  }
};

// Small sends have ended before the receiver has looked at them: their next call tells, also one that waits already.
TEST_P(TransfersThatDiffer, AreAnErrorOnBoth) {
  const Sizes sizes = GetParam();
  RankProcesses ranks(2, [sizes](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    const trConfig_t settings = config();
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &settings));
    std::vector<int32_t> buffer(std::max(sizes.sent, sizes.received));
    trResult_t result = rank == 0 ? trSend(buffer.data(), sizes.sent, trInt32, 1, comm, nullptr)
                                  : trRecv(buffer.data(), sizes.received, trInt32, 0, comm, nullptr);
    if (rank == 0 && result == trSuccess) result = trRecv(buffer.data(), 1, trInt32, 1, comm, nullptr);
    say(trGetLastError(comm));
    return static_cast<int>(result);
  });
  expect_told(&ranks);
}

// A sender that only sends, on a stream, to a rank that has failed.
TEST_P(TransfersThatDiffer, EndTheSendersStream) {
  const Sizes sizes = GetParam();
  RankProcesses ranks(2, [sizes](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    trStream_t stream = nullptr;
    const trConfig_t settings = config();
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &settings));
    TR_CHECK(trStreamCreate(&stream));
    std::vector<int32_t> buffer(std::max(sizes.sent, sizes.received));
    trResult_t result = trSuccess, kept = trSuccess;
    if (rank == 1) result = trRecv(buffer.data(), sizes.received, trInt32, 0, comm, nullptr);
    // The news takes a moment; then every call knows.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(15);
    while (rank == 0 && result == trSuccess && std::chrono::steady_clock::now() < until) {
      result = trSend(buffer.data(), sizes.sent, trInt32, 1, comm, stream);
      if (result == trSuccess) result = trStreamSynchronize(stream);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    say(trGetLastError(nullptr));
    TR_CHECK(trCommGetAsyncError(comm, &kept));
    return static_cast<int>(result == kept ? result : trInternalError);
  });
  expect_told(&ranks);
}

INSTANTIATE_TEST_SUITE_P(Sizes, TransfersThatDiffer,
                         ::testing::Values(Sizes{"FewBytesForFewer", 4, 3}, Sizes{"FewBytesForMore", 3, 4},
                                           Sizes{"FewBytesForMany", 3, 1'000'000}, Sizes{"NoneForSome", 0, 5},
                                           Sizes{"PagesForMore", 4'000, 4'001}, Sizes{"ManyForFewBytes", 1'000'000, 3},
                                           Sizes{"ManyForMore", 999'999, 1'000'000},
                                           Sizes{"ManyForFewer", 1'000'000, 999'999}),
                         [](const auto& row) { return std::string(row.param.name); });

// What a message of another call says of its size is not the size of a send.
TEST(Transfers, OfAnotherCallTellWhatIsExpectedAlone) {
  for (const size_t bytes : {size_t{12}, size_t{4'000'000}}) {
    RankProcesses ranks(2, [bytes](int rank, const trUniqueId& id) {
      trComm_t comm = nullptr;
      TR_CHECK(trCommInitRank(&comm, 2, id, rank));
      std::vector<char> buffer(bytes);
      trResult_t result = rank == 0 ? trBroadcast(buffer.data(), buffer.data(), bytes, trInt8, 0, comm, nullptr)
                                    : trRecv(buffer.data(), bytes, trInt8, 0, comm, nullptr);
      if (result == trSuccess) result = trBarrier(comm, nullptr);
      say(trGetLastError(comm));
      return static_cast<int>(result);
    });
    for (const RankResult& result : ranks.wait_all(std::chrono::seconds(25))) {
      EXPECT_EQ(result.exit_code, trInvalidUsage) << result.output;
      const std::string text =
          "rank 1 receives from rank 0 " + std::to_string(bytes) + " bytes that rank 0 does not send";
      EXPECT_NE(without_pids(result.output).find(text), std::string::npos) << result.output;
    }
  }
}

TEST(Transfers, CountsForOneAnotherThatDifferAreNamed) {
  for (const size_t count : {size_t{5}, size_t{300'000}}) {
    RankProcesses ranks(2, [count](int rank, const trUniqueId& id) {
      trComm_t comm = nullptr;
      TR_CHECK(trCommInitRank(&comm, 2, id, rank));
      std::vector<int32_t> in(4 * count), out(4 * count);
      // Rank 1 is to get one element less than rank 0 has for it.
      const size_t one[] = {1, rank == 0 ? count : 1}, other[] = {rank == 0 ? 1 : count - 1, 1};
      const trResult_t result =
          trAllToAllV(in.data(), one, nullptr, out.data(), other, nullptr, trInt32, comm, nullptr);
      say(trGetLastError(comm));
      return static_cast<int>(result == trSuccess ? trBarrier(comm, nullptr) : result);
    });
    const std::string text = "rank 1 receives from rank 0 " + std::to_string((count - 1) * 4) +
                             " bytes, but rank 0 sends it " + std::to_string(count * 4) + " bytes";
    const RankResult told = ranks.wait(1, std::chrono::seconds(25)), sender = ranks.wait(0, std::chrono::seconds(25));
    EXPECT_EQ(told.exit_code, trInvalidUsage) << told.output;
    EXPECT_EQ(sender.exit_code, trInvalidUsage) << sender.output;
    EXPECT_NE(without_pids(told.output).find(text), std::string::npos) << told.output;
  }
}

}  // namespace
}  // namespace treering::testing
