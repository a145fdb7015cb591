// SPDX-License-Identifier: Apache-2.0
#include "calls.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace faults {

namespace {

enum Kind {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kKinds
};
constexpr const char* kNames[] = {"allreduce", "reduce", "broadcast", "allgather", "reducescatter",
                                  "alltoall",  "gather", "scatter",   "barrier"};
constexpr size_t kMore = 64;  // elements of room for a differing call, for each block
constexpr int kMaxRanks = 8;

// Element i of what rank r contributes is (r + 1) * pattern(i): sums are small and tell ranks, places and calls apart.
int32_t pattern(size_t i, uint64_t phase) { return static_cast<int32_t>((i + phase) & 63) + 1; }

}  // namespace

struct Calls::Shape {
  Kind kind;
  int root;
  size_t count;  // of the call; of blocked collectives elements of a block
  size_t due;    // what the other ranks pass
  uint64_t phase;
  trDataType_t type = trInt32;
  trRedOp_t op = trSum;
  bool differs = false;  // its result is not defined
};

Calls::Calls(size_t least_bytes, size_t most_bytes)
    : least_(least_bytes), most_(most_bytes), in_(most_bytes / sizeof(int32_t) + kMaxRanks * kMore), out_(in_.size()) {}

trResult_t Calls::destroy_stream() {
  const trStream_t stream = std::exchange(stream_, nullptr);
  return stream != nullptr ? trStreamDestroy(stream) : trSuccess;
}

void Calls::fill(const Place& place, const Shape& shape) {
  const bool one_root = shape.kind == kBroadcast || shape.kind == kScatter;
  const int32_t factor = one_root ? shape.root + 1 : place.rank + 1;
  const bool whole = shape.kind == kReduceScatter || shape.kind == kAllToAll || shape.kind == kScatter;
  const size_t count = shape.count * (whole ? static_cast<size_t>(place.ranks) : 1);
  for (size_t i = 0; i < count; ++i) in_[i] = factor * pattern(i, shape.phase);
  std::fill_n(out_.begin(), std::min(out_.size(), shape.count * static_cast<size_t>(place.ranks)), -1);
}

trResult_t Calls::start(const Place& place, const Shape& shape) {
  const int32_t* in = in_.data();
  int32_t* out = out_.data();
  const size_t n = shape.count;
  switch (shape.kind) {
    case kAllReduce:
      return trAllReduce(in, out, n, shape.type, shape.op, place.comm, place.stream);
    case kReduce:
      return trReduce(in, out, n, shape.type, shape.op, shape.root, place.comm, place.stream);
    case kBroadcast:
      return trBroadcast(in, out, n, shape.type, shape.root, place.comm, place.stream);
    case kAllGather:
      return trAllGather(in, out, n, shape.type, place.comm, place.stream);
    case kReduceScatter:
      return trReduceScatter(in, out, n, shape.type, shape.op, place.comm, place.stream);
    case kAllToAll:
      return trAllToAll(in, out, n, shape.type, place.comm, place.stream);
    case kGather:
      return trGather(in, out, n, shape.type, shape.root, place.comm, place.stream);
    case kScatter:
      return trScatter(in, out, n, shape.type, shape.root, place.comm, place.stream);
    default:
      return trBarrier(place.comm, place.stream);
  }
}

// Elements from `at` of the output are `factor` times the pattern from `from`.
void Calls::check_block(int32_t factor, size_t from, size_t count, size_t at, uint64_t phase, Called* called) {
  bool same = true;
  for (size_t i = 0; i < count; ++i) same &= out_[at + i] == factor * pattern(from + i, phase);
  if (same || called->is_wrong) return;
  for (size_t i = 0; i < count; ++i) {
    const int32_t due = factor * pattern(from + i, phase);
    if (out_[at + i] == due) continue;
    *called = {called->name, called->result, true, at + i, out_[at + i], due};
    return;
  }
}

void Calls::check(const Place& place, const Shape& shape, Called* called) {
  if (place.stream != nullptr) return;
  const size_t n = shape.due, own = static_cast<size_t>(place.rank) * n;
  const int32_t all = place.ranks * (place.ranks + 1) / 2;
  const bool is_root = place.rank == shape.root;
  const auto blocks = [&](size_t from) {
    for (int rank = 0; rank < place.ranks; ++rank)
      check_block(rank + 1, from, n, static_cast<size_t>(rank) * n, shape.phase, called);
  };
  switch (shape.kind) {
    case kAllReduce:
      return check_block(all, 0, n, 0, shape.phase, called);
    case kReduce:
      return is_root ? check_block(all, 0, n, 0, shape.phase, called) : void();
    case kBroadcast:
      return check_block(shape.root + 1, 0, n, 0, shape.phase, called);
    case kAllGather:
      return blocks(0);
    case kReduceScatter:
      return check_block(all, own, n, 0, shape.phase, called);
    case kAllToAll:
      return blocks(own);
    case kGather:
      return is_root ? blocks(0) : void();
    case kScatter:
      return check_block(shape.root + 1, own, n, 0, shape.phase, called);
    default:
      return;
  }
}

Calls::Shape Calls::shape_of(const Place& place, uint64_t draw, Other other) const {
  const auto kind_with_size = [&](Kind kind) { return kind == kBarrier && least_ > 4096 ? kAllReduce : kind; };
  Shape shape{};
  shape.kind = kind_with_size(static_cast<Kind>(mixed(draw) % kKinds));
  if (other == Other::kCollective) {
    shape.kind = kind_with_size(static_cast<Kind>((shape.kind + 1) % kKinds));
    shape.differs = true;
  }
  shape.root = static_cast<int>(mixed(draw + 1) % static_cast<uint64_t>(place.ranks));
  const bool is_whole = shape.kind == kAllReduce || shape.kind == kReduce || shape.kind == kBroadcast;
  const size_t bytes = least_ + mixed(draw + 2) % (most_ - least_ + 1);
  shape.due = std::max<size_t>(1, bytes / sizeof(int32_t) / static_cast<size_t>(is_whole ? 1 : place.ranks));
  shape.count = shape.due;
  shape.phase = draw;
  change(place, draw, other, &shape);
  return shape;
}

// Changes an argument, if a call of that kind has it.
void Calls::change(const Place& place, uint64_t draw, Other other, Shape* shape) {
  const Kind kind = shape->kind;
  const bool reduces = kind == kAllReduce || kind == kReduce || kind == kReduceScatter;
  const bool has_root = kind == kReduce || kind == kBroadcast || kind == kGather || kind == kScatter;
  const Shape before = *shape;
  if (other == Other::kCount && kind != kBarrier) shape->count += 1 + mixed(draw + 3) % (kMore - 4);
  if (other == Other::kRoot && has_root) shape->root = (shape->root + 1) % place.ranks;
  if (other == Other::kType && kind != kBarrier) shape->type = trFloat32;
  if (other == Other::kOperation && reduces) shape->op = trMax;
  shape->differs |= shape->count != before.count || shape->root != before.root || shape->type != before.type ||
                    shape->op != before.op;
}

Called Calls::collective(const Place& place, uint64_t draw, Other other) {
  return run(place, shape_of(place, draw, other));
}

bool Calls::can_differ(const Place& place, uint64_t draw, Other other) const {
  return shape_of(place, draw, other).differs;
}

Called Calls::all_to_all(const Place& place, uint64_t draw, Other other) {
  const size_t bytes = least_ + mixed(draw) % (most_ - least_ + 1);
  const size_t due = std::max<size_t>(1, bytes / sizeof(int32_t) / static_cast<size_t>(place.ranks));
  Shape shape{kAllToAll, 0, due, due, draw};
  change(place, draw, other, &shape);
  return run(place, shape);
}

trResult_t Calls::start_on_stream(const Place& place, const Shape& shape) {
  if (stream_ == nullptr)
    if (const trResult_t made = trStreamCreate(&stream_); made != trSuccess) return made;
  Place on_stream = place;
  on_stream.stream = stream_;
  const trResult_t given = start(on_stream, shape);
  return given == trSuccess ? trStreamSynchronize(stream_) : given;
}

Called Calls::run_in_group(const Place& place, const Shape& shape) {
  Called called{kNames[shape.kind]};
  int32_t most = place.rank + 1;
  const trResult_t results[] = {trGroupStart(), start(place, shape),
                                trAllReduce(&most, &most, 1, trInt32, trMax, place.comm, place.stream), trGroupEnd()};
  const auto failed = std::find_if(std::begin(results), std::end(results), [](trResult_t r) { return r != trSuccess; });
  if (failed != std::end(results))
    called.result = *failed;
  else if (most != place.ranks && !shape.differs)
    called = {"allreduce", trSuccess, true, 0, most, place.ranks};
  return called;
}

Called Calls::run(const Place& place, const Shape& shape) {
  fill(place, shape);
  enum class Way { kOnStream, kInGroup, kAlone };
  const auto way = varies_ways_ && place.stream == nullptr ? static_cast<Way>(mixed(shape.phase + 4) % 4) : Way::kAlone;
  Called called{kNames[shape.kind]};
  if (way == Way::kOnStream)
    called.result = start_on_stream(place, shape);
  else if (way == Way::kInGroup)
    called = run_in_group(place, shape);
  else
    called.result = start(place, shape);
  if (called.result == trSuccess && !called.is_wrong && !shape.differs) check(place, shape, &called);
  return called;
}

Called Calls::sum(const Place& place, uint64_t draw, size_t count) {
  return run(place, {kAllReduce, 0, count, count, draw});
}

Called Calls::transfer(const Place& place, uint64_t draw, Other other) {
  const size_t ranks = static_cast<size_t>(place.ranks);
  const size_t bytes = least_ + mixed(draw) % (most_ - least_ + 1);
  const size_t due = std::max<size_t>(1, bytes / sizeof(int32_t) / ranks);
  Shape shape{kAllGather, 0, due, due, draw};
  if (other == Other::kCount) change(place, draw, other, &shape);
  const size_t count = shape.count;
  fill(place, shape);
  Called called{"sendrecv"};
  if (mixed(draw + 1) % 3 != 0) {
    const int shift = place.ranks == 1 ? 0 : 1 + static_cast<int>(mixed(draw + 2) % (ranks - 1));
    const int source = (place.rank + place.ranks - shift) % place.ranks;
    called.result = trSendRecv(in_.data(), count, (place.rank + shift) % place.ranks, out_.data(), count, source,
                               trInt32, place.comm, place.stream);
    if (called.result == trSuccess && !shape.differs && place.stream == nullptr)
      check_block(source + 1, 0, due, 0, draw, &called);
    return called;
  }
  called = {"group of sends and receives", trGroupStart()};
  const auto keep = [&](trResult_t result) { called.result = called.result != trSuccess ? called.result : result; };
  for (int peer = 0; peer < place.ranks; ++peer) {
    keep(trSend(in_.data(), count, trInt32, peer, place.comm, place.stream));
    keep(trRecv(&out_[static_cast<size_t>(peer) * count], count, trInt32, peer, place.comm, place.stream));
  }
  keep(trGroupEnd());
  if (called.result == trSuccess && !shape.differs) check(place, shape, &called);
  return called;
}

void Calls::register_buffers(trComm_t comm) {
  registered_with_ = comm;
  trCommRegister(comm, in_.data(), in_.size() * sizeof in_[0], &handles_[0]);
  trCommRegister(comm, out_.data(), out_.size() * sizeof out_[0], &handles_[1]);
}

void Calls::deregister_buffers() {
  for (void*& handle : handles_)
    if (handle != nullptr) trCommDeregister(registered_with_, std::exchange(handle, nullptr));
}

std::vector<int32_t> Calls::contents() const {
  std::vector<int32_t> all = in_;
  all.insert(all.end(), out_.begin(), out_.end());
  return all;
}

void Calls::overwrite() {
  std::fill(in_.begin(), in_.end(), -7);
  std::fill(out_.begin(), out_.end(), -7);
}

Called Calls::agree(const Place& place, bool own, bool* any) {
  int32_t wants = own ? 1 : 0, all = 0;
  Called called{"allreduce", trAllReduce(&wants, &all, 1, trInt32, trMax, place.comm, place.stream)};
  if (called.result == trSuccess && all != 0 && all != 1) called = {"allreduce", trSuccess, true, 0, all, 1};
  if (called.result == trSuccess) *any = all == 1;
  return called;
}

void start_streams() {
  trStream_t stream = nullptr;
  trStreamCreate(&stream);
  trStreamAddCallback(
      stream, [](trResult_t, void*) {}, nullptr);
  trStreamDestroy(stream);
}

}  // namespace faults
