// SPDX-License-Identifier: Apache-2.0
// Work requests as they are posted, and what is refused at once.
#include <cerrno>

#include "support/fake_verbs/world.h"

namespace treering::fake_verbs {

namespace {

bool supported(const Qp& qp, const ibv_send_wr& wr) {
  const bool is_send = wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_SEND_WITH_IMM;
  const bool is_write = wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  return is_send || (is_write && qp.qp_type == IBV_QPT_RC);
}

void read_sges(Send& send, const ibv_send_wr& wr) {
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    if (sge.length == 0) continue;
    if (send.is_inlined) {
      const auto* const from = reinterpret_cast<const uint8_t*>(sge.addr);
      const size_t begin = send.inlined.size();
      send.inlined.resize(begin + sge.length);
      copy_bytes(send.inlined.data() + begin, from, sge.length);
    } else {
      send.sges.push_back(sge);
    }
  }
}

int post_one(Qp& qp, const ibv_send_wr& wr) {
  if (qp.now == IBV_QPS_RESET || qp.now == IBV_QPS_INIT || qp.now == IBV_QPS_RTR) return EINVAL;
  if (!supported(qp, wr) || wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp.cap.max_send_sge) return EINVAL;
  if (qp.sends_posted - qp.sends_freed >= qp.cap.max_send_wr) return ENOMEM;
  uint64_t length = 0;
  for (int i = 0; i < wr.num_sge; ++i) length += wr.sg_list[i].length;
  const Port* const port = port_of(qp);
  if (port != nullptr && length > port->attr.max_msg_sz) return EINVAL;
  Send send;
  send.is_inlined = (wr.send_flags & IBV_SEND_INLINE) != 0;
  if (send.is_inlined && length > qp.cap.max_inline_data) return EINVAL;
  if (qp.qp_type == IBV_QPT_UD) {
    if (wr.wr.ud.ah == nullptr) return EINVAL;
    const auto* const ah = checked<Ah>(wr.wr.ud.ah, Kind::kAh, "ibv_post_send");
    if (ah->pd != qp.pd) return EINVAL;
    send.to = ah->attr;
  }
  send.wr = wr;
  send.wr.next = nullptr;
  send.wr.sg_list = nullptr;  // belongs to the program
  send.length = static_cast<uint32_t>(length);
  send.signaled = qp.all_signaled || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  read_sges(send, wr);
  send.index = qp.sends_posted++;
  ++world().counters.sends_posted[wr.opcode & 15];
  if (send.is_inlined) ++world().counters.inline_posted;
  if (qp.now == IBV_QPS_ERR) {
    complete_send(qp, send, IBV_WC_WR_FLUSH_ERR);
  } else {
    qp.sends.push_back(std::move(send));
    activate(qp);
  }
  return 0;
}

int post_one(Qp& qp, const ibv_recv_wr& wr) {
  if (qp.now == IBV_QPS_RESET) return EINVAL;
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp.cap.max_recv_sge) return EINVAL;
  if (qp.receives_posted - qp.receives_freed >= qp.cap.max_recv_wr) return ENOMEM;
  Receive receive;
  receive.wr_id = wr.wr_id;
  receive.index = qp.receives_posted++;
  for (int i = 0; i < wr.num_sge; ++i) {
    if (wr.sg_list[i].length > 0) receive.sges.push_back(wr.sg_list[i]);
  }
  ++world().counters.receives_posted;
  if (qp.now == IBV_QPS_ERR) {
    complete_receive(qp, receive, nullptr, IBV_WC_WR_FLUSH_ERR);
  } else {
    qp.receives.push_back(std::move(receive));
  }
  return 0;
}

template <typename Request>
int post_all(ibv_qp* qp, Request* wr, Request** bad, const char* function) {
  auto& known = *checked<Qp>(qp, Kind::kQp, function);
  int error = world().injected(function);
  publish(known.post_mark);
  for (; wr != nullptr; wr = wr->next) {
    if (error == 0) error = post_one(known, *wr);
    if (error != 0) {
      *bad = wr;
      break;
    }
  }
  changed();
  return error;
}

}  // namespace

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  const Lock lock;
  ++world().counters.post_calls;
  return post_all(qp, wr, bad, "ibv_post_send");
}

int post_receive(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  const Lock lock;
  return post_all(qp, wr, bad, "ibv_post_recv");
}

}  // namespace treering::fake_verbs
