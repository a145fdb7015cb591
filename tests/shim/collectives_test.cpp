// SPDX-License-Identifier: Apache-2.0
// Every function, type and operation against a reference, with ranks as threads and as processes.
#include <sstream>

#include "shim/helpers.h"
#include "shim/values.h"

namespace treering::testing {
namespace {

using Bytes = std::vector<unsigned char>;

// One rank's checks; the first thing that is wrong ends up in `wrong`.
class Checker {
 public:
  Checker(ncclComm_t comm, int rank, int ranks) : comm_(comm), rank_(rank), ranks_(ranks) {}

  std::string check_all(size_t count) {
    for (int type = 0; type < ncclNumTypes && wrong_.empty(); ++type) {
      type_ = static_cast<ncclDataType_t>(type);
      count_ = count;
      for (int op = 0; op < ncclNumOps; ++op) check_reductions(static_cast<ncclRedOp_t>(op));
      for (int root = 0; root < ranks_; ++root) check_rooted(root);
      check_exchanges();
      check_ring();
    }
    return wrong_;
  }

 private:
  Bytes values_of(int rank, int most, size_t first, size_t count) const {
    std::vector<double> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = value_of(rank, most, first + i);
    return buffer_of(type_, values);
  }
  // Values of `rank`, from index `first` on: to move, and to combine.
  Bytes own(int rank, size_t first, size_t count) const { return values_of(rank, ranks_, first, count); }
  Bytes operand(size_t count) const { return values_of(rank_, most_combined(ranks_), 0, count); }
  Bytes result_of(ncclRedOp_t op, size_t first, size_t count) const {
    std::vector<double> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = reduced(op, type_, ranks_, first + i);
    return buffer_of(type_, values);
  }
  Bytes blank(size_t count) const { return Bytes(count * size_of(type_), 0xAA); }
  // Every rank's values one after another.
  Bytes all_ranks() const {
    Bytes all;
    for (int rank = 0; rank < ranks_; ++rank) {
      const Bytes part = own(rank, 0, count_);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  void expect(const char* what, ncclResult_t result, const Bytes& got, const Bytes& expected) {
    if (!wrong_.empty() || (result == ncclSuccess && got == expected)) return;
    std::ostringstream text;
    text << what << ", rank " << rank_ << " of " << ranks_ << ", type " << type_ << ", count " << count_ << ": result "
         << result << " " << (result == ncclSuccess ? "wrong values" : ncclGetLastError(comm_));
    wrong_ = text.str();
  }

  void check_reductions(ncclRedOp_t op) {
    const size_t n = static_cast<size_t>(ranks_), me = static_cast<size_t>(rank_);
    const Bytes input = operand(count_);
    Bytes output = blank(count_);
    expect("allreduce", ncclAllReduce(input.data(), output.data(), count_, type_, op, comm_, nullptr), output,
           result_of(op, 0, count_));
    output = input;
    expect("allreduce in place", ncclAllReduce(output.data(), output.data(), count_, type_, op, comm_, nullptr), output,
           result_of(op, 0, count_));
    output = blank(count_);
    const int root = static_cast<int>(op) % ranks_;
    expect("reduce", ncclReduce(input.data(), output.data(), count_, type_, op, root, comm_, nullptr), output,
           rank_ == root ? result_of(op, 0, count_) : blank(count_));
    const Bytes blocks = operand(n * count_);
    output = blank(count_);
    expect("reduce-scatter", ncclReduceScatter(blocks.data(), output.data(), count_, type_, op, comm_, nullptr), output,
           result_of(op, me * count_, count_));
  }

  void check_rooted(int root) {
    const size_t n = static_cast<size_t>(ranks_), me = static_cast<size_t>(rank_);
    const Bytes input = own(rank_, 0, count_), of_root = own(root, 0, count_);
    Bytes output = blank(count_);
    expect("broadcast", ncclBroadcast(input.data(), output.data(), count_, type_, root, comm_, nullptr), output,
           of_root);
    output = input;
    expect("bcast", ncclBcast(output.data(), count_, type_, root, comm_, nullptr), output, of_root);
    output = blank(n * count_);
    expect("gather",
           ncclGather(input.data(), rank_ == root ? output.data() : nullptr, count_, type_, root, comm_, nullptr),
           output, rank_ == root ? all_ranks() : blank(n * count_));
    const Bytes blocks = own(rank_, 0, n * count_);
    output = blank(count_);
    expect("scatter",
           ncclScatter(rank_ == root ? blocks.data() : nullptr, output.data(), count_, type_, root, comm_, nullptr),
           output, own(root, me * count_, count_));
  }

  void check_exchanges() {
    const size_t n = static_cast<size_t>(ranks_), me = static_cast<size_t>(rank_);
    Bytes output = blank(n * count_);
    const Bytes input = own(rank_, 0, count_), blocks = own(rank_, 0, n * count_);
    expect("allgather", ncclAllGather(input.data(), output.data(), count_, type_, comm_, nullptr), output, all_ranks());
    Bytes expected;
    for (int rank = 0; rank < ranks_; ++rank) {
      const Bytes block = own(rank, me * count_, count_);
      expected.insert(expected.end(), block.begin(), block.end());
    }
    output = blank(n * count_);
    expect("alltoall", ncclAlltoAll(blocks.data(), output.data(), count_, type_, comm_, nullptr), output, expected);
  }

  // To the next rank, from the one before, in a group.
  void check_ring() {
    const int next = (rank_ + 1) % ranks_, previous = (rank_ + ranks_ - 1) % ranks_;
    const Bytes input = own(rank_, 0, count_);
    Bytes output = blank(count_);
    ncclGroupStart();
    ncclResult_t sent = ncclSend(input.data(), count_, type_, next, comm_, nullptr);
    ncclResult_t received = ncclRecv(output.data(), count_, type_, previous, comm_, nullptr);
    ncclResult_t ended = ncclGroupEnd();
    expect("send", sent, {}, {});
    expect("receive", received, {}, {});
    expect("ring of sends", ended, output, own(previous, 0, count_));
  }

  ncclComm_t comm_;
  int rank_, ranks_;
  size_t count_ = 0;
  ncclDataType_t type_ = ncclInt8;
  std::string wrong_;
};

class Collectives : public ::testing::TestWithParam<int> {};

TEST_P(Collectives, BetweenThreads) {
  const int ranks = GetParam();
  with_ranks(ranks, [&](int rank, ncclComm_t comm) {
    for (size_t count : {1, 17, 3000}) EXPECT_EQ(Checker(comm, rank, ranks).check_all(count), "");
  });
}

TEST_P(Collectives, BetweenProcesses) {
  const int ranks = GetParam();
  expect_all_succeed(ranks, [&](int rank, const trUniqueId& id) {
    ncclComm_t comm = nullptr;
    NCCL_CHECK(ncclCommInitRank(&comm, ranks, as_nccl(id), rank));
    for (size_t count : {1, 17, 3000})
      if (std::string wrong = Checker(comm, rank, ranks).check_all(count); !wrong.empty()) {
        say(wrong);
        return 1;
      }
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(1, 2, 3, 4));

// The check itself: a rank that is given another's values says so.
TEST(Checker, FindsWrongValues) {
  const auto right = buffer_of(ncclFloat8e4m3, {1, 2, 1.5}), wrong = buffer_of(ncclFloat8e4m3, {1, 2, 1.25});
  EXPECT_NE(right, wrong);
  EXPECT_EQ(buffer_of(ncclFloat16, {1.5}), (std::vector<unsigned char>{0x00, 0x3E}));
  EXPECT_EQ(buffer_of(ncclBfloat16, {2.5}), (std::vector<unsigned char>{0x20, 0x40}));
  EXPECT_EQ(buffer_of(ncclFloat8e4m3, {10}), (std::vector<unsigned char>{0x52}));
  EXPECT_EQ(buffer_of(ncclFloat8e5m2, {24}), (std::vector<unsigned char>{0x4E}));
  EXPECT_EQ(reduced(ncclAvg, ncclInt32, 4, 0), 1);
  EXPECT_EQ(reduced(ncclAvg, ncclFloat32, 4, 0), 1.5);
  EXPECT_EQ(reduced(ncclProd, ncclFloat32, 3, 3), 6);
}

TEST(Collectives, ZeroElements) {
  with_ranks(2, [](int, ncclComm_t comm) {
    EXPECT_NCCL(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, comm, nullptr));
    EXPECT_NCCL(ncclAllGather(nullptr, nullptr, 0, ncclFloat32, comm, nullptr));
  });
}

TEST(Streams, DefaultStreamsBlockAndOthersAreRefused) {
  with_ranks(2, [](int, ncclComm_t comm) {
    for (uintptr_t stream : {0, 1, 2}) {
      int value = 1;
      EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, reinterpret_cast<cudaStream_t>(stream)));
      EXPECT_EQ(value, 2);
    }
    int value = 1;
    EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, reinterpret_cast<cudaStream_t>(0x7f00)),
              ncclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("0x7f00"), std::string::npos) << ncclGetLastError(comm);
    EXPECT_EQ(value, 1);
  });
}

}  // namespace
}  // namespace treering::testing
