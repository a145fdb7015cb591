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

// One rank of several: what it measures at each attempt, and what the others have measured by then.
struct Ranks {
  std::vector<NetworkMeasurement> own;                     // by attempt
  std::vector<std::vector<NetworkMeasurement>> of_others;  // by attempt
  size_t measured = 0, exchanged = 0;
  std::string told;  // the others, at last
  NetworkOfAll all;

  Status measure() {
    return measure_until_plausible(
        [this](NetworkMeasurement* result) {
          *result = own.at(measured++);
          return Status();
        },
        [this](const std::string& blob, std::vector<std::string>* blobs) {
          told = blob;
          *blobs = {blob};
          for (const NetworkMeasurement& other : of_others.at(exchanged)) blobs->push_back(blob_of(other));
          ++exchanged;
          return Status();
        },
        &all);
  }
};

NetworkMeasurement rate(double gbps, double peak_gbps) {
  NetworkMeasurement result;
  result.gbps = gbps;
  result.peak_gbps = peak_gbps;
  return result;
}

TEST(MeasureUntilPlausible, TakesTheSlowestOfAllRanks) {
  NetworkMeasurement starts = rate(1.1, 1.1), slow = rate(0.5, 0.5), none;
  starts.latency_us = 20;
  starts.message_us = 3;
  slow.message_us = 5;
  Ranks ranks{{starts}, {{none, rate(1.2, 1.2), slow}}};
  ASSERT_TRUE(ranks.measure().ok());
  EXPECT_TRUE(ranks.all.plausible);
  EXPECT_EQ(ranks.all.slowest.gbps, 0.5);
  EXPECT_EQ(ranks.all.slowest.latency_us, 20);
  EXPECT_EQ(ranks.all.slowest.message_us, 5);
  EXPECT_EQ(ranks.measured, 1u);
}

// One disturbed measurement lets all ranks measure again, and each keeps the better of its own.
TEST(MeasureUntilPlausible, RepeatsWhatOneRankSawMostOfInASmallPartOfTheTime) {
  const NetworkMeasurement good = rate(1.1, 1.2), disturbed = rate(0.02, 1.1), worse = rate(0.9, 0.9);
  Ranks ranks{{good, worse}, {{disturbed, good}, {good, good}}};
  ASSERT_TRUE(ranks.measure().ok());
  EXPECT_TRUE(ranks.all.plausible);
  EXPECT_EQ(ranks.measured, 2u);
  EXPECT_EQ(ranks.told, blob_of(good)) << "not the second, which is worse";
  EXPECT_EQ(ranks.all.slowest.gbps, 1.1);
}

TEST(MeasureUntilPlausible, EndsWhereTheMachineStaysBusy) {
  const NetworkMeasurement disturbed = rate(0.02, 1.1);
  Ranks ranks{std::vector<NetworkMeasurement>(20, disturbed), std::vector<std::vector<NetworkMeasurement>>(20)};
  ASSERT_TRUE(ranks.measure().ok());
  EXPECT_FALSE(ranks.all.plausible);
  EXPECT_EQ(ranks.measured, static_cast<size_t>(kMaxNetworkMeasurements));
  EXPECT_EQ(ranks.all.slowest.gbps, 0.02);
}

TEST(MeasureUntilPlausible, EndsWithAnError) {
  NetworkOfAll all;
  const auto fine = [](NetworkMeasurement*) { return Status(); };
  const auto malformed = [](const std::string& own, std::vector<std::string>* blobs) {
    *blobs = {own.substr(1)};
    return Status();
  };
  EXPECT_EQ(measure_until_plausible(fine, malformed, &all).code(), trInternalError);
  const auto broken = [](NetworkMeasurement*) { return Status(trRemoteError, "broken"); };
  EXPECT_EQ(measure_until_plausible(broken, malformed, &all).code(), trRemoteError);
}

}  // namespace
}  // namespace treering::testing
