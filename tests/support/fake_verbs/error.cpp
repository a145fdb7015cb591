// SPDX-License-Identifier: Apache-2.0
// How work ends: completions, and the error state with what it flushes.
#include <algorithm>

#include "support/fake_verbs/world.h"

namespace treering::fake_verbs {

namespace {

// A failed completion has a valid number, status and queue pair. The rest is there to be noticed when it is used.
ibv_wc failed_wc(const Qp& qp, uint64_t wr_id, ibv_wc_status status) {
  ibv_wc wc = {};
  wc.wr_id = wr_id;
  wc.status = status;
  wc.qp_num = qp.qp_num;
  wc.opcode = static_cast<ibv_wc_opcode>(0x7e);
  wc.vendor_err = 98;
  wc.byte_len = wc.imm_data = wc.src_qp = 0xdeadbeef;
  return wc;
}

void flush_sends(Qp& qp, bool send_failed) {
  // Some of what was delivered had been acknowledged. After a send that failed, none succeeds.
  size_t delivered = 0;
  while (!send_failed && delivered < qp.sends.size() && qp.sends[delivered].stage == Send::Stage::kDelivered &&
         qp.sends[delivered].planned == IBV_WC_SUCCESS)
    ++delivered;
  const size_t acknowledged = world().settings.disorder == 0 ? delivered : world().below(delivered + 1);
  for (size_t i = 0; i < qp.sends.size(); ++i) {
    const Send& send = qp.sends[i];
    const bool its_turn =
        !send_failed && send.stage == Send::Stage::kFailed && i == delivered && acknowledged == delivered;
    const ibv_wc_status error = its_turn ? send.status : IBV_WC_WR_FLUSH_ERR;
    complete_send(qp, send, i < acknowledged ? IBV_WC_SUCCESS : error);
  }
  qp.sends.clear();
}

}  // namespace

void complete_send(Qp& qp, const Send& send, ibv_wc_status status) {
  Completion completion = {};
  completion.send = true;
  completion.slots = send.index + 1;
  if (status == IBV_WC_SUCCESS) {
    if (!send.signaled) return;
    completion.wc.wr_id = send.wr.wr_id;
    completion.wc.qp_num = qp.qp_num;
    const bool is_write = send.wr.opcode == IBV_WR_RDMA_WRITE || send.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    completion.wc.opcode = is_write ? IBV_WC_RDMA_WRITE : IBV_WC_SEND;
    completion.wc.byte_len = send.length;
  } else {
    completion.wc = failed_wc(qp, send.wr.wr_id, status);
  }
  qp.send_done.push_back(completion);
  activate(qp);
}

void complete_receive(Qp& qp, const Receive& receive, const Message* message, ibv_wc_status status) {
  Completion completion = {};
  completion.slots = receive.index + 1;
  if (status == IBV_WC_SUCCESS) {
    ibv_wc& wc = completion.wc;
    wc.wr_id = receive.wr_id;
    wc.qp_num = qp.qp_num;
    wc.opcode = message->write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    wc.byte_len = message->length + (message->datagram ? static_cast<uint32_t>(sizeof(ibv_grh)) : 0);
    if (message->with_imm) {
      wc.imm_data = message->imm;
      wc.wc_flags |= IBV_WC_WITH_IMM;
    }
    if (message->datagram) {
      wc.src_qp = message->from;
      wc.wc_flags |= IBV_WC_GRH;
    }
    completion.solicited = message->solicited;
  } else {
    completion.wc = failed_wc(qp, receive.wr_id, status);
  }
  qp.receive_done.push_back(completion);
  activate(qp);
}

void fail_send(Send& send, ibv_wc_status status) {
  send.stage = Send::Stage::kFailed;
  send.status = status;
  send.message = nullptr;
}

void fail_send(Qp* sender, uint64_t index, ibv_wc_status status) {
  if (sender == nullptr || sender->sends.empty()) return;
  const uint64_t first = sender->sends.front().index;
  if (index >= first && index - first < sender->sends.size()) fail_send(sender->sends[index - first], status);
  activate(*sender);
}

void take_back(Qp& qp, size_t from) {
  while (qp.incoming.size() > from) {
    Message& message = *qp.incoming.back();
    if (message.receive) qp.receives.push_front(std::move(*message.receive));
    if (message.sender != nullptr) {
      message.send->stage = Send::Stage::kPosted;
      message.send->message = nullptr;
      activate(*message.sender);
    }
    qp.incoming.pop_back();
  }
}

void leave_wire(Qp& qp) {
  const auto first =
      std::find_if(qp.sends.begin(), qp.sends.end(), [](const Send& send) { return send.message != nullptr; });
  if (first == qp.sends.end()) return;
  const auto found = world().qps.find(qp.attr.dest_qp_num);  // it is alive: it has the message
  Qp& peer = *found->second;
  size_t which = 0;
  while (peer.incoming[which]->sender != &qp) ++which;
  observe(qp.post_mark);
  // The first ones arrive whole, though the sender is not told. Parts of the next one arrive, and nothing of the others.
  const size_t count = peer.incoming.size() - which;
  size_t whole = world().settings.disorder == 0 ? 0 : world().below(count + 1);
  for (; whole > 0 && which < peer.incoming.size(); --whole, ++which) {
    Message& message = *peer.incoming[which];
    if (message.needs_receive && !message.receive) break;  // it would have had to be sent again
    if (!message.is_owned) {
      for (const ibv_sge& sge : message.sges) {
        const uint8_t* from = resolve(world().lkeys, sge.lkey, qp.pd, sge.addr, sge.length, 0);
        if (from == nullptr) return take_back(peer, which);
        const size_t begin = message.owned.size();
        message.owned.resize(begin + sge.length);
        copy_bytes(message.owned.data() + begin, from, sge.length);
        publish(message.owned_mark);
      }
      message.is_owned = true;
    }
    message.send->message = nullptr;
    message.send = nullptr;
    message.sender = nullptr;
  }
  if (which < peer.incoming.size() && world().below(2) == 1) land_some(peer, which, false);
  take_back(peer, std::min(which, peer.incoming.size()));
}

void fail_now(Qp& qp, bool send_failed) {
  if (qp.now == IBV_QPS_ERR || qp.now == IBV_QPS_RESET) return;
  qp.now = IBV_QPS_ERR;
  qp.silent_since.reset();
  qp.unready_since.reset();
  leave_wire(qp);
  take_back(qp, 0);
  flush_sends(qp, send_failed);
  for (const Receive& receive : qp.receives) complete_receive(qp, receive, nullptr, IBV_WC_WR_FLUSH_ERR);
  qp.receives.clear();
}

}  // namespace treering::fake_verbs
