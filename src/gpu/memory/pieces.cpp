// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/pieces.h"

#include "core/types.h"
#include "gpu/device_rank.h"

namespace treering {
namespace {

// Pieces begin at multiples of this many elements: whole cache lines, for every type.
constexpr size_t kUnit = 64;
constexpr size_t kLargestElement = 16;

size_t blocks_of_largest(const Operation& operation, uint32_t ranks) {
  return info_of(operation.collective).parts == Parts::kOne ? 1 : ranks;
}

// The piece's elements of every block of a buffer, one block after another.
std::vector<BufferSegment> strided(const void* buffer, size_t blocks, const Operation& whole, size_t first,
                                   size_t count) {
  const size_t size = find_type(whole.type)->size;
  std::vector<BufferSegment> segments;
  auto* base = static_cast<std::byte*>(const_cast<void*>(buffer));
  for (size_t block = 0; block < blocks; ++block)
    segments.push_back({base + (block * whole.count + first) * size, block * count});
  return segments;
}

}  // namespace

size_t most_piece_bytes(const Communicator& communicator) {
  return std::max(static_cast<size_t>(communicator.config().device_piece_bytes),
                  kUnit * kLargestElement * communicator.ranks());
}

PiecePlan plan_pieces(const Communicator& communicator, const Operation& operation) {
  if (!communicator.any_device() || communicator.ranks() == 1 || operation.pairs || operation.blocks != nullptr ||
      operation.segments != nullptr || operation.compression != nullptr || operation.count == 0)
    return {};
  const size_t block_bytes = blocks_of_largest(operation, communicator.ranks()) * find_type(operation.type)->size;
  const size_t most = std::max(most_piece_bytes(communicator) / block_bytes / kUnit * kUnit, kUnit);
  if (operation.count <= most) return {};
  if (device_of(communicator) != nullptr && device_of(communicator)->runs_kernel(operation)) return {};
  // As even as whole units allow.
  const size_t wanted = (operation.count + most - 1) / most;
  PiecePlan plan;
  plan.count = ((operation.count + wanted - 1) / wanted + kUnit - 1) / kUnit * kUnit;
  plan.pieces = (operation.count + plan.count - 1) / plan.count;
  return plan;
}

Operation piece_of(const Operation& operation, const PiecePlan& plan, size_t index) {
  Operation piece = operation;
  piece.is_piece = true;
  piece.count = std::min(plan.count, operation.count - index * plan.count);
  return piece;
}

size_t buffer_blocks(const Operation& operation, uint32_t rank, uint32_t ranks, bool output) {
  return buffer_elements(operation, rank, ranks, output) / operation.count;
}

Operation host_piece(const Communicator& communicator, const Operation& operation, const PiecePlan& plan,
                     size_t index) {
  Operation piece = piece_of(operation, plan, index);
  const size_t first = index * plan.count;
  const size_t in = buffer_blocks(operation, communicator.rank(), communicator.ranks(), false);
  const size_t out = buffer_blocks(operation, communicator.rank(), communicator.ranks(), true);
  if (in <= 1 && out <= 1) {
    const size_t offset = first * find_type(operation.type)->size;
    if (in == 1) piece.input = static_cast<const std::byte*>(operation.input) + offset;
    if (out == 1) piece.output = static_cast<std::byte*>(operation.output) + offset;
    return piece;
  }
  auto segments = std::make_shared<BufferSegments>();
  segments->input = strided(operation.input, in, operation, first, piece.count);
  segments->output = strided(operation.output, out, operation, first, piece.count);
  piece.input = piece.output = nullptr;
  piece.segments = std::move(segments);
  return piece;
}

}  // namespace treering
