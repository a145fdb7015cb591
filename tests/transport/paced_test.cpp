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
  // The connection of side 0 over the link.
  Linked paced(TwoSides* sides) {
    Linked inner = sides->connect(0, 0);
    PeerConnections made;
    made.channels.push_back(std::move(inner));
    made.queue = inner.queue;
    PeerConnections over_link = pace(std::move(made), link_);
    return {std::move(over_link.channels[0]), over_link.queue};
  }

  TwoSides sides_{GetParam()};
  std::shared_ptr<PacedLink> link_ = std::make_shared<PacedLink>(kByteAMicrosecond);
};

TEST_P(Paced, MessagesArriveWhenTheLinkHasCarriedThemAsTheyWerePosted) {
  Linked from = paced(&sides_), to = sides_.connect(1, 0);
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

Message staged(uint32_t bytes) {
  Message message;
  message.kind = PayloadKind::kStaging;
  message.bytes = bytes;
  return message;
}

// One link for all peers: what one gets takes time from the others.
TEST_P(Paced, AllPeersShareTheLink) {
  TwoSides others(GetParam());
  Linked from = paced(&sides_), to = sides_.connect(1, 0);
  Linked from_other = paced(&others), to_other = others.connect(1, 0);
  const auto begin = Clock::now();
  from->post(staged(8000));
  from_other->post(staged(8000));
  EXPECT_TRUE(eventually([&] { return from_other.flushed() && to_other->front() != nullptr; }));
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(16));
  EXPECT_TRUE(eventually([&] { return from.flushed() && to->front() != nullptr; }));
}

// A peer that reads nothing fills its connection alone.
TEST_P(Paced, APeerThatReadsNothingHoldsUpNoOther) {
  TwoSides others(GetParam());
  Linked from = paced(&sides_), to = sides_.connect(1, 0);
  Linked from_other = paced(&others), to_other = others.connect(1, 0);
  uint32_t posted = 0;
  // As many as the peer has room for, and where the transport takes more, those.
  ASSERT_TRUE(eventually([&] {
    for (; from->can_post(); ++posted) from->post(staged(100));
    return posted >= kFifoDepth;
  }));
  uint32_t arrived = 0;
  const auto value = pattern(3, 100);
  ASSERT_TRUE(eventually([&] { return from_other->can_post(); }));
  from_other->post(inline_message(5, value.data(), 100));
  EXPECT_TRUE(eventually([&] { return from_other.flushed() && to_other->front() != nullptr; }));
  EXPECT_EQ(to_other->front()->signature, 5u);
  EXPECT_TRUE(eventually([&] {
    (void)from.flushed();
    for (; to->front() != nullptr; ++arrived) to->pop();
    return arrived == posted;
  }));
  EXPECT_TRUE(eventually([&] { return from.flushed() && from->has_released(posted); }));
}

// Where a final value goes is the connection's below.
TEST_P(Paced, AnswersAsTheConnectionDoes) {
  Linked from = paced(&sides_), bare = sides_.connect(0, 1);
  std::vector<std::byte> output(100);
  OpenBuffers& shown = sides_.side(1).buffers;
  shown.output_address = reinterpret_cast<uint64_t>(output.data());
  shown.operation = 5;
  EXPECT_EQ(from->output_place(5, 40, 10), bare->output_place(5, 40, 10));
  EXPECT_EQ(from->slots_outlive_sender(), bare->slots_outlive_sender());
  const Region none;
  for (const bool pays : {false, true})
    EXPECT_EQ(from->reference({output.data(), 100, &none, pays}).has_value(),
              bare->reference({output.data(), 100, &none, pays}).has_value());
  EXPECT_STREQ(from->transport_name(), bare->transport_name());
}

INSTANTIATE_TEST_SUITE_P(Transports, Paced, ::testing::ValuesIn(conformance_rows()), row_name);

}  // namespace
}  // namespace treering
