// SPDX-License-Identifier: Apache-2.0
// What a rank says of itself when it comes to the rendezvous.
#include "bootstrap/job/rendezvous.h"

#include <gtest/gtest.h>

namespace treering {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Clock::time_point kNow = Clock::time_point() + seconds(100);
constexpr uint64_t kNonce = 5;

Place own_place() {
  Place own;
  own.process = 3;
  own.pid = 1003;
  return own;
}

TEST(Rendezvous, TheHelloHasTheRanksRequest) {
  JoinRequest request{2, 4, 30'000, 1 << 16, 1 << 12, "timeout=x\n"};
  const HelloMessage hello = make_hello(request, own_place(), kNonce, kNow);
  EXPECT_EQ(hello.process, 3u);
  EXPECT_EQ(hello.rank, 2u);
  EXPECT_EQ(hello.ranks, 4u);
  EXPECT_EQ(hello.pid, 1003u);
  EXPECT_EQ(hello.nonce, kNonce);
  EXPECT_EQ(hello.timeout_ms, 30'000);
  EXPECT_EQ(hello.segment_bytes, 1u << 16);
  EXPECT_EQ(hello.staging_bytes, 1u << 12);
  EXPECT_EQ(hello.settings, "timeout=x\n");
}

TEST(Rendezvous, TheRestOfTheCreationsTimeLimitsTheTimeout) {
  JoinRequest request{0, 2, 30'000, 0, 0, ""};
  const auto told = [&](Clock::time_point deadline) {
    request.deadline = deadline;
    return make_hello(request, own_place(), kNonce, kNow).timeout_ms;
  };
  EXPECT_EQ(told(kNow + seconds(10)), 10'000);
  EXPECT_EQ(told(kNow + seconds(90)), 30'000);
  EXPECT_EQ(told(kNow - seconds(1)), 1) << "0 would be no deadline";
  request.timeout_ms = 0;
  EXPECT_EQ(told(kNow + seconds(90)), 90'000);
  EXPECT_EQ(told(Clock::time_point::max()), 0);
}

TEST(Rendezvous, TheRootIsSoughtUntilTheEarlierOfTimeoutAndDeadline) {
  JoinRequest request{0, 2, 0, 0, 0, ""};
  EXPECT_EQ(deadline_of(request, kNow), Clock::time_point::max());
  request.deadline = kNow + seconds(10);
  EXPECT_EQ(deadline_of(request, kNow), kNow + seconds(10));
  request.timeout_ms = 2'000;
  EXPECT_EQ(deadline_of(request, kNow), kNow + seconds(2));
  request.timeout_ms = 20'000;
  EXPECT_EQ(deadline_of(request, kNow), kNow + seconds(10));
}

}  // namespace
}  // namespace treering
