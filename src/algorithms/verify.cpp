#include "algorithms/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "algorithms/expand.h"
#include "algorithms/properties.h"

namespace treering {
namespace {

uint64_t mix(uint64_t x) {  // splitmix64's finalizer
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

struct Value {
  uint64_t ranks =
      0;  // whose inputs: a bit mask (exact) or a sum of hashes with the count in the low 16 bits
  uint64_t order = 0;  // hash of the expression that made it: neither commutative nor associative
};

// What is known of one chunk on one rank.
enum ChunkState : uint8_t {
  kStored = 1,
  kInputRead = 2,
  kInputInFlight = 4,  // sent from the input in place, not yet received
  kScratchWritten = 8,
  kScratchUsed = 16,
  kScratchSent = 32,
};

struct Message {
  uint32_t chunk = 0;
  bool final = false;
  bool input = false;  // the sender's input itself
  Value value;  // of a message of one chunk; longer ones use `more`, which spares an allocation for the rest
  std::vector<Value> more;
};

// A ring buffer of `depth` messages, Simulation::slots_[id * depth ...].
struct Fifo {
  uint32_t head = 0;
  uint32_t count = 0;
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
    std::vector<uint64_t> links;
    for (const Schedule& schedule : schedules_) {
      collect_links(schedule, links);
      at_.emplace_back(schedule);
      used_once_.push_back(properties_of(schedule).input_used_once);
      if (schedule.uses_scratch) {
        // calloc'ed pages that are never touched cost nothing; most ranks use a part only
        scratch_.emplace_back(static_cast<Value*>(std::calloc(chunks_, sizeof(Value))));
      } else {
        scratch_.emplace_back(nullptr);
      }
    }
    std::sort(links.begin(), links.end());
    links.erase(std::unique(links.begin(), links.end()), links.end());
    link_begin_.resize(ranks_ + 1);
    for (uint64_t link : links) ++link_begin_[(link >> 32) + 1];
    for (uint32_t r = 0; r < ranks_; ++r) link_begin_[r + 1] += link_begin_[r];
    for (uint64_t link : links) senders_.push_back(static_cast<uint32_t>(link));
    fifos_.resize(links.size());
    slots_.resize(links.size() * depth_);
    blocked_.resize(ranks_);
    scanned_.resize(ranks_);
    state_.resize(static_cast<size_t>(ranks_) * chunks_);
    result_order_.resize(chunks_);
    for (uint32_t r = 0; r < ranks_; ++r) {
      const uint64_t hash = mix(options_.seed + (r + 1) * 0x9e3779b97f4a7c15);
      inputs_.push_back({kExact ? uint64_t{1} << (r % 64) : (hash << 16) | 1, mix(hash)});
      complete_ = kExact ? complete_ | inputs_[r].ranks : complete_ + inputs_[r].ranks;
    }
  }

  static uint64_t link(uint32_t receiver, uint32_t sender) { return uint64_t{receiver} << 32 | sender; }

  void collect_links(const Schedule& schedule, std::vector<uint64_t>& links) {
    const auto add = [&](const Step& step, uint32_t offset) {
      for (uint32_t i = 0; i < step.receive_count; ++i)
        links.push_back(link(schedule.rank, (schedule.peers[step.receive_first + i] + offset) % ranks_));
      for (uint32_t i = 0; i < step.send_count; ++i)
        links.push_back(link((schedule.peers[step.send_first + i] + offset) % ranks_, schedule.rank));
    };
    for (const Block& block : schedule.blocks) {
      const int64_t n = ranks_, stride = ((block.peer_stride % n) + n) % n;
      for (uint64_t k = 0; k < (stride == 0 ? 1 : block.count); ++k)
        for (uint32_t i = 0; i < block.length; ++i)
          add(schedule.steps[block.first + i],
              static_cast<uint32_t>(k * static_cast<uint64_t>(stride) % ranks_));
    }
  }

  uint64_t fifo_of(uint32_t receiver, uint32_t sender) const {
    auto first = senders_.begin() + static_cast<ptrdiff_t>(link_begin_[receiver]);
    auto last = senders_.begin() + static_cast<ptrdiff_t>(link_begin_[receiver + 1]);
    return static_cast<uint64_t>(std::lower_bound(first, last, sender) - senders_.begin());
  }

  // Whether all messages and all room of the rank's step are there; remembers how far it looked, because what
  // was there once stays there.
  bool may_run(uint32_t rank) {
    const Expansion& at = at_[rank];
    const Step& step = at.step();
    for (uint32_t& i = scanned_[rank]; i < uint32_t{step.receive_count} + step.send_count; ++i) {
      const bool sending = i >= step.receive_count;
      const uint32_t peer = sending ? at.send_peer(i - step.receive_count) : at.receive_peer(i);
      if (peer == rank) return fail(rank, "it is its own peer"), false;
      const uint64_t fifo = sending ? fifo_of(peer, rank) : fifo_of(rank, peer);
      if (sending ? fifos_[fifo].count < depth_ : fifos_[fifo].count > 0) continue;
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
    if (at.chunk() + step.span > chunks_)
      return fail(rank, fmt::format("covers {} chunks of {}", step.span, chunks_));
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
      fail(rank, fmt::format("counts the input of {} twice in chunk {}",
                             name_ranks(value.ranks & operand.ranks), at_[rank].chunk() + i));
    value.ranks = kExact ? value.ranks | operand.ranks : value.ranks + operand.ranks;
    value.order = mix(value.order * 0x9e3779b97f4a7c15 + (operand.order << 17 | operand.order >> 47) + 1);
  }

  void take_local(uint32_t rank, bool& first) {
    const Step& step = at_[rank].step();
    const uint32_t chunk = at_[rank].chunk();
    for (uint32_t i = 0; i < step.span && report_.ok(); ++i) {
      uint8_t& state = state_of(rank, chunk + i);
      Value operand = inputs_[rank];
      if (step.flags & kInput) {
        if (state & kStored)
          fail(rank, fmt::format("reads input chunk {} after its output was stored", chunk + i));
        state |= kInputRead;
      } else if (step.flags & kOutput) {
        if (!(state & kStored))
          fail(rank, fmt::format("reads output chunk {} before it was stored", chunk + i));
        operand = {complete_, result_order_[chunk + i]};
      } else {
        if (!(state & kScratchWritten))
          fail(rank, fmt::format("reads scratch chunk {} before it was written", chunk + i));
        state |= kScratchUsed;
        if (step.flags & kSend && !(step.flags & kReduce)) state |= kScratchSent;
        operand = scratch_[rank].get()[chunk + i];
      }
      combine(rank, i, operand, first);
    }
    first = false;
  }

  void receive(uint32_t rank, uint32_t peer, bool& first) {
    const Step& step = at_[rank].step();
    const uint32_t chunk = at_[rank].chunk();
    const uint64_t id = fifo_of(rank, peer);
    Fifo& fifo = fifos_[id];
    Message& message = slots_[id * depth_ + fifo.head];
    const auto span = static_cast<uint32_t>(std::max<size_t>(message.more.size(), 1));
    if (message.chunk != chunk || span != step.span)
      return fail(rank, fmt::format("expects {} from rank {}, which sent {}", name_chunks(chunk, step.span),
                                    peer, name_chunks(message.chunk, span)));
    if (message.final && ((step.flags & kReduce) || !(step.flags & kStore)))
      return fail(rank, fmt::format("does not store the final {} from rank {} unchanged",
                                    name_chunks(chunk, span), peer));
    for (uint32_t i = 0; i < span; ++i) {
      combine(rank, i, message.more.empty() ? message.value : message.more[i], first);
      if (message.input) state_of(peer, chunk + i) &= static_cast<uint8_t>(~kInputInFlight);
    }
    first = false;
    message.more = {};
    fifo.head = fifo.head + 1 == depth_ ? 0 : fifo.head + 1;
    --fifo.count;
    wake(peer, id, true);
  }

  void check_final(uint32_t rank) {
    const Step& step = at_[rank].step();
    for (uint32_t i = 0; i < step.span; ++i) {
      const bool complete = value_[i].ranks == complete_;
      if (complete == ((step.flags & kFinal) != 0)) continue;
      const std::string chunk = name_chunks(at_[rank].chunk() + i, 1);
      return fail(rank, complete
                            ? fmt::format("{} is complete but not marked final", chunk)
                            : fmt::format("{} is marked final but {}", chunk, name_lack(value_[i].ranks)));
    }
  }

  void store(uint32_t rank) {
    const Step& step = at_[rank].step();
    for (uint32_t i = 0; i < step.span && report_.ok(); ++i) {
      const uint32_t chunk = at_[rank].chunk() + i;
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
      if (!options_.postcondition->stores(rank, chunk, schedules_[rank]))
        fail(rank, fmt::format("stores output chunk {}, which {} does not give it", chunk,
                               options_.postcondition->name));
      if (result_order_[chunk] == 0) result_order_[chunk] = value_[i].order;
      if (result_order_[chunk] != value_[i].order)
        fail(rank,
             fmt::format("combines chunk {} in another order than other ranks: results may differ", chunk));
      check_in_place(rank, rank, chunk);
      state |= kStored;
    }
  }

  // The result of `chunk` may now be written over the input of `owner`.
  void check_in_place(uint32_t rank, uint32_t owner, uint32_t chunk) {
    const uint8_t state = state_of(owner, chunk);
    if (!used_once_[owner]) return;
    if ((state & kInputInFlight) || !(state & kInputRead))
      fail(rank, fmt::format("completes chunk {} on rank {} while its input is still to be read, although "
                             "input_used_once holds",
                             chunk, owner));
  }

  void send(uint32_t rank, uint32_t peer) {
    const Step& step = at_[rank].step();
    const uint32_t chunk = at_[rank].chunk();
    const uint64_t id = fifo_of(peer, rank);
    Fifo& fifo = fifos_[id];
    Message& message = slots_[id * depth_ + (fifo.head + fifo.count) % depth_];
    message.chunk = chunk;
    message.final = step.flags & kFinal;
    message.input = (step.flags & kInput) && !(step.flags & kReduce);
    message.value = value_[0];
    if (step.span > 1) message.more = value_;
    for (uint32_t i = 0; i < step.span; ++i) {
      if (message.input) state_of(rank, chunk + i) |= kInputInFlight;
      if (message.final) check_in_place(rank, peer, chunk + i);
    }
    ++fifo.count;
    ++report_.messages;
    wake(peer, id, false);
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
      report_.error = fmt::format("deadlock of {} ranks at FIFO depth {}:{}{}", stuck, depth_, text,
                                  stuck > 8 ? "\n  ..." : "");
  }

  void check_end() {
    for (uint32_t r = 0; r < ranks_; ++r) {
      for (uint64_t id = link_begin_[r]; id < link_begin_[r + 1]; ++id) {
        if (fifos_[id].count == 0) continue;
        report_.error =
            fmt::format("rank {} never reads {} message(s) from rank {}", r, fifos_[id].count, senders_[id]);
        return;
      }
      for (uint32_t c = 0; c < chunks_; ++c) {
        const uint8_t state = state_of(r, c);
        if (!(state & kStored) && options_.postcondition->stores(r, c, schedules_[r]))
          report_.error = fmt::format("rank {} never stores output chunk {}", r, c);
        else if ((state & kScratchWritten) && !(state & kScratchUsed))
          report_.error = fmt::format("rank {} never uses scratch chunk {}", r, c);
        if (!report_.ok()) return;
      }
    }
  }

  uint8_t& state_of(uint32_t rank, uint32_t chunk) {
    return state_[static_cast<size_t>(rank) * chunks_ + chunk];
  }

  void fail(uint32_t rank, const std::string& what) {
    if (report_.ok()) report_.error = fmt::format("rank {} at step {}: {}", rank, at_[rank].position(), what);
  }

  static std::string name_chunks(uint32_t chunk, uint32_t span) {
    return span == 1 ? fmt::format("chunk {}", chunk)
                     : fmt::format("chunks {} to {}", chunk, chunk + span - 1);
  }
  std::string name_ranks(uint64_t mask) const {
    std::string text;
    for (uint32_t r = 0; r < ranks_; ++r)
      if (mask >> r & 1) text += fmt::format("{}{}", text.empty() ? "rank " : ", ", r);
    return text;
  }
  std::string name_lack(uint64_t ranks) const {
    if (kExact) return "lacks the input of " + name_ranks(complete_ & ~ranks);
    if ((ranks & 0xffff) == (ranks_ & 0xffff)) return "holds inputs of the wrong ranks";
    return fmt::format("holds {} inputs of {}", ranks & 0xffff, ranks_);
  }

  struct Free {
    void operator()(Value* values) const { std::free(values); }
  };

  std::span<const Schedule> schedules_;
  uint32_t ranks_;
  uint32_t chunks_;
  const VerifyOptions& options_;
  uint32_t depth_;
  VerifyReport report_;
  std::vector<Expansion> at_;
  std::vector<uint8_t> used_once_;
  std::vector<std::unique_ptr<Value, Free>> scratch_;
  std::vector<uint64_t> link_begin_;  // FIFOs into rank r: link_begin_[r] ... link_begin_[r + 1], by sender
  std::vector<uint32_t> senders_;
  std::vector<Fifo> fifos_;
  std::vector<Message> slots_;
  std::vector<Blocked> blocked_;
  std::vector<uint32_t> scanned_;
  std::vector<uint8_t> state_;  // ChunkState of each rank and chunk
  std::vector<uint64_t> result_order_;
  std::vector<Value> inputs_;
  std::vector<Value> value_;
  std::deque<uint32_t> ready_;
  uint64_t complete_ = 0;
};

std::string check_shapes(std::span<const Schedule> schedules, const VerifyOptions& options) {
  if (schedules.empty()) return "no schedules";
  if (schedules.size() > 65535)
    return fmt::format("{} ranks: at most 65535 can be verified", schedules.size());
  if (options.exact && schedules.size() > 64)
    return fmt::format("{} ranks: at most 64 can be verified exactly", schedules.size());
  for (size_t r = 0; r < schedules.size(); ++r) {
    const Schedule& schedule = schedules[r];
    if (schedule.rank != r || schedule.ranks != schedules.size() || schedule.chunks != schedules[0].chunks)
      return fmt::format("schedule {} is of rank {} of {} with {} chunks; expected rank {} of {} with {}", r,
                         schedule.rank, schedule.ranks, schedule.chunks, r, schedules.size(),
                         schedules[0].chunks);
    if (Status status = check_structure(schedule); !status.ok()) return status.message();
  }
  return "";
}

}  // namespace

const Postcondition kAllReducePostcondition = {"allreduce",
                                               [](uint32_t, uint32_t, const Schedule&) { return true; }};

VerifyReport verify(std::span<const Schedule> schedules, const VerifyOptions& options) {
  VerifyReport report;
  report.error = check_shapes(schedules, options);
  if (!report.ok()) return report;
  if (options.exact) return Simulation<true>(schedules, options).run();
  return Simulation<false>(schedules, options).run();
}

}  // namespace treering
