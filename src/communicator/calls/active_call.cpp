// SPDX-License-Identifier: Apache-2.0
#include "communicator/calls/active_call.h"

#include <algorithm>
#include <cstring>

#include "core/types.h"
#include "executor/reduce/block_float8.h"

namespace treering {
namespace {

// The sizes of transfers at which it pays to let the kernel copy (algorithm.h).
FetchRange fetch_range_of(Collective collective) {
  const CollectiveInfo& info = info_of(collective);
  if (info.gathers()) return {kMinFetchedToOne, kMaxFetchedToOne};
  return {info.scatters() ? kMinFetchedFromOne : kMinFetchedBytes, SIZE_MAX};
}

}  // namespace

ActiveCall::ActiveCall(ExecutorContext* context, Watch* watch, Mailbox mailbox, CallRegions regions)
    : context_(context),
      watch_(watch),
      regions_(regions),
      mailbox_(std::move(mailbox)),
      eager_path_(context),
      execution_(context) {}

void ActiveCall::set_schedules(ScheduleCache* schedules, const EagerSizes& sizes) {
  schedules_ = schedules;
  eager_sizes_ = sizes;
}

void ActiveCall::begin(const Operation& operation, uint32_t constraints) {
  number_call(operation);
  call_.type_size = element_bytes(operation);
  const Choice* choice = nullptr;
  if (!operation.pairs) {
    bytes_ = operation.elements(context_->ranks) * call_.type_size;
    choice = &schedules_->choose(operation.collective, bytes_, constraints);
  }
  way_ = way_of(operation, choice);
  choice_ = choice;
  if (way_ == Way::kMailbox) return start_mailbox(operation, constraints);
  fill(operation, constraints);
  regions_.begin_call();
  const bool compressed = operation.compression != nullptr && context_->ranks > 1;  // one rank alone rounds nothing
  if (compressed && operation.compression->error_feedback) add_residual(operation);
  const Program* program = nullptr;
  if (way_ == Way::kExecution) {
    if (choice != nullptr) program = &schedules_->program(*choice, operation.root);
    regions_.find(operation, &call_);
  }
  if (call_.operation != 0) show(operation, program);
  if (program != nullptr) regions_.show_output(operation, *program, call_);
  watch_->start(&call_);
  if (way_ == Way::kEager)
    start_eager(operation);
  else if (program != nullptr)
    execution_.bind(*program, call_);
  else
    execution_.bind(call_);
}

// Number and signature, which its messages carry.
void ActiveCall::number_call(const Operation& operation) {
  call_.operation = operation.point_to_point ? 0 : ++operations_;
  call_.signature = kTransferSignature;
  if (!operation.point_to_point) {
    // It stands for all calls so far: ranks whose calls differed without a message between them, such as small
    // broadcasts from different roots, learn it from the next message that they exchange.
    history_ = (history_ + signature_of(operation)) * 0x9E3779B97F4A7C15u;
    call_.signature = static_cast<uint32_t>(history_ >> 32);
  }
}

// Bytes of an element as it travels.
size_t ActiveCall::element_bytes(const Operation& operation) const {
  if (operation.pairs) return 1;
  const bool narrowed =
      operation.compression != nullptr && context_->ranks > 1 && !is_block_scaled(operation.compression->wire);
  return find_type(narrowed ? operation.compression->wire : operation.type)->size;
}

// Whether it is one small message to each peer, and how these go.
ActiveCall::Way ActiveCall::way_of(const Operation& operation, const Choice* choice) const {
  if (operation.pairs) return operation.lanes == nullptr ? Way::kEager : Way::kExecution;
  if (!choice->candidate.algorithm->mailbox || operation.has_factor()) return Way::kExecution;
  // Some ranks have the buffers of a call in one segment, others not.
  if (operation.segments != nullptr || operation.is_piece) return Way::kExecution;
  const size_t largest = operation.blocks == nullptr ? operation.count : operation.blocks->parts.largest;
  const size_t bytes = largest * call_.type_size;
  bool is_eager = false;
  if (!choice->mailbox)
    is_eager = operation.blocks == nullptr && bytes > 0 && bytes <= eager_sizes_.linked;
  else if (!choice->candidate.algorithm->computed_once)
    return Way::kMailbox;
  else
    is_eager = bytes <= most_eager_bytes();
  return is_eager ? Way::kEager : Way::kExecution;
}

void ActiveCall::fill(const Operation& operation, uint32_t constraints) {
  call_.layout.collective = &info_of(operation.collective);
  call_.layout.rank = context_->rank;
  call_.layout.ranks = context_->ranks;
  call_.layout.root = operation.root;
  call_.layout.count = operation.count;
  call_.layout.unequal = operation.blocks == nullptr ? nullptr : &operation.blocks->parts;
  call_.fetch_range = fetch_range_of(operation.collective);
  call_.lanes = operation.lanes == nullptr ? std::span<const Lane>() : operation.lanes->lanes;
  call_.input = operation.segments == nullptr ? View(operation.input) : View(operation.segments->input);
  call_.output = operation.segments == nullptr ? View(operation.output) : View(operation.segments->output);
  call_.in_place = operation.in_place;
  call_.segments_in_place = false;
  call_.type = operation.pairs ? trUint8 : operation.type;
  call_.wide_memory = false;
  call_.op = operation.op;
  call_.scale = nullptr;
  call_.user = nullptr;
  call_.user_context = nullptr;
  call_.input_region = call_.output_region = {};
  if (operation.reduction != nullptr) {
    call_.op = trSum;
    call_.user = operation.reduction->function;
    call_.user_context = operation.reduction->context;
    if (call_.user == nullptr) call_.scale = operation.reduction->scale.data();
    if (operation.scale_at() != nullptr) {
      std::memcpy(scale_.data(), operation.scale_at(), call_.type_size);
      call_.scale = scale_.data();
    }
  }
  // Which rank computes an element is a matter of the size: in the fixed order its own operand is to count as the
  // others'.
  call_.rounds_input = !operation.pairs && (constraints & kRankOrdered) != 0;
  call_.coded = trFloat32;
  if (operation.compression == nullptr || context_->ranks == 1) return;
  const trDataType_t wire = operation.compression->wire;
  if (is_block_scaled(wire)) {
    call_.coded = wire;
  } else {
    call_.type = wire;
    call_.wide_memory = true;
  }
}

// The input becomes what will travel; what rounding takes from it is kept for the next call.
void ActiveCall::add_residual(const Operation& operation) {
  Compression& kept = *operation.compression;
  round_with_feedback(kept.wire, static_cast<const float*>(operation.input), operation.count, kept.residual.data(),
                      kept.adjusted.data());
  call_.input = View(kept.adjusted.data());
  call_.in_place = false;
}

// Shows the other ranks what this one calls and where its output lies.
void ActiveCall::show(const Operation& operation, const Program* program) {
  RankStatus& status = *context_->status;
  // What the user called, not what became of it.
  const uint32_t fused = operation.segments == nullptr ? 0 : operation.segments->members;
  const trRedOp_t op = std::min(operation.op, trRedOpFirstCreated);  // the values of made ones differ between ranks
  status.calls[call_.operation % kCallsKept].store(
      {.tag = call_tag(call_.operation, call_.signature),
       .count = fused != 0 ? operation.segments->elements : operation.count,
       .root = operation.root,
       .fused = fused,
       .type = static_cast<uint16_t>(operation.type),
       .op = static_cast<uint16_t>(op),
       .collective = static_cast<uint16_t>(operation.collective),
       .purpose = operation.purpose});
  status.open_input.store(program != nullptr && input_is_open(*program, call_) ? 1 : 0, std::memory_order_relaxed);
  if (program != nullptr) {
    const bool open = output_is_open(*program, call_);
    status.output_address.store(open ? reinterpret_cast<uint64_t>(operation.output) : 0, std::memory_order_relaxed);
    status.output_region.store(call_.output_region.watched ? 0 : call_.output_region.id, std::memory_order_relaxed);
    status.output_offset.store(
        static_cast<uint64_t>(static_cast<std::byte*>(operation.output) - call_.output_region.base),
        std::memory_order_relaxed);
  } else {
    status.output_address.store(0, std::memory_order_relaxed);
  }
  status.operation.store(call_.operation, std::memory_order_release);
}

// The message is under way while the rest of the call is filled in.
void ActiveCall::start_mailbox(const Operation& operation, uint32_t constraints) {
  show(operation, nullptr);
  mailbox_.start(call_.signature, operation.input, operation.count * call_.type_size);
  fill(operation, constraints);
  regions_.begin_call();
  watch_->start(&call_);
}

void ActiveCall::start_eager(const Operation& operation) {
  if (!operation.pairs) return eager_path_.start(&call_);
  eager_path_.start_pairs(&call_);
  const std::byte* own = nullptr;
  for (const Transfer& transfer : operation.eager_transfers) {
    if (transfer.peer == context_->rank && transfer.send) {
      own = transfer.view.base();
    } else if (transfer.peer == context_->rank) {
      if (own != transfer.view.base()) std::memcpy(transfer.view.base(), own, transfer.bytes);
    } else if (transfer.send)
      eager_path_.add_send(transfer.peer, transfer.view.base(), transfer.bytes);
    else
      eager_path_.add_receive(transfer.peer, transfer.view.base(), transfer.bytes);
  }
}

uint32_t ActiveCall::peer() const {
  switch (way_) {
    case Way::kMailbox:
      return mailbox_.peer();
    case Way::kEager:
      return eager_path_.peer();
    case Way::kExecution:
      break;
  }
  return execution_.peer();
}

size_t ActiveCall::pair_bytes(const Operation& operation) const {
  size_t bytes = 0;
  for (const Lane& lane : call_.lanes)
    for (const LaneItem& item : lane.items) bytes += item.count;
  for (const Transfer& transfer : operation.eager_transfers) bytes += transfer.bytes;
  return bytes;
}

const char* ActiveCall::algorithm() const {
  if (choice_ != nullptr) return choice_->candidate.algorithm->name;
  return way_ == Way::kEager ? "eager" : "lanes";
}

const std::optional<TransferSizes>& ActiveCall::differing_sizes() const {
  static const std::optional<TransferSizes> kNone;
  if (way_ == Way::kMailbox) return kNone;
  return way_ == Way::kEager ? eager_path_.sizes() : execution_.sizes();
}

}  // namespace treering
