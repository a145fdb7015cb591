// SPDX-License-Identifier: Apache-2.0
// The measurement of the network, over links whose sockets take less than is posted.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "peers/measure.h"

namespace treering::testing {
namespace {

// One direction of a link: what the kernel has, and what waits in the sender's process until flush() sends it on.
struct Direction {
  std::mutex mutex;
  std::deque<Message> held, arrived;
  uint64_t handed_over = 0, popped = 0;
};

// A link whose kernel takes nothing at the time of a post: every message is held until flush() is called.
class HoldingConnection final : public Connection {
 public:
  HoldingConnection(Direction* out, Direction* in) : out_(out), in_(in) {}

  bool can_post() override {
    std::lock_guard lock(out_->mutex);
    return posted_ - out_->popped < kFifoDepth;
  }
  void post(const Message& message) override {
    std::lock_guard lock(out_->mutex);
    out_->held.push_back(message);
    ++posted_;
  }
  uint64_t released() override {
    std::lock_guard lock(out_->mutex);
    return released_ = out_->handed_over;
  }
  const Message* front() override {
    std::lock_guard lock(in_->mutex);
    return in_->arrived.empty() ? nullptr : &in_->arrived.front();
  }
  void pop() override {
    std::lock_guard lock(in_->mutex);
    in_->arrived.pop_front();
    ++in_->popped;
  }
  bool flush() {
    std::lock_guard lock(out_->mutex);
    for (; !out_->held.empty(); out_->held.pop_front(), ++out_->handed_over)
      out_->arrived.push_back(out_->held.front());
    return true;
  }
  Status fetch(const Message&, size_t, void*, size_t) override { return {trInternalError, "not used"}; }
  std::optional<UserAddress> reference(const UserMemory&) const override { return {}; }
  const char* transport_name() const override { return "holding"; }

 private:
  Direction *out_, *in_;
};

// Every rank ends its part with messages in its own process and waits for the previous one's: a ring of ranks that each
// hold what the next one waits for.
TEST(MeasureNetwork, EndsWhereSocketsTakeLessThanIsPosted) {
  constexpr size_t kHosts = 3;
  std::array<Direction, kHosts> forwards, backwards;  // [i]: between host i and the next
  std::array<Status, kHosts> statuses;
  std::array<NetworkMeasurement, kHosts> measured;
  std::vector<std::thread> hosts;
  for (size_t i = 0; i < kHosts; ++i)
    hosts.emplace_back([&, i] {
      const size_t before = (i + kHosts - 1) % kHosts;
      HoldingConnection next(&forwards[i], &backwards[i]), previous(&backwards[before], &forwards[before]);
      Connection* failed = nullptr;
      statuses[i] = measure_network(
          &next, &previous, i == 0, kHosts, 1 << 16, std::chrono::steady_clock::now() + std::chrono::seconds(20),
          [&] {
            const bool sent = next.flush();
            return previous.flush() && sent;
          },
          [](const Connection*) { return Status(); }, &measured[i], &failed);
    });
  for (std::thread& host : hosts) host.join();
  for (size_t i = 0; i < kHosts; ++i) {
    EXPECT_TRUE(statuses[i].ok()) << "host " << i << ": " << statuses[i].message();
    EXPECT_GT(measured[i].gbps, 0) << "host " << i;
  }
}

// 0.16 Gbit/s on a link of 9.4, on a loaded machine: parts of it went at the link's rate.
TEST(NetworkMeasurement, ThatSawMoreOfTheMachineThanOfTheNetworkIsRepeated) {
  NetworkMeasurement disturbed;
  disturbed.gbps = 0.02;
  disturbed.peak_gbps = 1.1;
  EXPECT_FALSE(disturbed.is_plausible());
  NetworkMeasurement good;
  good.gbps = 1.0;
  good.peak_gbps = 1.2;
  good.latency_us = 20;
  EXPECT_TRUE(good.is_plausible());
  EXPECT_TRUE(NetworkMeasurement().is_plausible()) << "a rank that measures nothing";
  disturbed.latency_us = 15;
  disturbed.take_better(good);
  EXPECT_TRUE(disturbed.is_plausible());
  EXPECT_EQ(disturbed.gbps, 1.0);
  EXPECT_EQ(disturbed.latency_us, 15) << "the least time counts, whichever measurement saw it";
}

std::string blob_of(const NetworkMeasurement& measured) {
  return std::string(reinterpret_cast<const char*>(&measured), sizeof measured);
}

// All ranks combine the same blobs: one disturbed measurement makes all of them measure again, and it is the slowest
// that counts.
TEST(NetworkMeasurement, OfAllRanksIsTheSlowestAndPlausibleIfEachIs) {
  NetworkMeasurement starts, fast, slow, none;
  starts.latency_us = 20;
  starts.gbps = starts.peak_gbps = 1.1;
  starts.message_us = 3;
  fast.gbps = fast.peak_gbps = 1.2;
  slow.gbps = slow.peak_gbps = 0.5;
  slow.message_us = 5;
  NetworkMeasurement all;
  bool plausible = false;
  ASSERT_TRUE(
      combine_measurements({blob_of(starts), blob_of(none), blob_of(fast), blob_of(slow)}, &all, &plausible).ok());
  EXPECT_TRUE(plausible);
  EXPECT_EQ(all.gbps, 0.5);
  EXPECT_EQ(all.latency_us, 20);
  EXPECT_EQ(all.message_us, 5);

  slow.peak_gbps = 2;
  all = {};
  ASSERT_TRUE(combine_measurements({blob_of(starts), blob_of(slow), blob_of(fast)}, &all, &plausible).ok());
  EXPECT_FALSE(plausible) << "one rank saw most of the rate in a small part of the time";
  EXPECT_EQ(combine_measurements({blob_of(starts).substr(1)}, &all, &plausible).code(), trInternalError);
}

}  // namespace
}  // namespace treering::testing
