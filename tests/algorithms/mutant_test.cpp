// SPDX-License-Identifier: Apache-2.0
// The verifier, tested with defects: small changes to correct schedules, all of which it must find.
//
// Schedules are unrolled first, so that each executed step can be changed by itself. A mutant that passes
// must be shown to do the same as the original by an explicit rule; the only rule is that of independent
// steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "algorithms/expand.h"
#include "algorithms/verify.h"
#include "helpers.h"
#include "support/sanitized.h"

namespace treering {
namespace {

// The same program without repetition.
Schedule unrolled(const Schedule& schedule) {
  Schedule flat = schedule;
  flat.steps.clear();
  flat.blocks.clear();
  flat.peers.clear();
  for (Expansion at(schedule); !at.done(); at.advance()) {
    Step step = at.step();
    step.chunk = at.chunk();
    step.receive_first = static_cast<uint32_t>(flat.peers.size());
    for (uint32_t i = 0; i < step.receive_count; ++i) flat.peers.push_back(at.receive_peer(i));
    step.send_first = static_cast<uint32_t>(flat.peers.size());
    for (uint32_t i = 0; i < step.send_count; ++i) flat.peers.push_back(at.send_peer(i));
    flat.steps.push_back(step);
  }
  flat.blocks.push_back({.first = 0, .length = static_cast<uint32_t>(flat.steps.size())});
  return flat;
}

bool share(const Schedule& s, uint32_t first_a, uint32_t count_a, uint32_t first_b, uint32_t count_b) {
  for (uint32_t i = 0; i < count_a; ++i)
    for (uint32_t j = 0; j < count_b; ++j)
      if (s.peers[first_a + i] == s.peers[first_b + j]) return true;
  return false;
}

// Two steps do the same in either order (deadlock aside, which the verifier judges): they share no FIFO,
// and no chunk that one of them writes is read or written by the other. In place, a read of the input and a
// store into the output touch the same memory.
bool independent(const Schedule& s, const Step& a, const Step& b) {
  if (share(s, a.receive_first, a.receive_count, b.receive_first, b.receive_count)) return false;
  if (share(s, a.send_first, a.send_count, b.send_first, b.send_count)) return false;
  if (a.chunk >= b.chunk + b.span || b.chunk >= a.chunk + a.span) return true;
  const auto user = [](const Step& x) { return (x.flags & (kInput | kOutput | kStore)) != 0; };
  const auto scratch = [](const Step& x) { return (x.flags & (kScratch | kStoreScratch)) != 0; };
  if (((a.flags & kStore) && user(b)) || ((b.flags & kStore) && user(a))) return false;
  return !(((a.flags & kStoreScratch) && scratch(b)) || ((b.flags & kStoreScratch) && scratch(a)));
}

class Mutants {
 public:
  Mutants(std::string name, std::vector<Schedule> schedules, VerifyOptions options, bool rank_ordered)
      : name_(std::move(name)), schedules_(std::move(schedules)), options_(options), rank_ordered_(rank_ordered) {}

  // Changes the schedule of one rank, verifies all, and puts the original back.
  void change(const std::string& kind, uint32_t rank, size_t step, const std::function<void(Schedule&)>& mutate,
              bool equivalent = false) {
    const Schedule original = schedules_[rank];
    mutate(schedules_[rank]);
    for (bool exact : {false, true}) {
      options_.exact = exact;
      const VerifyReport report = verify(schedules_, options_);
      if (report.ok() && !report.rank_ordered && rank_ordered_) {
        ++caught_[kind];  // by those that ask for the order of the ranks
        continue;
      }
      if (report.ok() && !equivalent)
        ADD_FAILURE() << name_ << ": not caught: " << kind << " at step " << step << " of rank " << rank;
      // Independent steps can only have become a deadlock.
      if (!report.ok() && equivalent) {
        EXPECT_EQ(report.error.rfind("deadlock", 0), 0u) << name_ << " rank " << rank << ": " << report.error;
      }
      ++(report.ok() ? equivalent_[kind] : caught_[kind]);
    }
    schedules_[rank] = original;
  }

  void all() {
    for (uint32_t rank = 0; rank < schedules_.size(); ++rank)
      for (size_t i = 0; i < schedules_[rank].steps.size(); ++i) {
        order(rank, i);
        places(rank, i);
        flags(rank, i);
      }
  }

  static void print() {
    for (const auto& [kind, count] : caught_)
      fmt::print("{:>16}: {:>7} caught, {:>5} equivalent\n", kind, count, equivalent_[kind]);
  }
  static uint64_t caught(const std::string& kind) { return caught_[kind]; }

 private:
  static constexpr size_t kSwapDistance = 6;

  void order(uint32_t rank, size_t i) {
    const Schedule& schedule = schedules_[rank];
    change("drop step", rank, i, [&](Schedule& s) {
      s.steps.erase(s.steps.begin() + static_cast<ptrdiff_t>(i));
      if (--s.blocks[0].length == 0) s.blocks.clear();
      repair(s);
    });
    change("repeat step", rank, i, [&](Schedule& s) {
      s.steps.insert(s.steps.begin() + static_cast<ptrdiff_t>(i), Step(s.steps[i]));
      ++s.blocks[0].length;
    });
    const std::vector<Step>& steps = schedule.steps;
    for (size_t j = i + 1; j < std::min(steps.size(), i + kSwapDistance + 1); ++j) {
      bool equivalent = independent(schedule, steps[i], steps[j]);
      for (size_t k = i + 1; k < j; ++k)
        equivalent &= independent(schedule, steps[i], steps[k]) && independent(schedule, steps[k], steps[j]);
      change(
          j == i + 1 ? "swap neighbours" : "swap steps", rank, i,
          [&](Schedule& s) { std::swap(s.steps[i], s.steps[j]); }, equivalent);
    }
  }

  void places(uint32_t rank, size_t i) {
    const Step step = schedules_[rank].steps[i];
    const uint32_t chunks = schedules_[rank].chunks;
    const auto ranks = static_cast<uint32_t>(schedules_.size());
    for (uint32_t shift : {1u, chunks - 1})
      if (chunks > 1 && (shift == 1 || chunks > 2))
        change("wrong chunk", rank, i, [&](Schedule& s) { s.steps[i].chunk = (s.steps[i].chunk + shift) % chunks; });
    for (uint32_t k = 0; k < uint32_t{step.receive_count} + step.send_count; ++k) {
      const uint32_t at = k < step.receive_count ? step.receive_first + k : step.send_first + k - step.receive_count;
      for (uint32_t shift = 1; shift < ranks; ++shift)
        change(k < step.receive_count ? "wrong source" : "wrong target", rank, i,
               [&](Schedule& s) { s.peers[at] = (s.peers[at] + shift) % ranks; });
    }
    for (int delta : {-1, 1})
      change("wrong span", rank, i, [&](Schedule& s) {
        s.steps[i].span = static_cast<uint16_t>(s.steps[i].span + delta);
        repair(s);
      });
    // Orders of combination are told apart where several ranks compute the same result, or where the order is
    // that of the ranks. One rank alone may combine in any.
    if ((step.flags & kReduce) && (step.flags & kStore) && !(step.flags & kSend) && chunks == 1)
      change(
          "wrong order", rank, i,
          [&](Schedule& s) {
            s.steps[i].local_position = static_cast<uint16_t>((step.local_position + 1) % (step.receive_count + 1));
          },
          options_.collective != Collective::kAllReduce);
  }

  void flags(uint32_t rank, size_t i) {
    const Step step = schedules_[rank].steps[i];
    for (unsigned bit = 1; bit <= kFinal; bit <<= 1) {
      if ((step.flags & bit) == 0) continue;
      change("dropped flag", rank, i, [&](Schedule& s) {
        s.steps[i].flags = static_cast<uint16_t>(s.steps[i].flags & ~bit);
        // The lists go with their flags, so that the defect is not one of form alone.
        if (bit == kReceive) s.steps[i].receive_count = s.steps[i].local_position = 0;
        if (bit == kSend) s.steps[i].send_count = 0;
        if (bit & (kInput | kOutput | kScratch)) s.steps[i].local_position = 0;
        // ... and so does kReduce with its second operand
        const unsigned operands = s.steps[i].receive_count + ((s.steps[i].flags & (kInput | kOutput | kScratch)) != 0);
        if (operands == 1) s.steps[i].flags = static_cast<uint16_t>(s.steps[i].flags & ~kReduce);
        repair(s);
      });
    }
    const unsigned local = step.flags & (kInput | kOutput | kScratch);
    for (unsigned other : {kInput, kOutput, kScratch})
      if (local != 0 && other != local)
        change("wrong operand", rank, i, [&](Schedule& s) {
          s.steps[i].flags = static_cast<uint16_t>((s.steps[i].flags & ~local) | other);
          repair(s);
        });
  }

  // Makes the summary fields true again, so that they do not give the defect away.
  static void repair(Schedule& s) {
    s.max_span = 1;
    s.uses_scratch = false;
    for (const Step& step : s.steps) {
      s.max_span = std::max<uint32_t>(s.max_span, step.span);
      s.uses_scratch |= (step.flags & (kScratch | kStoreScratch)) != 0;
    }
  }

  std::string name_;
  std::vector<Schedule> schedules_;
  VerifyOptions options_;
  bool rank_ordered_;  // whether the original combines in the order of the ranks
  static inline std::map<std::string, uint64_t> caught_, equivalent_;
};

// A sanitizer needs every kind of mutant, not every size: the sizes above take ten minutes with it.
const std::vector<uint32_t> kRanks =
    testing::kSanitized ? std::vector<uint32_t>{2, 3, 4} : std::vector<uint32_t>{2, 3, 4, 5, 6, 8};

// The collectives that reduce. Where nothing is reduced complete values may travel without kFinal, so that dropping it
// changes nothing; and schedules with lists of chunks have another form of "wrong chunk".
TEST(VerifyMutants, EveryOneIsCaughtOrEquivalent) {
  for (Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter})
    for (const Algorithm* algorithm : algorithms_of(collective))
      for (uint32_t n : kRanks)
        for (uint32_t channel = 0; channel < algorithm->channels; ++channel)
          for (uint32_t pipeline : {1u, 5u}) {
            if ((pipeline > 1 && !algorithm->pipelined) || algorithm == &kReduceScatterHalving) continue;
            const VerifyOptions options = {.collective = collective, .root = n / 2};
            std::vector<Schedule> schedules =
                build_all(*algorithm, make_plan(n),
                          {.channel = channel, .channels = 2, .pipeline_chunks = pipeline, .root = options.root});
            for (Schedule& schedule : schedules) schedule = unrolled(schedule);
            const VerifyReport report = verify(schedules, options);
            ASSERT_TRUE(report.ok()) << algorithm->name << ", unrolled: " << report.error;
            Mutants(fmt::format("{} {} n {} channel {} pipeline {}", info_of(collective).name, algorithm->name, n,
                                channel, pipeline),
                    schedules, options, report.rank_ordered)
                .all();
          }
  Mutants::print();
  for (const char* kind : {"drop step", "repeat step", "swap steps", "swap neighbours", "wrong chunk", "wrong source",
                           "wrong target", "wrong span", "wrong order", "dropped flag", "wrong operand"})
    EXPECT_GT(Mutants::caught(kind), 0u) << kind;
}

}  // namespace
}  // namespace treering
