// SPDX-License-Identifier: Apache-2.0
// Double buffering: the mean of one step's gradients is computed while the next step is.
//
//   exchange 1: start mean 1                  nothing yet
//   exchange 2: start mean 2, wait for mean 1 -> mean 1
//   ...                                                       flush: wait for the last -> mean k
//
// Two sets take turns; each keeps its planned calls as long as it is given the same tensors.
#include <algorithm>
#include <cstring>

#include "api/common.h"
#include "api/overlap.h"
#include "core/names.h"
#include "core/types.h"

using namespace treering;

namespace {

constexpr int kMaxTensors =
    1 << 20;  // of an exchange: a count beyond is taken for a mistake, before the lists are read

struct TensorSet {
  std::vector<void*> tensors;
  std::vector<size_t> counts;
  std::vector<std::vector<std::byte>> owned;
  std::unique_ptr<Batch> batch;  // planned for `tensors`
};

Status bad_usage(std::string text) { return {trInvalidUsage, "trDoubleBufferExchange: " + std::move(text)}; }

}  // namespace

struct trDoubleBuffer {
  trComm_t comm = nullptr;
  trDataType_t type = trFloat32;
  size_t type_size = 4;
  int flags = 0;
  std::shared_ptr<Compression> compression;
  StreamId stream = 0;
  TensorSet sets[2];
  int current = 0;       // the set that the next exchange fills
  bool pending = false;  // the other set's mean is under way

  std::vector<Range> in_flight, given;  // memory for the check of each exchange

  TensorSet& previous() { return sets[1 - current]; }
  Status check(const char* function, int count, void** tensors, const size_t* counts) const;
  Status check_apart(bool pending_stays, size_t n, void* const* tensors, const size_t* counts);
  Status plan(TensorSet* set, void* const* tensors, int count, const size_t* counts);
  Status finish();
  void hand_out(TensorSet& set, void** tensors);
  Status exchange(int count, void** tensors, const size_t* counts, int* ready);
  Status flush(int count, void** tensors, int* ready);
};

Status trDoubleBuffer::check(const char* function, int count, void** tensors, const size_t* counts) const {
  if (count < 1) return {trInvalidArgument, fmt::format("{}: count is {}; give 1 or more tensors", function, count)};
  if (count > kMaxTensors)
    return {trInvalidArgument,
            fmt::format("{}: count is {}; at most {} tensors are taken", function, count, kMaxTensors)};
  if (tensors == nullptr) return null_argument(function, "tensors");
  for (int i = 0; i < count && counts != nullptr; ++i) {
    if (counts[i] > SIZE_MAX / 64)
      return {trInvalidArgument, fmt::format("{}: counts[{}] is {} x {}: more than any memory holds", function, i,
                                             counts[i], find_type(type)->name)};
    if (tensors[i] == nullptr && counts[i] > 0)
      return {trInvalidArgument, fmt::format("{}: tensors[{}] is NULL", function, i)};
  }
  return {};
}

// Borrowed tensors are reduced in place, so none may lie in another, nor in one whose mean is under way.
Status trDoubleBuffer::check_apart(bool pending_stays, size_t n, void* const* tensors, const size_t* counts) {
  in_flight.clear();
  given.clear();
  for (size_t i = 0; i < n; ++i) given.emplace_back(tensors[i], counts[i] * type_size);
  if (pending_stays)
    for (size_t i = 0; i < previous().tensors.size(); ++i)
      in_flight.emplace_back(previous().tensors[i], previous().counts[i] * type_size);
  Range one, other;
  const bool twice = find_overlap({}, given, &one, &other);
  if (!twice && !find_overlap(in_flight, given, &one, &other)) return {};
  size_t i = 0;
  while (counts[i] == 0 || reinterpret_cast<uintptr_t>(tensors[i]) != other.begin) ++i;
  if (twice) return bad_usage(fmt::format("tensors[{}] overlaps another of the same exchange", i));
  return bad_usage(
      fmt::format("tensors[{}] still holds the gradients of the step before: alternate between two sets", i));
}

// Prepares the calls for a set of tensors, unless they are the ones of before.
Status trDoubleBuffer::plan(TensorSet* set, void* const* tensors, int count, const size_t* counts) {
  const auto n = static_cast<size_t>(count);
  const bool owned = (flags & TR_DOUBLE_BUFFER_OWNED) != 0;
  const bool same_shape = set->counts.size() == n && std::equal(counts, counts + n, set->counts.begin());
  if (set->batch != nullptr && same_shape && (owned || std::equal(tensors, tensors + n, set->tensors.begin())))
    return {};
  set->batch.reset();
  set->counts.assign(counts, counts + n);
  set->tensors.assign(tensors, tensors + n);
  if (owned) {
    set->owned.resize(n);
    for (size_t i = 0; i < n; ++i) {
      set->owned[i].resize(std::max<size_t>(counts[i] * type_size, 1));
      set->tensors[i] = set->owned[i].data();
    }
  }
  auto batch = std::make_unique<Batch>();
  CommunicatorLease lease;
  TR_RETURN_IF_ERROR(lease.acquire(comm));
  for (size_t i = 0; i < n; ++i) {
    Operation operation;
    operation.function = "trDoubleBufferExchange";
    operation.input = operation.output = set->tensors[i];
    operation.count = counts[i];
    operation.type = type;
    operation.op = trAvg;
    operation.compression = compression;
    TR_RETURN_IF_ERROR(lease->check(&operation));
    batch->add(comm, std::move(operation), stream);
  }
  lease.release();
  TR_RETURN_IF_ERROR(batch->prepare(/*kept=*/true));
  set->batch = std::move(batch);
  return {};
}

// Waits for the mean of the previous set.
Status trDoubleBuffer::finish() {
  previous().batch->wait();
  pending = false;
  CommunicatorPin pin;
  TR_RETURN_IF_ERROR(pin.acquire(comm));
  return pin->failure();
}

void trDoubleBuffer::hand_out(TensorSet& set, void** tensors) {
  for (size_t i = 0; i < set.tensors.size(); ++i) {
    if ((flags & TR_DOUBLE_BUFFER_OWNED) == 0)
      tensors[i] = set.tensors[i];
    else if (set.counts[i] > 0)
      std::memcpy(tensors[i], set.tensors[i], set.counts[i] * type_size);
  }
}

// What is different about the set of tensors, in words.
static std::string change(const std::vector<size_t>& before, size_t n, const size_t* counts) {
  if (before.size() != n) return fmt::format("the set of tensors has changed: {}, before {}", n, before.size());
  const size_t i = static_cast<size_t>(std::mismatch(counts, counts + n, before.begin()).first - counts);
  return fmt::format("tensor {} has {} elements, before {}", i, counts[i], before[i]);
}

Status trDoubleBuffer::exchange(int count, void** tensors, const size_t* counts, int* ready) {
  constexpr const char* kName = "trDoubleBufferExchange";
  if (ready == nullptr) return null_argument(kName, "ready");
  if (counts == nullptr) return null_argument(kName, "counts");
  TR_RETURN_IF_ERROR(check(kName, count, tensors, counts));
  *ready = 0;
  const auto n = static_cast<size_t>(count);
  const bool changed =
      pending && (previous().counts.size() != n || !std::equal(counts, counts + n, previous().counts.begin()));
  if (changed && (flags & TR_DOUBLE_BUFFER_RESTART) == 0)
    return bad_usage(fmt::format("{}; flush first, or create the object with TR_DOUBLE_BUFFER_RESTART",
                                 change(previous().counts, n, counts)));
  const bool borrowed = (flags & TR_DOUBLE_BUFFER_OWNED) == 0;
  if (borrowed) TR_RETURN_IF_ERROR(check_apart(pending && !changed, n, tensors, counts));
  TensorSet& set = sets[current];
  TR_RETURN_IF_ERROR(plan(&set, tensors, count, counts));
  // Only now: a call that is refused must not cost the pending mean.
  if (changed) TR_RETURN_IF_ERROR(finish());
  if (!borrowed)
    for (size_t i = 0; i < n; ++i)
      if (counts[i] > 0) std::memcpy(set.tensors[i], tensors[i], counts[i] * type_size);
  TR_RETURN_IF_ERROR(set.batch->run());
  Status failure;
  if (pending) {
    failure = finish();
    if (failure.ok()) hand_out(previous(), tensors);
    *ready = failure.ok();
  }
  current = 1 - current;
  pending = true;
  return failure;
}

Status trDoubleBuffer::flush(int count, void** tensors, int* ready) {
  constexpr const char* kName = "trDoubleBufferFlush";
  if (ready == nullptr) return null_argument(kName, "ready");
  *ready = 0;
  if (!pending) return {};
  if (count < 0 || static_cast<size_t>(count) != previous().tensors.size())
    return {trInvalidUsage,
            fmt::format("{}: count is {}; the pending mean has {} tensors", kName, count, previous().tensors.size())};
  const bool owned = (flags & TR_DOUBLE_BUFFER_OWNED) != 0;  // it is copied to where they are; else they are replaced
  TR_RETURN_IF_ERROR(check(kName, count, tensors, owned ? previous().counts.data() : nullptr));
  TR_RETURN_IF_ERROR(finish());
  hand_out(previous(), tensors);
  *ready = 1;
  return {};
}

extern "C" {

trResult_t trDoubleBufferCreate(trDoubleBuffer_t* buffer, trComm_t comm, trDataType_t datatype, int flags,
                                trCompression_t compression) {
  return guarded(find_slot(comm), [&]() -> Status {
    if (buffer == nullptr) return null_argument("trDoubleBufferCreate", "buffer");
    if ((flags & ~(TR_DOUBLE_BUFFER_OWNED | TR_DOUBLE_BUFFER_RESTART)) != 0)
      return {trInvalidArgument,
              fmt::format("trDoubleBufferCreate: flags is {:#x}; known are TR_DOUBLE_BUFFER_OWNED (1) and "
                          "TR_DOUBLE_BUFFER_RESTART (2)",
                          flags)};
    const DataTypeInfo* type = find_type(datatype);
    if (type == nullptr || datatype == trBool)
      return {trInvalidArgument,
              fmt::format("trDoubleBufferCreate: datatype is {}; give one that has means", name_of(datatype))};
    CommunicatorLease lease;
    TR_RETURN_IF_ERROR(lease.acquire(comm));
    auto made = std::make_unique<trDoubleBuffer>();
    made->comm = comm;
    made->type = datatype;
    made->type_size = type->size;
    made->flags = flags;
    made->compression = compression_of(compression);
    if (made->compression != nullptr && (made->compression->error_feedback || datatype != trFloat32))
      return {trInvalidArgument,
              "trDoubleBufferCreate: compression is for float32, and without error feedback, which is of "
              "one tensor"};
    made->stream = Engine::instance().create_stream();
    *buffer = made.release();
    return {};
  });
}

trResult_t trDoubleBufferExchange(trDoubleBuffer_t buffer, int count, void** tensors, const size_t* counts,
                                  int* ready) {
  return guarded(nullptr, [&]() -> Status {
    TR_RETURN_IF_ERROR(refuse_in_group("trDoubleBufferExchange"));
    if (buffer == nullptr) return null_argument("trDoubleBufferExchange", "buffer");
    return buffer->exchange(count, tensors, counts, ready);
  });
}

trResult_t trDoubleBufferFlush(trDoubleBuffer_t buffer, int count, void** tensors, int* ready) {
  return guarded(nullptr, [&]() -> Status {
    if (buffer == nullptr) return null_argument("trDoubleBufferFlush", "buffer");
    return buffer->flush(count, tensors, ready);
  });
}

trResult_t trDoubleBufferDestroy(trDoubleBuffer_t buffer) {
  if (buffer == nullptr) return trSuccess;
  return guarded(nullptr, [&]() -> Status {
    std::unique_ptr<trDoubleBuffer> owned(buffer);
    // What it started must end before its tensors go; a failure was or will be told by the communicator.
    (void)Engine::instance().destroy_stream(owned->stream);
    return {};
  });
}

}  // extern "C"
