// SPDX-License-Identifier: Apache-2.0
// How an operation becomes a call that the executor runs.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "bootstrap/membership.h"
#include "communicator/communicator.h"
#include "core/names.h"
#include "core/types.h"
#include "executor/reduce/block_float8.h"

namespace treering {
namespace {

Status not_made(trRedOp_t op) {
  return {trInvalidArgument, fmt::format("op {} was not made on this communicator, or was destroyed", name_of(op))};
}

// The sizes of transfers at which it pays to let the kernel copy (algorithm.h).
FetchRange fetch_range_of(Collective collective) {
  const CollectiveInfo& info = info_of(collective);
  if (info.gathers()) return {kMinFetchedToOne, kMaxFetchedToOne};
  return {info.scatters() ? kMinFetchedFromOne : kMinFetchedBytes, SIZE_MAX};
}

}  // namespace

// Whether the wire type of the communicator's settings is for it.
bool Communicator::takes_wire(const Operation& operation) const {
  return wire_ != nullptr && info_of(operation.collective).combines_whole_buffers() &&
         operation.compression == nullptr && operation.type == trFloat32 &&
         (operation.op == trSum || operation.op == trAvg);
}

uint32_t Communicator::constraints_of(const Operation& operation) const {
  uint32_t constraints = 0;
  if (operation.blocks != nullptr) constraints |= kUnequalParts;
  const bool ordered = operation.reduction != nullptr && !operation.reduction->commutative;
  if (ordered || (config_.deterministic && info_of(operation.collective).reduces)) constraints |= kRankOrdered;
  if (operation.compression != nullptr) constraints |= kComputedOnce;
  return constraints;
}

Communicator::SelectionQuery Communicator::selection_query(Collective collective, size_t bytes,
                                                           trDataType_t type) const {
  Operation operation;
  operation.collective = collective;
  operation.type = type;
  if (takes_wire(operation)) operation.compression = wire_;
  const bool halved = operation.compression != nullptr && ranks() > 1 && find_type(wire_->wire)->size == 2;
  return {collective, halved ? bytes / 2 : bytes, constraints_of(operation)};
}

Status Communicator::explain(const SelectionQuery& query, std::string* text) const {
  TR_RETURN_IF_ERROR(schedules_->explain(query.collective, query.bytes, query.constraints, text));
  *text += fmt::format("\ntransport between the ranks: {}\n", transports());
  if (query.compressed())
    *text = fmt::format("float that travels as {}, chosen as {} would be\n{}", find_type(wire_->wire)->name,
                        format_bytes(query.bytes), *text);
  return {};
}

Status Communicator::check(Operation* operation) {
  if (takes_wire(*operation)) operation->compression = wire_;
  if (operation->op >= trRedOpFirstCreated && info_of(operation->collective).reduces) {
    const auto found = reductions_.find(operation->op);
    if (found == reductions_.end())
      return {trInvalidArgument,
              fmt::format("{} on rank {}: {}", operation->function, rank(), not_made(operation->op).message())};
    operation->reduction = found->second;
  }
  return check_operation(operation, rank(), ranks());
}

trRedOp_t Communicator::add_reduction(std::shared_ptr<const Reduction> reduction) {
  constexpr uint32_t kValues = trRedOpForceInt - trRedOpFirstCreated;
  static std::atomic<uint32_t> made{0};  // of all communicators; begins anew after 2^31
  for (;;) {
    const auto op = static_cast<trRedOp_t>(trRedOpFirstCreated + made.fetch_add(1) % kValues);
    if (reductions_.try_emplace(op, std::move(reduction)).second) return op;
  }
}

Status Communicator::remove_reduction(trRedOp_t op) { return reductions_.erase(op) != 0 ? Status() : not_made(op); }

// Number and signature, which its messages carry.
void Communicator::number_call(const Operation& operation) {
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
size_t Communicator::element_bytes(const Operation& operation) const {
  if (operation.pairs) return 1;
  const bool narrowed =
      operation.compression != nullptr && context_.ranks > 1 && !is_block_scaled(operation.compression->wire);
  return find_type(narrowed ? operation.compression->wire : operation.type)->size;
}

void Communicator::fill_call(const Operation& operation, uint32_t constraints) {
  call_.layout.collective = &info_of(operation.collective);
  call_.layout.rank = context_.rank;
  call_.layout.ranks = context_.ranks;
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
  if (operation.compression == nullptr || context_.ranks == 1) return;
  const trDataType_t wire = operation.compression->wire;
  if (is_block_scaled(wire)) {
    call_.coded = wire;
  } else {
    call_.type = wire;
    call_.wide_memory = true;
  }
}

// For fused tensors. Looking for small ones costs more than copying them.
template <typename Find>
void Communicator::find_regions_of_segments(const Operation& operation, const Find& find) {
  constexpr size_t kMinBytes = 64 << 10;
  auto &inputs = operation.segments->input, &outputs = operation.segments->output;
  call_.segments_in_place = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    BufferSegment &input = inputs[i], &output = outputs[i];
    const size_t end = i + 1 < inputs.size() ? inputs[i + 1].first : operation.count;
    const size_t bytes = (end - input.first) * call_.type_size;
    input.region = output.region = {};
    if (bytes < kMinBytes) continue;
    input.region = find(input.base, bytes);
    output.region = output.base == input.base ? input.region : find(output.base, bytes);
    call_.segments_in_place &= output.base == input.base;
  }
}

// Also for calls that look up no buffer: what was freed before them is registered no longer.
void Communicator::begin_watched_call() {
  if (WatchedBuffers* const watched = peer_table_->watched_buffers(); watched != nullptr) watched->begin_call();
}

void Communicator::find_regions(const Operation& operation) {
  RegionTable& table = RegionTable::instance();
  WatchedBuffers* const watched = peer_table_->watched_buffers();
  if (table.empty() && watched == nullptr) {
    if (operation.lanes != nullptr)
      for (auto& items : operation.lanes->items)
        for (LaneItem& item : items) item.region = {};
    if (operation.segments != nullptr)
      for (auto* segments : {&operation.segments->input, &operation.segments->output})
        for (BufferSegment& segment : *segments) segment.region = {};  // of the last start
    return;
  }
  auto published = [&](const void* buffer, size_t bytes) {
    if (buffer == nullptr || bytes == 0) return Region();
    Region region = table.find(buffer, bytes);
    if (region.id == 0 && watched != nullptr) return watched->find(buffer, bytes);
    if (region.id == 0 || !exports_.publish(region)) return Region();
    if (bytes >= kMinReferencedBytes) peer_table_->register_region(region);
    return region;
  };
  if (operation.lanes != nullptr) {
    for (auto& items : operation.lanes->items)
      for (LaneItem& item : items) item.region = published(item.input.base(), item.count);
    return;
  }
  if (operation.segments != nullptr) {
    if (call_.is_plain()) find_regions_of_segments(operation, published);
    return;
  }
  if (!call_.is_plain()) return;  // nothing travels as it lies there
  const size_t input = buffer_bytes(operation, false), output = buffer_bytes(operation, true);
  // The output first: the input may be a part of it.
  call_.output_region = published(operation.output, output);
  call_.input_region =
      operation.input == operation.output && input == output ? call_.output_region : published(operation.input, input);
}

// Bytes of the input or the output, exactly: what lies behind may be anything. check_operation() has made one that is not
// used nullptr.
size_t Communicator::buffer_bytes(const Operation& operation, bool output) const {
  if ((output ? operation.output : operation.input) == nullptr) return 0;
  const size_t elements = operation.blocks == nullptr
                              ? blocks_of(*call_.layout.collective, context_.ranks, output) * operation.count
                              : buffer_elements(operation, context_.rank, context_.ranks, output);
  return elements * call_.memory_size();
}

// Peers that are reached by links may write final values into a registered output.
void Communicator::show_output(const Operation& operation, const Program& program) {
  constexpr size_t kMinBytes = 64 << 10;  // a smaller one is copied in less time than it is shown
  if (context_.queues.empty() || call_.output_region.id == 0 || !output_is_open(program, call_)) return;
  if (operation.blocks != nullptr) return;  // no peer would write there
  const size_t bytes = buffer_bytes(operation, true);
  if (bytes < kMinBytes) return;
  const UserMemory output{static_cast<const std::byte*>(operation.output), bytes, &call_.output_region};
  for (const uint32_t peer : program.givers)
    if (Connection* connection = context_.connections[peer]; connection != nullptr)
      connection->show_output(call_.operation, output);
}

// Tells the other ranks what this one calls and where its output lies.
void Communicator::announce(const Operation& operation, const Program* program) {
  RankStatus& status = *context_.status;
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

// The input becomes what will travel; what rounding takes from it is kept for the next call.
void Communicator::add_residual(const Operation& operation) {
  Compression& kept = *operation.compression;
  round_with_feedback(kept.wire, static_cast<const float*>(operation.input), operation.count, kept.residual.data(),
                      kept.adjusted.data());
  call_.input = View(kept.adjusted.data());
  call_.in_place = false;
}

// Whether the call is one small message to each peer, and how these go.
void Communicator::choose_path(const Operation& operation, const Choice* choice) {
  in_mailbox_ = false;
  in_eager_path_ = operation.pairs && operation.lanes == nullptr;
  if (choice == nullptr || !choice->candidate.algorithm->mailbox || operation.has_factor()) return;
  // Some ranks have the buffers of a call in one segment, others not.
  if (operation.segments != nullptr || operation.is_piece) return;
  const size_t largest = operation.blocks == nullptr ? operation.count : operation.blocks->parts.largest;
  const size_t bytes = largest * call_.type_size;
  if (!choice->mailbox)
    in_eager_path_ = operation.blocks == nullptr && bytes > 0 && bytes <= linked_eager_bytes_;
  else if (!choice->candidate.algorithm->computed_once)
    in_mailbox_ = true;
  else
    in_eager_path_ = bytes <= most_eager_bytes();
}

Status Communicator::begin(const Operation& operation) try {
  if (has_failed_.load(std::memory_order_relaxed)) return failure_;
  if (has_lost_descriptors()) return fail(Membership::descriptors_closed());
  if (Status verdict = watch_->verdict(); !verdict.ok()) return fail(std::move(verdict));
  activate();
  if (links_lack_memory_ && !watch_->in_doubt()) {
    stop_without_memory(kBetweenCalls);
    return has_ended() ? out_of_memory() : Status();
  }
  if (watch_->in_doubt()) {  // it fails when it is known why
    in_doubt_ = true;
    return {};
  }
  number_call(operation);
  call_.type_size = element_bytes(operation);
  const uint32_t constraints = constraints_of(operation);
  const Choice* choice = nullptr;
  if (!operation.pairs) {
    const size_t bytes = operation.elements(context_.ranks) * call_.type_size;
    choice = &schedules_->choose(operation.collective, bytes, constraints);
  }
  choose_path(operation, choice);
  if (in_mailbox_) {
    // The message is under way while the rest of the call is filled in.
    announce(operation, nullptr);
    mailbox_.start(call_.signature, operation.input, operation.count * call_.type_size);
    fill_call(operation, constraints);
    begin_watched_call();
    watch_->start(&call_);
    return {};
  }
  fill_call(operation, constraints);
  begin_watched_call();
  const bool compressed = operation.compression != nullptr && context_.ranks > 1;  // one rank alone rounds nothing
  if (compressed && operation.compression->error_feedback) add_residual(operation);
  const Program* program = nullptr;
  if (!in_eager_path_) {
    if (choice != nullptr) program = &schedules_->program(*choice, operation.root);
    find_regions(operation);
  }
  if (call_.operation != 0) announce(operation, program);
  if (program != nullptr) show_output(operation, *program);
  watch_->start(&call_);
  if (in_eager_path_)
    start_eager(operation);
  else if (program != nullptr)
    execution_->bind(*program, call_);
  else
    execution_->bind(call_);
  return {};
} catch (const std::bad_alloc&) {
  stop_without_memory();
  return has_ended() ? out_of_memory() : Status();
}

bool Communicator::are_eager(const std::vector<Transfer>& transfers) const {
  const size_t most_bytes = std::max(most_eager_bytes(), linked_eager_bytes_);
  if (most_bytes == 0 || transfers.size() > 2 * size_t{ranks()}) return false;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    if (t.bytes > most_bytes || !t.view.is_contiguous()) return false;
    // To itself: what it sends, then where it is to lie.
    if (t.peer == rank() && !t.send && (i == 0 || transfers[i - 1].peer != rank() || transfers[i - 1].bytes != t.bytes))
      return false;
    if (t.peer == rank() && t.send && (i + 1 == transfers.size() || transfers[i + 1].peer != rank())) return false;
    // One at most for each peer and direction. They are few, or in an order that puts a peer's two side by side.
    for (size_t k = i; k-- > 0 && i - k < 3;)
      if (transfers[k].peer == t.peer && transfers[k].send == t.send) return false;
  }
  return true;
}

void Communicator::start_eager(const Operation& operation) {
  if (!operation.pairs) return eager_path_->start(&call_);
  eager_path_->start_pairs(&call_);
  const std::byte* own = nullptr;
  for (const Transfer& transfer : operation.eager_transfers) {
    if (transfer.peer == rank() && transfer.send) {
      own = transfer.view.base();
    } else if (transfer.peer == rank()) {
      if (own != transfer.view.base()) std::memcpy(transfer.view.base(), own, transfer.bytes);
    } else if (transfer.send)
      eager_path_->add_send(transfer.peer, transfer.view.base(), transfer.bytes);
    else
      eager_path_->add_receive(transfer.peer, transfer.view.base(), transfer.bytes);
  }
}

Status Communicator::make_lanes(const std::vector<Transfer>& transfers, const char* function,
                                std::shared_ptr<LaneSet>* lanes) {
  auto made = std::make_shared<LaneSet>();
  std::vector<const Schedule*> schedules;
  auto items_of = [&](const Schedule* schedule) -> std::vector<LaneItem>& {
    for (size_t i = 0; i < schedules.size(); ++i)
      if (schedules[i] == schedule) return made->items[i];
    schedules.push_back(schedule);
    return made->items.emplace_back();
  };
  size_t received_from_self = 0;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer == rank()) {
      auto& items = items_of(schedules_->copy_lane());
      if (transfer.send) {
        items.push_back({transfer.view, View(), transfer.bytes, {}});
        continue;
      }
      ++received_from_self;
      continue;
    }
    LaneItem item{transfer.send ? transfer.view : View(), transfer.send ? View() : transfer.view, transfer.bytes, {}};
    items_of(transfer.send ? schedules_->send_lane(transfer.peer) : schedules_->receive_lane(transfer.peer))
        .push_back(item);
  }
  size_t k = 0;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer != rank() || transfer.send) continue;
    auto& items = items_of(schedules_->copy_lane());
    if (k >= items.size() || items[k].count != transfer.bytes)
      return {trInvalidUsage,
              fmt::format("{} on rank {}: its receive {} from itself ({} bytes) has no send to itself of "
                          "that size in the same group",
                          function, rank(), k, transfer.bytes)};
    items[k++].output = transfer.view;
  }
  for (size_t i = 0; i < schedules.size(); ++i)
    if (schedules[i] == schedules_->copy_lane() && made->items[i].size() != received_from_self)
      return {trInvalidUsage, fmt::format("{} on rank {}: {} sends to itself and {} receives from itself in one group",
                                          function, rank(), made->items[i].size(), received_from_self)};
  for (size_t i = 0; i < schedules.size(); ++i) made->lanes.push_back({schedules[i], made->items[i]});
  *lanes = std::move(made);
  return {};
}

}  // namespace treering
