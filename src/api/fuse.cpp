// Tensor fusion: many small allreduces as one, over buffers in pieces. The executor gathers and scatters the pieces in
// the passes over memory that it makes anyway.
//
//   tensors   | a a a | b | c c c c c |            pad: up to the next tensor's alignment; its zeros are summed and
//   fused     | a a a 0 | b 0 0 0 | c c c c c |    fall into a sink
#include <algorithm>

#include "api/batch.h"
#include "core/types.h"

namespace treering {
namespace {

// A user's function would also be given the padding, which are no elements of anybody.
bool fusible(const Operation& operation) {
  if (operation.reduction != nullptr && operation.reduction->function != nullptr) return false;
  return operation.collective == Collective::kAllReduce && !operation.pairs && operation.count > 0 &&
         (operation.compression == nullptr || !operation.compression->error_feedback);
}

bool same_kind(const Operation& a, const Operation& b) {
  const bool wires = (a.compression == nullptr) == (b.compression == nullptr) &&
                     (a.compression == nullptr || a.compression->wire == b.compression->wire);
  return a.type == b.type && a.op == b.op && a.reduction == b.reduction && wires;
}

// What has one scale holds values of one tensor.
size_t alignment_of(const Operation& operation, size_t alignment) {
  return operation.compression == nullptr ? alignment : std::max(alignment, operation.compression->block_bytes());
}

Operation fused(std::vector<const Operation*> members, size_t alignment) {
  const size_t size = find_type(members[0]->type)->size;
  const size_t unit = std::max<size_t>(alignment / size, 1);
  auto pieces = std::make_shared<Pieces>();
  pieces->zeros.resize(alignment);
  pieces->sink.resize(alignment);
  for (const Operation* member : members)
    pieces->calls = (pieces->calls ^ pieces->calls >> 29) * 0xBF58476D1CE4E5B9u + member->count;
  // The large ones side by side: few messages then hold parts of several, which peers cannot be shown in place.
  std::stable_sort(members.begin(), members.end(),
                   [](const Operation* a, const Operation* b) { return a->count > b->count; });
  Operation result = *members[0];
  size_t at = 0;
  for (const Operation* member : members) {
    if (at % unit != 0) {
      pieces->input.push_back({pieces->zeros.data(), at});
      pieces->output.push_back({pieces->sink.data(), at});
      at += unit - at % unit;
    }
    pieces->input.push_back({static_cast<std::byte*>(const_cast<void*>(member->input)), at});
    pieces->output.push_back({static_cast<std::byte*>(member->output), at});
    at += member->count;
    result.in_place |= member->in_place;
  }
  result.count = at;
  result.input = result.output = nullptr;
  result.pieces = std::move(pieces);
  return result;
}

struct Range {
  const std::byte *begin, *end;
  size_t operation;
  bool written;
};

// Whether one operation writes what another one uses: then their order counts.
bool depend(const std::vector<Operation>& operations) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    const size_t bytes = operation.count * find_type(operation.type)->size;
    if (operation.collective != Collective::kAllReduce || bytes == 0) continue;
    const auto *input = static_cast<const std::byte*>(operation.input),
               *output = static_cast<const std::byte*>(operation.output);
    if (input != output) ranges.push_back({input, input + bytes, i, false});
    ranges.push_back({output, output + bytes, i, true});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < ranges.size(); ++i)
    for (size_t k = i + 1; k < ranges.size() && ranges[k].begin < ranges[i].end; ++k)
      if (ranges[i].operation != ranges[k].operation && (ranges[i].written || ranges[k].written)) return true;
  return false;
}

}  // namespace

void fuse(std::vector<Operation>* operations, size_t bytes, size_t alignment) {
  if (bytes == 0 || operations->size() < 2 || depend(*operations)) return;
  std::vector<Operation> result;
  std::vector<bool> taken(operations->size());
  for (size_t i = 0; i < operations->size(); ++i) {
    if (taken[i]) continue;
    const Operation& first = (*operations)[i];
    std::vector<const Operation*> members = {&first};
    if (fusible(first)) {
      const size_t size = find_type(first.type)->size, unit = alignment_of(first, alignment);
      size_t total = first.count * size;
      for (size_t k = i + 1; k < operations->size() && total < bytes; ++k) {
        const Operation& next = (*operations)[k];
        if (taken[k] || !fusible(next) || !same_kind(first, next) || total + next.count * size + unit > bytes) continue;
        taken[k] = true;
        total += next.count * size + unit;
        members.push_back(&next);
      }
    }
    result.push_back(members.size() == 1 ? first : fused(members, alignment_of(first, alignment)));
  }
  *operations = std::move(result);
}

}  // namespace treering
