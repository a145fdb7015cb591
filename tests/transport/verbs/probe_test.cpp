// SPDX-License-Identifier: Apache-2.0
// Whether ports reach each other, over the stand-in for libibverbs.
#include "transport/verbs/devices/probe.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "support/fake_verbs/fake_verbs.h"
#include "support/seed.h"
#include "support/waiting.h"

namespace treering::verbs {
namespace {

using treering::testing::eventually;

constexpr auto kEnough = std::chrono::seconds(20);

class VerbsProbe : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(fake_verbs_reset(), 0);
    fake_verbs_set_seed(test_seed());
  }
  void TearDown() override {
    ranks_.clear();
    char left[256] = "";
    EXPECT_EQ(fake_verbs_left_over(left, sizeof left), 0) << left;
  }

  struct Rank {
    Devices devices;
    std::unique_ptr<Probe> probe;
  };
  void open(uint32_t ranks) {
    ranks_.resize(ranks);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      Config config;
      config.verbs_devices = rank % 2 == 0 ? "fake0" : "fake1";
      std::vector<std::string> rejected;
      ASSERT_TRUE(open_devices(config, nullptr, &ranks_[rank].devices, &rejected).ok());
      ASSERT_TRUE(Probe::open(*ranks_[rank].devices[0], rank, {}, &ranks_[rank].probe).ok());
    }
    for (uint32_t rank = 0; rank < ranks; ++rank)
      for (uint32_t peer = 0; peer < ranks; ++peer)
        if (peer != rank)
          ranks_[rank].probe->set_peer(peer, ranks_[peer].devices[0]->rail(), ranks_[peer].probe->address());
  }
  // Each rank tries all others, one after the other; the first error of each.
  std::vector<Status> reach_all(Clock::duration limit) {
    std::vector<Status> errors(ranks_.size());
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
      threads.emplace_back([&, rank] {
        for (uint32_t step = 1; step < ranks_.size() && errors[rank].ok(); ++step)
          errors[rank] = ranks_[rank].probe->reach((rank + step) % ranks_.size(), Clock::now() + limit);
      });
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

  std::vector<Rank> ranks_;
};

TEST_F(VerbsProbe, RanksReachEachOther) {
  open(5);
  for (const Status& error : reach_all(kEnough)) EXPECT_TRUE(error.ok()) << error.message();
}

void lose_datagrams(uint32_t of_thousand) {
  fake_verbs_limits limits{};
  fake_verbs_get_limits(&limits);
  limits.datagram_loss = of_thousand;
  fake_verbs_set_limits(&limits);
}

TEST_F(VerbsProbe, LostDatagramsAreRepeated) {
  open(2);
  lose_datagrams(1000);
  std::thread mend([] {
    fake_verbs_counters counters{};
    eventually([&] { return fake_verbs_get_counters(&counters), counters.datagrams_dropped >= 4; });
    lose_datagrams(0);
  });
  for (const Status& error : reach_all(kEnough)) EXPECT_TRUE(error.ok()) << error.message();
  mend.join();
}

TEST_F(VerbsProbe, AFailedDatagramEndsAllProofs) {
  open(3);
  fake_verbs_fail_completion(ranks_[0].probe->address().queue_pair, FAKE_VERBS_SEND_QUEUE, 1, IBV_WC_LOC_QP_OP_ERR);
  const auto deadline = Clock::now() + kEnough;
  for (uint32_t peer : {1u, 2u}) EXPECT_FALSE(ranks_[0].probe->reach(peer, deadline).ok());
  EXPECT_LT(Clock::now(), deadline);
}

TEST_F(VerbsProbe, AnAddressThatIsNotReachedIsNamed) {
  open(2);
  Rail elsewhere = ranks_[1].devices[0]->rail();
  elsewhere.gid[15] = 99;  // no port's
  ranks_[0].probe->set_peer(1, elsewhere, ranks_[1].probe->address());
  ranks_[1].probe->set_peer(0, elsewhere, ranks_[0].probe->address());
  for (const Status& error : reach_all(std::chrono::milliseconds(100))) {
    EXPECT_FALSE(error.ok());
    for (const char* part : {"fake1 port 1", "10.98.1.99", "UDP port 4791"})
      EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace treering::verbs
