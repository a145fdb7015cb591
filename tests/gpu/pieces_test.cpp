// SPDX-License-Identifier: Apache-2.0
// Pieces of large collectives: how many, how long, and where each lies in the buffers of the whole.
#include "gpu/memory/pieces.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/config.h"
#include "core/types.h"

namespace treering {
namespace {

constexpr uint32_t kRanks = 2, kRank = 1;
constexpr size_t kPieceBytes = 64 << 10;

// Two ranks of this process; the other one says that it has a GPU, which nothing here uses.
class PiecesOfTwo : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    trUniqueId id;
    ASSERT_EQ(trGetUniqueId(&id), trSuccess);
    std::thread other([&] { create(0, 0, id); });
    create(kRank, -1, id);
    other.join();
  }
  static void TearDownTestSuite() {
    for (auto& communicator : all_) communicator.reset();
  }
  static void create(uint32_t rank, int device, const trUniqueId& id) {
    Config config;
    Status status = resolve_config(nullptr, &config);
    config.device = device;
    config.device_piece_bytes = kPieceBytes;
    if (status.ok()) status = Communicator::create(kRanks, id, rank, config, &all_[rank]);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  static const Communicator& own() { return *all_[kRank]; }

  static inline std::unique_ptr<Communicator> all_[kRanks];
};

Operation operation_of(Collective collective, size_t count, trDataType_t type = trFloat32) {
  Operation operation;
  operation.collective = collective;
  operation.count = count;
  operation.type = type;
  return operation;
}

TEST_F(PiecesOfTwo, WhatFitsStaysWhole) {
  constexpr size_t kMax = kPieceBytes / sizeof(float);
  EXPECT_EQ(most_piece_bytes(own()), kPieceBytes);
  EXPECT_EQ(plan_pieces(own(), operation_of(Collective::kAllReduce, 0)).pieces, 1u);
  EXPECT_EQ(plan_pieces(own(), operation_of(Collective::kAllReduce, kMax)).pieces, 1u);
  EXPECT_EQ(plan_pieces(own(), operation_of(Collective::kAllReduce, kMax + 1)).pieces, 2u);
  // A block of each rank: the larger buffer has all of them.
  EXPECT_EQ(plan_pieces(own(), operation_of(Collective::kAllGather, kMax / kRanks)).pieces, 1u);
  EXPECT_EQ(plan_pieces(own(), operation_of(Collective::kAllGather, kMax / kRanks + 1)).pieces, 2u);
}

TEST_F(PiecesOfTwo, WhatCannotBeSplitStaysWhole) {
  constexpr size_t kLarge = 10 * kPieceBytes;
  Operation operation = operation_of(Collective::kAllReduce, kLarge);
  ASSERT_GT(plan_pieces(own(), operation).pieces, 1u);
  operation.pairs = true;
  EXPECT_EQ(plan_pieces(own(), operation).pieces, 1u);
  operation.pairs = false;
  operation.blocks = std::make_shared<Blocks>();
  EXPECT_EQ(plan_pieces(own(), operation).pieces, 1u);
  operation.blocks = nullptr;
  operation.segments = std::make_shared<BufferSegments>();
  EXPECT_EQ(plan_pieces(own(), operation).pieces, 1u);
  operation.segments = nullptr;
  operation.compression = std::make_shared<Compression>();
  EXPECT_EQ(plan_pieces(own(), operation).pieces, 1u);
}

TEST_F(PiecesOfTwo, ARankAloneSplitsNothing) {
  Config config;
  ASSERT_TRUE(resolve_config(nullptr, &config).ok());
  std::unique_ptr<Communicator> alone;
  ASSERT_TRUE(Communicator::create_alone(config, &alone).ok());
  EXPECT_EQ(plan_pieces(*alone, operation_of(Collective::kAllReduce, size_t{1} << 30)).pieces, 1u);
}

TEST_F(PiecesOfTwo, PiecesAreEvenAndOfWholeUnitsAndCoverAll) {
  for (trDataType_t type : {trInt8, trFloat32, trComplex128})
    for (Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kAllToAll})
      for (size_t count : {size_t{66'000}, size_t{100'003}, size_t{1'000'001}}) {
        const Operation operation = operation_of(collective, count, type);
        const PiecePlan plan = plan_pieces(own(), operation);
        if (plan.pieces == 1) continue;
        EXPECT_EQ(plan.count % 64, 0u);
        size_t sum = 0;
        for (size_t index = 0; index < plan.pieces; ++index) {
          const Operation piece = piece_of(operation, plan, index);
          EXPECT_TRUE(piece.is_piece);
          EXPECT_GT(piece.count, 0u);
          EXPECT_EQ(piece.count, index + 1 < plan.pieces ? plan.count : count - index * plan.count);
          EXPECT_LE(piece.elements(kRanks) * find_type(type)->size, most_piece_bytes(own()));
          sum += piece.count;
        }
        EXPECT_EQ(sum, count);
        EXPECT_GT(piece_of(operation, plan, plan.pieces - 1).count + 64 * plan.pieces, plan.count) << "uneven";
      }
}

TEST_F(PiecesOfTwo, EachHasItsPlaceInABufferOfOneBlock) {
  std::vector<float> input(50'000), output(50'000);
  Operation operation = operation_of(Collective::kAllReduce, input.size());
  operation.input = input.data();
  operation.output = output.data();
  const PiecePlan plan = plan_pieces(own(), operation);
  ASSERT_GT(plan.pieces, 2u);
  size_t index = 0;
  const Status status = for_each_piece(own(), operation, [&](const Operation& piece) {
    EXPECT_EQ(piece.input, input.data() + index * plan.count);
    EXPECT_EQ(piece.output, output.data() + index * plan.count);
    EXPECT_EQ(piece.segments, nullptr);
    ++index;
    return Status();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(index, plan.pieces);
}

TEST_F(PiecesOfTwo, EachTakesItsPartOfEveryBlock) {
  constexpr size_t kCount = 20'000;
  std::vector<float> input(kCount), output(kRanks * kCount);
  Operation operation = operation_of(Collective::kAllGather, kCount);
  operation.input = input.data();
  operation.output = output.data();
  EXPECT_EQ(buffer_blocks(operation, kRank, kRanks, false), 1u);
  EXPECT_EQ(buffer_blocks(operation, kRank, kRanks, true), 2u);
  const PiecePlan plan = plan_pieces(own(), operation);
  ASSERT_EQ(plan.pieces, 3u);
  const Operation last = host_piece(own(), operation, plan, 2);
  EXPECT_EQ(last.input, nullptr);
  EXPECT_EQ(last.output, nullptr);
  ASSERT_NE(last.segments, nullptr);
  ASSERT_EQ(last.segments->input.size(), 1u);
  EXPECT_EQ(last.segments->input[0].base, reinterpret_cast<std::byte*>(input.data() + 2 * plan.count));
  ASSERT_EQ(last.segments->output.size(), 2u);
  for (size_t block = 0; block < 2; ++block) {
    EXPECT_EQ(last.segments->output[block].base,
              reinterpret_cast<std::byte*>(output.data() + block * kCount + 2 * plan.count));
    EXPECT_EQ(last.segments->output[block].first, block * last.count);
  }
}

TEST_F(PiecesOfTwo, ABufferThatTheRankDoesNotHaveHasNoBlocks) {
  Operation gather = operation_of(Collective::kGather, 100);
  EXPECT_EQ(buffer_blocks(gather, 0, kRanks, true), kRanks);
  EXPECT_EQ(buffer_blocks(gather, kRank, kRanks, true), 0u);
}

TEST_F(PiecesOfTwo, AFailureOfAPieceIsTheLast) {
  Operation operation = operation_of(Collective::kAllReduce, 100'000);
  int calls = 0;
  const Status status = for_each_piece(own(), operation, [&](const Operation&) {
    return ++calls == 2 ? Status(trRemoteError, "the second") : Status();
  });
  EXPECT_EQ(status.message(), "the second");
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace treering
