// SPDX-License-Identifier: Apache-2.0
// How messages are striped across streams of different rates: a simulation of two queues, and sockets that are paced.
#include "support/seed.h"
#include "transport/linked.h"
#include "transport/tcp/stripes.h"

#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <deque>
#include <iostream>
#include <map>
#include <numeric>
#include <random>

#include "transport/tcp/testing.h"

namespace treering {
namespace {
constexpr uint32_t kMessage = 256 << 10, kFragment = 128 << 10;

// Streams that carry what they were given in its order, and tell about each message after `delay_us`. At most `window`
// messages are under way.
class Streams {
 public:
  Streams(std::vector<double> bytes_per_us, double delay_us, uint32_t window, double noise_us = 0)
      : scheduler(static_cast<uint32_t>(bytes_per_us.size())),
        rates_(std::move(bytes_per_us)),
        free_(rates_.size()),
        delay_us_(delay_us),
        window_(window),
        noise_(-noise_us, noise_us) {
    for (uint32_t stream = 1; stream <= rates_.size(); ++stream) scheduler.open(stream);
  }

  // us for so many messages; `wait`: until they are through.
  double send(uint32_t messages, bool wait = true) {
    const double start = now_;
    for (uint32_t i = 0; i < messages; ++i) {
      if (done_.size() == window_) {
        now_ = std::max(now_, done_.front());
        done_.pop_front();
      }
      while (!told_.empty() && told_.begin()->first <= now_) {
        const auto& [skew, begin] = told_.begin()->second;
        EXPECT_TRUE(scheduler.learn(skew, begin, begin + kMessage));
        told_.erase(told_.begin());
      }
      post(i);
    }
    for (; wait && !done_.empty(); done_.pop_front()) now_ = std::max(now_, done_.front());
    return now_ - start;
  }

  void set_rate(uint32_t stream, double bytes_per_us) { rates_[stream - 1] = bytes_per_us; }
  // Messages that all streams were through with at the same time would take so long.
  double best(uint32_t messages) const {
    return messages * (kMessage / std::accumulate(rates_.begin(), rates_.end(), 0.0));
  }

  StripeScheduler scheduler;

 private:
  void post(uint32_t number) {
    const uint64_t begin = scheduler.given();
    std::vector<double> begun(rates_.size(), -1), ended(rates_.size(), -1), bytes(rates_.size(), 0);
    for (uint32_t given = 0; given < kMessage;) {
      const uint32_t stream = scheduler.next(kMessage, [](uint32_t) { return true; });
      const uint32_t fragment = scheduler.fragment_bytes(stream, kMessage, kMessage - given, kFragment);
      scheduler.gave(stream, kMessage, fragment);
      given += fragment;
      const uint32_t at = stream - 1;
      free_[at] = std::max(free_[at], now_);
      if (begun[at] < 0) begun[at] = free_[at];
      bytes[at] += fragment;
      ended[at] = free_[at] += fragment / rates_[at];
    }
    ArrivalSkew skew{.message = number};
    double first = 1e30, last = -1;
    for (uint32_t at = 0; at < rates_.size(); ++at) {
      if (bytes[at] == 0) continue;
      const double seen = std::max(begun[at], ended[at] + noise_(random_));
      if (seen < first) first = seen, skew.early = static_cast<uint8_t>(at + 1);
      if (seen > last) last = seen, skew.late = static_cast<uint8_t>(at + 1);
    }
    done_.push_back(*std::max_element(ended.begin(), ended.end()));
    if (skew.early == skew.late) return;
    const uint32_t at = skew.late - 1;
    skew.left = static_cast<uint32_t>(bytes[at] * std::min(1.0, (last - first) / std::max(1.0, last - begun[at])));
    told_.emplace(done_.back() + delay_us_, std::pair(skew, begin));
  }

  std::vector<double> rates_, free_;
  double delay_us_, now_ = 0;
  uint32_t window_;
  std::deque<double> done_;
  std::multimap<double, std::pair<ArrivalSkew, uint64_t>> told_;
  std::mt19937 random_{test_seed(7)};
  std::uniform_real_distribution<double> noise_;
};

// One message at a time, and many under way with news that are late by as many.
TEST(StripeScheduler, StreamsOfDifferentRatesAreThroughTogether) {
  for (const auto& rates : {std::vector<double>{125, 31}, {31, 125}, {125, 125}, {125, 125, 125, 31}, {125, 62, 31}})
    for (const auto& [delay_us, window] : {std::pair{0.0, 1u}, {100.0, 1u}, {2000.0, 2u}, {10'000.0, 8u}}) {
      SCOPED_TRACE(::testing::PrintToString(rates) + ", news after " + std::to_string(delay_us) + " us, " +
                   std::to_string(window) + " messages");
      Streams streams(rates, delay_us, window);
      streams.send(200);
      EXPECT_LT(streams.send(200), streams.best(200) / 0.85);
    }
}

// News are late and what is behind adds up, so that too large steps make the parts swing for ever.
TEST(StripeScheduler, PartsDoNotSwing) {
  for (const auto& [delay_us, window] : {std::pair{2000.0, 2u}, {10'000.0, 8u}}) {
    SCOPED_TRACE("news after " + std::to_string(delay_us) + " us, " + std::to_string(window) + " messages");
    Streams streams({125, 31.25}, delay_us, window, /*noise_us=*/50);
    streams.send(3000);
    double least = 2, most = 0;
    for (int i = 0; i < 50; ++i) {
      streams.send(16, /*wait=*/false);
      least = std::min(least, streams.scheduler.weight(1));
      most = std::max(most, streams.scheduler.weight(1));
    }
    EXPECT_NEAR((least + most) / 2, 1.6, 0.04);
    EXPECT_LT(most - least, 0.06);
  }
}

// As a management network beside one for data: little is lost against the fast stream alone, and it is found when it
// becomes fast.
TEST(StripeScheduler, AVerySlowStreamCostsLittle) {
  for (const auto& [delay_us, window] : {std::pair{100.0, 1u}, {2000.0, 2u}, {10'000.0, 8u}}) {
    SCOPED_TRACE("news after " + std::to_string(delay_us) + " us, " + std::to_string(window) + " messages");
    Streams streams({1250, 12}, delay_us, window);
    streams.send(5000);
    EXPECT_LT(streams.send(1000), 1000 * (kMessage / 1250.0) / 0.75);
    streams.set_rate(2, 1250);
    streams.send(20'000);
    EXPECT_LT(streams.send(1000), streams.best(1000) / 0.75);
  }
}

TEST(StripeScheduler, EqualStreamsStayEqualBesideNoise) {
  for (const auto& [delay_us, window] : {std::pair{100.0, 1u}, {10'000.0, 8u}}) {
    Streams streams({125, 125}, delay_us, window, /*noise_us=*/200);
    EXPECT_LT(streams.send(1000), streams.best(1000) / 0.90);
    EXPECT_NEAR(streams.scheduler.weight(1), 1, 0.35);
  }
}

TEST(StripeScheduler, FollowsAStreamThatBecomesSlowAndFastAgain) {
  Streams streams({125, 125}, 1000, 2);
  streams.send(100);
  for (const double rate : {15.0, 125.0}) {
    streams.set_rate(2, rate);
    streams.send(300);
    EXPECT_LT(streams.send(200), streams.best(200) / 0.9) << rate;
  }
}

// Each gets one fragment, unless that were too long, and a stream that others leave alone gets no smaller ones.
TEST(StripeScheduler, FragmentsAreWholeParts) {
  constexpr uint32_t kLong = 1 << 20;
  StripeScheduler scheduler(2);
  for (uint32_t stream : {1u, 2u}) scheduler.open(stream);
  for (uint32_t left = kMessage, expected = kMessage / 2; left > 0;) {
    const uint32_t stream = scheduler.next(kMessage, [](uint32_t) { return true; });
    const uint32_t fragment = scheduler.fragment_bytes(stream, kMessage, left, kLong);
    EXPECT_NEAR(fragment, expected, 1) << "stream " << stream;
    scheduler.gave(stream, kMessage, fragment);
    left -= fragment;
  }
  for (int i = 0; i < 100; ++i) {  // stream 2 has no room
    const uint32_t fragment = scheduler.fragment_bytes(1, kMessage, kMessage, kLong);
    EXPECT_GE(fragment, kMessage / 8);
    scheduler.gave(1, kMessage, fragment);
  }
}

// A stream that takes nothing holds no other up, and does not get all that it missed.
TEST(StripeScheduler, AStreamWithoutRoomIsLeftOut) {
  StripeScheduler scheduler(2);
  const auto room = [](uint32_t) { return true; };
  EXPECT_EQ(scheduler.next(kMessage, room), 0u) << "none is open";
  scheduler.open(1);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(scheduler.next(kMessage, room), 1u);
    scheduler.gave(1, kMessage, kFragment);
  }
  scheduler.open(2);
  EXPECT_EQ(scheduler.next(kMessage, room), 1u) << "what was sent before it came is not its debt";
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(scheduler.next(kMessage, [](uint32_t stream) { return stream == 1; }), 1u);
    scheduler.gave(1, kMessage, kFragment);
  }
  int in_a_row = 0;
  for (; scheduler.next(kMessage, room) == 2; ++in_a_row) scheduler.gave(2, kMessage, kFragment);
  EXPECT_GE(in_a_row, 1);
  EXPECT_LE(in_a_row, 8);
  scheduler.close(2);
  EXPECT_EQ(scheduler.next(kMessage, room), 1u);
}

// A whole message on a slow stream would hold up its channel.
TEST(StripeScheduler, SmallMessagesGoWholeToFastStreams) {
  constexpr uint32_t kWhole = 30 << 10;
  StripeScheduler scheduler(3);
  for (uint32_t stream : {1u, 2u, 3u}) scheduler.open(stream);
  for (int lesson = 0; lesson < 50; ++lesson) {
    const uint64_t begin = scheduler.given();
    for (uint32_t stream : {1u, 2u, 3u}) scheduler.gave(stream, kMessage, kMessage / 3);
    EXPECT_TRUE(scheduler.learn({.late = 2, .early = lesson % 2 == 0 ? uint8_t{1} : uint8_t{3}, .left = kMessage},
                                begin, scheduler.given()));
  }
  ASSERT_LT(scheduler.weight(2), 0.1);
  const uint64_t striped = scheduler.given();
  std::map<uint32_t, int> taken;
  for (int i = 0; i < 100; ++i) {
    const uint32_t stream = scheduler.next(kWhole, [](uint32_t) { return true; });
    ++taken[stream];
    EXPECT_EQ(scheduler.fragment_bytes(stream, kWhole, kWhole, kFragment), kWhole) << "not cut";
    scheduler.gave(stream, kWhole, kWhole);
  }
  EXPECT_EQ(taken.count(2), 0u);
  EXPECT_GT(taken[1], 25);
  EXPECT_GT(taken[3], 25);
  EXPECT_EQ(scheduler.given(), striped) << "nothing is learned from them";
}

TEST(StripeScheduler, RefusesStreamsThatAreNotThere) {
  StripeScheduler scheduler(2);
  for (uint32_t stream : {1u, 2u}) scheduler.open(stream), scheduler.gave(stream, kMessage, kFragment);
  EXPECT_TRUE(scheduler.learn({}, 0, kMessage)) << "nothing to tell";
  for (const auto& [late, early] : {std::pair<uint8_t, uint8_t>{3, 1}, {1, 3}, {1, 0}, {1, 1}})
    EXPECT_FALSE(scheduler.learn({.late = late, .early = early, .left = 1}, 0, kMessage))
        << int{late} << ", " << int{early};
  EXPECT_DOUBLE_EQ(scheduler.weight(1), 1);
  EXPECT_TRUE(scheduler.learn({.late = 1, .early = 2, .left = UINT32_MAX}, 0, kMessage)) << "as much as the message";
  EXPECT_GE(scheduler.weight(1), 0.25);
  EXPECT_TRUE(scheduler.learn({.late = 1, .early = 2, .left = 1000}, 0, kMessage)) << "learned from already";
}

uint64_t bytes_sent(int socket) {
  tcp_info info{};
  socklen_t length = sizeof info;
  EXPECT_EQ(getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  return info.tcpi_bytes_sent;
}

// Two streams of a link, the kernel lets one have a quarter of the other's rate.
TEST(StripeScheduler, ASlowStreamGetsLess) {
  constexpr uint32_t kFast = 64'000'000, kSlow = 16'000'000, kMessages = 200;
  TcpPair pair(2);
  int sockets[2];
  for (const auto& [stream, rate] : {std::pair{1u, kFast}, {2u, kSlow}}) {
    ASSERT_EQ(setsockopt(pair.sending_socket(0, stream), SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate), 0);
    sockets[stream - 1] = dup(pair.sending_socket(0, stream));
  }
  auto from = linked(pair.link(0, options_to(1)), 0), to = linked(pair.link(1, options_to(0)), 0);
  const auto data = pattern(5, kMessage);
  std::chrono::steady_clock::time_point begin;
  uint64_t before[2] = {};
  uint32_t posted = 0;
  for (uint32_t popped = 0; popped < kMessages;) {
    if (popped == kMessages / 2 && begin == decltype(begin)()) {
      begin = std::chrono::steady_clock::now();
      for (int i : {0, 1}) before[i] = bytes_sent(sockets[i]);
    }
    if (posted < kMessages && posted < popped + 2 && from->can_post()) from->post(user_message(posted++, data));
    (void)from.flushed();
    ASSERT_TRUE(from->health().ok()) << from->health().message();
    const Message* message = to->front();
    ASSERT_TRUE(to->health().ok()) << to->health().message();
    if (message == nullptr) continue;
    ASSERT_EQ(message->signature, popped);
    if (popped < kMessages / 2) {
      ASSERT_TRUE(same_bytes(payload_of(to.get(), *message), data));
    }
    to->pop();
    ++popped;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double ratio =
      static_cast<double>(bytes_sent(sockets[0]) - before[0]) / static_cast<double>(bytes_sent(sockets[1]) - before[1]);
  std::cout << kMessages / 2 * (kMessage / seconds) / (kFast + kSlow) << " of both rates, " << ratio
            << " times as much on the fast one\n";
  EXPECT_GT(ratio, 2) << "4 is what they can carry";
  EXPECT_LT(ratio, 8);
  for (int socket : sockets) close(socket);
}

}  // namespace
}  // namespace treering
