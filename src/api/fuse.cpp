// SPDX-License-Identifier: Apache-2.0
// Tensor fusion: many small allreduces as one, over buffers of several segments. The executor gathers and scatters the
// segments in the passes over memory that it makes anyway.
//
//   tensors   | a a a | b | c c c c c |            pad: up to the next tensor's alignment; its zeros are summed and
//   fused     | a a a 0 | b 0 0 0 | c c c c c |    fall into a sink
#include <algorithm>
#include <span>

#include "api/batch.h"
#include "core/types.h"

namespace treering {
namespace {

// A user's function would also be given the padding, which belongs to no tensor.
bool fusible(const Operation& operation) {
  if (operation.reduction != nullptr && operation.reduction->function != nullptr) return false;
  return info_of(operation.collective).combines_whole_buffers() && !operation.pairs && operation.count > 0 &&
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
  auto segments = std::make_shared<BufferSegments>();
  segments->zeros.resize(alignment);
  segments->sink.resize(alignment);
  segments->members = static_cast<uint32_t>(members.size());
  for (const Operation* member : members) {
    segments->calls = (segments->calls ^ segments->calls >> 29) * 0xBF58476D1CE4E5B9u + member->count;
    segments->elements += member->count;
  }
  // The large ones side by side: few messages then hold parts of several, which peers cannot be shown in place.
  std::stable_sort(members.begin(), members.end(),
                   [](const Operation* a, const Operation* b) { return a->count > b->count; });
  Operation result = *members[0];
  size_t at = 0;
  for (const Operation* member : members) {
    if (at % unit != 0) {
      segments->input.push_back({segments->zeros.data(), at});
      segments->output.push_back({segments->sink.data(), at});
      at += unit - at % unit;
    }
    segments->input.push_back({static_cast<std::byte*>(const_cast<void*>(member->input)), at});
    segments->output.push_back({static_cast<std::byte*>(member->output), at});
    at += member->count;
    result.in_place |= member->in_place;
  }
  result.count = at;
  result.input = result.output = nullptr;
  result.segments = std::move(segments);
  return result;
}

struct UsedBytes {
  const std::byte *begin, *end;
  bool written;
};

// Whether one of these allreduces writes what another one uses: then their order counts.
bool depend(std::span<const Operation> operations) {
  std::vector<UsedBytes> ranges;
  for (const Operation& operation : operations) {
    const size_t bytes = operation.count * find_type(operation.type)->size;
    if (bytes == 0) continue;
    const auto* input = static_cast<const std::byte*>(operation.input);
    const auto* output = static_cast<const std::byte*>(operation.output);
    if (input != output) ranges.push_back({input, input + bytes, false});  // they do not overlap in part
    ranges.push_back({output, output + bytes, true});
    if (const auto* scale = static_cast<const std::byte*>(operation.scale_at()); scale != nullptr)
      ranges.push_back({scale, scale + find_type(operation.type)->size, false});
  }
  std::sort(ranges.begin(), ranges.end(), [](const UsedBytes& a, const UsedBytes& b) { return a.begin < b.begin; });
  const std::byte *used_to = nullptr, *written_to = nullptr;
  for (const UsedBytes& range : ranges) {
    if (range.begin < (range.written ? used_to : written_to)) return true;
    used_to = std::max(used_to, range.end);
    if (range.written) written_to = std::max(written_to, range.end);
  }
  return false;
}

// Appends to `result` what becomes of allreduces that follow one another.
void fuse_allreduces(std::span<const Operation> operations, size_t bytes, size_t alignment,
                     std::vector<Operation>* result) {
  if (operations.size() < 2 || depend(operations)) {
    result->insert(result->end(), operations.begin(), operations.end());
    return;
  }
  std::vector<bool> taken(operations.size());
  for (size_t i = 0; i < operations.size(); ++i) {
    if (taken[i]) continue;
    const Operation& first = operations[i];
    std::vector<const Operation*> members = {&first};
    if (fusible(first)) {
      const size_t size = find_type(first.type)->size, unit = alignment_of(first, alignment);
      size_t total = first.count * size;
      for (size_t k = i + 1; k < operations.size() && total < bytes; ++k) {
        const Operation& next = operations[k];
        if (taken[k] || !fusible(next) || !same_kind(first, next) || total + next.count * size + unit > bytes) continue;
        taken[k] = true;
        total += next.count * size + unit;
        members.push_back(&next);
      }
    }
    result->push_back(members.size() == 1 ? first : fused(members, alignment_of(first, alignment)));
  }
}

}  // namespace

// Other collectives keep their places among the allreduces: they may use the same memory.
void fuse(std::vector<Operation>* operations, size_t bytes, size_t alignment) {
  if (bytes == 0 || operations->size() < 2) return;
  const auto may_be_fused = [](const Operation& each) {
    return info_of(each.collective).combines_whole_buffers() && !each.pairs;
  };
  std::vector<Operation> result;
  for (auto next = operations->begin(); next != operations->end();) {
    auto end = std::find_if_not(next, operations->end(), may_be_fused);
    fuse_allreduces({next, end}, bytes, alignment, &result);
    if (end != operations->end()) result.push_back(*end++);
    next = end;
  }
  *operations = std::move(result);
}

}  // namespace treering
