// SPDX-License-Identifier: Apache-2.0
#include "algorithms/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "algorithms/expand.h"
#include "algorithms/properties.h"
#include "algorithms/verify_fifos.h"

namespace treering {
namespace {

uint64_t mix(uint64_t x) {  // splitmix64's finalizer
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// What is known of one chunk on one rank.
enum ChunkState : uint8_t {
  kStored = 1,
  kInputRead = 2,
  kInputInFlight = 4,  // sent from the input in place, not yet received
  kScratchWritten = 8,
  kScratchUsed = 16,
  kScratchSent = 32,
};

struct Blocked {
  uint64_t fifo = UINT64_MAX;
  uint32_t peer = 0;
  bool sending = false;
};

template <bool kExact>
class Simulation {
 public:
  Simulation(std::span<const Schedule> schedules, const VerifyOptions& options)
      : schedules_(schedules),
        ranks_(static_cast<uint32_t>(schedules.size())),
        chunks_(schedules[0].chunks),
        chunks_of_part_(chunks_ / schedules[0].parts),
        info_(info_of(options.collective)),
        options_(options),
        depth_(options.fifo_depth) {
    for (const Schedule& schedule : schedules)
      if (options.fifo_depth == 0) depth_ = std::max(depth_, schedule.fifo_depth);
  }

  VerifyReport run() {
    prepare();
    for (uint32_t r = 0; r < ranks_; ++r) ready_.push_back(r);
    while (report_.ok() && !ready_.empty()) {
      const uint32_t rank = ready_.front();
      ready_.pop_front();
      blocked_[rank] = {};
      while (report_.ok() && !at_[rank].done() && may_run(rank)) {
        execute(rank);
        at_[rank].advance();
        scanned_[rank] = 0;
      }
    }
    if (report_.ok()) check_deadlock();
    if (report_.ok()) check_end();
    return std::move(report_);
  }

 private:
  void prepare() {
    fifos_.open(schedules_, depth_);
    for (const Schedule& schedule : schedules_) {
      at_.emplace_back(schedule);
      used_once_.push_back(properties_of(schedule).input_used_once);
      // calloc'ed pages that are never touched cost nothing; most ranks use a part only
      const size_t values = schedule.uses_scratch ? chunks_ : 0;
      scratch_.emplace_back(values == 0 ? nullptr : static_cast<Value*>(std::calloc(values, sizeof(Value))));
    }
    blocked_.resize(ranks_);
    scanned_.resize(ranks_);
    state_.resize(static_cast<size_t>(ranks_) * chunks_);
    result_order_.resize(chunks_);
    for (uint32_t r = 0; r < ranks_; ++r) {
      const uint64_t hash = mix(options_.seed + (r + 1) * 0x9e3779b97f4a7c15);
      inputs_.push_back({kExact ? uint64_t{1} << (r % 64) : (hash << 16) | 1, mix(hash)});
    }
    for (uint32_t part = 0; part < schedules_[0].parts; ++part) {
      Value whole;
      for (uint32_t r = 0; r < ranks_; ++r) {
        if (!info_.contributes({r, part, ranks_, options_.root})) continue;
        whole = {kExact ? whole.ranks | inputs_[r].ranks : whole.ranks + inputs_[r].ranks,
                 whole.order == 0 ? inputs_[r].order : order_of(whole.order, inputs_[r].order)};
      }
      complete_.push_back(whole);
    }
  }

  static uint64_t order_of(uint64_t left, uint64_t right) {
    return mix(left * 0x9e3779b97f4a7c15 + (right << 17 | right >> 47) + 1);
  }
  const Value& complete(uint32_t chunk) const { return complete_[chunk / chunks_of_part_]; }
  // The chunk whose input lies where the output of `chunk` lies when the call is in place; and the other way round.
  uint32_t in_place_chunk(uint32_t chunk) const {
    return info_.in_place_part(chunk / chunks_of_part_, ranks_) * chunks_of_part_ + chunk % chunks_of_part_;
  }
  bool contributes(uint32_t rank, uint32_t chunk) const {
    return info_.contributes({rank, chunk / chunks_of_part_, ranks_, options_.root});
  }
  bool stores(uint32_t rank, uint32_t chunk) const {
    return info_.stores({rank, chunk / chunks_of_part_, ranks_, options_.root});
  }

  // Whether all messages and all room of the rank's step are there; remembers how far it looked, because what
  // was there once stays there.
  bool may_run(uint32_t rank) {
    const Expansion& at = at_[rank];
    const Step& step = at.step();
    for (uint32_t& i = scanned_[rank]; i < uint32_t{step.receive_count} + step.send_count; ++i) {
      const bool sending = i >= step.receive_count;
      const uint32_t peer = sending ? at.send_peer(i - step.receive_count) : at.receive_peer(i);
      if (peer == rank) {
        fail(rank, "it is its own peer");
        return false;
      }
      const uint64_t fifo = sending ? fifos_.find(peer, rank) : fifos_.find(rank, peer);
      if (sending ? fifos_.has_room(fifo) : fifos_.count(fifo) > 0) continue;
      blocked_[rank] = {fifo, peer, sending};
      return false;
    }
    return true;
  }

  void wake(uint32_t rank, uint64_t fifo, bool sending) {
    if (blocked_[rank].fifo != fifo || blocked_[rank].sending != sending) return;
    blocked_[rank].fifo = UINT64_MAX;
    ready_.push_back(rank);
  }

  void execute(uint32_t rank) {
    const Expansion& at = at_[rank];
    const Step& step = at.step();
    ++report_.steps;
    for (uint32_t i = 0; i < step.span; ++i)
      if (at.chunk(i) >= chunks_) return fail(rank, fmt::format("covers chunk {} of {}", at.chunk(i), chunks_));
    value_.resize(step.span);
    bool first = true;
    const bool local = step.flags & (kInput | kOutput | kScratch);
    for (uint32_t i = 0; i < step.receive_count; ++i) {
      if (local && i == step.local_position) take_local(rank, first);
      receive(rank, at.receive_peer(i), first);
    }
    if (local && step.local_position == step.receive_count) take_local(rank, first);
    if (report_.ok()) check_final(rank);
    if (report_.ok() && (step.flags & (kStore | kStoreScratch))) store(rank);
    for (uint32_t i = 0; i < step.send_count && report_.ok(); ++i) send(rank, at.send_peer(i));
  }

  void combine(uint32_t rank, uint32_t i, const Value& operand, bool first) {
    Value& value = value_[i];
    if (first) {
      value = operand;
      return;
    }
    if (kExact && (value.ranks & operand.ranks))
      fail(rank, fmt::format("counts the input of {} twice in chunk {}", name_ranks(value.ranks & operand.ranks),
                             at_[rank].chunk(i)));
    value.ranks = kExact ? value.ranks | operand.ranks : value.ranks + operand.ranks;
    value.order = order_of(value.order, operand.order);
  }

  void take_local(uint32_t rank, bool& first) {
    const Step& step = at_[rank].step();
    for (uint32_t i = 0; i < step.span && report_.ok(); ++i) {
      const uint32_t chunk = at_[rank].chunk(i);
      uint8_t& state = state_of(rank, chunk);
      Value operand = inputs_[rank];
      if (step.flags & kInput) {
        if (!contributes(rank, chunk))
          fail(rank, fmt::format("reads input chunk {}, which {} does not give it", chunk, info_.name));
        if (state_of(rank, in_place_chunk(chunk)) & kStored)
          fail(rank, fmt::format("reads input chunk {} after its output was stored", chunk));
        state |= kInputRead;
      } else if (step.flags & kOutput) {
        if (!(state & kStored)) fail(rank, fmt::format("reads output chunk {} before it was stored", chunk));
        operand = {complete(chunk).ranks, result_order_[chunk]};
      } else {
        if (!(state & kScratchWritten)) fail(rank, fmt::format("reads scratch chunk {} before it was written", chunk));
        state |= kScratchUsed;
        if (step.flags & kSend && !(step.flags & kReduce)) state |= kScratchSent;
        operand = scratch_[rank].get()[chunk];
      }
      combine(rank, i, operand, first);
    }
    first = false;
  }

  void receive(uint32_t rank, uint32_t peer, bool& first) {
    const Step& step = at_[rank].step();
    const uint64_t id = fifos_.find(rank, peer);
    const FifoMessage& message = fifos_.front(id);
    const uint32_t span = message.span();
    bool same = span == step.span;
    for (uint32_t i = 0; i < span && same; ++i) same = chunk_of(message, i) == at_[rank].chunk(i);
    if (!same) {
      std::vector<uint32_t> expected, sent;
      for (uint32_t i = 0; i < step.span; ++i) expected.push_back(at_[rank].chunk(i));
      for (uint32_t i = 0; i < span; ++i) sent.push_back(chunk_of(message, i));
      return fail(
          rank, fmt::format("expects {} from rank {}, which sent {}", name_chunks(expected), peer, name_chunks(sent)));
    }
    if (message.final && ((step.flags & kReduce) || !(step.flags & kStore)))
      return fail(rank,
                  fmt::format("does not store the final chunk {} from rank {} unchanged", at_[rank].chunk(), peer));
    for (uint32_t i = 0; i < span; ++i) {
      combine(rank, i, message.at(i), first);
      if (message.input) state_of(peer, at_[rank].chunk(i)) &= static_cast<uint8_t>(~kInputInFlight);
    }
    first = false;
    fifos_.pop(id);
    wake(peer, id, true);
  }

  // Where nothing is reduced, complete values may also be passed on by ranks that do not keep them.
  void check_final(uint32_t rank) {
    const Step& step = at_[rank].step();
    const bool final = (step.flags & kFinal) != 0;
    for (uint32_t i = 0; i < step.span; ++i) {
      const uint32_t chunk = at_[rank].chunk(i);
      const bool whole = value_[i].ranks == complete(chunk).ranks;
      if (whole == final || (whole && !info_.reduces)) continue;
      return fail(rank, whole ? fmt::format("chunk {} is complete but not marked final", chunk)
                              : fmt::format("chunk {} is marked final but {}", chunk,
                                            name_lack(value_[i].ranks, complete(chunk).ranks)));
    }
  }

  void store(uint32_t rank) {
    const Step& step = at_[rank].step();
    for (uint32_t i = 0; i < step.span && report_.ok(); ++i) {
      const uint32_t chunk = at_[rank].chunk(i);
      uint8_t& state = state_of(rank, chunk);
      if (step.flags & kStoreScratch) {
        if ((state & kScratchWritten) && !(state & kScratchUsed))
          fail(rank, fmt::format("overwrites scratch chunk {} before it was used", chunk));
        if (state & kScratchSent)
          fail(rank, fmt::format("overwrites scratch chunk {}, which a peer may still be reading", chunk));
        state = static_cast<uint8_t>((state | kScratchWritten) & ~kScratchUsed);
        scratch_[rank].get()[chunk] = value_[i];
      }
      if (!(step.flags & kStore)) continue;
      if (state & kStored) fail(rank, fmt::format("stores output chunk {} a second time", chunk));
      if (!stores(rank, chunk))
        fail(rank, fmt::format("stores output chunk {}, which {} does not give it", chunk, info_.name));
      if (result_order_[chunk] == 0) result_order_[chunk] = value_[i].order;
      if (result_order_[chunk] != value_[i].order)
        fail(rank, fmt::format("combines chunk {} in another order than other ranks: results may differ", chunk));
      report_.rank_ordered &= value_[i].order == complete(chunk).order;
      check_in_place(rank, rank, chunk);
      state |= kStored;
    }
  }

  // The result of `chunk` may now be written over the input of `owner`. (Blocks of pairs change places in place: the
  // executor lets no peer work on such buffers.)
  void check_in_place(uint32_t rank, uint32_t owner, uint32_t chunk) {
    if (!used_once_[owner] || info_.parts == Parts::kPairs || !contributes(owner, chunk)) return;
    const uint8_t state = state_of(owner, chunk);
    // The step's own local operand, read in this very step, counts as read.
    if ((state & kInputInFlight) || !(state & kInputRead))
      fail(rank, fmt::format("completes chunk {} on rank {} while its input is still to be read, although "
                             "input_used_once holds",
                             chunk, owner));
  }

  void send(uint32_t rank, uint32_t peer) {
    const Step& step = at_[rank].step();
    const uint64_t id = fifos_.find(peer, rank);
    FifoMessage& message = fifos_.push(id);
    message.chunk = at_[rank].chunk();
    message.final = step.flags & kFinal;
    message.input = (step.flags & kInput) && !(step.flags & kReduce);
    message.value = value_[0];
    if (step.span > 1) message.more = value_;
    for (uint32_t i = 0; i < step.span; ++i) {
      const uint32_t chunk = at_[rank].chunk(i);
      if (step.span > 1) message.chunks.push_back(chunk);
      if (message.input) state_of(rank, chunk) |= kInputInFlight;
      if (message.final) check_in_place(rank, peer, chunk);
    }
    ++report_.messages;
    wake(peer, id, false);
  }

  static uint32_t chunk_of(const FifoMessage& message, uint32_t i) {
    return message.chunks.empty() ? message.chunk : message.chunks[i];
  }

  void check_deadlock() {
    std::string text;
    uint32_t stuck = 0;
    for (uint32_t r = 0; r < ranks_; ++r) {
      if (at_[r].done() || ++stuck > 8) continue;
      text += fmt::format("\n  rank {} at step {} ({}) waits for {} rank {}", r, at_[r].position(),
                          name_chunks(at_[r].chunk(), at_[r].step().span),
                          blocked_[r].sending ? "room in its FIFO to" : "a message from", blocked_[r].peer);
    }
    if (stuck > 0)
      report_.error =
          fmt::format("deadlock of {} ranks at FIFO depth {}:{}{}", stuck, depth_, text, stuck > 8 ? "\n  ..." : "");
  }

  void check_end() {
    for (uint32_t r = 0; r < ranks_; ++r) {
      for (uint64_t id = fifos_.begin(r); id < fifos_.begin(r + 1); ++id) {
        if (fifos_.count(id) == 0) continue;
        report_.error =
            fmt::format("rank {} never reads {} message(s) from rank {}", r, fifos_.count(id), fifos_.sender(id));
        return;
      }
      for (uint32_t c = 0; c < chunks_; ++c) {
        const uint8_t state = state_of(r, c);
        if (!(state & kStored) && stores(r, c))
          report_.error = fmt::format("rank {} never stores output chunk {}", r, c);
        else if ((state & kScratchWritten) && !(state & kScratchUsed))
          report_.error = fmt::format("rank {} never uses scratch chunk {}", r, c);
        if (!report_.ok()) return;
      }
    }
  }

  uint8_t& state_of(uint32_t rank, uint32_t chunk) { return state_[static_cast<size_t>(rank) * chunks_ + chunk]; }

  void fail(uint32_t rank, const std::string& what) {
    if (report_.ok()) report_.error = fmt::format("rank {} at step {}: {}", rank, at_[rank].position(), what);
  }

  static std::string name_chunks(uint32_t chunk, uint32_t span) {
    return span == 1 ? fmt::format("chunk {}", chunk) : fmt::format("chunks {} to {}", chunk, chunk + span - 1);
  }
  static std::string name_chunks(const std::vector<uint32_t>& chunks) {
    const auto count = static_cast<uint32_t>(chunks.size());
    if (chunks.back() == chunks[0] + count - 1) return name_chunks(chunks[0], count);
    return fmt::format("chunks {}", fmt::join(chunks, ", "));
  }
  std::string name_ranks(uint64_t mask) const {
    std::string text;
    for (uint32_t r = 0; r < ranks_; ++r)
      if (mask >> r & 1) text += fmt::format("{}{}", text.empty() ? "rank " : ", ", r);
    return text;
  }
  std::string name_lack(uint64_t ranks, uint64_t whole) const {
    if (kExact) return "lacks the input of " + name_ranks(whole & ~ranks);
    if ((ranks & 0xffff) == (whole & 0xffff)) return "holds inputs of the wrong ranks";
    return fmt::format("holds {} inputs of {}", ranks & 0xffff, whole & 0xffff);
  }

  struct Free {
    void operator()(Value* values) const { std::free(values); }
  };

  std::span<const Schedule> schedules_;
  uint32_t ranks_;
  uint32_t chunks_;
  uint32_t chunks_of_part_;
  const CollectiveInfo& info_;
  const VerifyOptions& options_;
  uint32_t depth_;
  VerifyReport report_;
  std::vector<Expansion> at_;
  std::vector<uint8_t> used_once_;
  std::vector<std::unique_ptr<Value, Free>> scratch_;
  FifoTable fifos_;
  std::vector<Blocked> blocked_;
  std::vector<uint32_t> scanned_;
  std::vector<uint8_t> state_;  // ChunkState of each rank and chunk
  std::vector<uint64_t> result_order_;
  std::vector<Value> inputs_;
  std::vector<Value> value_;
  std::deque<uint32_t> ready_;
  std::vector<Value> complete_;  // of each part
};

std::string check_shapes(std::span<const Schedule> schedules, const VerifyOptions& options) {
  if (schedules.empty()) return "no schedules";
  if (schedules.size() > 65535) return fmt::format("{} ranks: at most 65535 can be verified", schedules.size());
  if (options.exact && schedules.size() > 64)
    return fmt::format("{} ranks: at most 64 can be verified exactly", schedules.size());
  for (size_t r = 0; r < schedules.size(); ++r) {
    const Schedule& schedule = schedules[r];
    if (schedule.rank != r || schedule.ranks != schedules.size() || schedule.chunks != schedules[0].chunks)
      return fmt::format("schedule {} is of rank {} of {} with {} chunks; expected rank {} of {} with {}", r,
                         schedule.rank, schedule.ranks, schedule.chunks, r, schedules.size(), schedules[0].chunks);
    const uint32_t parts = info_of(options.collective).part_count(schedule.ranks);
    if (schedule.parts != parts)
      return fmt::format("schedule {} has {} parts; {} has {}", r, schedule.parts, info_of(options.collective).name,
                         parts);
    if (Status status = check_structure(schedule); !status.ok()) return status.message();
  }
  return "";
}

}  // namespace

VerifyReport verify(std::span<const Schedule> schedules, const VerifyOptions& options) {
  VerifyReport report;
  report.error = check_shapes(schedules, options);
  if (!report.ok()) return report;
  if (options.exact) return Simulation<true>(schedules, options).run();
  return Simulation<false>(schedules, options).run();
}

}  // namespace treering
