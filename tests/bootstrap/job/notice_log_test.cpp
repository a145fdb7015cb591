// SPDX-License-Identifier: Apache-2.0
// Which notices are news, which are kept for new neighbours, which verdict counts.
#include "bootstrap/job/notice_log.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

#include "bootstrap/job/trees.h"

namespace treering {
namespace {

constexpr uint32_t kOwn = 7;
using testing::kNow;

NoticeMessage notice_of(uint32_t origin, uint64_t number, NoticeType type, uint32_t process) {
  return {.origin = origin, .number = number, .type = type, .process = process};
}

NoticeMessage verdict_of(uint32_t origin, uint64_t number, const std::string& text) {
  return {.origin = origin, .number = number, .type = NoticeType::kVerdict, .code = trTimeout, .text = text};
}

NoticeMessage leave_of(uint64_t number, uint32_t rank, trResult_t code, const std::string& text) {
  return {.origin = 1,
          .number = number,
          .type = NoticeType::kRankLeft,
          .process = 1,
          .other = rank,
          .code = static_cast<uint32_t>(code),
          .text = text};
}

// What is kept, as "origin.number".
std::string kept(const NoticeLog& log) {
  std::string text;
  for (const NoticeMessage& notice : log.notices())
    text.append(text.empty() ? "" : " ")
        .append(std::to_string(notice.origin))
        .append(".")
        .append(std::to_string(notice.number));
  return text;
}

void expect_news(NoticeLog* log, const NoticeMessage& notice) {
  const auto taken = log->take(notice, kNow);
  EXPECT_TRUE(taken.pass_on) << notice.origin << "." << notice.number;
  EXPECT_TRUE(taken.apply) << notice.origin << "." << notice.number;
}

void expect_known(NoticeLog* log, const NoticeMessage& notice) {
  const auto taken = log->take(notice, kNow);
  EXPECT_FALSE(taken.pass_on) << notice.origin << "." << notice.number;
  EXPECT_FALSE(taken.apply) << notice.origin << "." << notice.number;
}

TEST(NoticeLog, ANoticeIsNewsOnce) {
  NoticeLog log;
  const NoticeMessage lost = notice_of(1, 1, NoticeType::kLost, 4);
  expect_news(&log, lost);
  expect_known(&log, lost);  // by another way through the tree
  EXPECT_EQ(kept(log), "1.1");
}

TEST(NoticeLog, EachOriginHasItsOwnNumbers) {
  NoticeLog log;
  expect_news(&log, notice_of(1, 5, NoticeType::kLost, 4));
  expect_news(&log, notice_of(2, 1, NoticeType::kLost, 5));
  expect_known(&log, notice_of(1, 4, NoticeType::kLost, 6));  // older than one that came
  expect_news(&log, notice_of(1, 6, NoticeType::kLost, 6));
  EXPECT_EQ(kept(log), "1.5 2.1 1.6");
}

TEST(NoticeLog, OwnNoticesAreNumberedFromOne) {
  NoticeLog log;
  const NoticeMessage first = log.number({.type = NoticeType::kLost, .process = 4, .text = "it has ended"}, kOwn);
  EXPECT_EQ(first.origin, kOwn);
  EXPECT_EQ(first.number, 1u);
  EXPECT_EQ(first.process, 4u);
  EXPECT_EQ(first.text, "it has ended");
  EXPECT_EQ(log.number({}, kOwn).number, 2u);
  EXPECT_EQ(kept(log), "");  // to number is not to take
  expect_news(&log, first);
  expect_known(&log, first);  // it comes back from a neighbour
}

TEST(NoticeLog, ALaterPlaceInTheTreeReplacesAnEarlierOneOfTheSameProcess) {
  NoticeLog log;
  expect_news(&log, notice_of(4, 1, NoticeType::kMoved, 4));
  expect_news(&log, notice_of(5, 1, NoticeType::kMoved, 5));
  expect_news(&log, notice_of(4, 2, NoticeType::kMoved, 4));
  EXPECT_EQ(kept(log), "5.1 4.2");
  expect_known(&log, notice_of(4, 1, NoticeType::kMoved, 4));  // forgotten, but no news again
}

TEST(NoticeLog, SilenceAndItsEndReplaceEachOther) {
  NoticeLog log;
  expect_news(&log, notice_of(1, 1, NoticeType::kSilent, 4));
  expect_news(&log, notice_of(2, 1, NoticeType::kHeard, 4));
  EXPECT_EQ(kept(log), "2.1");
  expect_news(&log, notice_of(1, 2, NoticeType::kSilent, 4));
  expect_news(&log, notice_of(1, 3, NoticeType::kSilent, 5));
  EXPECT_EQ(kept(log), "1.2 1.3");
}

TEST(NoticeLog, ALossReplacesNothingAndIsNotReplaced) {
  NoticeLog log;
  expect_news(&log, notice_of(4, 1, NoticeType::kMoved, 4));
  expect_news(&log, notice_of(1, 1, NoticeType::kSilent, 4));
  expect_news(&log, notice_of(1, 2, NoticeType::kLost, 4));
  expect_news(&log, notice_of(4, 2, NoticeType::kMoved, 4));
  EXPECT_EQ(kept(log), "1.1 1.2 4.2");
}

TEST(NoticeLog, WhatOnlyNeighboursAreToldIsAppliedAndNeitherKeptNorPassedOn) {
  NoticeLog log;
  for (int time = 0; time < 2; ++time) {
    const auto taken = log.take(notice_of(4, 0, NoticeType::kDissolved, 4), kNow);
    EXPECT_TRUE(taken.apply);
    EXPECT_FALSE(taken.pass_on);
  }
  EXPECT_EQ(kept(log), "");
}

TEST(NoticeLog, TheFirstVerdictCountsAndOthersArePassedOn) {
  NoticeLog log;
  EXPECT_FALSE(log.has_verdict());
  EXPECT_TRUE(log.verdict().ok());
  EXPECT_EQ(log.verdict_at(), Clock::time_point());
  expect_news(&log, verdict_of(2, 1, "first"));
  const auto second = log.take(verdict_of(1, 1, "second"), kNow + std::chrono::seconds(1));
  EXPECT_TRUE(second.pass_on);
  EXPECT_FALSE(second.apply);
  EXPECT_TRUE(log.has_verdict());
  EXPECT_EQ(log.verdict().code(), trTimeout);
  EXPECT_EQ(log.verdict().message(), "first");
  EXPECT_EQ(log.verdict_at(), kNow);
  EXPECT_EQ(kept(log), "2.1 1.1");  // a new neighbour may have had neither
}

TEST(NoticeLog, ARankThatLeftBecauseOfAFailureHasACause) {
  NoticeLog log;
  expect_news(&log, leave_of(1, 3, trSuccess, ""));
  expect_news(&log, leave_of(2, 4, trRemoteError, "rank 9 ended"));
  expect_news(&log, leave_of(3, 4, trTimeout, "later"));
  expect_news(&log, leave_of(4, 5, trSuccess, ""));  // a rank that is given twice leaves twice
  expect_news(&log, leave_of(5, 5, trTimeout, "it gave up"));
  EXPECT_TRUE(log.cause_of_leaving(3).ok());
  EXPECT_EQ(log.cause_of_leaving(5).message(), "it gave up");
  EXPECT_TRUE(log.cause_of_leaving(9).ok());
  EXPECT_EQ(log.cause_of_leaving(4).code(), trRemoteError);
  EXPECT_EQ(log.cause_of_leaving(4).message(), "rank 9 ended");
}

TEST(NoticeLog, RanksOfOneProcessThatLeaveAreAllKept) {
  NoticeLog log;
  for (uint32_t rank = 0; rank < 3; ++rank) expect_news(&log, leave_of(rank + 1, rank, trSuccess, ""));
  EXPECT_EQ(kept(log), "1.1 1.2 1.3");
}

// A tree in which each process passes on what its log says.
TEST(NoticeLog, ANoticeReachesEveryProcessOnceOverEveryConnectionOnce) {
  constexpr uint32_t kProcesses = 40;
  struct Message {
    uint32_t to, from;
    NoticeMessage notice;
  };
  std::vector<ProcessTree> trees;
  std::vector<uint32_t> parents = {kNobody};
  for (uint32_t process = 1; process < kProcesses; ++process) parents.push_back((process - 1) / 3);
  for (uint32_t process = 0; process < kProcesses; ++process) trees.push_back(testing::tree_at(process, parents));
  std::vector<NoticeLog> logs(kProcesses);
  std::deque<Message> under_way;
  for (uint32_t origin : {0u, 7u, 39u})
    for (int each = 0; each < 2; ++each)
      under_way.push_back({origin, origin, logs[origin].number({.type = NoticeType::kLost, .process = 50}, origin)});
  size_t sent = 0, applied = 0;
  for (; !under_way.empty(); under_way.pop_front()) {
    const Message message = under_way.front();
    const auto taken = logs[message.to].take(message.notice, kNow);
    applied += taken.apply ? 1 : 0;
    if (!taken.pass_on) continue;
    for (uint32_t neighbour : trees[message.to].neighbours()) {
      if (neighbour == message.from) continue;
      under_way.push_back({neighbour, message.to, message.notice});
      ++sent;
    }
  }
  EXPECT_EQ(applied, 6u * kProcesses);
  EXPECT_EQ(sent, 6u * (kProcesses - 1));
  for (const NoticeLog& log : logs) EXPECT_EQ(log.notices().size(), 6u);
}

}  // namespace
}  // namespace treering
