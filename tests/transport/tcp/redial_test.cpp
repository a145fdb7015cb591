// SPDX-License-Identifier: Apache-2.0
// When a stream is taken for dead, and when it is asked for again, at made-up times.
#include <gtest/gtest.h>

#include <algorithm>

#include "transport/tcp/resume.h"

namespace treering {
namespace {

using std::chrono::milliseconds;

TEST(TcpTimeouts, AStreamIsTakenForDeadWithinSecondsHoweverLongTheDeadline) {
  EXPECT_EQ(TcpTimeouts(milliseconds(300'000)).stall, milliseconds(2500));
  EXPECT_EQ(TcpTimeouts(milliseconds(0)).stall, milliseconds(2500)) << "without a deadline";
  EXPECT_EQ(TcpTimeouts(milliseconds(6000)).stall, milliseconds(1500));
  EXPECT_EQ(TcpTimeouts(milliseconds(1000)).stall, milliseconds(1000)) << "the kernel sends again only after a while";
}

TEST(TcpStall, IsNoAcknowledgementAndNoAnswerForLong) {
  const milliseconds timeout(1000);
  const auto begin = TcpClock::now();
  const auto at = [&](int ms) { return begin + milliseconds(ms); };
  TcpStall stall;
  EXPECT_FALSE(stall.look({true, 10, milliseconds(5000)}, at(0), timeout)) << "the first look";
  EXPECT_FALSE(stall.look({true, 10, milliseconds(5900)}, at(900), timeout));
  EXPECT_TRUE(stall.look({true, 10, milliseconds(6000)}, at(1000), timeout));
  EXPECT_EQ(stall.since(), at(0));
  EXPECT_FALSE(stall.look({true, 10, milliseconds(100)}, at(1100), timeout)) << "it answers: it has no room";
  EXPECT_FALSE(stall.look({true, 11, milliseconds(100)}, at(1200), timeout));
  EXPECT_FALSE(stall.look({false, 11, milliseconds(9000)}, at(9200), timeout)) << "nothing is under way";
  EXPECT_FALSE(stall.look({true, 11, milliseconds(9100)}, at(9300), timeout)) << "since now";
}

TEST(TcpTimeouts, ARankThatLeavesWaitsUntilAnotherNetworkHasBeenTried) {
  for (int deadline : {0, 1000, 4000, 20'000, 300'000}) {
    const TcpTimeouts timeouts{milliseconds(deadline)};
    EXPECT_TRUE(timeouts.leave > timeouts.stall || deadline == 1000) << deadline;
    EXPECT_LE(timeouts.leave, milliseconds(3500)) << deadline;
    EXPECT_TRUE(deadline == 0 || timeouts.leave <= milliseconds(deadline)) << deadline;
  }
}

TEST(TcpDeparture, IsAtOnceWhereAllHasArrivedAndOtherwiseOnceThePeerAnswers) {
  TcpDeparture departure;
  EXPECT_FALSE(departure.has_begun());
  const auto at = [](int ms) { return TcpClock::time_point(milliseconds(ms)); };
  departure.begin(at(5000));
  EXPECT_TRUE(departure.has_begun());
  const auto timeout = milliseconds(3000);
  EXPECT_TRUE(departure.is_over({true, milliseconds(9000)}, at(5000), timeout));
  EXPECT_FALSE(departure.is_over({false, milliseconds(0)}, at(5199), timeout)) << "it may arrive in a moment";
  EXPECT_TRUE(departure.is_over({false, milliseconds(0)}, at(5200), timeout)) << "the kernels do the rest";
  EXPECT_FALSE(departure.is_over({false, milliseconds(350)}, at(5500), timeout)) << "not since it was sent";
  EXPECT_TRUE(departure.is_over({false, milliseconds(300)}, at(5500), timeout));
  EXPECT_FALSE(departure.is_over({false, TcpClock::duration::max()}, at(7999), timeout))
      << "something waits for a stream";
  EXPECT_TRUE(departure.is_over({false, TcpClock::duration::max()}, at(8000), timeout));
}

TEST(TcpRedial, IsAwayFromTheMomentWhenNothingPassedAnyMore) {
  TcpRedial redial;
  const auto begin = TcpClock::now(), never = TcpClock::time_point();
  const auto at = [&](int ms) { return begin + milliseconds(ms); };
  EXPECT_EQ(redial.away_since(), never);
  redial.ask(at(100));
  redial.failed(at(2100), "no answer");
  redial.ask(at(2200));
  EXPECT_EQ(redial.away_since(), at(100)) << "since it was first wanted";
  redial.opened(at(2300));
  EXPECT_EQ(redial.away_since(), never);
  redial.lost(at(9000), "not acknowledged", at(8000));
  redial.ask(at(9000));
  EXPECT_EQ(redial.away_since(), at(8000)) << "it was of no use before it was given up";
  redial.rest();
  EXPECT_EQ(redial.away_since(), never);
  redial.lost(at(9500), "reset");
  EXPECT_EQ(redial.away_since(), at(9500));
}

TEST(TcpRedial, PausesGrowAndTheTimeCountsFromTheFirstAttempt) {
  TcpRedial redial;
  const auto begin = TcpClock::now();
  const auto at = [&](int ms) { return begin + milliseconds(ms); };
  EXPECT_TRUE(redial.should_ask(at(0)));
  redial.ask(at(0));
  EXPECT_FALSE(redial.should_ask(at(0))) << "asked once";
  redial.opened(at(1));
  redial.lost(at(5000), "reset");
  EXPECT_TRUE(redial.should_ask(at(5000))) << "it worked for long";
  milliseconds pause(0);
  int now = 6000;
  for (int i = 0; i < 12; ++i) {
    redial.ask(at(now));
    redial.failed(at(now), "no answer");
    int waited = 0;
    while (!redial.should_ask(at(now + waited))) ++waited;
    EXPECT_GE(milliseconds(waited), std::min(pause, TcpRedial::kLongestPause));
    EXPECT_LE(milliseconds(waited), TcpRedial::kLongestPause);
    pause = milliseconds(waited);
    now += waited;
  }
  EXPECT_EQ(pause, TcpRedial::kLongestPause);
  EXPECT_FALSE(redial.over(at(6999), milliseconds(1000)));
  EXPECT_TRUE(redial.over(at(7000), milliseconds(1000)));
  EXPECT_FALSE(redial.over(at(7000), milliseconds(1000), at(6900))) << "the peer was heard";
  EXPECT_TRUE(redial.over(at(7900), milliseconds(1000), at(6900)));
  EXPECT_FALSE(redial.over(at(1'000'000), milliseconds(0))) << "no deadline";
  EXPECT_NE(redial.story(at(8000)).find("reset"), std::string::npos);
  EXPECT_NE(redial.story(at(8000)).find("2.0 s, in 12 attempts: no answer"), std::string::npos)
      << redial.story(at(8000));
}

}  // namespace
}  // namespace treering
