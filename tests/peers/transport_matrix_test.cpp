// SPDX-License-Identifier: Apache-2.0
// What all ranks conclude from the reports, from fabricated ones.
#include "peers/transport_matrix.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <memory>
#include <string>

namespace treering::testing {
namespace {

// As the table has them.
constexpr TransportSet kInProcessBit = 1, kSharedMemoryBit = 2, kCmaBit = 4, kVerbsBit = 8, kUcxBit = 16, kTcpBit = 32;
constexpr TransportSet kAll = kInProcessBit | kSharedMemoryBit | kCmaBit | kRegionsBit | kTcpBit;
constexpr TransportSet kNoMemory = kCmaBit | kTcpBit;

struct Ranks {
  // A rank of a host and a process, which reports `local` towards all of its host.
  void add(uint64_t host, uint64_t process, TransportSet local = kAll) {
    RankInfo info{};
    info.rank = static_cast<uint32_t>(infos.size());
    info.location.host = host;
    info.process_token = process;
    infos.push_back(info);
    TransportReport report;
    report.local = local;
    report.remote = local & kTcpBit;
    reports.push_back(report);
  }
  std::string transports() const { return transports_text(TransportMatrix(infos, reports).transports()); }

  std::vector<RankInfo> infos;
  std::vector<TransportReport> reports;
};

// Reaches no peer.
struct Unfit final : Transport {
  explicit Unfit(Status why) : why_(std::move(why)) {}
  Status prove(uint32_t) override { return why_; }
  PeerConnections connect(uint32_t, PairAbilities) override { return {}; }

 private:
  const Status why_;
};

// Why rank 0 does not reach rank 1, in another process of the host.
Status reason_for(std::map<TransportSet, Status> unfit, std::vector<uint32_t>* late = nullptr) {
  Ranks ranks;
  for (uint64_t process : {1, 2}) ranks.add(1, process);
  OpenTransports opened(treering::transports().size());
  for (auto& [bit, why] : unfit) opened[static_cast<size_t>(std::countr_zero(bit))] = std::make_unique<Unfit>(why);
  std::map<uint32_t, Status> reasons;
  const TransportReport report = probe_transports(ranks.infos, 0, opened, &reasons);
  if (late != nullptr) *late = report.late;
  return reasons[1];
}

TEST(Reasons, WhatWasTriedComesBeforeWhatTheSettingExcludes) {
  const Status reason = reason_for({{kVerbsBit, {trSystemError, "there is no device"}}});
  EXPECT_EQ(reason.message(),
            "verbs: there is no device; shared-memory, cma: TREERING_TRANSPORTS or config->transports excludes it");
  EXPECT_EQ(reason.code(), trSystemError);
}

// An outage may be over later: the codes say so to a program that tries again.
TEST(Reasons, WhatANetworkDidNotDoInTimeIsATimeout) {
  EXPECT_EQ(reason_for({{kVerbsBit, {trSystemError, "no device"}}, {kUcxBit, {trTimeout, "not heard"}}}).code(),
            trTimeout);
  std::vector<uint32_t> late;
  EXPECT_EQ(reason_for({{kVerbsBit, {trTimeout, "not heard"}}, {kUcxBit, {trSystemError, "no"}}}, &late).code(),
            trTimeout);
  EXPECT_EQ(late, std::vector<uint32_t>{1}) << "its peer, which may have no reason of its own, is told";
  (void)reason_for({{kVerbsBit, {trSystemError, "no device"}}}, &late);
  EXPECT_TRUE(late.empty());
  Ranks ranks;
  for (uint64_t process : {1, 2, 3}) ranks.add(1, process);
  ranks.reports[1].late = {0};
  const TransportMatrix matrix(ranks.infos, ranks.reports);
  // A setting that excludes others is a reason here also where the transport that is allowed works.
  EXPECT_EQ(join_reasons({trSystemError, "cma: excluded"}, true).first, trTimeout);
  EXPECT_EQ(join_reasons({trSystemError, "cma: excluded"}, true).second.find("the other rank's side could not"), 0u);
  EXPECT_EQ(join_reasons({trTimeout, "not heard"}, false), std::pair(trTimeout, std::string("not heard")));
  EXPECT_EQ(join_reasons({trSystemError, "no device"}, false), std::pair(trSystemError, std::string("no device")));
  EXPECT_EQ(join_reasons({}, false).first, trSystemError);
  EXPECT_TRUE(matrix.is_late(1, 0));
  EXPECT_FALSE(matrix.is_late(1, 2)) << "another pair of that rank";
  EXPECT_FALSE(matrix.is_late(0, 1));
}

TEST(Transports, OneRankHasNone) {
  Ranks ranks;
  ranks.add(1, 1);
  EXPECT_EQ(ranks.transports(), "none");
}

TEST(Transports, OfOneHost) {
  Ranks ranks;
  ranks.add(1, 1);
  ranks.add(1, 1);
  EXPECT_EQ(ranks.transports(), "in-process");
  ranks.add(1, 2);
  EXPECT_EQ(ranks.transports(), "in-process+shm");
  ranks = {};
  ranks.add(1, 1);
  ranks.add(1, 2);
  EXPECT_EQ(ranks.transports(), "shm");
  ranks = {};
  for (uint64_t process : {1, 2, 3}) ranks.add(1, process, kNoMemory);
  EXPECT_EQ(ranks.transports(), "cma");
  ranks = {};
  for (uint64_t process : {1, 2, 3}) ranks.add(1, process, kTcpBit);
  EXPECT_EQ(ranks.transports(), "tcp");
}

// Rank 2 alone on its host: what the others use counts for it, too.
TEST(Transports, OfSeveralHosts) {
  Ranks ranks;
  ranks.add(1, 1);
  ranks.add(1, 2);
  ranks.add(2, 3);
  EXPECT_EQ(ranks.transports(), "shm+tcp");
  ranks = {};
  ranks.add(1, 1);
  ranks.add(2, 2);
  EXPECT_EQ(ranks.transports(), "tcp");
}

TEST(Transports, OfAPairThatHasItsOwn) {
  Ranks ranks;
  for (uint64_t process : {1, 2, 3}) ranks.add(1, process);
  ranks.reports[0].exceptions = {{1, kNoMemory}};
  EXPECT_EQ(ranks.transports(), "shm+cma") << "by ranks 0 and 1";
}

// Rank 0's calls are refused, while the others reach it.
TEST(Transports, OfARankThatReachesFewer) {
  Ranks ranks;
  ranks.add(1, 1, kTcpBit);
  ranks.add(1, 2, kNoMemory);
  ranks.add(1, 3, kNoMemory);
  EXPECT_EQ(ranks.transports(), "cma+tcp");
}

TEST(Transports, TheTableHasThemInThatOrder) {
  EXPECT_EQ(transports_text(kInProcessBit), "in-process");
  EXPECT_EQ(transports_text(kSharedMemoryBit), "shm");
  EXPECT_EQ(transports_text(kCmaBit), "cma");
  EXPECT_EQ(transports_text(kVerbsBit), "verbs");
  EXPECT_EQ(transports_text(kUcxBit), "ucx");
  EXPECT_EQ(transports_text(kTcpBit), "tcp");
}

// Two ranks of different hosts that cannot use a transport do not, and it counts for no others.
TEST(Transports, OfAPairOfDifferentHostsThatHasItsOwn) {
  Ranks ranks;
  for (uint64_t host : {1, 2, 3}) ranks.add(host, host);
  ranks.reports[0].exceptions = {{2, 0}};
  const TransportMatrix matrix(ranks.infos, ranks.reports);
  EXPECT_EQ(matrix.between(0, 2), 0u);
  EXPECT_EQ(matrix.between(2, 0), 0u);
  EXPECT_EQ(matrix.between(0, 1), kTcpBit);
  EXPECT_EQ(matrix.between(1, 2), kTcpBit);
}

TEST(Transports, TheLongestTextFitsTheSelection) { EXPECT_LT(transports_text(kAll & ~kRegionsBit).size(), size_t{32}); }

}  // namespace
}  // namespace treering::testing
