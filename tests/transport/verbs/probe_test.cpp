// SPDX-License-Identifier: Apache-2.0
// Whether ports reach each other, over the stand-in for libibverbs.
#include "transport/verbs/probe.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "support/fake_verbs/fake_verbs.h"

namespace treering::verbs {
namespace {

constexpr auto kEnough = std::chrono::seconds(20);

class VerbsProbe : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(fake_verbs_reset(), 0); }
  void TearDown() override {
    ranks_.clear();
    char left[256] = "";
    EXPECT_EQ(fake_verbs_left_over(left, sizeof left), 0) << left;
  }

  struct Rank {
    std::unique_ptr<Device> device;
    std::unique_ptr<Probe> probe;
  };
  void open(uint32_t ranks) {
    ranks_.resize(ranks);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      Config config;
      config.verbs_devices = rank % 2 == 0 ? "fake0" : "fake1";
      ASSERT_TRUE(Device::open(config, &ranks_[rank].device).ok());
      ASSERT_TRUE(Probe::open(*ranks_[rank].device, rank, &ranks_[rank].probe).ok());
    }
    for (uint32_t rank = 0; rank < ranks; ++rank)
      for (uint32_t peer = 0; peer < ranks; ++peer)
        if (peer != rank)
          ranks_[rank].probe->set_peer(peer, ranks_[peer].device->rail(), ranks_[peer].probe->address());
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

TEST_F(VerbsProbe, LostDatagramsAreRepeated) {
  fake_verbs_limits limits{};
  fake_verbs_get_limits(&limits);
  limits.datagram_loss = 200;  // of 1000
  fake_verbs_set_limits(&limits);
  open(2);
  // Both try at the same time, so that neither stops before the other has heard it, but with the chance of 0.2^4.
  int good = 0;
  for (int time = 0; time < 3; ++time) good += static_cast<int>(reach_all(std::chrono::seconds(2))[0].ok());
  EXPECT_GT(good, 0);
  fake_verbs_counters counters{};
  fake_verbs_get_counters(&counters);
  EXPECT_GT(counters.sends_posted[IBV_WR_SEND], 2u);
}

TEST_F(VerbsProbe, AnAddressThatIsNotReachedIsNamed) {
  open(2);
  Rail elsewhere = ranks_[1].device->rail();
  elsewhere.gid[15] = 99;  // nobody's
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
