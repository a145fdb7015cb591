// SPDX-License-Identifier: Apache-2.0
// How a rank's proposal becomes the failure of all, without a wait.
#include "failure/failure_agreement.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

namespace treering::testing {
namespace {

using std::chrono::seconds;

struct Side {
  std::unique_ptr<FailureRecord> record = std::make_unique<FailureRecord>();
  std::vector<std::string> spread;
  FailureAgreement agreement;

  explicit Side(FailureRecord* shared = nullptr, const std::string& name = "")
      : agreement(
            shared != nullptr ? shared : record.get(), record.get(), name,
            shared != nullptr ? FailureAgreement::Broadcast()
                              : [this](uint32_t, const std::string& text) { spread.push_back(text); }) {}
};

const Clock::time_point kNow = Clock::now();

TEST(FailureAgreement, OfASharedRecordIsDecidedAtOnceAndTheFirstStays) {
  FailureRecord shared{};
  Side a(&shared, "x"), b(&shared, "x");
  EXPECT_TRUE(a.agreement.poll(kNow).ok());
  a.agreement.propose({trTimeout, "late"}, kNow + seconds(10));
  b.agreement.propose({trRemoteError, "dead"}, kNow + seconds(10));
  for (Side* side : {&a, &b}) {
    EXPECT_EQ(side->agreement.decided().message(), "communicator 'x': late");
    EXPECT_EQ(side->agreement.poll(kNow).code(), trTimeout);
    EXPECT_STREQ(side->record->text, "communicator 'x': late") << "what others read of this rank";
  }
  EXPECT_TRUE(a.spread.empty());
}

TEST(FailureAgreement, IsOpenUntilTheAnswerComes) {
  Side a;
  a.agreement.propose({trTimeout, "mine"}, kNow + seconds(10));
  EXPECT_EQ(a.spread, std::vector<std::string>{"mine"});
  EXPECT_TRUE(a.agreement.proposed());
  EXPECT_TRUE(a.agreement.poll(kNow + seconds(9)).ok()) << "nothing waits, and nothing is decided before its time";
  EXPECT_EQ(a.agreement.known().message(), "mine");
  a.agreement.take(trRemoteError, "of another rank");
  EXPECT_EQ(a.agreement.poll(kNow).message(), "of another rank");
  EXPECT_EQ(a.agreement.poll(kNow + seconds(20)).message(), "of another rank") << "what is decided stays";
  EXPECT_EQ(a.agreement.known().message(), "of another rank");
}

TEST(FailureAgreement, HoldsAtItsLimitWhereNoAnswerComes) {
  Side a;
  a.agreement.propose({trTimeout, "mine"}, kNow + seconds(10));
  a.agreement.propose({trTimeout, "second"}, kNow + seconds(1));
  EXPECT_TRUE(a.agreement.poll(kNow + seconds(5)).ok());
  EXPECT_EQ(a.agreement.poll(kNow + seconds(10)).message(), "mine");
  a.agreement.take(trRemoteError, "too late");
  EXPECT_EQ(a.agreement.poll(kNow + seconds(11)).message(), "mine");
  EXPECT_EQ(a.spread.size(), 1u) << "one proposal of a rank is enough";
}

// A thread of another rank has begun to tell of the failure; the user of this one asks.
TEST(FailureAgreement, WaitsForWhatIsBeingWrittenWhereTheUserAsks) {
  FailureRecord shared{};
  shared.state = static_cast<uint32_t>(FailureState::kWriting);
  Side a(&shared);
  std::thread writer([&shared] {
    usleep(2000);
    shared.code = trTimeout;
    shared.text[0] = 'x';
    shared.state = static_cast<uint32_t>(FailureState::kSet);
  });
  const Status found = a.agreement.settle(seconds(60));
  writer.join();
  EXPECT_EQ(found.code(), trTimeout);
  EXPECT_EQ(found.message(), "x");
}

TEST(FailureAgreement, DoesNotWaitForARankThatEndedWhileItWrote) {
  FailureRecord shared{};
  shared.state = static_cast<uint32_t>(FailureState::kWriting);
  Side a(&shared);
  a.agreement.propose({trRemoteError, "mine"}, kNow + seconds(1));
  EXPECT_TRUE(a.agreement.poll(kNow).ok());
  EXPECT_EQ(a.agreement.poll(kNow + seconds(3)).message(), "mine");
  EXPECT_TRUE(Side(&shared).agreement.settle(std::chrono::milliseconds(1)).ok());
}

}  // namespace
}  // namespace treering::testing
