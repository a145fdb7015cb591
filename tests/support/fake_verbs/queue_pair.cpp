// SPDX-License-Identifier: Apache-2.0
// Queue pairs: their life and their states, with the attributes that each change of state needs and takes.
#include <algorithm>
#include <cerrno>
#include <chrono>

#include "support/fake_verbs/world.h"

namespace treering::fake_verbs {

namespace {

struct Change {
  ibv_qp_type type;
  ibv_qp_state from, to;
  int needed, taken;  // beside IBV_QP_STATE
};

constexpr int kRtrOptions = IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH;
constexpr int kRtsOptions = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
constexpr int kAddress = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC;
constexpr int kRetries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr Change kChanges[] = {
    {IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, kAddress | IBV_QP_MIN_RNR_TIMER, kRtrOptions},
    {IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS, kRetries, kRtsOptions | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS, 0, kRtsOptions | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0},
    {IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
    {IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
};

bool allowed(const Qp& qp, ibv_qp_state to, int mask) {
  mask &= ~IBV_QP_STATE;
  if (to == IBV_QPS_ERR || to == IBV_QPS_RESET) return mask == 0;
  return std::any_of(std::begin(kChanges), std::end(kChanges), [&](const Change& change) {
    return change.type == qp.qp_type && change.from == qp.now && change.to == to &&
           (mask & change.needed) == change.needed && (mask & ~(change.needed | change.taken)) == 0;
  });
}

bool values_valid(const Qp& qp, const ibv_qp_attr& attr, int mask) {
  const int device = context_of(qp.context).fake->index;
  const Port* const port = world().port(device, (mask & IBV_QP_PORT) != 0 ? attr.port_num : qp.attr.port_num);
  if (port == nullptr) return qp.now == IBV_QPS_RESET && (mask & IBV_QP_PORT) == 0;
  constexpr uint32_t k24Bits = 0xffffff;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && attr.pkey_index != 0) return false;
  if ((mask & IBV_QP_AV) != 0 &&
      (check_address(qp.context, attr.ah_attr) != 0 || attr.ah_attr.port_num != qp.attr.port_num))
    return false;
  if ((mask & IBV_QP_PATH_MTU) != 0 && (attr.path_mtu < IBV_MTU_256 || attr.path_mtu > port->attr.active_mtu))
    return false;
  if ((mask & IBV_QP_DEST_QPN) != 0 && attr.dest_qp_num > k24Bits) return false;
  if ((mask & IBV_QP_RQ_PSN) != 0 && attr.rq_psn > k24Bits) return false;
  if ((mask & IBV_QP_SQ_PSN) != 0 && attr.sq_psn > k24Bits) return false;
  if ((mask & IBV_QP_TIMEOUT) != 0 && attr.timeout > 31) return false;
  if ((mask & IBV_QP_RETRY_CNT) != 0 && attr.retry_cnt > 7) return false;
  if ((mask & IBV_QP_RNR_RETRY) != 0 && attr.rnr_retry > 7) return false;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && attr.min_rnr_timer > 31) return false;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && attr.max_rd_atomic > 16) return false;
  return (mask & IBV_QP_MAX_DEST_RD_ATOMIC) == 0 || attr.max_dest_rd_atomic <= 16;
}

void apply(Qp& qp, const ibv_qp_attr& from, int mask) {
  ibv_qp_attr& to = qp.attr;
  const auto take = [&](int bit, auto member) {
    if ((mask & bit) != 0) to.*member = from.*member;
  };
  take(IBV_QP_ACCESS_FLAGS, &ibv_qp_attr::qp_access_flags);
  take(IBV_QP_PKEY_INDEX, &ibv_qp_attr::pkey_index);
  take(IBV_QP_PORT, &ibv_qp_attr::port_num);
  take(IBV_QP_QKEY, &ibv_qp_attr::qkey);
  take(IBV_QP_AV, &ibv_qp_attr::ah_attr);
  take(IBV_QP_PATH_MTU, &ibv_qp_attr::path_mtu);
  take(IBV_QP_TIMEOUT, &ibv_qp_attr::timeout);
  take(IBV_QP_RETRY_CNT, &ibv_qp_attr::retry_cnt);
  take(IBV_QP_RNR_RETRY, &ibv_qp_attr::rnr_retry);
  take(IBV_QP_RQ_PSN, &ibv_qp_attr::rq_psn);
  take(IBV_QP_MAX_QP_RD_ATOMIC, &ibv_qp_attr::max_rd_atomic);
  take(IBV_QP_MIN_RNR_TIMER, &ibv_qp_attr::min_rnr_timer);
  take(IBV_QP_SQ_PSN, &ibv_qp_attr::sq_psn);
  take(IBV_QP_MAX_DEST_RD_ATOMIC, &ibv_qp_attr::max_dest_rd_atomic);
  take(IBV_QP_DEST_QPN, &ibv_qp_attr::dest_qp_num);
}

// Nothing of it is left, anywhere, and nothing touches the program's memory on its behalf.
void clear(Qp& qp, bool keep_completions) {
  leave_wire(qp);
  take_back(qp, 0);
  for (std::deque<Completion>* done : {&qp.send_done, &qp.receive_done}) {
    for (const Completion& completion : *done) {
      if (keep_completions) enter(*static_cast<Cq*>(completion.send ? qp.send_cq : qp.recv_cq), completion);
    }
    done->clear();
  }
  qp.sends.clear();
  qp.receives.clear();
  if (!keep_completions) {
    remove_completions(*static_cast<Cq*>(qp.send_cq), qp);
    remove_completions(*static_cast<Cq*>(qp.recv_cq), qp);
  }
  qp.sends_freed = qp.sends_posted;
  qp.receives_freed = qp.receives_posted;
  qp.silent_since.reset();
  qp.unready_since.reset();
  observe(qp.send_mark);
  observe(qp.receive_mark);
}

int refused(const ibv_qp_init_attr& attr) {
  const fake_verbs_limits& limits = world().settings.limits;
  const ibv_qp_cap& cap = attr.cap;
  if (attr.send_cq == nullptr || attr.recv_cq == nullptr || attr.srq != nullptr) return EINVAL;
  if (attr.qp_type != IBV_QPT_RC && attr.qp_type != IBV_QPT_UD) return EOPNOTSUPP;
  if (cap.max_send_wr > limits.max_qp_wr || cap.max_recv_wr > limits.max_qp_wr) return EINVAL;
  if (cap.max_send_sge > limits.max_sge || cap.max_recv_sge > limits.max_sge) return EINVAL;
  if (cap.max_inline_data > limits.max_inline) return EINVAL;
  return world().qps.size() >= limits.max_qp ? ENOMEM : 0;
}

void forget_events(Qp& qp) {
  std::deque<ibv_async_event>& events = context_of(qp.context).events;
  qp.async_events -= std::erase_if(events, [&](const ibv_async_event& event) {
    const bool of_a_port = event.event_type == IBV_EVENT_PORT_ACTIVE || event.event_type == IBV_EVENT_PORT_ERR;
    return !of_a_port && event.event_type != IBV_EVENT_CQ_ERR && event.element.qp == &qp;
  });
  context_of(qp.context).readable.set(!events.empty());
}

}  // namespace

}  // namespace treering::fake_verbs

using namespace treering::fake_verbs;

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  wait_if_held("ibv_create_qp");
  const Lock lock;
  auto* const domain = checked<Pd>(pd, Kind::kPd, "ibv_create_qp");
  int error = world().injected("ibv_create_qp");
  if (error == 0) error = refused(*init);
  if (error != 0) return errno = error, nullptr;
  auto* const qp = new Qp();
  qp->context = pd->context;
  qp->qp_context = init->qp_context;
  qp->pd = pd;
  qp->send_cq = checked<Cq>(init->send_cq, Kind::kCq, "ibv_create_qp");
  qp->recv_cq = checked<Cq>(init->recv_cq, Kind::kCq, "ibv_create_qp");
  qp->qp_num = qp->handle = world().new_qp_number();
  qp->qp_type = init->qp_type;
  qp->all_signaled = init->sq_sig_all != 0;
  qp->queue = context_of(pd->context).file.map();
  qp->cap = init->cap;  // exactly what was asked for, where hardware gives more
  world().qps[qp->qp_num] = qp;
  world().add(qp, Kind::kQp);
  ++domain->uses;
  ++static_cast<Cq*>(qp->send_cq)->uses;
  ++static_cast<Cq*>(qp->recv_cq)->uses;
  return qp;
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  const Lock lock;
  auto& known = *checked<Qp>(qp, Kind::kQp, "ibv_modify_qp");
  if (const int error = world().injected("ibv_modify_qp")) return error;
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr->qp_state : known.now;
  if (!allowed(known, to, mask) || !values_valid(known, *attr, mask)) return EINVAL;
  apply(known, *attr, mask);
  if (to == IBV_QPS_ERR && known.now == IBV_QPS_RESET) known.now = IBV_QPS_INIT;
  if (to == IBV_QPS_ERR) {
    fail_now(known);  // nothing touches the program's memory on its behalf from now on
    observe(known.send_mark);
    observe(known.receive_mark);
  }
  if (to == IBV_QPS_RESET) clear(known, false);
  known.now = known.state = to;
  changed();
  return 0;
}

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  const Lock lock;
  auto& known = *checked<Qp>(qp, Kind::kQp, "ibv_query_qp");
  if (const int error = world().injected("ibv_query_qp")) return error;
  *attr = known.attr;
  attr->qp_state = attr->cur_qp_state = known.state = known.now;
  attr->cap = known.cap;
  *init = {known.qp_context, known.send_cq, known.recv_cq, nullptr, known.cap, known.qp_type, known.all_signaled};
  return 0;
}

int ibv_destroy_qp(ibv_qp* qp) {
  Lock lock;
  auto* const known = checked<Qp>(qp, Kind::kQp, "ibv_destroy_qp");
  if (const int error = world().injected("ibv_destroy_qp")) return error;
  clear(*known, world().settings.keep_completions);
  forget_events(*known);
  known->now = IBV_QPS_RESET;
  const auto all = [&] { return known->async_acks == known->async_events; };
  if (!world().acknowledged.wait_for(lock.held(), std::chrono::seconds(20), all)) {
    std::fprintf(stderr, "fake verbs: ibv_destroy_qp waits for ever: an asynchronous event was not acknowledged\n");
    std::abort();
  }
  DeviceFile::unmap(known->queue);
  world().qps.erase(known->qp_num);
  std::erase(world().active, known);
  --static_cast<Pd*>(known->pd)->uses;
  --static_cast<Cq*>(known->send_cq)->uses;
  --static_cast<Cq*>(known->recv_cq)->uses;
  world().remove(known);
  delete known;
  changed();
  return 0;
}

// Bytes of a message land in any order.
int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) { return 0; }

}  // extern "C"
