// SPDX-License-Identifier: Apache-2.0
// The cost model and the selection: choices that physics dictates, not the numbers of one machine.
#include "algorithms/select.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace treering {
namespace {

Machine machine(uint32_t cores) {
  Machine result;
  result.cores = cores;
  return result;
}

Selection choose(const Machine& m, const SelectionInput& input) {
  Selection selection;
  const Status status = select(m, input, &selection);
  EXPECT_TRUE(status.ok()) << status.message();
  return selection;
}

std::string name_of(const Selection& s) {
  return fmt::format("{} {}", s.best.algorithm->name, protocol_name(s.best.protocol));
}

TEST(Select, TinyBuffersTakeOneRoundAndLargeOnesTheLeastTraffic) {
  EXPECT_EQ(name_of(choose(machine(4), {.ranks = 4, .bytes = 8})), "one-shot mailbox");
  for (bool direct : {false, true}) {
    const Selection large = choose(machine(4), {.ranks = 4, .bytes = 64u << 20, .direct = direct});
    EXPECT_NE(large.best.algorithm, &kOneShot);
    EXPECT_EQ(large.best.protocol, direct ? Protocol::kDirect : Protocol::kStaged);
  }
}

TEST(Select, ManyRanksTakeFewRounds) {
  // 1024 ranks with a core each: 2046 rounds of a ring cannot win at 64 KiB, logarithmic rounds do.
  const Selection s = choose(machine(1024), {.ranks = 1024, .bytes = 64u << 10});
  EXPECT_LE(s.best.rounds, 40) << name_of(s);
}

TEST(Select, MoreRanksThanCoresMakesRoundsExpensive) {
  for (uint64_t bytes : {uint64_t{64} << 10, uint64_t{1} << 20}) {
    const Selection enough = choose(machine(16), {.ranks = 16, .bytes = bytes});
    const Selection scarce = choose(machine(2), {.ranks = 16, .bytes = bytes});
    EXPECT_LE(scarce.best.rounds * static_cast<double>(scarce.best.slices),
              enough.best.rounds * static_cast<double>(enough.best.slices));
    EXPECT_GT(scarce.best.predicted_us, enough.best.predicted_us);
  }
}

TEST(Select, PredictionsGrowWithSizeAndSumUp) {
  for (bool direct : {false, true})
    for (uint32_t ranks : {1u, 2u, 4u, 8u, 100u}) {
      double before = 0;
      for (uint64_t bytes = 1; bytes <= uint64_t{1} << 32; bytes *= 4) {
        const Selection s = choose(machine(4), {.ranks = ranks, .bytes = bytes, .direct = direct});
        EXPECT_GE(1.02 * s.best.predicted_us, before) << ranks << " ranks, " << bytes << " bytes";
        before = s.best.predicted_us;
        for (const Candidate& c : s.candidates) {
          EXPECT_GE(1.02 * c.predicted_us, s.best.predicted_us);
          EXPECT_DOUBLE_EQ(c.predicted_us, c.latency_us + c.executor_us + c.data_us);
          EXPECT_GE(c.slices * c.slice_bytes, bytes) << c.algorithm->name;
          if (c.protocol == Protocol::kStaged) {
            EXPECT_LE(c.chunk_bytes, Machine{}.slot_bytes) << c.algorithm->name;
          }
        }
      }
    }
}

TEST(Select, SameArgumentsSameChoice) {
  for (uint64_t bytes = 1; bytes < (1u << 30); bytes = bytes * 3 + 1) {
    const SelectionInput input = {.ranks = 6, .bytes = bytes, .direct = true};
    const Selection a = choose(machine(4), input), b = choose(machine(4), input);
    EXPECT_EQ(name_of(a), name_of(b));
    EXPECT_EQ(a.best.pipeline_chunks, b.best.pipeline_chunks);
    EXPECT_EQ(a.best.predicted_us, b.best.predicted_us);
  }
}

TEST(Select, ForcedAlgorithmAndChannelsAreHonoured) {
  for (const Algorithm* algorithm : algorithms_of(Collective::kAllReduce))
    for (uint64_t bytes : {uint64_t{8}, uint64_t{64} << 20}) {
      const Selection s = choose(machine(4), {.ranks = 4, .bytes = bytes, .forced = algorithm->name});
      EXPECT_EQ(s.best.algorithm, algorithm);
    }
  EXPECT_EQ(choose(machine(4), {.ranks = 4, .bytes = 1 << 20, .channels = 3, .forced = "ring"}).best.channels, 3u);
  Selection selection;
  EXPECT_EQ(
      select(machine(4), {.ranks = 4, .forced = "rong"}, &selection).message(),
      "unknown algorithm 'rong'; did you mean ring?; the known ones are: allreduce: one-shot, recursive-doubling, two-shot, ring, "
      "halving-doubling, tree, hierarchical, hybrid, ring-2d, hybrid-ring; "
      "reduce: direct, scatter-gather, tree; broadcast: direct, scatter-allgather, chain, binomial, tree; "
      "allgather: direct, ring, bruck; reduce-scatter: direct, ring, halving; "
      "alltoall: direct, pairwise, bruck; gather: direct, binomial; scatter: direct, binomial; "
      "barrier: one-shot, recursive-doubling, tree");
  EXPECT_EQ(select(machine(4), {.ranks = 2000, .forced = "one-shot"}, &selection).message(),
            "no algorithm fits; one-shot: takes 1 to 1024 ranks, not 2000");
}

TEST(Select, InPlaceOneShotNeverReadsPeersDirectly) {
  for (bool in_place : {false, true}) {
    const Selection s =
        choose(machine(4), {.ranks = 4, .bytes = 1 << 16, .direct = true, .in_place = in_place, .forced = "one-shot"});
    bool direct = false;
    for (const Candidate& c : s.candidates) direct |= c.protocol == Protocol::kDirect;
    EXPECT_EQ(direct, !in_place);
  }
}

TEST(Select, RangesCoverAllSizesAndAgreeWithSingleChoices) {
  for (uint32_t ranks : {1u, 2u, 4u, 16u, 1000u})
    for (bool direct : {false, true}) {
      SelectionInput input = {.ranks = ranks, .direct = direct};
      std::vector<SelectionRange> ranges;
      ASSERT_TRUE(selection_ranges(machine(4), input, &ranges).ok());
      uint64_t expected = 0;
      for (const SelectionRange& range : ranges) {
        EXPECT_EQ(range.first_bytes, expected);
        for (uint64_t bytes : {range.first_bytes, range.last_bytes}) {
          if (bytes == UINT64_MAX) continue;
          input.bytes = bytes;
          const Selection s = choose(machine(4), input);
          EXPECT_EQ(s.best.algorithm, range.at_first.algorithm) << bytes;
          EXPECT_EQ(s.best.protocol, range.at_first.protocol) << bytes;
        }
        expected = range.last_bytes + 1;
      }
      EXPECT_EQ(ranges.back().last_bytes, UINT64_MAX);
    }
}

TEST(Explain, TablesNameTheChoiceAndTheReasons) {
  std::string text;
  ASSERT_TRUE(explain_text(machine(2), {.ranks = 4, .bytes = 1 << 20, .in_place = true}, &text).ok());
  EXPECT_EQ(text.rfind("allreduce of 1 MiB: 4 ranks on 2 cores, ordinary buffers, in place (more ranks than cores", 0),
            0u)
      << text;
  for (const Algorithm* algorithm : algorithms_of(Collective::kAllReduce))
    EXPECT_NE(text.find(algorithm->name), std::string::npos) << text;
  EXPECT_NE(text.find("\n* "), std::string::npos) << text;
  EXPECT_NE(text.find("left out: ring direct: the peers cannot reach the buffers"), std::string::npos) << text;
  EXPECT_NE(text.find("left out: one-shot mailbox: 1048576 bytes are more than a mailbox takes (2048)"),
            std::string::npos)
      << text;
  ASSERT_TRUE(explain_text(machine(4), {.ranks = 4, .bytes = 8, .forced = "ring"}, &text).ok());
  EXPECT_NE(text.find("the algorithm is forced"), std::string::npos) << text;
  ASSERT_TRUE(explain_ranges_text(machine(4), {.ranks = 4}, &text).ok());
  EXPECT_NE(text.find("0 B - "), std::string::npos) << text;
  EXPECT_NE(text.find(" - any"), std::string::npos) << text;
  EXPECT_EQ(explain_text(machine(4), {.ranks = 4, .forced = "x"}, &text).code(), trInvalidArgument);
}

TEST(Explain, BytesAreReadable) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(uint64_t{3} << 30), "3 GiB");
}

TEST(Select, ForcedListsNameCollectives) {
  const auto forced = [](const char* list, Collective collective) {
    const Algorithm* row = forced_algorithm(list, collective);
    return row == nullptr ? std::string("free") : std::string(row->name);
  };
  EXPECT_EQ(forced("", Collective::kAllReduce), "free");
  EXPECT_EQ(forced("ring", Collective::kAllGather), "ring");
  EXPECT_EQ(forced("ring", Collective::kBroadcast), "free") << "it has none of that name";
  EXPECT_EQ(forced("broadcast:chain,ring", Collective::kBroadcast), "chain");
  EXPECT_EQ(forced("tree,broadcast:chain", Collective::kBroadcast), "chain") << "the word that names it wins";
  EXPECT_EQ(forced("tree,broadcast:chain", Collective::kReduce), "tree");
  for (const char* name : {"reduce_scatter", "ReduceScatter", "REDUCE-SCATTER", "reducescatter"}) {
    const std::string list = std::string(name) + ":halving";
    EXPECT_EQ(forced(list.c_str(), Collective::kReduceScatter), "halving") << name;
    EXPECT_TRUE(check_forced_algorithms(list).ok()) << name;
    EXPECT_EQ(find_collective(name), &info_of(Collective::kReduceScatter)) << name;
  }
  for (const char* name : {"", "-", "reduce", "reduce-scatters", "reduce scatter"})
    EXPECT_NE(find_collective(name), &info_of(Collective::kReduceScatter)) << name;
  EXPECT_TRUE(check_forced_algorithms("broadcast:chain,ring,,alltoall:bruck").ok());
  EXPECT_EQ(check_forced_algorithms("allgather:tree").message(),
            "unknown algorithm 'tree' of allgather; the known ones are: direct, ring, bruck");
  EXPECT_NE(check_forced_algorithms("gossip:ring").message().find("unknown collective 'gossip'; the known ones are: "),
            std::string::npos);
}

TEST(Select, AMistypedNameIsAnsweredWithTheOneThatWasMeant) {
  const struct {
    const char *forced, *answer;
  } cases[] = {{"rign", "unknown algorithm 'rign'; did you mean ring?; the known ones are: "},
               {"heirarchical", "unknown algorithm 'heirarchical'; did you mean hierarchical?; the known ones are: "},
               {"ring,broadcast:chian", "unknown algorithm 'chian' of broadcast; did you mean chain?; the known ones "},
               {"brodcast:chain", "unknown collective 'brodcast'; did you mean broadcast?; the known ones are: "},
               {"quantum", "unknown algorithm 'quantum'; the known ones are: "},
               {"x", "unknown algorithm 'x'; the known ones are: "}};
  for (const auto& [forced, answer] : cases)
    EXPECT_EQ(check_forced_algorithms(forced).message().find(answer), 0u) << check_forced_algorithms(forced).message();
}

TEST(Select, AlgorithmsBetweenHostsAreTakenOnOneHostOnlyIfTheyAreForced) {
  for (const char* forced : {"", "broadcast:chain", "hierarchical"}) {
    const Selection s = choose(machine(4), {.ranks = 4, .bytes = 1 << 20, .forced = forced});
    const bool is_forced = forced == std::string("hierarchical");
    for (const Candidate& c : s.candidates) EXPECT_TRUE(is_forced || c.algorithm->min_hosts <= 1) << c.algorithm->name;
    EXPECT_EQ(s.forced_in_vain, is_forced ? "is for ranks on 2 hosts or more, these are on 1" : "");
  }
}

TEST(Select, ConstraintsLeaveOutWhatCannotMeetThem) {
  for (const CollectiveInfo& info : collectives())
    for (uint32_t ranks : {1u, 2u, 5u, 300u})
      for (uint64_t bytes : {uint64_t{0}, uint64_t{100}, uint64_t{1} << 26}) {
        SelectionInput input{.collective = info.collective, .ranks = ranks, .bytes = bytes};
        Selection selection;
        input.unequal = true;
        ASSERT_TRUE(select(machine(4), input, &selection).ok()) << info.name;
        for (const Candidate& c : selection.candidates) EXPECT_FALSE(c.algorithm->equal_parts_only) << info.name;
        input.unequal = false;
        input.rank_ordered_only = true;
        ASSERT_TRUE(select(machine(4), input, &selection).ok()) << info.name;
        for (const Candidate& c : selection.candidates) EXPECT_TRUE(c.algorithm->rank_ordered) << info.name;
        input.forced = "ring";  // one call that cannot use it chooses freely, and says so
        ASSERT_TRUE(select(machine(4), input, &selection).ok()) << info.name;
        EXPECT_TRUE(selection.best.algorithm->rank_ordered);
      }
}

}  // namespace
}  // namespace treering
