// SPDX-License-Identifier: Apache-2.0
#include "executor/eager.h"

#include <cstring>

namespace treering {

EagerPath::EagerPath(ExecutorContext* context) : context_(context) {
  sends_.reserve(context->ranks);
  receives_.reserve(context->ranks);
  sources_.reserve(context->ranks);
}

void EagerPath::start_pairs(const Call* call) {
  call_ = call;
  reduces_ = same_for_all_ = false;
  pairs_ = true;
  sizes_.reset();
  slot_ = StagingPool::kNone;
  sends_.clear();
  receives_.clear();
  sources_.clear();
  next_send_ = next_receive_ = 0;
}

void EagerPath::add_send(uint32_t peer, const void* data, size_t bytes) {
  sends_.push_back({peer, static_cast<uint32_t>(bytes), lane_signature(call_->signature, bytes),
                    static_cast<std::byte*>(const_cast<void*>(data))});
}
void EagerPath::add_receive(uint32_t peer, void* data, size_t bytes) {
  receives_.push_back(
      {peer, static_cast<uint32_t>(bytes), lane_signature(call_->signature, bytes), static_cast<std::byte*>(data)});
}

std::byte* EagerPath::input_of(uint32_t part) const {
  return call_->input.base() + call_->layout.input_offset(part) * call_->type_size;
}
std::byte* EagerPath::output_of(uint32_t part) const {
  return call_->output.base() + call_->layout.output_offset(part) * call_->type_size;
}

// The part that goes from one rank to another, or kNone. Where each rank has a block it is the
// sender's or the receiver's.
uint32_t EagerPath::part_between(uint32_t source, uint32_t destination) const {
  const CollectiveInfo& info = *call_->layout.collective;
  const uint32_t ranks = context_->ranks, root = call_->layout.root;
  if (info.parts == Parts::kPairs) return source * ranks + destination;
  for (uint32_t part : {source, destination}) {
    if (info.parts == Parts::kOne) part = 0;
    if (info.contributes({source, part, ranks, root}) && info.stores({destination, part, ranks, root})) return part;
  }
  return kNone;
}

// To whom a part goes and from whom one comes, as they are for every call of a collective and root.
void EagerPath::find_routes() {
  const CollectiveInfo& info = *call_->layout.collective;
  routed_ = &info;
  routed_root_ = call_->layout.root;
  send_routes_.clear();
  receive_routes_.clear();
  const uint32_t rank = context_->rank, ranks = context_->ranks;
  for (uint32_t i = 1; i < ranks; ++i) {
    const uint32_t peer = rank + i < ranks ? rank + i : rank + i - ranks, part = part_between(rank, peer);
    if (part != kNone) send_routes_.push_back({peer, part});
  }
  for (uint32_t peer = 0; peer < ranks; ++peer)
    if (const uint32_t part = part_between(peer, rank); part != kNone) receive_routes_.push_back({peer, part});
  same_data_ =
      info.parts == Parts::kOne || (info.parts == Parts::kRanks && !CollectiveInfo::holds_all(info.input_index));
}

void EagerPath::start(const Call* call) {
  start_pairs(call);
  pairs_ = false;
  if (call->layout.collective != routed_ || call->layout.root != routed_root_) find_routes();
  reduces_ = routed_->reduces;
  same_for_all_ = same_data_;
  const auto bytes_of = [&](uint32_t part) {
    return static_cast<uint32_t>(call->layout.part_count(part) * call->type_size);
  };
  for (const Route& route : send_routes_)
    if (const uint32_t bytes = bytes_of(route.part); bytes > 0)
      sends_.push_back({route.peer, bytes, call->signature, input_of(route.part)});
  for (const Route& route : receive_routes_)
    if (const uint32_t bytes = bytes_of(route.part); bytes > 0)
      receives_.push_back({route.peer, bytes, call->signature,
                           route.peer == context_->rank ? input_of(route.part) : output_of(route.part)});
}

bool EagerPath::send(const EagerMessage& eager) {
  Connection* to = connection(eager.peer);
  waiting_for_ = eager.peer;
  if (!to->can_post()) return false;
  Message message;
  message.signature = eager.signature;
  message.bytes = eager.bytes;
  message.data = eager.data;
  // A rank that only sends, to many, is faster with one cache line of each descriptor, and the data in staging memory.
  // Over a link the data would be a message of its own.
  const bool gives_away = sends_.size() > receives_.size() + 1 && context_->queues.empty();
  if (eager.bytes > (gives_away ? kFirstLineInlineBytes : kInlineBytes)) {
    StagingPool& pool = context_->pools[0];
    if (slot_ == StagingPool::kNone || !same_for_all_) {
      slot_ = pool.find_free();
      if (slot_ == StagingPool::kNone) {
        waiting_for_ = pool.awaited_peer();
        return false;
      }
      pool.use(slot_);
      std::memcpy(pool.slot(slot_), eager.data, eager.bytes);
    }
    message.kind = PayloadKind::kStaging;
    message.user.offset = pool.slot_offset(slot_);
    to->post(message);
    pool.add_reader(slot_, eager.peer, to);
  } else {
    to->post(message);
  }
  context_->count_sent(eager.peer, eager.bytes);
  return true;
}

// Copies the payload to its place, or notes where it lies until it is combined; false when it cannot be had.
bool EagerPath::take(const EagerMessage& eager, const Message& message) {
  Connection* from = connection(eager.peer);
  if (message.data == nullptr && eager.bytes > 0) {  // a sender that runs the schedule left it in its buffer
    status_ = reduces_ ? from->fetch(message, 0, nullptr, 0) : from->fetch(message, 0, eager.data, eager.bytes);
    if (status_.ok() && reduces_) status_ = {trInternalError, "an operand that cannot be read in place"};
    if (!status_.ok()) return false;
  } else if (reduces_) {
    sources_.push_back(message.data);
  } else if (eager.bytes > 0) {
    std::memcpy(eager.data, message.data, eager.bytes);
  }
  if (!reduces_) from->pop();
  return true;
}

Progress EagerPath::receive_all() {
  for (; next_receive_ < receives_.size(); ++next_receive_) {
    const EagerMessage& eager = receives_[next_receive_];
    if (eager.peer == context_->rank) {
      // Every send has been copied: in place, nothing that is still needed is overwritten.
      std::byte* own = reduces_ ? nullptr : output_of(part_between(eager.peer, eager.peer));
      if (reduces_)
        sources_.push_back(eager.data);
      else if (own != eager.data)
        std::memcpy(own, eager.data, eager.bytes);
      continue;
    }
    const Message* message = connection(eager.peer)->front();
    waiting_for_ = eager.peer;
    if (message == nullptr) return blocked();
    if (message->signature != eager.signature || message->bytes != eager.bytes) {
      sizes_ = sizes_of(*message, call_->signature, pairs_ ? std::optional(eager.bytes) : std::nullopt);
      return Progress::kDiffers;
    }
    if (!take(eager, *message)) return Progress::kFailed;
  }
  return Progress::kDone;
}

void EagerPath::combine() {
  const uint32_t own = part_between(context_->rank, context_->rank);
  void* output = output_of(own);
  ReduceCall reduction;
  reduction.type = call_->type;
  reduction.op = call_->op;
  reduction.user = call_->user;
  reduction.user_context = call_->user_context;
  reduction.divisor = call_->op == trAvg ? context_->ranks : 1;
  reduction.sources = sources_.data();
  reduction.source_count = sources_.size();
  reduction.destinations = &output;
  reduction.destination_count = 1;
  reduction.count = call_->layout.part_count(own);
  reduce(reduction);
  for (const EagerMessage& eager : receives_)
    if (eager.peer != context_->rank) connection(eager.peer)->pop();
  sources_.clear();
}

Progress EagerPath::advance() {
  const Progress progress = advance_messages();
  uint32_t unflushed = 0;
  if (context_->flush(&unflushed) || progress != Progress::kDone) return progress;
  waiting_for_ = unflushed;
  return blocked();
}

// Blocked, unless the link to the peer has failed; mapped ones have nothing that could.
Progress EagerPath::blocked() {
  if (context_->queues.empty()) return Progress::kBlocked;
  status_ = connection(waiting_for_)->health();
  return status_.ok() ? Progress::kBlocked : Progress::kFailed;
}

Progress EagerPath::advance_messages() {
  for (; next_send_ < sends_.size(); ++next_send_)
    if (!send(sends_[next_send_])) return blocked();
  if (const Progress progress = receive_all(); progress != Progress::kDone) return progress;
  if (!sources_.empty()) combine();
  return Progress::kDone;
}

}  // namespace treering
