// SPDX-License-Identifier: Apache-2.0
// Streams that break at every stage: what they carried arrives all the same, once.
#include "support/seed.h"
#include "transport/linked.h"
#include "transport/tcp/resume.h"

#include <cstdlib>
#include <iostream>
#include <random>
#include <tuple>

#include "transport/tcp/breaks.h"

namespace treering {
namespace {

using std::chrono::milliseconds;

constexpr Break kBreaks[] = {Break::kReset, Break::kShutDown, Break::kEnd};

// What is tried in all combinations: a stream breaks at the sender's end or the receiver's.
struct Case {
  uint32_t bytes;  // of a message: on the shared stream or on others
  int sender;      // the shared stream is opened by side 0
  int end;
  Break how;
  TcpZeroCopy zero_copy;
};
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (uint32_t bytes : {100u, 4000u, 20'000u, 48'000u, 300'000u})
    for (int sender : {0, 1})
      for (int end : {0, 1})
        for (Break how : kBreaks)
          for (TcpZeroCopy zero_copy : {TcpZeroCopy::kNever, TcpZeroCopy::kAlways})
            cases.push_back({bytes, sender, end, how, zero_copy});
  return cases;
}
std::string name_of(const Case& c) {
  return std::to_string(c.bytes) + " bytes from side " + std::to_string(c.sender) + ", broken at side " +
         std::to_string(c.end) + " by way " + std::to_string(static_cast<int>(c.how)) + ", zero copy " +
         std::to_string(static_cast<int>(c.zero_copy));
}

// One that is received and popped in order, whatever breaks meanwhile.
class Transfer {
 public:
  Transfer(BreakablePair* pair, int from, uint32_t channel, uint32_t bytes)
      : pair_(pair), from_(from), channel_(channel), bytes_(bytes) {}
  bool post() {
    if (!sender()->can_post()) return false;
    overwrite_released();
    if (posted_ - overwritten_ >= kFifoDepth) return false;
    auto& payload = payloads_[posted_ % kFifoDepth];
    payload = pattern(posted_ + channel_ * 1000, bytes_);
    sender()->post(user_message(posted_++, payload));
    return true;
  }
  bool receive() {
    const Message* message = receiver()->front();
    if (message == nullptr) return false;
    EXPECT_EQ(message->signature, received_);
    EXPECT_TRUE(same_bytes(payload_of(receiver().get(), *message), pattern(received_ + channel_ * 1000, bytes_)))
        << received_;
    receiver()->pop();
    ++received_;
    return true;
  }
  Linked& sender() { return pair_->at(from_, channel_); }
  Linked& receiver() { return pair_->at(1 - from_, channel_); }
  uint32_t posted() const { return posted_; }
  uint32_t received() const { return received_; }
  // As their owner does with memory that is given back.
  void overwrite_released() {
    for (const uint64_t released = sender()->released(); overwritten_ < released; ++overwritten_)
      std::ranges::fill(payloads_[overwritten_ % kFifoDepth], std::byte{0xEE});
  }
  std::string health() { return sender()->health().message() + receiver()->health().message(); }

 private:
  BreakablePair* pair_;
  int from_;
  uint32_t channel_, bytes_;
  std::vector<std::byte> payloads_[kFifoDepth];
  uint32_t posted_ = 0, received_ = 0;
  uint64_t overwritten_ = 0;
};

// When the stream breaks: how many messages have been popped, and whether the others have arrived.
enum class Stage { kBeforeTheFirst, kInTheMiddle, kAllArrived, kAllPopped };

void break_and_go_on(const Case& c, Stage stage) {
  // One stream gets a message in one fragment, which is large enough for the kernel not to copy it.
  const bool uncopied = c.zero_copy == TcpZeroCopy::kAlways;
  BreakablePair pair(uncopied ? 1 : 2, c.zero_copy, stage == Stage::kInTheMiddle ? 8192 : 0);
  Transfer first(&pair, 0, 1, 10), transfer(&pair, c.sender, 0, c.bytes);
  const uint32_t index = c.bytes <= kSharedStreamBytes ? 0 : 1;
  const int opener = index == 0 ? 0 : c.sender;
  // The shared stream is side 0's.
  ASSERT_TRUE(first.post());
  ASSERT_TRUE(eventually([&] { return first.receive(); }));
  if (stage == Stage::kBeforeTheFirst && index == 0) {
    ASSERT_TRUE(pair.break_stream(opener, index, c.end, c.how));
  }
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(transfer.post());
  if (stage == Stage::kAllArrived) {
    ASSERT_TRUE(eventually([&] {
      // A look at another channel brings in all that may come.
      EXPECT_EQ(pair.at(1 - c.sender, 2)->front(), nullptr);
      return transfer.sender().flushed() && transfer.receiver()->front() != nullptr;
    }));
  }
  if (stage == Stage::kAllPopped) {
    ASSERT_TRUE(eventually([&] {
      (void)transfer.receive();
      return transfer.sender().flushed() && transfer.received() == 5;
    }));
  }
  if (stage != Stage::kBeforeTheFirst || index > 0) {
    ASSERT_TRUE(pair.break_stream(opener, index, c.end, c.how));
  }
  ASSERT_TRUE(eventually([&] {
    pair.serve();
    transfer.overwrite_released();
    (void)transfer.receive();
    if (transfer.posted() < 20) (void)transfer.post();
    return transfer.received() == 20 || !transfer.health().empty();
  })) << transfer.received()
      << " of " << transfer.posted();
  EXPECT_EQ(transfer.health(), "");
  EXPECT_TRUE(eventually([&] {
    pair.serve();
    return transfer.sender()->has_released(20) && transfer.sender().flushed() && transfer.receiver().flushed();
  }));
  EXPECT_EQ(transfer.receiver()->front(), nullptr) << "nothing came twice";
  if (uncopied && c.bytes > kZeroCopyBytes) {
    EXPECT_GT(pair.link(c.sender)->zero_copy_sends(), 0u);
  }
}

TEST(TcpResume, BeforeTheFirstByte) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(name_of(c));
    break_and_go_on(c, Stage::kBeforeTheFirst);
  }
}
TEST(TcpResume, InTheMiddleOfMessages) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(name_of(c));
    break_and_go_on(c, Stage::kInTheMiddle);
  }
}
TEST(TcpResume, WithMessagesThatAreNotPopped) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(name_of(c));
    break_and_go_on(c, Stage::kAllArrived);
  }
}
TEST(TcpResume, WithAllPopped) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(name_of(c));
    break_and_go_on(c, Stage::kAllPopped);
  }
}

// Both ways on several channels, small and large; every now and then some stream breaks somehow, those that were just
// opened among them.
TEST(TcpResume, RandomBreaksLoseAndDoubleNothing) {
  const uint64_t seed = test_seed();
  for (auto [streams, zero_copy] : {std::pair{1u, TcpZeroCopy::kNever}, {3u, TcpZeroCopy::kAlways}}) {
    std::mt19937_64 random(seed);
    BreakablePair pair(streams, zero_copy, 16 << 10);
    constexpr uint32_t kMessages = 300, kBytes[] = {8, 3000, 30'000, 200'000};
    std::vector<Transfer> transfers;
    for (int from : {0, 1})
      for (uint32_t c = 0; c < kManyChannels; ++c) transfers.emplace_back(&pair, from, c, kBytes[c]);
    uint32_t total = 0, breaks = 0, next_break = 50;
    const auto all = static_cast<uint32_t>(kMessages * transfers.size());
    const bool done = eventually(
        [&] {
          Transfer& transfer = transfers[random() % transfers.size()];
          if (transfer.posted() < kMessages) (void)transfer.post();
          if (random() % 3 == 0) transfer.overwrite_released();
          if (transfers[random() % transfers.size()].receive()) ++total;
          if (total >= next_break && pair.break_any(random(), kBreaks[random() % 3]))
            ++breaks, next_break += 20 + static_cast<uint32_t>(random() % 60);
          for (const int side : {0, 1}) (void)pair.at(side).flushed();
          return total == all || !transfer.health().empty();
        },
        &total);
    EXPECT_TRUE(done) << total << " of " << all << " after " << breaks << " breaks";
    for (Transfer& transfer : transfers) ASSERT_EQ(transfer.health(), "");
    EXPECT_GT(breaks, 10u);
    std::cout << breaks << " breaks, " << pair.opened() << " streams opened\n";
  }
}

// A header or a message that was cut off is forgotten, and what comes again is taken once.
TEST(TcpResume, WhatWasCutOffIsTakenFromTheNextAttempt) {
  TcpFrame frame;
  frame.kind = static_cast<uint8_t>(PayloadKind::kUser);
  frame.bytes = frame.length = 6000;
  const auto data = pattern(3, frame.bytes);
  for (size_t sent : {size_t{1}, sizeof frame - 1, sizeof frame, sizeof frame + 1, sizeof frame + 5999}) {
    SCOPED_TRACE(sent);
    NoStreams source;
    auto link = TcpLink::make(options_to(7), &source);
    auto connection = linked(link, 0);
    const auto send = [&](int fd, size_t bytes) {
      std::vector<std::byte> all(sizeof frame);
      std::memcpy(all.data(), &frame, sizeof frame);
      all.insert(all.end(), data.begin(), data.end());
      ASSERT_EQ(write(fd, all.data(), std::min(bytes, all.size())), static_cast<ssize_t>(std::min(bytes, all.size())));
    };
    const auto cut = tcp_sockets(), again = tcp_sockets();
    link->deliver_incoming({1, 0}, cut.second);
    send(cut.first, sent);
    EXPECT_EQ(connection->front(), nullptr);
    close(cut.first);
    EXPECT_EQ(connection->front(), nullptr);
    link->deliver_incoming({1, 1}, again.second);
    begin_again(&frame);
    send(again.first, SIZE_MAX);
    ASSERT_TRUE(eventually([&] { return connection->front() != nullptr; })) << connection->health().message();
    EXPECT_EQ(payload_of(connection.get(), *connection->front()), data);
    // Once more, before and after the pop.
    begin_again(&frame);
    send(again.first, SIZE_MAX);
    EXPECT_EQ(payload_of(connection.get(), *connection->front()), data);
    connection->pop();
    begin_again(&frame);
    send(again.first, SIZE_MAX);
    frame = {};
    frame.kind = static_cast<uint8_t>(PayloadKind::kUser);
    frame.message = 1;
    frame.bytes = frame.length = 6000;
    send(again.first, SIZE_MAX);
    ASSERT_TRUE(eventually([&] { return connection->front() != nullptr; })) << connection->health().message();
    connection->pop();
    EXPECT_EQ(connection->front(), nullptr);
    EXPECT_TRUE(connection->health().ok()) << connection->health().message();
    frame.message = 0;
    frame.wide = 0;
    close(again.first);
  }
}

// Attempts are counted by few bits.
TEST(TcpResume, APartOfAnAttemptThatIsFarBackDoesNotStandInTheWay) {
  TcpFrame frame;
  frame.kind = static_cast<uint8_t>(PayloadKind::kUser);
  frame.bytes = frame.length = 6000;
  for (const int attempts : {1, kTcpAttempts / 2, int{kTcpAttempts}, kTcpAttempts + 1}) {
    SCOPED_TRACE(attempts);
    NoStreams source;
    auto link = TcpLink::make(options_to(7), &source);
    auto connection = linked(link, 0);
    TcpFrame first = frame;
    const auto send = [&](int fd, const TcpFrame& header, const std::vector<std::byte>& data, size_t bytes) {
      ASSERT_EQ(write(fd, &header, sizeof header), static_cast<ssize_t>(sizeof header));
      ASSERT_EQ(write(fd, data.data(), bytes), static_cast<ssize_t>(bytes));
    };
    const auto cut = tcp_sockets(), again = tcp_sockets();
    link->deliver_incoming({1, 0}, cut.second);
    send(cut.first, first, pattern(1, frame.bytes), 3000);
    EXPECT_EQ(connection->front(), nullptr);
    close(cut.first);
    for (int i = 0; i < attempts; ++i) begin_again(&first);
    link->deliver_incoming({1, 1}, again.second);
    const auto data = pattern(2, frame.bytes);
    send(again.first, first, data, data.size());
    ASSERT_TRUE(eventually([&] { return connection->front() != nullptr; })) << connection->health().message();
    EXPECT_EQ(payload_of(connection.get(), *connection->front()), data);
    close(again.first);
  }
}

// No answer comes until the deadline and some more, in which a rank that waits comes to its own.
TEST(TcpResume, AStreamThatCannotBeOpenedAgainInTimeIsAnErrorThatTellsAll) {
  constexpr milliseconds kDeadline(800);
  BreakablePair pair(1, TcpZeroCopy::kNever, 0, kDeadline);
  Transfer transfer(&pair, 0, 0, 100);
  ASSERT_TRUE(transfer.post());
  ASSERT_TRUE(eventually([&] { return transfer.receive(); }));
  pair.refusal = {trRemoteError, "10.0.0.7 port 1: no answer"};
  ASSERT_TRUE(pair.break_stream(0, 0, 0, Break::kReset));
  const auto begin = TcpClock::now();
  ASSERT_TRUE(transfer.post());
  ASSERT_TRUE(eventually([&] { return !transfer.sender().flushed() && !transfer.sender()->health().ok(); }));
  const auto took = TcpClock::now() - begin;
  EXPECT_GE(took, kDeadline);
  EXPECT_EQ(transfer.sender()->health().code(), trTimeout);
  const std::string text = transfer.sender()->health().message();
  for (const char* part : {"rank 1", "stream 0", "errno 104", "10.0.0.7 port 1: no answer", "attempts"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  EXPECT_TRUE(eventually([&] {
    return transfer.receiver()->front() == nullptr && !transfer.receiver()->health().ok();
  })) << "the receiver asks, too";
}

TEST(TcpResume, AStreamIsOpenedAgainWhenThatIsPossible) {
  BreakablePair pair(1, TcpZeroCopy::kNever, 0, milliseconds(8000));
  Transfer transfer(&pair, 0, 0, 100);
  ASSERT_TRUE(transfer.post());
  ASSERT_TRUE(eventually([&] { return transfer.receive(); }));
  pair.refusal = {trTimeout, "no answer"};
  ASSERT_TRUE(pair.break_stream(0, 0, 1, Break::kReset));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(transfer.post());
  const auto until = TcpClock::now() + milliseconds(500);
  EXPECT_TRUE(eventually([&] {
    pair.serve();
    return TcpClock::now() > until;
  }));
  EXPECT_EQ(transfer.health(), "");
  EXPECT_EQ(transfer.received(), 1u);
  pair.refusal = {};
  EXPECT_TRUE(eventually([&] {
    pair.serve();
    (void)transfer.receive();
    return transfer.received() == 5;
  }));
  EXPECT_EQ(transfer.health(), "");
}

TEST(TcpResume, AStreamThatNeverOpensDoesNotKeepAnotherFromComingBack) {
  constexpr uint32_t kBytes = 300'000;  // for both streams
  BreakablePair pair(2, TcpZeroCopy::kNever, 0, milliseconds(8000));
  pair.refusal = {trSystemError, "no such network"};
  pair.refused = 2;
  Transfer transfer(&pair, 0, 0, kBytes);
  for (uint32_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(transfer.post());
    ASSERT_TRUE(eventually([&] {
      pair.serve();
      return transfer.receive() || !transfer.health().empty();
    }));
    ASSERT_EQ(transfer.health(), "");
    EXPECT_EQ(transfer.received(), round);
    ASSERT_TRUE(pair.break_stream(0, 1, 0, Break::kReset));
  }
}

// A send does not fail because its receiver has taken everything, succeeded and left, whatever its leaving does to
// streams.
TEST(TcpResume, WhatWasTakenIsSentThoughTheReceiverHasLeft) {
  for (uint32_t bytes : {100u, 4000u, 100'000u})
    for (bool news : {false, true})
      for (Break how : kBreaks)
        for (TcpZeroCopy zero_copy : {TcpZeroCopy::kNever, TcpZeroCopy::kAlways}) {
          SCOPED_TRACE(std::to_string(bytes) + " bytes, " + (news ? "with" : "without") + " news");
          BreakablePair pair(2, zero_copy);
          Transfer there(&pair, 0, 0, bytes), back(&pair, 1, 1, 100);
          // This side owes a credit, too.
          for (uint32_t i = 0; i < kTellEvery; ++i) ASSERT_TRUE(back.post());
          ASSERT_TRUE(there.post());
          ASSERT_TRUE(eventually([&] {
            (void)there.sender()->can_post();
            return there.receive();
          }));
          ASSERT_TRUE(eventually([&] { return back.sender().flushed(); }));
          (void)pair.break_stream(bytes > kSharedStreamBytes ? 0 : 1, bytes > kSharedStreamBytes ? 1 : 0, 1, how);
          pair.leave(1);
          if (news) pair.link(0)->deliver_departure();
          Linked& left = pair.at(0, 0);
          EXPECT_TRUE(eventually([&] { return left->has_released(1) && left.flushed(); })) << left->health().message();
          uint32_t got = 0;
          if (how != Break::kReset || bytes > kSharedStreamBytes) {
            EXPECT_TRUE(eventually([&] {
              if (pair.at(0, 1)->front() != nullptr) pair.at(0, 1)->pop(), ++got;
              return got == kTellEvery;
            })) << got;
          }
          EXPECT_TRUE(eventually([&] { return left.flushed(); }));
          EXPECT_EQ(left->health().message(), "");
        }
}

// The streams break once a large message is popped, and the news of that is lost with them: the message is sent again. Its
// receiver waits for something else by then, and its sender for room.
TEST(TcpResume, WhatWasPoppedAndIsSentAgainIsReadByARankThatWaitsForSomethingElse) {
  BreakablePair pair(1, TcpZeroCopy::kNever, 8192);
  Transfer transfer(&pair, 0, 0, 300'000);
  Linked &sender = pair.at(0), &receiver = pair.at(1);
  ASSERT_TRUE(transfer.post());
  ASSERT_TRUE(eventually([&] {
    (void)sender.flushed();
    return transfer.receive();
  }));
  ASSERT_TRUE(pair.break_stream(0, 1, 0, Break::kReset) && pair.break_stream(1, 0, 0, Break::kReset));
  const size_t opened = pair.opened();
  ASSERT_TRUE(eventually([&] { return (void)sender.flushed(), pair.opened() == opened + 2; })) << pair.opened();
  EXPECT_TRUE(eventually([&] {
    (void)receiver.flushed();
    return sender.flushed() && sender->has_released(1);
  })) << sender->health().message();
}

// Also after it has failed, for the one that judges that.
TEST(TcpResume, ALinkTellsSinceWhenItsConnectionIsAway) {
  constexpr milliseconds kDeadline(800);
  for (const uint32_t bytes : {100u, 100'000u}) {
    SCOPED_TRACE(bytes);
    BreakablePair pair(1, TcpZeroCopy::kNever, 0, kDeadline);
    Transfer transfer(&pair, 0, 0, bytes);
    EXPECT_FALSE(pair.link(0)->away_since()) << "nothing is wanted";
    ASSERT_TRUE(transfer.post());
    ASSERT_TRUE(eventually([&] {
      pair.serve();
      return transfer.receive();
    }));
    EXPECT_FALSE(pair.link(0)->away_since());
    pair.refusal = {trTimeout, "no answer"};
    const uint32_t index = bytes > kSharedStreamBytes ? 1 : 0;
    ASSERT_TRUE(pair.break_stream(0, index, 1, Break::kReset));
    const auto broken = TcpClock::now();
    ASSERT_TRUE(transfer.post());
    ASSERT_TRUE(eventually([&] {
      pair.serve();
      return pair.link(0)->away_since().has_value();
    }));
    EXPECT_GE(*pair.link(0)->away_since(), broken);
    ASSERT_TRUE(eventually([&] {
      pair.serve();
      return !transfer.sender()->health().ok();
    }));
    EXPECT_LE(*pair.link(0)->away_since() + kDeadline, TcpClock::now()) << "attempts are no connection";
  }
}

TEST(TcpResume, ALinkWhoseConnectionCameBackIsNotAway) {
  BreakablePair pair(1, TcpZeroCopy::kNever, 0, milliseconds(8000));
  Transfer transfer(&pair, 0, 0, 100);
  ASSERT_TRUE(transfer.post());
  ASSERT_TRUE(eventually([&] { return transfer.receive(); }));
  pair.refusal = {trTimeout, "no answer"};
  ASSERT_TRUE(pair.break_stream(0, 0, 1, Break::kReset));
  ASSERT_TRUE(transfer.post());
  ASSERT_TRUE(eventually([&] {
    pair.serve();
    return pair.link(0)->away_since().has_value();
  }));
  pair.refusal = {};
  ASSERT_TRUE(eventually([&] {
    pair.serve();
    return transfer.receive();
  }));
  EXPECT_FALSE(pair.link(0)->away_since());
}

// The stream of a small message breaks once the receiver's process has it, while a large one before it is under way.
// The receiver takes both and leaves: both sends have succeeded.
TEST(TcpResume, ASmallMessageThatWasTakenBehindALargeOneIsSentThoughTheReceiverHasLeft) {
  for (const bool has_news : {false, true}) {
    BreakablePair pair(1, TcpZeroCopy::kNever, 8192, milliseconds(8000));
    const auto first = pattern(9, 10), large = pattern(1, 300'000), small = pattern(2, 100);
    pair.at(0, 1)->post(user_message(0, first));  // side 0 opens the shared stream
    ASSERT_TRUE(eventually([&] { return pair.at(1, 1)->front() != nullptr; }));
    pair.at(1, 1)->pop();
    pair.at(0, 0)->post(user_message(0, large));
    pair.at(0, 0)->post(user_message(1, small));
    for (int look = 0; look < 3; ++look, usleep(2000)) {
      (void)pair.at(0).flushed();
      ASSERT_EQ(pair.at(1, 0)->front(), nullptr);
    }
    pair.refusal = {trTimeout, "no answer"};
    pair.refused = 0;
    ASSERT_TRUE(pair.break_stream(0, 0, 1, Break::kReset));
    for (int look = 0; look < 50; ++look, usleep(100)) {  // the sender finds out
      (void)pair.at(0, 1)->front();
      (void)pair.at(0).flushed();
    }
    uint32_t taken = 0;
    ASSERT_TRUE(eventually([&] {
      (void)pair.at(0).flushed();
      if (const Message* message = pair.at(1, 0)->front()) {
        EXPECT_EQ(payload_of(pair.at(1, 0).get(), *message), taken == 0 ? large : small);
        pair.at(1, 0)->pop();
        ++taken;
      }
      return taken == 2;
    }));
    pair.leave(1);
    pair.refusal = {};
    if (has_news) pair.link(0)->deliver_departure();
    Linked& sender = pair.at(0, 0);
    EXPECT_TRUE(eventually([&] { return (sender.flushed() && sender->has_released(2)) || !sender->health().ok(); }));
    EXPECT_EQ(sender->health().message(), "");
  }
}

}  // namespace
}  // namespace treering
