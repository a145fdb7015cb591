// SPDX-License-Identifier: Apache-2.0
#include "gpu/staged_path.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <deque>

#include "core/log.h"
#include "core/types.h"
#include "gpu/devices.h"

namespace treering {
namespace {

// A stream that has not passed by then is stuck in something that is not ours.
constexpr std::chrono::seconds kPassedWithin{10};

std::byte* bytes_of(const void* address) { return static_cast<std::byte*>(const_cast<void*>(address)); }

}  // namespace

struct StagedMove {
  void* to;
  const void* from;
  size_t bytes;
};

// A driver copies from host to host in the thread that asks for it, which waits for all that the stream holds: for kernels
// of ranks that wait for one that this thread has yet to launch. In a callback the stream does it itself.
void copy_on_host(void* argument) {
  const auto* move = static_cast<const StagedMove*>(argument);
  std::memcpy(move->to, move->from, move->bytes);
}

bool is_on_host(const StagedMove& move) {
  DeviceBackend* const backend = device_backend(nullptr);
  return backend->device_of(move.to) < 0 && backend->device_of(move.from) < 0;
}

struct StagedPath::Piece {
  StagedCall* call = nullptr;
  Operation operation;  // on pinned memory
  std::vector<StagedMove> before, after;
  std::atomic<uint32_t>* flag = nullptr;
  EventId gate = 0;
  Slot* slot = nullptr;  // of the pipeline, or nullptr
};

struct StagedPath::StagedCall {
  Communicator* communicator = nullptr;
  std::shared_ptr<StagingMemory> memory;  // outlives the communicator where a stream is late
  StreamId graph_stream = 0;
  std::deque<Piece> pieces;
  std::vector<StagingMemory::Block> blocks;
  Operation whole;  // as the user made it, but for its scalar, which is pinned
  StagedMove scale{nullptr, nullptr, 0};

  ~StagedCall() {
    for (const StagingMemory::Block& block : blocks) memory->take_back(block);
  }
  Status lend(size_t bytes, std::byte** address) {
    StagingMemory::Block block;
    TR_RETURN_IF_ERROR(memory->lend(bytes, &block));
    blocks.push_back(block);
    *address = block.address;
    return {};
  }
  Status add_pieces(size_t count) {
    std::byte* flags = nullptr;
    TR_RETURN_IF_ERROR(lend(count * sizeof(std::atomic<uint32_t>), &flags));
    for (size_t i = 0; i < count; ++i) {
      Piece& piece = pieces.emplace_back();
      piece.call = this;
      piece.flag = reinterpret_cast<std::atomic<uint32_t>*>(flags) + i;
      piece.flag->store(0);
    }
    // Before the first piece in the stream, for all of them.
    if (scale.bytes > 0) pieces.front().before.push_back(scale);
    return {};
  }
};

StagedPath::StagedPath(Communicator* communicator, Device* device)
    : communicator_(communicator),
      device_(device),
      host_stream_(Engine::instance().create_stream()),
      graph_stream_(Engine::instance().create_stream()),
      memory_(std::make_shared<StagingMemory>(device)),
      order_(device) {}

StagedPath::~StagedPath() = default;

bool StagedPath::close() {
  (void)Engine::instance().synchronize(graph_stream_);  // whose callbacks refer to the captured calls
  captured_.clear();
  reserved_.clear();
  for (const Slot& slot : slots_)
    for (const StagingMemory::Block& block : {slot.input, slot.output})
      if (block.address != nullptr) memory_->take_back(block);  // not lent again: no call is made any more
  if (!memory_->wait_until_idle(kPassedWithin)) {
    // What the streams still hold refers to the memory, which they keep, and to the engine's stream, which therefore
    // stays.
    log_line(LogLevel::kWarn, fmt::format("a CUDA stream of GPU {} still holds operations of a destroyed communicator",
                                          device_->info().ordinal));
    return false;
  }
  memory_->free_all();
  for (StreamId stream : {host_stream_, graph_stream_})
    (void)Engine::instance().destroy_stream(stream);  // its failures were the communicator's
  // At the end: there is no caller to tell.
  for (const Slot& slot : slots_)
    if (slot.free != nullptr) (void)device_->destroy_event(slot.free);
  for (DeviceEvent event : {begun_, all_in_, all_out_})
    if (event != nullptr) (void)device_->destroy_event(event);
  for (DeviceStream stream : {copies_in_, copies_out_})
    if (stream != nullptr) (void)device_->destroy_stream(stream);
  return true;
}

// ---- where everything lies ----

Status StagedPath::prepare(Operation operation, std::unique_ptr<StagedCall>* made) {
  auto call = std::make_unique<StagedCall>();
  call->communicator = communicator_;
  call->memory = memory_;
  call->graph_stream = graph_stream_;
  call->whole = std::move(operation);
  TR_RETURN_IF_ERROR(stage_scale(call.get()));
  *made = std::move(call);
  return {};
}

Status StagedPath::stage_scale(StagedCall* call) const {
  const void* const scale_at = call->whole.scale_at();
  if (scale_at == nullptr) return {};
  std::byte* staged = nullptr;
  const size_t bytes = find_type(call->whole.type)->size;
  TR_RETURN_IF_ERROR(call->lend(bytes, &staged));
  call->scale = {staged, scale_at, bytes};
  auto reduction = std::make_shared<Reduction>(*call->whole.reduction);
  reduction->scale_at = staged;
  call->whole.reduction = std::move(reduction);
  return {};
}

// In one piece; with `buffers` on memory of its own.
Status StagedPath::stage(StagedCall* call, bool buffers) const {
  TR_RETURN_IF_ERROR(call->add_pieces(1));
  Piece& piece = call->pieces.front();
  piece.operation = call->whole;
  if (!buffers) return {};
  return piece.operation.pairs ? stage_transfers(call, &piece) : stage_buffers(call, &piece);
}

Status StagedPath::stage_buffers(StagedCall* call, Piece* piece) const {
  Operation& operation = piece->operation;
  const size_t size = find_type(operation.type)->size;
  const uint32_t rank = communicator_->rank(), ranks = communicator_->ranks();
  const size_t in = operation.input == nullptr ? 0 : buffer_elements(operation, rank, ranks, false) * size;
  const size_t out = operation.output == nullptr ? 0 : buffer_elements(operation, rank, ranks, true) * size;
  std::byte *const input = bytes_of(operation.input), *const output = bytes_of(operation.output);
  std::byte* staged = nullptr;
  if (operation.in_place && in > 0 && out > 0) {  // one buffer: both, whole
    std::byte* const first = std::min(input, output);
    const size_t bytes = static_cast<size_t>(std::max(input + in, output + out) - first);
    TR_RETURN_IF_ERROR(call->lend(bytes, &staged));
    piece->before.push_back({staged, first, bytes});
    piece->after.push_back({output, staged + (output - first), out});
    operation.input = staged + (input - first);
    operation.output = staged + (output - first);
    return {};
  }
  if (in > 0) {
    TR_RETURN_IF_ERROR(call->lend(in, &staged));
    piece->before.push_back({staged, input, in});
    operation.input = staged;
  }
  if (out > 0) {
    TR_RETURN_IF_ERROR(call->lend(out, &staged));
    // Between the blocks of a v-variant lies what is to stay.
    if (operation.blocks != nullptr) piece->before.push_back({staged, output, out});
    piece->after.push_back({output, staged, out});
    operation.output = staged;
  }
  return {};
}

Status StagedPath::stage_transfers(StagedCall* call, Piece* piece) const {
  for (Transfer& transfer : piece->operation.eager_transfers) {
    std::byte* const user = transfer.view.base();
    if (transfer.bytes == 0 || user == nullptr) continue;
    std::byte* staged = nullptr;
    TR_RETURN_IF_ERROR(call->lend(transfer.bytes, &staged));
    if (transfer.send)
      piece->before.push_back({staged, user, transfer.bytes});
    else
      piece->after.push_back({user, staged, transfer.bytes});
    transfer.view = View(staged);
  }
  return {};
}

// Pinned memory for a pipeline: a slot holds the buffers of a piece, which are one where the collective has a single
// block.
Status StagedPath::lend_slots(StagedCall* call, Slot* slots) const {
  const size_t bytes = most_piece_bytes(*communicator_);
  for (size_t i = 0; i < kDepth; ++i)
    for (StagingMemory::Block* block : {&slots[i].input, &slots[i].output}) {
      if (block->address != nullptr) continue;
      TR_RETURN_IF_ERROR(memory_->lend(bytes, block));
      if (call != nullptr) call->blocks.push_back(*block);
    }
  return {};
}

Status StagedPath::stage_pieces(const PiecePlan& plan, Slot* slots, size_t first_slot, StagedCall* call) const {
  const Operation& whole = call->whole;
  const size_t size = find_type(whole.type)->size;
  const size_t in = buffer_blocks(whole, communicator_->rank(), communicator_->ranks(), false);
  const size_t out = buffer_blocks(whole, communicator_->rank(), communicator_->ranks(), true);
  const bool shared = in == 1 && out == 1 && info_of(whole.collective).parts == Parts::kOne;
  TR_RETURN_IF_ERROR(call->add_pieces(plan.pieces));
  for (size_t index = 0; index < plan.pieces; ++index) {
    Piece& piece = call->pieces[index];
    Slot& slot = slots[(first_slot + index) % kDepth];
    piece.operation = piece_of(whole, plan, index);
    const size_t bytes = piece.operation.count * size, stride = whole.count * size;
    const size_t offset = index * plan.count * size;
    std::byte* const output = shared ? slot.input.address : slot.output.address;
    for (size_t block = 0; block < in; ++block)
      piece.before.push_back(
          {slot.input.address + block * bytes, bytes_of(whole.input) + block * stride + offset, bytes});
    for (size_t block = 0; block < out; ++block)
      piece.after.push_back({bytes_of(whole.output) + block * stride + offset, output + block * bytes, bytes});
    piece.operation.input = in > 0 ? slot.input.address : nullptr;
    piece.operation.output = out > 0 ? output : nullptr;
    piece.operation.in_place = shared;
    piece.slot = &slot;
  }
  return {};
}

// ---- what the streams get ----

Status StagedPath::open_pipeline() {
  if (copies_out_ != nullptr) return {};
  for (DeviceEvent* event : {&begun_, &all_in_, &all_out_, &slots_[0].free, &slots_[1].free, &slots_[2].free})
    if (*event == nullptr) TR_RETURN_IF_ERROR(device_->create_event(event));
  if (copies_in_ == nullptr) TR_RETURN_IF_ERROR(device_->create_stream(&copies_in_));
  return device_->create_stream(&copies_out_);
}

Status StagedPath::fork(DeviceStream stream) {
  TR_RETURN_IF_ERROR(device_->record(begun_, stream));
  TR_RETURN_IF_ERROR(device_->wait(copies_in_, begun_));
  return device_->wait(copies_out_, begun_);
}

Status StagedPath::join(DeviceStream stream) {
  TR_RETURN_IF_ERROR(device_->record(all_in_, copies_in_));
  TR_RETURN_IF_ERROR(device_->record(all_out_, copies_out_));
  TR_RETURN_IF_ERROR(device_->wait(stream, all_in_));
  return device_->wait(stream, all_out_);
}

Status StagedPath::enqueue(Operation operation, DeviceStream stream) {
  const PiecePlan plan = plan_pieces(*communicator_, operation);
  const bool captured = device_->is_capturing(stream);
  const bool pipelined = plan.pieces > 1 && !captured;
  std::unique_ptr<StagedCall> call;
  TR_RETURN_IF_ERROR(prepare(std::move(operation), &call));
  reserved_.clear();
  std::array<Slot, kDepth> of_graph;
  if (plan.pieces == 1) {
    TR_RETURN_IF_ERROR(stage(call.get(), true));
  } else if (captured) {
    TR_RETURN_IF_ERROR(lend_slots(call.get(), of_graph.data()));
    TR_RETURN_IF_ERROR(stage_pieces(plan, of_graph.data(), 0, call.get()));
    for (Piece& piece : call->pieces) piece.slot = nullptr;  // one stream: in order without events
  } else {
    TR_RETURN_IF_ERROR(open_pipeline());
    TR_RETURN_IF_ERROR(lend_slots(nullptr, slots_.data()));
    TR_RETURN_IF_ERROR(stage_pieces(plan, slots_.data(), next_slot_, call.get()));
    next_slot_ = (next_slot_ + plan.pieces) % kDepth;
  }
  Operation& first = call->pieces.front().operation;
  if (first.pairs && !communicator_->are_eager(first.eager_transfers)) {
    TR_RETURN_IF_ERROR(communicator_->make_lanes(first.eager_transfers, first.function, &first.lanes));
    first.eager_transfers.clear();
  }
  if (captured) ordered_ = true;
  if (ordered_) TR_RETURN_IF_ERROR(order_.create());
  if (pipelined) TR_RETURN_IF_ERROR(fork(stream));
  bool queued = false;
  Status status =
      give(call.get(), captured, pipelined ? copies_in_ : stream, pipelined ? copies_out_ : stream, &queued);
  if (status.ok() && pipelined) status = join(stream);
  if (!status.ok() && queued) {  // the engine still uses what the stream may have passed: it stays
    (void)call.release();
    return status;
  }
  // What the engine holds ends by the communicator's deadline; the call is given back by the stream alone.
  const Status given_back = give_back_in(status.ok() || !pipelined ? stream : copies_in_, std::move(call));
  return status.ok() ? given_back : status;
}

Status StagedPath::reserve(const Operation& operation, bool buffers) {
  if (buffers && plan_pieces(*communicator_, operation).pieces > 1) {
    TR_RETURN_IF_ERROR(open_pipeline());
    return lend_slots(nullptr, slots_.data());
  }
  std::unique_ptr<StagedCall> call;
  TR_RETURN_IF_ERROR(prepare(operation, &call));
  TR_RETURN_IF_ERROR(stage(call.get(), buffers));
  reserved_.push_back(std::move(call));
  return {};
}

// In the order of one stream: a slot is filled again when it has been emptied.
Status StagedPath::give(StagedCall* call, bool captured, DeviceStream copies_in, DeviceStream copies_out,
                        bool* queued) {
  const size_t pieces = call->pieces.size();
  if (ordered_) TR_RETURN_IF_ERROR(order_.enter(copies_in));
  for (size_t turn = 0; turn < pieces + kDepth - 1; ++turn) {
    if (turn < pieces) TR_RETURN_IF_ERROR(give_in(&call->pieces[turn], captured, copies_in, queued));
    if (turn + 1 == pieces && ordered_) TR_RETURN_IF_ERROR(order_.leave(copies_in));
    if (turn >= kDepth - 1) TR_RETURN_IF_ERROR(give_out(&call->pieces[turn - (kDepth - 1)], copies_out));
  }
  return {};
}

// The moves stay where they are until the stream has passed.
Status StagedPath::copy_all(std::vector<StagedMove>* moves, DeviceStream stream) const {
  for (StagedMove& move : *moves)
    TR_RETURN_IF_ERROR(is_on_host(move) ? device_->call_host(copy_on_host, &move, stream)
                                        : device_->copy(move.to, move.from, move.bytes, stream));
  return {};
}

Status StagedPath::give_in(Piece* piece, bool captured, DeviceStream stream, bool* queued) {
  if (piece->slot != nullptr && piece->slot->used) TR_RETURN_IF_ERROR(device_->wait(stream, piece->slot->free));
  TR_RETURN_IF_ERROR(copy_all(&piece->before, stream));
  if (captured) return device_->call_host(start_captured, piece, stream);
  TR_RETURN_IF_ERROR(queue_on_engine(piece));
  *queued = true;
  const Status status = device_->call_host(open_gate, piece, stream);
  if (!status.ok()) open_gate(piece);
  return status;
}

Status StagedPath::give_out(Piece* piece, DeviceStream stream) {
  TR_RETURN_IF_ERROR(device_->wait_value(reinterpret_cast<const uint32_t*>(piece->flag), 1, stream));
  TR_RETURN_IF_ERROR(copy_all(&piece->after, stream));
  if (piece->slot == nullptr) return {};
  piece->slot->used = true;
  return device_->record(piece->slot->free, stream);
}

Status StagedPath::enqueue_around(Operation operation, bool buffers, DeviceStream stream,
                                  const std::function<Status(const Operation&)>& launch) {
  reserved_.clear();
  std::unique_ptr<StagedCall> call;
  TR_RETURN_IF_ERROR(prepare(std::move(operation), &call));
  TR_RETURN_IF_ERROR(stage(call.get(), buffers));
  Piece& piece = call->pieces.front();
  Status status = copy_all(&piece.before, stream);
  if (status.ok()) status = launch(piece.operation);
  if (status.ok()) status = copy_all(&piece.after, stream);
  const Status given_back = give_back_in(stream, std::move(call));
  return status.ok() ? given_back : status;
}

// Behind everything that the stream was given of the call, as it uses the call's memory: after a failure, too.
Status StagedPath::give_back_in(DeviceStream stream, std::unique_ptr<StagedCall> call) {
  if (device_->is_capturing(stream)) {
    captured_.push_back(std::move(call));
    return {};
  }
  StagedCall* const held = call.release();
  const Status status = device_->call_host(give_back, held, stream);
  if (!status.ok() && device_->synchronize(stream).ok())
    give_back(held);  // else it is not known what uses it: it stays
  return status;
}

// ---- the engine's side ----

Status StagedPath::queue_on_engine(Piece* piece) {
  Engine& engine = Engine::instance();
  piece->gate = engine.create_gate();
  TR_RETURN_IF_ERROR(engine.wait_event(host_stream_, piece->gate));
  // A launch before the first capture there is none: what was called before that is before all launches.
  Status status = ordered_ ? engine.enqueue_passable(host_stream_, communicator_, piece->operation, piece->gate)
                           : engine.enqueue(host_stream_, communicator_, piece->operation);
  if (status.ok()) status = engine.add_callback(host_stream_, raise_flag, piece);
  if (!status.ok()) engine.open_gate(piece->gate);  // the stream must not wait for it
  return status;
}

void StagedPath::open_gate(void* argument) {
  auto* piece = static_cast<Piece*>(argument);
  Engine::instance().open_gate(piece->gate);
}

// A graph is replayed: every time the operation is queued anew, before those of calls whose streams wait for this one.
void StagedPath::start_captured(void* argument) {
  auto* piece = static_cast<Piece*>(argument);
  piece->flag->store(0);
  Engine& engine = Engine::instance();
  const StreamId stream = piece->call->graph_stream;
  if (!engine.enqueue_passing(stream, piece->call->communicator, piece->operation).ok() ||
      !engine.add_callback(stream, raise_flag, piece).ok())
    raise_flag(trInternalError, piece);
}

// Also after a failure: the stream goes on, and the communicator says what happened.
void StagedPath::raise_flag(trResult_t, void* argument) {
  static_cast<Piece*>(argument)->flag->store(1, std::memory_order_release);
}

void StagedPath::give_back(void* argument) { delete static_cast<StagedCall*>(argument); }

}  // namespace treering
