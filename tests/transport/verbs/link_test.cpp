// SPDX-License-Identifier: Apache-2.0
// Verbs links over the stand-in for libibverbs: what is posted for a message, lost introductions, errors, the end.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/fake_verbs/fake_verbs.h"
#include "support/seed.h"
#include "support/waiting.h"
#include "transport/verbs/locked_memory.h"
#include "transport/verbs/pair.h"

namespace treering::verbs {
namespace {

using treering::testing::eventually;

constexpr uint32_t kChannels = 2;
constexpr size_t kPlaceBytes = 4096;

fake_verbs_counters counters() {
  fake_verbs_counters now{};
  fake_verbs_get_counters(&now);
  return now;
}

class VerbsLinks : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(fake_verbs_reset(), 0);
    fake_verbs_set_seed(test_seed());
  }
  void TearDown() override {
    sender_.reset();
    receiver_.reset();
    links_[0].reset();
    links_[1].reset();
    pair_.reset();
    char left[256] = "";
    EXPECT_EQ(fake_verbs_left_over(left, sizeof left), 0) << left;
  }

  void connect(int lost_introductions = 0, uint32_t places_of_receiver = kFifoDepth, size_t staging_parts = 1) {
    pair_ = std::make_unique<VerbsPair>(kChannels, kPlaceBytes, places_of_receiver);
    pair_->set_staging_parts(staging_parts);
    pair_->lose(lost_introductions);
    for (int side : {0, 1}) links_[side] = pair_->link(side, staging_[side], sizeof staging_[side]);
    sender_ = links_[0]->connection(0);
    receiver_ = links_[1]->connection(0);
  }
  static Message small(uint32_t number) {
    static thread_local uint32_t data;
    data = number;
    Message message;
    message.signature = number;
    message.bytes = sizeof data;
    message.data = &data;
    return message;
  }
  Message staged(uint32_t number, uint32_t bytes) {
    std::memset(staging_[0], static_cast<int>(number), bytes);
    Message message;
    message.signature = number;
    message.bytes = bytes;
    message.kind = PayloadKind::kStaging;
    return message;
  }
  void send(const Message& message) {
    // The receiver may owe a credit whose header was not free yet.
    ASSERT_TRUE(eventually([&] { return links_[1]->flush(), sender_->can_post(); })) << sender_->health().message();
    sender_->post(message);
  }
  const Message* arrived() {
    eventually([&] { return links_[0]->flush(), receiver_->front() != nullptr || !receiver_->health().ok(); });
    return receiver_->front();
  }
  // Both sides move until one has failed; its error.
  std::string failure_of(Connection* connection) {
    eventually([&] {
      for (const auto& link : links_) link->flush();
      (void)connection->front();
      (void)connection->released();
      return !connection->health().ok();
    });
    return connection->health().message();
  }

  alignas(4096) std::byte staging_[2][8 * kPlaceBytes];
  std::unique_ptr<VerbsPair> pair_;
  std::shared_ptr<VerbsLink> links_[2];
  std::unique_ptr<Connection> sender_, receiver_;
};

TEST_F(VerbsLinks, ASmallMessageIsOneRequestAndFourOfThemOneCredit) {
  connect();
  pair_->wait_until_heard();
  constexpr uint64_t kMessages = 400;
  for (uint32_t i = 0; i < kMessages; ++i) {
    send(small(i));
    ASSERT_NE(arrived(), nullptr);
    ASSERT_EQ(receiver_->front()->signature, i);
    receiver_->pop();
  }
  const fake_verbs_counters done = counters();
  EXPECT_EQ(done.sends_posted[IBV_WR_RDMA_WRITE], 0u);
  EXPECT_EQ(done.sends_posted[IBV_WR_RDMA_WRITE_WITH_IMM], kMessages + kMessages / kTellEvery);
  EXPECT_EQ(done.receives_awaited, 0u) << "a receive was always posted";
}

// Payloads in a region leave from where they lie: no core copies them.
TEST_F(VerbsLinks, APayloadInARegisteredRegionIsSentFromThere) {
  connect();
  std::vector<std::byte> memory(4 * kPlaceBytes, std::byte{1});
  const Region region{.id = 7, .base = memory.data(), .bytes = memory.size()};
  ASSERT_TRUE(pair_->regions(0).add(region, SIZE_MAX).ok());
  const fake_verbs_counters before = counters();
  Message message;
  message.kind = PayloadKind::kUser;
  message.bytes = kPlaceBytes;
  for (uint32_t i = 0; i < 100; ++i) {
    const auto place = sender_->reference({memory.data() + i, kPlaceBytes, &region, false});
    ASSERT_TRUE(place);
    message.user = *place;
    memory[i] = static_cast<std::byte>(i);  // as late as can be
    send(message);
    ASSERT_NE(arrived(), nullptr) << receiver_->health().message();
    ASSERT_EQ(std::memcmp(receiver_->front()->data, memory.data() + i, kPlaceBytes), 0) << i;
    receiver_->pop();
    ASSERT_TRUE(eventually([&] { return sender_->has_released(i + 1); }));
  }
  EXPECT_EQ(counters().sends_posted[IBV_WR_RDMA_WRITE], before.sends_posted[IBV_WR_RDMA_WRITE]) << "with its header";
  EXPECT_FALSE(sender_->reference({memory.data(), kPlaceBytes + 1, &region, false})) << "more than its place";
  pair_->regions(0).end(region.id);
  EXPECT_EQ(counters().bytes_registered, before.bytes_registered - memory.size()) << "before the memory is given back";
}

// A final value goes straight into the receiver's output, where the receiver has said in time where that lies.
TEST_F(VerbsLinks, AResultIsWrittenIntoTheOutputThatWasShown) {
  connect();
  std::vector<std::byte> memory(4 * kPlaceBytes, std::byte{255});
  const Region region{.id = 7, .base = memory.data(), .bytes = memory.size()};
  ASSERT_TRUE(pair_->regions(1).add(region, SIZE_MAX).ok());
  std::byte* const output = memory.data() + 100;
  const size_t output_bytes = 2 * kPlaceBytes;
  uint32_t number = 0;
  const auto expect = [&](PayloadKind kind, uint64_t operation, uint64_t offset) {
    Message message = staged(++number, kPlaceBytes);
    message.output_operation = operation;
    message.output_offset = offset;
    send(message);
    ASSERT_NE(arrived(), nullptr) << receiver_->health().message();
    const Message& front = *receiver_->front();
    ASSERT_EQ(front.kind, kind) << "operation " << operation << ", offset " << offset;
    ASSERT_EQ(front.bytes, kPlaceBytes);
    ASSERT_EQ(front.data == nullptr, kind == PayloadKind::kDelivered);
    const void* data = kind == PayloadKind::kDelivered ? output + offset : front.data;
    ASSERT_EQ(std::memcmp(data, staging_[0], kPlaceBytes), 0);
    receiver_->pop();
    ASSERT_TRUE(eventually([&] { return sender_->has_released(number); }));
  };
  expect(PayloadKind::kStaging, 5, 8);  // nothing was shown yet
  receiver_->show_output(5, {output, output_bytes, &region});
  receiver_->post(small(1));  // what was shown has come before it
  ASSERT_TRUE(eventually([&] { return links_[1]->flush(), sender_->front() != nullptr; }));
  expect(PayloadKind::kDelivered, 5, 8);
  expect(PayloadKind::kDelivered, 5, kPlaceBytes);
  expect(PayloadKind::kStaging, 5, kPlaceBytes + 1);  // beyond its end
  expect(PayloadKind::kStaging, 5, UINT64_MAX);
  expect(PayloadKind::kStaging, 4, 8);  // another call's
  expect(PayloadKind::kStaging, 0, 8);  // none wants it
  EXPECT_EQ(output[-1], std::byte{255});
  EXPECT_EQ(output[output_bytes], std::byte{255});
}

// A rank shows outputs of as many calls as it likes. The sender may read none of them, and neither waits.
TEST_F(VerbsLinks, OutputsThatTheSenderDoesNotReadAreNotShown) {
  connect();
  std::vector<std::byte> memory(kPlaceBytes);
  const Region region{.id = 7, .base = memory.data(), .bytes = memory.size()};
  ASSERT_TRUE(pair_->regions(1).add(region, SIZE_MAX).ok());
  send(small(0));
  ASSERT_NE(arrived(), nullptr);
  receiver_->pop();
  const fake_verbs_counters before = counters();
  for (uint64_t operation = 1; operation <= 100; ++operation)
    receiver_->show_output(operation, {memory.data(), memory.size(), &region});
  EXPECT_LE(counters().post_calls - before.post_calls, kFifoDepth);
  ASSERT_TRUE(receiver_->health().ok()) << receiver_->health().message();
  for (uint32_t i = 1; i < 20; ++i) {
    send(small(i));
    ASSERT_NE(arrived(), nullptr) << receiver_->health().message();
    ASSERT_EQ(receiver_->front()->signature, i);
    receiver_->pop();
  }
}

TEST_F(VerbsLinks, AnOutputThatWasNeverShownCannotHaveBeenWritten) {
  connect();
  Message message = staged(1, 100);
  message.kind = PayloadKind::kDelivered;
  send(message);
  EXPECT_NE(failure_of(receiver_.get()).find("which was never shown to it"), std::string::npos);
}

TEST_F(VerbsLinks, ARegionThatEndedDuringACallIsAnErrorThatSaysSo) {
  connect();
  std::vector<std::byte> memory(kPlaceBytes);
  const Region region{.id = 7, .base = memory.data(), .bytes = memory.size()};
  ASSERT_TRUE(pair_->regions(0).add(region, SIZE_MAX).ok());
  Message message;
  message.kind = PayloadKind::kUser;
  message.bytes = 100;
  message.user = *sender_->reference({memory.data(), 100, &region, false});
  pair_->regions(0).end(region.id);
  EXPECT_FALSE(sender_->reference({memory.data(), 100, &region, false}));
  send(message);
  EXPECT_EQ(sender_->health().code(), trInvalidUsage);
  EXPECT_NE(sender_->health().message().find("freed, or its registration ended"), std::string::npos);
}

// What cannot be locked is told once, and goes through slots.
TEST_F(VerbsLinks, ARegionThatCannotBeRegisteredIsToldOnce) {
  connect();
  std::vector<std::byte> memory(1 << 20);
  const Region region{.id = 7, .base = memory.data(), .bytes = memory.size()};
  fake_verbs_set_memlock(counters().bytes_registered + 4096);
  const Status refused = pair_->regions(0).add(region, SIZE_MAX);
  EXPECT_NE(refused.message().find("1024 KiB"), std::string::npos) << refused.message();
  EXPECT_TRUE(pair_->regions(0).add(region, SIZE_MAX).ok()) << "it was told";
  EXPECT_FALSE(sender_->reference({memory.data(), 100, &region, false}));
  fake_verbs_set_memlock(UINT64_MAX);
}

// Each end gives as many places as it can lock.
TEST_F(VerbsLinks, AReceiverThatIsShortOfMemoryGivesFewerPlaces) {
  for (uint32_t places = kMinPlaces; places < kFifoDepth; ++places) {
    connect(0, places);
    uint32_t sent = 0, got = 0;
    for (; got < 100; ++got) {
      if (sent == got) {
        ASSERT_TRUE(eventually([&] { return links_[1]->flush() && sender_->can_post(); }));
      }
      while (sender_->can_post()) {
        sender_->post(staged(sent, 64));
        ++sent;
        ASSERT_TRUE(eventually([&] { return links_[0]->flush() && sender_->has_released(sent); }));
      }
      EXPECT_LE(sent - got, places);
      ASSERT_NE(arrived(), nullptr) << receiver_->health().message();
      ASSERT_EQ(receiver_->front()->signature, got);
      ASSERT_NE(receiver_->front()->data, nullptr);
      EXPECT_EQ(*static_cast<const std::byte*>(receiver_->front()->data), static_cast<std::byte>(got));
      receiver_->pop();
    }
    EXPECT_GE(sent, got);
    const Message* back = nullptr;  // the other way around there are all places
    auto reply = links_[1]->connection(1), taker = links_[0]->connection(1);
    for (uint32_t i = 0; i < kFifoDepth; ++i) {
      ASSERT_TRUE(eventually([&] { return reply->can_post(); })) << i;
      reply->post(small(i));
    }
    ASSERT_TRUE(eventually([&] { return links_[1]->flush(), (back = taker->front()) != nullptr; }));
    reply.reset();
    taker.reset();
    TearDown();
  }
}

// Only what is used of much staging memory is locked.
TEST_F(VerbsLinks, StagingMemoryIsRegisteredInPartsAsItIsUsed) {
  connect(0, kFifoDepth, 4);
  const uint64_t at_first = counters().bytes_registered;
  for (uint32_t i = 0; i < 8; ++i) {
    const size_t offset = i * kPlaceBytes;
    std::memset(staging_[0] + offset, static_cast<int>(i + 1), kPlaceBytes);
    Message message;
    message.kind = PayloadKind::kStaging;
    message.bytes = kPlaceBytes;
    message.user.offset = offset;
    send(message);
    ASSERT_NE(arrived(), nullptr) << receiver_->health().message();
    ASSERT_EQ(std::memcmp(receiver_->front()->data, staging_[0] + offset, kPlaceBytes), 0) << i;
    receiver_->pop();
    EXPECT_EQ(counters().bytes_registered, at_first + i / 2 * sizeof staging_[0] / 4) << i;
  }
}

TEST_F(VerbsLinks, MoreStagingMemoryThanCanBeLockedIsAnError) {
  connect(0, kFifoDepth, 4);
  fake_verbs_set_memlock(counters().bytes_registered);
  Message message = staged(1, 64);
  message.user.offset = sizeof staging_[0] - kPlaceBytes;
  send(message);
  EXPECT_NE(sender_->health().message().find("registering"), std::string::npos) << sender_->health().message();
}

TEST_F(VerbsLinks, AStagedMessageIsOneRequestAndOneReceive) {
  connect();
  pair_->wait_until_heard();
  constexpr uint64_t kMessages = 100;
  for (uint32_t i = 0; i < kMessages; ++i) {
    send(staged(i, kPlaceBytes));
    ASSERT_NE(arrived(), nullptr);
    ASSERT_EQ(receiver_->front()->bytes, kPlaceBytes);
    ASSERT_EQ(std::memcmp(receiver_->front()->data, staging_[0], kPlaceBytes), 0) << i;
    receiver_->pop();
    ASSERT_TRUE(eventually([&] { return sender_->has_released(i + 1); }));
  }
  const fake_verbs_counters done = counters();
  EXPECT_EQ(done.sends_posted[IBV_WR_RDMA_WRITE], 0u);
  EXPECT_EQ(done.sends_posted[IBV_WR_RDMA_WRITE_WITH_IMM], kMessages + kMessages / kTellEvery);
  EXPECT_EQ(done.post_calls, kMessages + kMessages / kTellEvery);
}

TEST_F(VerbsLinks, CreditsTravelWithAnswers) {
  connect();
  pair_->wait_until_heard();
  constexpr uint64_t kRounds = 100;
  for (uint32_t i = 0; i < kRounds; ++i) {
    send(small(i));
    ASSERT_NE(arrived(), nullptr);
    receiver_->pop();
    receiver_->post(small(i));
    ASSERT_TRUE(eventually([&] { return sender_->front() != nullptr; }));
    sender_->pop();
  }
  EXPECT_EQ(counters().sends_posted[IBV_WR_RDMA_WRITE_WITH_IMM], 2 * kRounds);
}

TEST_F(VerbsLinks, LinesThatCannotBeInlineComeFromRegisteredMemory) {
  fake_verbs_limits limits{};
  fake_verbs_get_limits(&limits);
  limits.max_inline = 0;
  fake_verbs_set_limits(&limits);
  connect();
  for (uint32_t i = 0; i < 40; ++i) {
    send(small(i));
    ASSERT_NE(arrived(), nullptr);
    uint32_t value = 0;
    std::memcpy(&value, receiver_->front()->data, sizeof value);
    EXPECT_EQ(value, i);
    receiver_->pop();
  }
  EXPECT_EQ(counters().inline_posted, 0u);
}

// Its queue pair takes no peer any more. That is no fault of the peer, which must not be told of one.
TEST_F(VerbsLinks, AStoppedLinkAnswersNoIntroduction) {
  auto card = std::make_shared<Card>();
  Config config;
  config.verbs_devices = "=fake0";
  std::vector<std::string> rejected;
  ASSERT_TRUE(open_devices(config, nullptr, &card->devices, &rejected).ok());
  card->log = log_line;
  LinkOptions options;
  options.channels = kChannels;
  options.place_bytes = kPlaceBytes;
  std::vector<EndPoint> introduced;
  const auto link = VerbsLink::make(card, options, [&](const EndPoint& end) { introduced.push_back(end); });
  link->start();
  ASSERT_EQ(introduced.size(), 1u);
  link->stop();
  link->hear(introduced.front());
  EXPECT_EQ(introduced.size(), 1u) << introduced.back().refusal;
}

TEST_F(VerbsLinks, LostIntroductionsAreMadeAgain) {
  connect(3);  // both first ones, and an answer
  send(small(5));
  ASSERT_NE(arrived(), nullptr);
  EXPECT_EQ(receiver_->front()->signature, 5u);
}

TEST_F(VerbsLinks, AFailedSendNamesBothEndsAndTheStatus) {
  connect();
  send(small(1));
  ASSERT_NE(arrived(), nullptr);
  fake_verbs_fail_completion(0, FAKE_VERBS_SEND_QUEUE, 1, IBV_WC_RETRY_EXC_ERR);
  send(staged(2, 100));
  const std::string error = failure_of(sender_.get());
  for (const char* part :
       {"rank 1", "fake0 port 1", "fake1 port 1", "transport retry counter exceeded", "does not acknowledge"})
    EXPECT_NE(error.find(part), std::string::npos) << part << " is not in: " << error;
}

TEST_F(VerbsLinks, FlushedRequestsAreNoCause) {
  connect();
  send(small(1));
  ASSERT_NE(arrived(), nullptr);
  fake_verbs_fail_completion(0, FAKE_VERBS_SEND_QUEUE, 1, IBV_WC_REM_ACCESS_ERR);
  for (uint32_t i = 2; i < 6; ++i) send(staged(i, 100));
  EXPECT_NE(failure_of(sender_.get()).find("remote access error"), std::string::npos) << sender_->health().message();
}

TEST_F(VerbsLinks, WhatWasSentOutlivesItsSender) {
  connect();
  for (uint32_t i = 0; i < 5; ++i) send(staged(7, 1000));
  ASSERT_TRUE(eventually([&] { return links_[0]->finish(); }));
  sender_.reset();
  links_[1]->depart();
  for (uint32_t i = 0; i < 5; ++i) {
    ASSERT_NE(arrived(), nullptr);
    EXPECT_EQ(receiver_->front()->bytes, 1000u);
    receiver_->pop();  // the credits reach no rank, which is no failure
  }
  EXPECT_TRUE(receiver_->health().ok()) << receiver_->health().message();
  EXPECT_NE(failure_of(receiver_.get()).find("it has left"), std::string::npos);
}

TEST_F(VerbsLinks, WithoutLockedMemoryBothSidesHearWhy) {
  fake_verbs_set_memlock(sizeof staging_ + block_bytes({kChannels, kPlaceBytes}));
  connect();
  const std::string own = failure_of(receiver_.get()), others = failure_of(sender_.get());
  EXPECT_NE(own.find("registering"), std::string::npos) << own;
  EXPECT_NE(others.find("it says: "), std::string::npos) << others;
  EXPECT_NE(others.find("registering"), std::string::npos) << others;
}

TEST_F(VerbsLinks, AnEndThatCannotBeConnectedTellsThePeerWhy) {
  fake_verbs_fail_call("ibv_modify_qp", 3, ENETUNREACH);  // after both ends are in INIT: the first to RTR
  connect();
  const std::string first = failure_of(sender_.get()), second = failure_of(receiver_.get());
  for (const std::string& error : {first, second}) {
    EXPECT_NE(error.find("ibv_modify_qp to RTR"), std::string::npos) << error;
  }
  EXPECT_NE((first + second).find("it says: "), std::string::npos) << first << "; " << second;
}

TEST_F(VerbsLinks, APeerThatLeftTakesNothingMore) {
  connect();
  send(small(0));
  ASSERT_NE(arrived(), nullptr);
  links_[0]->depart();
  for (uint32_t i = 1; i < kFifoDepth; ++i) sender_->post(small(i));
  ASSERT_TRUE(eventually([&] { return !sender_->can_post() && !sender_->health().ok(); }));
  EXPECT_NE(sender_->health().message().find("it has left, and does not take"), std::string::npos);
}

TEST_F(VerbsLinks, AMessageThatIsTooLongIsRefused) {
  connect();
  sender_->post(staged(1, kPlaceBytes + 1));
  EXPECT_EQ(sender_->health().code(), trInternalError);
  EXPECT_EQ(receiver_->front(), nullptr);
}

TEST_F(VerbsLinks, AStoppedLinkWritesNothingAnyMore) {
  connect();
  send(small(1));
  ASSERT_NE(arrived(), nullptr);
  receiver_->pop();
  links_[1]->stop();
  sender_->post(staged(9, 100));
  EXPECT_FALSE(failure_of(sender_.get()).empty());
  EXPECT_EQ(receiver_->front(), nullptr);
}

}  // namespace
}  // namespace treering::verbs
