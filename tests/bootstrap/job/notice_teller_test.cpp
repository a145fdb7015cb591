// SPDX-License-Identifier: Apache-2.0
// For whom a process stays that has left, or knows of a verdict: without connections.
#include "bootstrap/job/notice_teller.h"

#include <gtest/gtest.h>

#include "bootstrap/job/detectors.h"

namespace treering {
namespace {

using std::chrono::seconds;
using testing::Detector;
using testing::silence_of;

// Process 0 at the top of detectors.h's tree.
struct Top {
  explicit Top(JobContext::Phase phase = JobContext::Phase::kRunning) { context.phase = phase; }

  JobContext context{.agent = nullptr, .id = {}, .hold = [] { return nullptr; }, .own = {}};
  Detector detector{0};
  ParentSearch search{*detector.tree, detector};
  NoticeLog log;
  NoticeTeller teller{context, *detector.tree, detector, search, log, [] {}};
};

TEST(NoticeTeller, OneThatHasLeftStaysForThoseThatDoNotAnswerAWhile) {
  Top top;
  EXPECT_TRUE(top.detector.take_silence(silence_of(3), Clock::now() - seconds(60)));
  EXPECT_FALSE(top.teller.must_stay()) << "its ranks go on";
  top.teller.leave(Clock::now());
  EXPECT_TRUE(top.teller.must_stay());
  top.detector.told(3);
  EXPECT_FALSE(top.teller.must_stay());
  Top late;
  EXPECT_TRUE(late.detector.take_silence(silence_of(3), Clock::now() - seconds(60)));
  late.teller.leave(Clock::now() - kUntoldTimeout);
  EXPECT_FALSE(late.teller.must_stay());
  late.teller.leave(Clock::now());
  EXPECT_FALSE(late.teller.must_stay()) << "it left before";
}

TEST(NoticeTeller, OneThatHasLeftStaysForOrphans) {
  Top top;
  top.detector.breaks(1, 0);
  EXPECT_FALSE(top.teller.must_stay());
  top.teller.leave(Clock::now());
  EXPECT_FALSE(top.teller.must_stay()) << "the connection broke long ago, at kNow";
  EXPECT_TRUE(top.detector.take_loss(3, Clock::now()));  // 5 hung from it
  EXPECT_TRUE(top.teller.must_stay());
}

TEST(NoticeTeller, OneThatKnowsOfAVerdictStaysAsWell) {
  Top top;
  EXPECT_TRUE(top.detector.take_silence(silence_of(3), Clock::now() - seconds(60)));
  (void)top.log.take({.origin = 1, .number = 1, .type = NoticeType::kVerdict, .text = "the verdict"}, Clock::now());
  EXPECT_TRUE(top.teller.must_stay());
  top.context.closed = true;
  EXPECT_FALSE(top.teller.must_stay());
}

TEST(NoticeTeller, OneOfAJobThatFailedStaysForNone) {
  Top top(JobContext::Phase::kFailed);
  EXPECT_TRUE(top.detector.take_silence(silence_of(3), Clock::now()));
  EXPECT_TRUE(top.detector.take_loss(1, Clock::now()));
  top.teller.leave(Clock::now());
  EXPECT_FALSE(top.teller.must_stay());
}

}  // namespace
}  // namespace treering
