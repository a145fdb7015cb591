// SPDX-License-Identifier: Apache-2.0
// Where the bytes of messages go: chunks of several messages land in any order.
#include <algorithm>
#include <cstring>

#include "support/fake_verbs/world.h"

namespace treering::fake_verbs {

namespace {

constexpr size_t kWindow = 16;    // messages whose chunks land in any order
constexpr uint32_t kChunks = 16;  // of a message, at most

uint64_t total(const std::vector<ibv_sge>& sges) {
  uint64_t sum = 0;
  for (const ibv_sge& sge : sges) sum += sge.length;
  return sum;
}

struct Span {
  uint8_t* at;
  uint32_t length;
};

// How many of its bytes lie in memory that is watched.
uint64_t watched(const Span& span) {
  const World& all = world();
  const uint8_t* const begin = std::max<const uint8_t*>(span.at, all.watched_begin);
  const uint8_t* const end = std::min<const uint8_t*>(span.at + span.length, all.watched_begin + all.watched_bytes);
  return begin < end ? static_cast<uint64_t>(end - begin) : 0;
}

enum class Reached { kAll, kNotSource, kNotDestination };

// The parts of memory that bytes [offset, offset + length) of the sges are; nothing for a bad key.
std::vector<Span> spans_of(const std::vector<ibv_sge>& sges, const ibv_pd* pd, uint64_t offset, uint32_t length,
                           unsigned access, std::vector<Mr*>& regions) {
  std::vector<Span> spans;
  for (const ibv_sge& sge : sges) {
    if (length == 0) break;
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    Mr* region = nullptr;
    uint8_t* const begin = resolve(world().lkeys, sge.lkey, pd, sge.addr, sge.length, access, &region);
    if (begin == nullptr) return {};
    const auto here = static_cast<uint32_t>(std::min<uint64_t>(length, sge.length - offset));
    spans.push_back({begin + offset, here});
    regions.push_back(region);
    length -= here;
    offset = 0;
  }
  return spans;
}

void copy_spans(const std::vector<Span>& to, const std::vector<Span>& from) {
  size_t target = 0;
  uint32_t done = 0;  // of the target
  for (const Span& source : from) {
    for (uint32_t read = 0; read < source.length;) {
      const uint32_t size = std::min(source.length - read, to[target].length - done);
      copy_bytes(to[target].at + done, source.at + read, size);
      read += size;
      done += size;
      if (done == to[target].length) ++target, done = 0;
    }
  }
}

Reached copy_chunk(Qp& qp, Message& message, Chunk chunk) {
  std::vector<Mr*> regions;
  std::vector<Span> from;
  if (message.is_owned) {
    from.push_back({message.owned.data() + chunk.offset, chunk.length});
  } else {
    from = spans_of(message.sges, message.sender->pd, chunk.offset, chunk.length, 0, regions);
  }
  if (from.empty()) return Reached::kNotSource;
  std::vector<Span> to;
  if (message.write) {
    Mr* region = nullptr;
    uint8_t* const begin = resolve(world().rkeys, message.rkey, qp.pd, message.remote_addr, message.length,
                                   IBV_ACCESS_REMOTE_WRITE, &region);
    if (begin == nullptr) return Reached::kNotDestination;
    to.push_back({begin + chunk.offset, chunk.length});
    regions.push_back(region);
  } else {
    const uint32_t header = message.datagram ? sizeof(ibv_grh) : 0;
    to = spans_of(message.receive->sges, qp.pd, header + chunk.offset, chunk.length, IBV_ACCESS_LOCAL_WRITE, regions);
    if (to.empty()) return Reached::kNotDestination;
  }
  observe(qp.post_mark);
  if (message.sender != nullptr) observe(message.sender->post_mark);
  if (message.is_owned) observe(message.owned_mark);
  copy_spans(to, from);
  world().counters.bytes_landed += chunk.length;
  for (const Span& span : to) world().counters.bytes_watched += watched(span);
  for (const Span& span : from) world().counters.bytes_from_watched += watched(span);
  publish(qp.receive_mark);
  if (message.sender != nullptr) publish(message.sender->send_mark);
  for (Mr* region : regions) publish(region->mark);
  return Reached::kAll;
}

// A key that was valid when the message came is not any more.
bool key_is_gone(Qp& qp, size_t which, Reached reached) {
  Qp* const sender = qp.incoming[which]->sender;
  const uint64_t index = sender != nullptr ? qp.incoming[which]->send->index : 0;
  if (reached == Reached::kNotSource) {
    take_back(qp, which);
    fail_send(sender, index, IBV_WC_LOC_PROT_ERR);
    return true;
  }
  if (which != 0) return false;  // messages before it are delivered first
  const bool is_write = qp.incoming[which]->write;
  queue_event(qp, is_write ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_FATAL);
  fail_now(qp);
  fail_send(sender, index, is_write ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_OP_ERR);
  return true;
}

bool can_land(const Message& message) { return !message.chunks.empty() && (message.write || message.receive); }

// What is wrong with the receive for a message that goes into its memory.
ibv_wc_status fault_of(const Qp& qp, const Receive& receive, const Message& message) {
  if (message.write) return IBV_WC_SUCCESS;
  const uint64_t header = message.datagram ? sizeof(ibv_grh) : 0;
  if (total(receive.sges) < header + message.length) return IBV_WC_LOC_LEN_ERR;
  for (const ibv_sge& sge : receive.sges) {
    if (sge.length > 0 &&
        resolve(world().lkeys, sge.lkey, qp.pd, sge.addr, sge.length, IBV_ACCESS_LOCAL_WRITE) == nullptr)
      return IBV_WC_LOC_PROT_ERR;
  }
  return IBV_WC_SUCCESS;
}

}  // namespace

void cut(Message& message) {
  if (message.length == 0) return;
  std::vector<uint32_t> cuts = {0, message.length};
  if (world().settings.disorder > 0) {
    const uint64_t more = world().below(std::min(kChunks, message.length));
    for (uint64_t i = 0; i < more; ++i) cuts.push_back(static_cast<uint32_t>(world().below(message.length)));
  }
  std::sort(cuts.begin(), cuts.end());
  for (size_t i = 1; i < cuts.size(); ++i) {
    if (cuts[i] > cuts[i - 1]) message.chunks.push_back({cuts[i - 1], cuts[i] - cuts[i - 1]});
  }
}

bool land_some(Qp& qp, size_t which, bool faults) {
  Message& message = *qp.incoming[which];
  if (!can_land(message)) return false;
  const size_t chosen = world().settings.disorder == 0 ? 0 : world().below(message.chunks.size());
  const Reached reached = copy_chunk(qp, message, message.chunks[chosen]);
  if (reached != Reached::kAll) return faults && key_is_gone(qp, which, reached);
  std::swap(message.chunks[chosen], message.chunks.back());
  message.chunks.pop_back();
  return true;
}

bool land(Qp& qp) {
  const size_t window = std::min(kWindow, qp.incoming.size());
  const size_t begin = world().settings.disorder == 0 ? 0 : world().below(window);
  for (size_t i = 0; i < window; ++i) {
    const size_t which = (begin + i) % window;
    if (can_land(*qp.incoming[which])) return land_some(qp, which);
  }
  return false;
}

Taken take_receive(Qp& qp, size_t which) {
  Message& message = *qp.incoming[which];
  if (!message.needs_receive || message.receive) return Taken::kYes;
  if (qp.receives.empty()) return Taken::kNone;
  const ibv_wc_status fault = fault_of(qp, qp.receives.front(), message);
  if (fault != IBV_WC_SUCCESS && which != 0) return Taken::kNone;  // messages before it are delivered first
  Receive receive = std::move(qp.receives.front());
  qp.receives.pop_front();
  if (fault == IBV_WC_SUCCESS) {
    if (message.datagram) {  // into the first bytes of the receive
      std::vector<Mr*> regions;
      uint8_t* const header = reinterpret_cast<uint8_t*>(&message.header);
      observe(qp.post_mark);
      copy_spans(spans_of(receive.sges, qp.pd, 0, sizeof message.header, IBV_ACCESS_LOCAL_WRITE, regions),
                 {{header, sizeof message.header}});
      publish(qp.receive_mark);
    }
    message.receive = std::move(receive);
    return Taken::kYes;
  }
  Qp* const sender = message.sender;
  const uint64_t index = sender != nullptr ? message.send->index : 0;
  complete_receive(qp, receive, nullptr, fault);
  queue_event(qp, IBV_EVENT_QP_FATAL);
  fail_now(qp);
  fail_send(sender, index, fault == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR);
  return Taken::kFailed;
}

}  // namespace treering::fake_verbs
