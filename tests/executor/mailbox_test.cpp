// SPDX-License-Identifier: Apache-2.0
// The mailbox gives, bit for bit, what the schedule "one-shot" gives through the executor, whatever the order
// in which ranks advance.
#include "executor/mailbox.h"

#include <cstring>

#include "executor/local_ranks.h"
#include "support/sanitized.h"
#include "support/seed.h"

namespace treering {
namespace {

Call call_of(std::byte* output, size_t count, trDataType_t type, trRedOp_t op) {
  Call call;
  call.output = View(output);
  call.layout.count = count;
  call.type = type;
  call.type_size = find_type(type)->size;
  call.op = op;
  return call;
}

class Boxes {
 public:
  explicit Boxes(uint32_t ranks) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      memory_.emplace_back(MailboxMemory::bytes(ranks) / sizeof(MailboxLine) + 1);
      areas_.emplace_back(reinterpret_cast<std::byte*>(memory_.back().data()), ranks);
    }
    for (uint32_t rank = 0; rank < ranks; ++rank) mailboxes_.emplace_back(rank, areas_);
  }
  Mailbox& operator[](uint32_t rank) { return mailboxes_[rank]; }

 private:
  std::vector<std::vector<MailboxLine>> memory_;
  std::vector<MailboxMemory> areas_;
  std::vector<Mailbox> mailboxes_;
};

constexpr size_t kByteSizes[] = {0,   1,   4,   8,   16,  55,  56,  57,  64,   104,  111,  112,   113,   168,  169,
                                 200, 216, 223, 224, 225, 232, 240, 256, 1000, 4096, 9999, 16376, 16383, 16384};

class MailboxRanks : public ::testing::TestWithParam<uint32_t> {
 protected:
  uint64_t seed_ = test_seed();
  std::mt19937_64 random_{seed_};
};

// One message after the other on all ranks; a rank may be one message ahead of the others, as in life.
void run_mailbox(Boxes* boxes, uint32_t ranks, std::vector<JobBuffers>* buffers, const std::vector<LocalJob>& jobs,
                 std::mt19937_64* random) {
  std::vector<size_t> at(ranks, 0);
  std::vector<bool> begun(ranks, false);
  size_t finished = 0, idle = 0;
  while (finished < ranks) {
    auto rank = static_cast<uint32_t>((*random)() % ranks);
    if (at[rank] == jobs.size()) continue;
    const LocalJob& job = jobs[at[rank]];
    auto signature = static_cast<uint32_t>(at[rank] * 31 + 5);
    if (!begun[rank]) (*boxes)[rank].start(signature, job.inputs[rank], job.count * find_type(job.type)->size);
    begun[rank] = true;
    Progress progress = (*boxes)[rank].advance(call_of(job.outputs[rank], job.count, job.type, job.op));
    ASSERT_NE(progress, Progress::kDiffers);
    if (progress == Progress::kBlocked) {
      ASSERT_LT(++idle, 100'000u) << "rank " << rank << " waits for " << (*boxes)[rank].peer();
      continue;
    }
    idle = 0;
    begun[rank] = false;
    finished += ++at[rank] == jobs.size();
  }
}

TEST_P(MailboxRanks, EqualsOneShotForEveryTypeOpAndSize) {
  uint32_t ranks = GetParam();
  const Algorithm* one_shot = nullptr;
  ASSERT_TRUE(find_algorithm(Collective::kAllReduce, "one-shot", &one_shot).ok());
  LocalRanks executor(ranks, 1, 64 << 10, false);
  Boxes boxes(ranks);
  for (const DataTypeInfo& type : kDataTypes) {
    std::vector<JobBuffers> by_mailbox, by_executor;
    std::vector<LocalJob> jobs;
    for (const OpInfo& op : kOps)
      for (size_t bytes : kByteSizes) {
        if (!supports(type, op)) continue;
        size_t count = bytes / type.size;
        by_mailbox.emplace_back(ranks, type.type, count, random_() % 2 == 0, &random_);
        by_executor.push_back(by_mailbox.back());
        jobs.push_back({count, type.type, op.op, {}, {}, 0});
      }
    for (size_t i = 0; i < jobs.size(); ++i) {
      LocalJob job = by_executor[i].job(jobs[i].count, jobs[i].type, jobs[i].op);
      ASSERT_EQ(executor.run(*one_shot, job, 1, &random_), "") << type.name << " seed " << seed_;
      jobs[i] = by_mailbox[i].job(jobs[i].count, jobs[i].type, jobs[i].op);
    }
    ASSERT_NO_FATAL_FAILURE(run_mailbox(&boxes, ranks, &by_mailbox, jobs, &random_)) << "seed " << seed_;
    for (size_t i = 0; i < jobs.size(); ++i)
      for (uint32_t rank = 0; rank < ranks; ++rank)
        ASSERT_EQ(by_mailbox[i].outputs[rank], by_executor[i].outputs[rank])
            << type.name << " " << find_op(jobs[i].op)->name << " count " << jobs[i].count << " rank " << rank
            << (by_mailbox[i].in_place ? " in place" : "") << " seed " << seed_;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, MailboxRanks,
                         ::testing::ValuesIn(testing::kSanitized ? std::vector<uint32_t>{2, 5}
                                                                 : std::vector<uint32_t>{2, 3, 4, 5, 6, 7, 8, 9}));

TEST(Mailbox, DifferentCallsAreNoticedByBothSidesInEveryPath) {
  for (size_t bytes : {size_t{8}, size_t{200}, size_t{4096}}) {
    Boxes boxes(2);
    Bytes input(bytes), output(bytes);
    boxes[0].start(1, input.data(), bytes);
    EXPECT_EQ(boxes[0].advance(call_of(output.data(), bytes, trInt8, trSum)), Progress::kBlocked);
    EXPECT_EQ(boxes[0].peer(), 1u);
    boxes[1].start(2, input.data(), bytes);
    EXPECT_EQ(boxes[0].advance(call_of(output.data(), bytes, trInt8, trSum)), Progress::kDiffers);
    EXPECT_EQ(boxes[0].peer(), 1u);
    EXPECT_EQ(boxes[1].advance(call_of(output.data(), bytes, trInt8, trSum)), Progress::kDiffers);
    EXPECT_EQ(boxes[1].peer(), 0u);
  }
}

}  // namespace
}  // namespace treering
