// SPDX-License-Identifier: Apache-2.0
// A link of a given speed: what it holds back, for how long, and what it leaves as it is.
#include "transport/paced.h"

#include <gtest/gtest.h>

#include <chrono>

#include "transport/two_sides.h"

namespace treering {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kByteAMicrosecond = 8;  // Mbit/s

class Paced : public ::testing::TestWithParam<ConformanceRow> {
 protected:
  Linked paced(int own) {
    Linked inner = sides_.connect(own, 0);
    queue_of_inner_ = inner.queue;
    return {pace_connection(std::move(inner), link_), link_};
  }

  TwoSides sides_{GetParam()};
  std::shared_ptr<PacedLink> link_ = std::make_shared<PacedLink>(kByteAMicrosecond);
  std::shared_ptr<SendQueue> queue_of_inner_;
};

TEST_P(Paced, MessagesArriveWhenTheLinkHasCarriedThemAsTheyWerePosted) {
  Linked from = paced(0), to = sides_.connect(1, 0);
  auto first = pattern(1, 200), second = pattern(2, 200);
  const auto begin = Clock::now();
  ASSERT_TRUE(from->can_post());
  from->post(inline_message(1, first.data(), 200));
  from->post(inline_message(2, second.data(), 200));
  EXPECT_EQ(from->posted(), 2u);
  const auto copy = first;
  first.assign(200, std::byte{});  // what is inline is the sender's again at once
  ASSERT_TRUE(eventually([&] { return from.flushed() && to->front() != nullptr; }));
  EXPECT_GE(Clock::now() - begin, std::chrono::microseconds(400));
  EXPECT_EQ(to->front()->signature, 1u);
  EXPECT_EQ(payload_of(to.get(), *to->front()), copy);
  to->pop();
  ASSERT_TRUE(eventually([&] { return to->front() != nullptr; }));
  EXPECT_EQ(to->front()->signature, 2u);
}

TEST_P(Paced, AllConnectionsOfARankShareTheLinkAndItTakesLittleAhead) {
  Linked from = paced(0), to = sides_.connect(1, 0);
  Message message;
  message.kind = PayloadKind::kStaging;
  message.bytes = 8000;
  const auto begin = Clock::now();
  uint32_t posted = 0;
  for (; from->can_post() && posted < kFifoDepth; ++posted) from->post(message);
  EXPECT_GE(posted, 3u) << "20 ms of traffic";
  EXPECT_FALSE(link_->has_room());
  uint32_t arrived = 0;
  EXPECT_TRUE(eventually([&] {
    (void)from.flushed();
    for (; to->front() != nullptr; ++arrived) to->pop();
    return arrived == posted;
  }));
  EXPECT_GE(Clock::now() - begin, posted * std::chrono::milliseconds(8));
  EXPECT_TRUE(eventually([&] { return from->has_released(posted); }));
}

INSTANTIATE_TEST_SUITE_P(Transports, Paced, ::testing::ValuesIn(conformance_rows()), row_name);

}  // namespace
}  // namespace treering
