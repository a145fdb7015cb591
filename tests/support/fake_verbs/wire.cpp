// SPDX-License-Identifier: Apache-2.0
// The stages of a send on a reliable connection: onto the wire, delivered, acknowledged.
#include <algorithm>

#include "support/fake_verbs/world.h"

namespace treering::fake_verbs {

namespace {

// Codes of ibv_qp_attr::min_rnr_timer, in units of 10 us.
constexpr uint32_t kReceiveTimers[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                         48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                         2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

bool connected(const Qp& qp, const Qp& peer) {
  return peer.qp_type == IBV_QPT_RC && peer.receiving() && peer.attr.dest_qp_num == qp.qp_num &&
         find_peer(peer, peer.attr.ah_attr, qp.qp_num) == &qp && peer.attr.rq_psn == qp.attr.sq_psn;
}

bool local_keys_valid(const Qp& qp, const Send& send) {
  if (send.is_inlined) return true;
  return std::all_of(send.sges.begin(), send.sges.end(), [&](const ibv_sge& sge) {
    return resolve(world().lkeys, sge.lkey, qp.pd, sge.addr, sge.length, 0) != nullptr;
  });
}

bool is_write(const Send& send) {
  return send.wr.opcode == IBV_WR_RDMA_WRITE || send.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

// What the peer has against it.
ibv_wc_status objection(const Qp& qp, const Qp& peer, const Send& send) {
  const uint32_t packet = 128u << static_cast<unsigned>(std::min(qp.attr.path_mtu, peer.attr.path_mtu));
  if (qp.attr.path_mtu != peer.attr.path_mtu && send.length > packet) return IBV_WC_REM_INV_REQ_ERR;
  if (!is_write(send)) return IBV_WC_SUCCESS;
  if ((peer.attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) return IBV_WC_REM_INV_REQ_ERR;
  // As the specification has it, the key of an empty write is not looked at.
  if (send.length == 0) return IBV_WC_SUCCESS;
  const auto& rdma = send.wr.wr.rdma;
  const bool allowed =
      resolve(world().rkeys, rdma.rkey, peer.pd, rdma.remote_addr, send.length, IBV_ACCESS_REMOTE_WRITE) != nullptr;
  return allowed ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR;
}

// No answer comes; after all retries the send fails.
bool unanswered(Qp& qp, Send& send) {
  if (!qp.silent_since) qp.silent_since = world().clock;
  const uint64_t limit = (4096ull << qp.attr.timeout) * (qp.attr.retry_cnt + 1u);
  if (qp.attr.timeout == 0 || world().clock - *qp.silent_since <= limit) return false;
  fail_send(send, IBV_WC_RETRY_EXC_ERR);
  return true;
}

// The message of `send` has come, and finds no receive.
bool await_receive(Qp& qp, Send& send) {
  Qp* const peer = find_peer(qp, qp.attr.ah_attr, qp.attr.dest_qp_num);
  if (peer == nullptr || !connected(qp, *peer)) return unanswered(qp, send);
  qp.silent_since.reset();
  const size_t which = peer->incoming.size() - 1;  // nothing comes after it
  if (take_receive(*peer, which) != Taken::kNone) {
    qp.unready_since.reset();
    activate(*peer);
    return true;
  }
  if (!qp.unready_since) {
    qp.unready_since = world().clock;
    ++world().counters.receives_awaited;
  }
  const uint64_t wait = 10'000ull * kReceiveTimers[peer->attr.min_rnr_timer & 31] * (qp.attr.rnr_retry + 1u);
  if (qp.attr.rnr_retry == 7 || world().clock - *qp.unready_since <= wait) return false;
  take_back(*peer, which);
  fail_send(send, IBV_WC_RNR_RETRY_EXC_ERR);
  return true;
}

std::unique_ptr<Message> make_message(Qp& qp, Send& send) {
  auto message = std::make_unique<Message>();
  const ibv_send_wr& wr = send.wr;
  message->write = is_write(send);
  message->with_imm = wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wr.opcode == IBV_WR_SEND_WITH_IMM;
  message->needs_receive = message->with_imm || !message->write;
  message->solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0;
  message->imm = wr.imm_data;
  message->length = send.length;
  message->from = qp.qp_num;
  if (message->write) {
    message->rkey = wr.wr.rdma.rkey;
    message->remote_addr = wr.wr.rdma.remote_addr;
  }
  message->sges = send.sges;
  message->owned = send.inlined;
  message->is_owned = send.is_inlined;
  message->sender = &qp;
  message->send = &send;
  cut(*message);
  return message;
}

// Whether a test wants this one to fail before it is sent.
bool fails_by_request(Qp& qp, Send& send) {
  if (send.counted) return false;
  send.counted = true;
  send.planned = world().injected(qp, FAKE_VERBS_SEND_QUEUE);
  if (send.planned == IBV_WC_SUCCESS) return false;
  if (world().settings.disorder > 0 && world().below(2) == 1) return false;  // it fails, but what it carries arrives
  fail_send(send, send.planned);
  return true;
}

bool put(Qp& qp, Send& send) {
  Qp* const peer = find_peer(qp, qp.attr.ah_attr, qp.attr.dest_qp_num);
  if (peer == nullptr || !connected(qp, *peer)) return unanswered(qp, send);
  qp.silent_since.reset();
  const ibv_wc_status status = objection(qp, *peer, send);
  if (status != IBV_WC_SUCCESS) {
    if (!peer->incoming.empty()) return false;  // messages before it are delivered first
    queue_event(*peer, status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
    const uint64_t index = send.index;
    fail_now(*peer);
    fail_send(&qp, index, status);
    return true;
  }
  peer->incoming.push_back(make_message(qp, send));
  send.message = peer->incoming.back().get();
  send.stage = Send::Stage::kOnWire;
  activate(*peer);
  return true;
}

}  // namespace

bool transmit(Qp& qp) {
  if (qp.now != IBV_QPS_RTS) return false;
  const auto next = std::partition_point(qp.sends.begin(), qp.sends.end(), [](const Send& send) {
    return send.stage == Send::Stage::kOnWire || send.stage == Send::Stage::kDelivered;
  });
  if (next != qp.sends.begin()) {
    Send& last = *std::prev(next);
    if (last.stage == Send::Stage::kOnWire && last.message->needs_receive && !last.message->receive)
      return await_receive(qp, last);
  }
  if (next == qp.sends.end() || next->stage == Send::Stage::kFailed) return false;
  if (fails_by_request(qp, *next)) return true;
  if (!local_keys_valid(qp, *next)) return fail_send(*next, IBV_WC_LOC_PROT_ERR), true;
  return qp.qp_type == IBV_QPT_UD ? transmit_datagram(qp, *next) : put(qp, *next);
}

bool deliver(Qp& qp) {
  if (qp.incoming.empty()) return false;
  Message& message = *qp.incoming.front();
  if (!message.chunks.empty() || (message.needs_receive && !message.receive)) return false;
  Qp* const sender = message.sender;
  if (message.receive) {
    const ibv_wc_status status = world().injected(qp, FAKE_VERBS_RECEIVE_QUEUE);
    // A message without bytes tells of what its sender did before, too.
    if (sender != nullptr) observe(sender->post_mark);
    publish(qp.receive_mark);
    complete_receive(qp, *message.receive, &message, status);
    if (status != IBV_WC_SUCCESS) {
      message.receive.reset();
      const uint64_t index = sender != nullptr ? message.send->index : 0;
      queue_event(qp, IBV_EVENT_QP_FATAL);
      fail_now(qp);
      fail_send(sender, index, IBV_WC_REM_OP_ERR);
      return true;
    }
  }
  if (sender != nullptr) {
    message.send->stage = Send::Stage::kDelivered;
    message.send->message = nullptr;
    activate(*sender);
  }
  qp.incoming.pop_front();
  return true;
}

bool acknowledge(Qp& qp) {
  if (qp.sends.empty()) return false;
  const Send& send = qp.sends.front();
  ibv_wc_status status = send.planned;
  if (send.stage == Send::Stage::kFailed) {
    status = send.status;
  } else if (send.stage != Send::Stage::kDelivered) {
    return false;
  }
  complete_send(qp, send, status);
  qp.sends.pop_front();
  if (status != IBV_WC_SUCCESS) fail_now(qp, true);
  return true;
}

}  // namespace treering::fake_verbs
