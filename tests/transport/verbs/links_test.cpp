// SPDX-License-Identifier: Apache-2.0
// Who makes a rank's links, and who waits for that: on links that only note what they are told.
#include "transport/verbs/links.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/waiting.h"

namespace treering::verbs {
namespace {

using treering::testing::soon;

class NotedLink final : public VerbsLink {
 public:
  void start() override {}
  void hear(const EndPoint& peer) override {
    std::lock_guard lock(mutex_);
    heard_ += peer.refusal;
  }
  void depart() override { has_departed = true; }
  void stop() override { is_stopped = true; }
  bool finish() override { return true; }
  void end_introductions() override { has_ended = true; }
  void arm() override { is_armed = true; }
  std::unique_ptr<Connection> connection(uint32_t) override { return nullptr; }
  bool flush() override { return true; }
  Status health() const override { return {}; }

  std::string heard() {
    std::lock_guard lock(mutex_);
    return heard_;
  }
  std::atomic<bool> has_departed{false}, is_stopped{false}, has_ended{false}, is_armed{false};

 private:
  std::mutex mutex_;
  std::string heard_;
};

// The refusal tells introductions from one another.
EndPoint end_of(const std::string& name) {
  EndPoint end;
  end.refusal = name;
  return end;
}

class VerbsLinksOfARank : public ::testing::Test {
 protected:
  ~VerbsLinksOfARank() override { release(); }

  std::shared_ptr<VerbsLink> make(uint32_t peer) {
    std::unique_lock lock(mutex_);
    auto link = std::make_shared<NotedLink>();
    made_.push_back(peer);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !is_held_; });
    if (std::exchange(lacks_memory_, false)) throw std::bad_alloc();
    all_[peer] = link;
    return link;
  }
  void fail_once() {
    std::lock_guard lock(mutex_);
    lacks_memory_ = true;
  }
  void hold() {
    std::lock_guard lock(mutex_);
    is_held_ = true;
  }
  void release() {
    std::lock_guard lock(mutex_);
    is_held_ = false;
    changed_.notify_all();
  }
  // Until so many links were begun.
  void await_making(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return made_.size() >= count; });
  }
  std::vector<uint32_t> made() {
    std::lock_guard lock(mutex_);
    return made_;
  }
  std::shared_ptr<NotedLink> link(uint32_t peer) {
    std::lock_guard lock(mutex_);
    return all_[peer];
  }
  std::string heard(uint32_t peer) {
    const auto made = link(peer);
    return made ? made->heard() : "";
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_held_ = false, lacks_memory_ = false;
  std::vector<uint32_t> made_;
  std::map<uint32_t, std::shared_ptr<NotedLink>> all_;

 protected:
  Links links_{[this](uint32_t peer) { return make(peer); }};
};

TEST_F(VerbsLinksOfARank, AnIntroductionIsAnsweredWhileTheRankIsElsewhere) {
  links_.introduced(3, end_of("a"));
  ASSERT_TRUE(soon([&] { return heard(3) == "a"; }));
  EXPECT_EQ(links_.find_or_make(3), link(3)) << "the rank finds what was made";
  EXPECT_EQ(made(), std::vector<uint32_t>{3});
}

TEST_F(VerbsLinksOfARank, TheControlThreadDoesNotWaitForALinkThatIsMade) {
  hold();
  links_.introduced(3, end_of("a"));
  await_making(1);
  links_.introduced(3, end_of("b"));
  links_.introduced(3, end_of("c"));
  links_.introduced(1, end_of("d"));
  links_.departed(1);
  links_.departed(3);
  links_.arm();
  EXPECT_TRUE(links_.all().empty());
  release();
  ASSERT_TRUE(soon([&] { return heard(3) == "ac" && heard(1) == "d"; })) << "the latest that waited counts";
  EXPECT_TRUE(link(1)->has_departed && link(3)->has_departed);
  EXPECT_EQ(links_.all().size(), 2u);
}

// Out of memory: the rank that waits for the link makes it itself, and the peer's next introduction is answered.
TEST_F(VerbsLinksOfARank, ALinkThatCouldNotBeMadeIsMadeAgain) {
  hold();
  fail_once();
  links_.introduced(3, end_of("a"));
  await_making(1);
  std::thread rank([&] { EXPECT_NE(links_.find_or_make(3), nullptr); });
  release();
  rank.join();
  links_.introduced(3, end_of("b"));
  ASSERT_TRUE(soon([&] { return heard(3) == "b"; }));
  fail_once();
  EXPECT_THROW(links_.find_or_make(4), std::bad_alloc);
  EXPECT_NE(links_.find_or_make(4), nullptr);
}

TEST_F(VerbsLinksOfARank, TheRankWaitsForItsLinkAlone) {
  hold();
  links_.introduced(3, end_of("a"));
  await_making(1);
  std::thread other([&] { links_.find_or_make(4); });  // is not behind that of 3
  await_making(2);
  std::thread same([&] {
    const auto found = links_.find_or_make(3);
    EXPECT_EQ(found, link(3));
  });
  release();
  other.join();
  same.join();
  EXPECT_EQ(made(), (std::vector<uint32_t>{3, 4})) << "each once";
}

TEST_F(VerbsLinksOfARank, ALinkThatIsMadeMeanwhileIsStopped) {
  const auto before = links_.find_or_make(2);
  hold();
  links_.introduced(3, end_of("a"));
  await_making(1 + 1);
  links_.introduced(4, end_of("b"));
  links_.stop();  // does not wait
  EXPECT_TRUE(link(2)->is_stopped);
  release();
  ASSERT_TRUE(soon([&] { return link(3) && link(3)->is_stopped; }));
  links_.introduced(5, end_of("c"));
  links_.end();
  EXPECT_EQ(heard(3), "");
  EXPECT_EQ(made(), (std::vector<uint32_t>{2, 3})) << "introductions that wait or come are ignored";
}

TEST_F(VerbsLinksOfARank, TheEndWaitsForALinkThatIsMade) {
  hold();
  links_.introduced(3, end_of("a"));
  await_making(1);
  links_.ignore_introductions();
  std::thread ends([&] {
    links_.end();
    EXPECT_NE(link(3), nullptr);
  });
  release();
  ends.join();
  EXPECT_EQ(links_.all().size(), 1u);
  EXPECT_EQ(heard(3), "");
  links_.introduced(3, end_of("b"));
  links_.end();
  EXPECT_EQ(heard(3), "");
}

TEST_F(VerbsLinksOfARank, LinksThatLiveOnMakeNoIntroductions) {
  std::shared_ptr<NotedLink> made;
  {
    Links links([&](uint32_t) { return made = std::make_shared<NotedLink>(); });
    links.introduced(1, end_of("a"));
    ASSERT_TRUE(soon([&] { return links.all().size() == 1; }));
  }
  EXPECT_TRUE(made->has_ended);
}

}  // namespace
}  // namespace treering::verbs
