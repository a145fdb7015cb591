// SPDX-License-Identifier: Apache-2.0
// The verifier's single findings, each provoked by hand, and that its messages name what a person needs.
#include <gtest/gtest.h>

#include "algorithms/builder.h"
#include "algorithms/verify.h"
#include "helpers.h"

namespace treering {
namespace {

// Two ranks that exchange their inputs, each written down by hand: the base of most cases.
std::vector<Schedule> exchange() { return build_all(kOneShot, make_plan(2)); }

void expect_error(const std::vector<Schedule>& schedules, const std::string& part, VerifyOptions options = {}) {
  const VerifyReport report = verify(schedules, options);
  EXPECT_NE(report.error.find(part), std::string::npos) << "expected '" << part << "', got: " << report.error;
}

TEST(Verifier, NamesTheRanksOfADeadlockAndWhatTheyWaitFor) {
  expect_error(build_all(kRing, make_plan(3)),
               "deadlock of 3 ranks at FIFO depth 1:\n"
               "  rank 0 at step 1 (chunk 2) waits for room in its FIFO to rank 1\n",
               {.fifo_depth = 1});
  auto schedules = exchange();
  schedules[0].steps.erase(schedules[0].steps.begin());  // rank 0 sends nothing
  schedules[0].blocks = {{.first = 0, .length = 1}};
  expect_error(schedules, "rank 1 at step 1 (chunk 0) waits for a message from rank 0");
}

TEST(Verifier, DepthThatAScheduleNamesIsTheLeast) {
  for (const CollectiveInfo& info : collectives())
    for (const Algorithm* algorithm : algorithms_of(info.collective))
      for (uint32_t n : {2u, 3u, 7u, 8u}) {
        const auto schedules = build_all(*algorithm, make_plan(n), {.channels = 2, .pipeline_chunks = 9});
        const uint32_t depth = schedules[0].fifo_depth;
        for (uint32_t d = depth; d < depth + 3; ++d)
          EXPECT_TRUE(verify(schedules, {.collective = info.collective, .fifo_depth = d}).ok())
              << algorithm->name << " depth " << d;
        if (depth > 1 && n > 2) {
          EXPECT_FALSE(verify(schedules, {.collective = info.collective, .fifo_depth = depth - 1}).ok())
              << info.name << " " << algorithm->name;
        }
      }
}

TEST(Verifier, TreeLagIsTheLargestThatFitsDepthOne) {
  // Up before down in the body deadlocks, and so does a lag longer by one: the reasons for both in tree.cpp.
  auto schedules = build_all(kTree, make_plan(8), {.channels = 2, .pipeline_chunks = 16});
  ASSERT_TRUE(verify(schedules).ok());
  for (Schedule& schedule : schedules)
    for (const Block& block : schedule.blocks)
      if (block.length == 2) std::swap(schedule.steps[block.first], schedule.steps[block.first + 1]);
  expect_error(schedules, "deadlock");

  schedules = build_all(kTree, make_plan(8), {.channels = 2, .pipeline_chunks = 16});
  for (Schedule& schedule : schedules) {
    if (schedule.blocks.size() != 3) continue;  // the root
    ++schedule.blocks[0].count;
    --schedule.blocks[1].count;
    ++schedule.blocks[2].count;
    ++schedule.steps[2].chunk;  // up, in the body
    --schedule.steps[3].chunk;  // down, in the epilogue
  }
  expect_error(schedules, "deadlock");
  EXPECT_EQ(verify(schedules, {.fifo_depth = 2}).error, "");
}

TEST(Verifier, NamesMissingAndDoubledContributions) {
  auto schedules = build_all(kOneShot, make_plan(3));
  Step& reduce = schedules[1].steps[1];
  reduce.receive_count = 1;  // leaves out rank 2
  expect_error(schedules, "rank 1 at step 1: chunk 0 is marked final but lacks the input of rank 2", {.exact = true});
  expect_error(schedules, "chunk 0 is marked final but holds 2 inputs of 3");

  // 0 sends to 1 and 2, 1 sends the sum of both to 2, which adds what it got from 0 once more.
  const uint32_t zero[] = {0}, two[] = {2}, both[] = {1, 2}, others[] = {0, 1};
  ScheduleBuilder first(0, 3, 1), second(1, 3, 1), third(2, 3, 1);
  first.once({.flags = kInput | kSend, .send_to = both});
  second.once({.flags = kReceive | kReduce | kInput | kSend, .receive_from = zero, .send_to = two});
  third.once({.flags = kReceive | kReduce | kInput | kStore | kFinal, .receive_from = others});
  const std::vector<Schedule> twice = {first.take(), second.take(), third.take()};
  expect_error(twice, "rank 2 at step 0: counts the input of rank 0 twice in chunk 0", {.exact = true});
  expect_error(twice, "rank 2 at step 0: chunk 0 is marked final but holds 4 inputs of 3");
}

TEST(Verifier, FindsUnreadMessages) {
  auto schedules = exchange();
  schedules[0].fifo_depth = schedules[1].fifo_depth = 2;
  schedules[0].blocks[0].count = 2;
  expect_error(schedules, "rank 1 never reads 1 message(s) from rank 0");
}

TEST(Verifier, FindsMismatchOfChunkAndSpan) {
  auto schedules = build_all(kRing, make_plan(4));
  schedules[2].steps[1].chunk = 0;
  expect_error(schedules, "rank 2 at step 1: expects chunk 0 from rank 1, which sent chunk 1");
  schedules = build_all(kHalvingDoubling, make_plan(4));
  schedules[1].steps[1].span = 1;
  expect_error(schedules, "from rank 0, which sent chunks 2 to 3");
}

TEST(Verifier, FindsResultsThatWouldRoundDifferently) {
  auto schedules = build_all(kOneShot, make_plan(3));
  schedules[2].steps[1].local_position = 0;
  expect_error(schedules, " at step 1: combines chunk 0 in another order than other ranks");
}

TEST(Verifier, FindsInPlaceHazards) {
  // Rank 0 stores the result and then sends its input, which is gone when both are one buffer.
  std::vector<Schedule> schedules;
  const uint32_t zero[] = {0}, one[] = {1};
  ScheduleBuilder first(0, 2, 1);
  first.once({.flags = kReceive | kReduce | kInput | kStore | kFinal, .receive_from = one, .local_position = 0});
  first.once({.flags = kInput | kSend, .send_to = one});
  schedules.push_back(first.take());
  ScheduleBuilder second(1, 2, 1);
  second.once({.flags = kInput | kSend, .send_to = zero});
  second.once({.flags = kReceive | kReduce | kInput | kStore | kFinal, .receive_from = zero});
  schedules.push_back(second.take());
  expect_error(schedules, "rank 0 at step 1: reads input chunk 0 after its output was stored");
}

TEST(Verifier, FindsScratchHazards) {
  const auto halving = [] { return build_all(kHalvingDoubling, make_plan(4)); };
  auto schedules = halving();
  schedules[0].steps[1].flags = kReceive | kReduce | kScratch | kStoreScratch;
  expect_error(schedules, "rank 0 at step 1: reads scratch chunk 0 before it was written");

  schedules = halving();  // what was sent from the scratch may still be read there
  Schedule& s = schedules[0];
  Step again = s.steps[3];
  again.chunk = s.steps[2].chunk;
  again.flags = kScratch | kStoreScratch;
  again.receive_count = again.local_position = 0;
  s.steps.insert(s.steps.begin() + 3, again);
  s.blocks.push_back({.first = s.blocks.back().first + 1, .length = 1});
  expect_error(schedules, "rank 0 at step 3: overwrites scratch chunk 1, which a peer may still be reading");

  schedules = exchange();  // stored and never used; stored twice and never used in between
  ScheduleBuilder keeper(0, 2, 1);
  for (int i = 0; i < 2; ++i) {
    keeper.once({.flags = kInput | kStoreScratch});
    Schedule with_scratch = keeper.schedule();
    for (Step step : schedules[0].steps) {
      with_scratch.blocks.push_back({.first = static_cast<uint32_t>(with_scratch.steps.size()), .length = 1});
      with_scratch.steps.push_back(step);
    }
    with_scratch.peers = schedules[0].peers;
    expect_error({with_scratch, schedules[1]}, i == 0
                                                   ? "rank 0 never uses scratch chunk 0"
                                                   : "rank 0 at step 1: overwrites scratch chunk 0 before it was used");
  }
}

TEST(Verifier, FindsMissingAndDoubleStores) {
  std::vector<Schedule> one = {single_rank_schedule(2)};
  ASSERT_TRUE(verify(one).ok());
  one[0].blocks[0].count = 1;
  expect_error(one, "rank 0 never stores output chunk 1");
  one[0].blocks[0].count = 3;
  expect_error(one, "rank 0 at step 2: reads input chunk 0 after its output was stored");
}

TEST(Verifier, RefusesWhatItCannotRun) {
  expect_error({}, "no schedules");
  auto schedules = exchange();
  std::swap(schedules[0], schedules[1]);
  expect_error(schedules, "schedule 0 is of rank 1 of 2 with 1 chunks; expected rank 0 of 2 with 1");
  expect_error(build_all(kOneShot, make_plan(65)), "at most 64 can be verified exactly", {.exact = true});
}

TEST(CheckStructure, NamesWhatIsMalformed) {
  const auto message = [](void (*spoil)(Schedule&)) {
    Schedule schedule = kOneShot.build(make_plan(3), 1, {});
    EXPECT_TRUE(check_structure(schedule).ok());
    spoil(schedule);
    return check_structure(schedule).message();
  };
  const auto has = [&](void (*spoil)(Schedule&), const std::string& part) {
    EXPECT_NE(message(spoil).find(part), std::string::npos) << part << " / " << message(spoil);
  };
  has([](Schedule& s) { s.peers[0] = 7; }, "step 0: its send list names rank 7 of 3");
  has([](Schedule& s) { s.peers[0] = s.peers[1]; }, "step 0: its send list names rank 0 twice");
  has([](Schedule& s) { s.peers.pop_back(); }, "step 1: its receive list lies outside of the 3 peers");
  has([](Schedule& s) { s.steps[1].span = 2; }, "step 1: chunks 0 to 1 of 1");
  has([](Schedule& s) { s.steps[1].local_position = 3; }, "step 1: local position 3 of 2 received operands");
  has([](Schedule& s) { s.steps[1].flags &= ~kReduce; }, "step 1: 3 operands without kReduce");
  has([](Schedule& s) { s.steps[1].flags &= ~kFinal; }, "step 1: stores into the output what is not final");
  has([](Schedule& s) { s.steps[1].flags &= ~kStore; }, "step 1: neither stores nor sends");
  has([](Schedule& s) { s.blocks.pop_back(); }, "blocks cover 1 of 2 steps");
  has([](Schedule& s) { s.max_span = 4; }, "the largest span is 1, not 4");
  has([](Schedule& s) { s.uses_scratch = true; }, "uses_scratch is true");
}

TEST(Verifier, PartsAreHeldAgainstTheCollective) {
  auto schedules = build_all(kAllGatherDirect, make_plan(3));
  EXPECT_TRUE(verify(schedules, {.collective = Collective::kAllGather}).ok());
  expect_error(schedules, "has 3 parts; allreduce has 1");
  schedules[1].steps[0].chunk = 2;  // rank 1 gives a block that is rank 2's
  expect_error(schedules, "reads input chunk 2, which allgather does not give it",
               {.collective = Collective::kAllGather});

  schedules = build_all(kScatterDirect, make_plan(3));
  expect_error(schedules, "reads input chunk 1, which scatter does not give it",
               {.collective = Collective::kScatter, .root = 1});
}

TEST(Verifier, ListsOfChunksMustBeTheSameAtBothEnds) {
  auto schedules = build_all(kAllGatherBruck, make_plan(5));
  ASSERT_TRUE(verify(schedules, {.collective = Collective::kAllGather}).ok());
  for (Schedule& s : schedules)
    if (s.rank == 2) std::swap(s.chunk_lists[s.steps[2].chunk], s.chunk_lists[s.steps[2].chunk + 1]);
  expect_error(schedules, "from rank 2, which sent", {.collective = Collective::kAllGather});
  schedules[2].chunk_lists[0] = 5;
  expect_error(schedules, "a list of chunks names chunk 5 of 5", {.collective = Collective::kAllGather});
}

// In place the block from a peer comes to lie on the block to it.
TEST(Verifier, BlocksOfPairsAreSentBeforeTheyAreOverwritten) {
  auto schedules = build_all(kAllToAllPairwise, make_plan(3));
  ASSERT_TRUE(verify(schedules, {.collective = Collective::kAllToAll}).ok());
  for (Schedule& s : schedules)
    if (s.rank == 0) std::swap(s.steps[1], s.steps[2]);  // receives from its first partner before it sends
  expect_error(schedules, "after its output was stored", {.collective = Collective::kAllToAll});
}

TEST(Verifier, TellsTheOrderOfTheRanksFromAnother) {
  for (const auto& [algorithm, ordered] : {std::pair{&kTwoShot, true}, {&kRing, false}, {&kTree, false}})
    EXPECT_EQ(verify(build_all(*algorithm, make_plan(5), {.pipeline_chunks = 2})).rank_ordered, ordered)
        << algorithm->name;
}

TEST(Verifier, CompleteValuesMayBePassedOnButNotKeptAsFinal) {
  auto schedules = build_all(kScatterBinomial, make_plan(5));
  ASSERT_TRUE(verify(schedules, {.collective = Collective::kScatter}).ok());
  schedules[0].steps[1].flags |= kFinal;  // to an inner rank, which only passes it on
  expect_error(schedules, "does not store the final chunk", {.collective = Collective::kScatter});
}

}  // namespace
}  // namespace treering
