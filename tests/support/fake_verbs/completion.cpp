// SPDX-License-Identifier: Apache-2.0
// Completion queues and their channels.
#include <algorithm>
#include <cerrno>
#include <chrono>

#include "support/fake_verbs/world.h"

namespace treering::fake_verbs {

namespace {

void set_arm(Cq& cq, Cq::Arm arm) {
  if (cq.channel != nullptr) world().armed += (arm != Cq::Arm::kNone) - (cq.arm != Cq::Arm::kNone);
  cq.arm = arm;
}

void notify(Cq& cq, const Completion& completion) {
  const bool solicited = completion.solicited || completion.wc.status != IBV_WC_SUCCESS;
  if (cq.arm == Cq::Arm::kNone || (cq.arm == Cq::Arm::kSolicited && !solicited)) return;
  set_arm(cq, Cq::Arm::kNone);
  if (cq.channel == nullptr) return;
  auto& channel = *static_cast<Channel*>(cq.channel);
  channel.events.push_back(&cq);
  channel.readable.set(true);
  ++world().counters.completion_events;
}

// As hardware has it: the queue takes nothing more, and the queue pairs that use it are in error.
void overrun(Cq& cq) {
  cq.overrun = true;
  ibv_async_event event = {};
  event.element.cq = &cq;
  event.event_type = IBV_EVENT_CQ_ERR;
  ++cq.async_events;
  queue_event(context_of(cq.context), event);
  for (const auto& [number, qp] : world().qps) {
    if ((qp->send_cq != &cq && qp->recv_cq != &cq) || qp->now == IBV_QPS_ERR) continue;
    queue_event(*qp, IBV_EVENT_QP_FATAL);
    fail_now(*qp);
  }
}

void free_slots(const Completion& completion) {
  const auto found = world().qps.find(completion.wc.qp_num);
  if (found == world().qps.end()) return;  // its completions were kept
  Qp& qp = *found->second;
  uint64_t& freed = completion.send ? qp.sends_freed : qp.receives_freed;
  freed = std::max(freed, completion.slots);
  observe(completion.send ? qp.send_mark : qp.receive_mark);
}

}  // namespace

void enter(Cq& cq, const Completion& completion) {
  if (cq.overrun) return;
  if (cq.entries.size() == static_cast<size_t>(cq.cqe)) return overrun(cq);
  cq.entries.push_back(completion);
  notify(cq, completion);
}

void remove_completions(Cq& cq, const Qp& qp) {
  std::erase_if(cq.entries, [&](const Completion& completion) { return completion.wc.qp_num == qp.qp_num; });
}

int poll(ibv_cq* cq, int room, ibv_wc* wc) {
  const Lock lock;
  auto& known = *checked<Cq>(cq, Kind::kCq, "ibv_poll_cq");
  ++world().counters.poll_calls;
  if (const int error = world().injected("ibv_poll_cq")) return -error;
  advance(world().settings.disorder == 0);
  const auto most = static_cast<uint64_t>(std::max(room, 0));
  uint64_t count = std::min<uint64_t>(most, known.entries.size());
  // Fewer than there are: the rest arrived a moment later.
  if (world().settings.disorder > 0 && count > 1) count = 1 + world().below(count);
  for (uint64_t i = 0; i < count; ++i) {
    const Completion& completion = known.entries.front();
    free_slots(completion);
    wc[i] = completion.wc;
    ++world().counters.completions;
    if (completion.wc.status != IBV_WC_SUCCESS) ++world().counters.failed_completions;
    known.entries.pop_front();
  }
  return static_cast<int>(count);
}

int arm(ibv_cq* cq, int solicited_only) {
  const Lock lock;
  auto& known = *checked<Cq>(cq, Kind::kCq, "ibv_req_notify_cq");
  ++world().counters.notify_calls;
  if (const int error = world().injected("ibv_req_notify_cq")) return error;
  // Only completions that come after this cause an event, as the specification has it; the wider request wins.
  if (known.arm != Cq::Arm::kNext) set_arm(known, solicited_only != 0 ? Cq::Arm::kSolicited : Cq::Arm::kNext);
  wake_pump();
  return 0;
}

}  // namespace treering::fake_verbs

using namespace treering::fake_verbs;

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  const Lock lock;
  Context& known = context_of(context);
  world().check(&known, Kind::kContext, "ibv_create_comp_channel");
  if (const int error = world().injected("ibv_create_comp_channel")) return errno = error, nullptr;
  auto* const channel = new Channel();
  channel->context = context;
  channel->fd = channel->readable.fd();
  world().add(channel, Kind::kChannel);
  ++known.uses;
  return channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  const Lock lock;
  auto* const known = checked<Channel>(channel, Kind::kChannel, "ibv_destroy_comp_channel");
  if (const int error = world().injected("ibv_destroy_comp_channel")) return error;
  if (known->refcnt != 0) return EBUSY;
  --context_of(known->context).uses;
  world().remove(known);
  delete known;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel, int vector) {
  const Lock lock;
  Context& known = context_of(context);
  world().check(&known, Kind::kContext, "ibv_create_cq");
  if (channel != nullptr) world().check(channel, Kind::kChannel, "ibv_create_cq");
  int error = world().injected("ibv_create_cq");
  const bool fits = cqe > 0 && static_cast<uint32_t>(cqe) <= world().settings.limits.max_cqe;
  if (error == 0 && (!fits || vector < 0 || vector >= context->num_comp_vectors)) error = EINVAL;
  if (error != 0) return errno = error, nullptr;
  auto* const cq = new Cq();
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->cqe = cqe;
  if (channel != nullptr) ++channel->refcnt;
  world().add(cq, Kind::kCq);
  ++known.uses;
  return cq;
}

int ibv_destroy_cq(ibv_cq* cq) {
  Lock lock;
  auto* const known = checked<Cq>(cq, Kind::kCq, "ibv_destroy_cq");
  if (const int error = world().injected("ibv_destroy_cq")) return error;
  if (known->uses != 0) return EBUSY;
  set_arm(*known, Cq::Arm::kNone);
  if (cq->channel != nullptr) {
    auto& channel = *static_cast<Channel*>(cq->channel);
    std::erase(channel.events, cq);
    channel.readable.set(!channel.events.empty());
    --channel.refcnt;
  }
  auto& events = context_of(cq->context).events;
  known->async_events -= std::erase_if(
      events, [&](const auto& event) { return event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq; });
  context_of(cq->context).readable.set(!events.empty());
  const auto all = [&] { return known->comp_acks == known->comp_events && known->async_acks == known->async_events; };
  if (!world().acknowledged.wait_for(lock.held(), std::chrono::seconds(20), all)) {
    std::fprintf(stderr, "fake verbs: ibv_destroy_cq waits for ever: %lu of %lu events were acknowledged\n",
                 static_cast<unsigned long>(known->comp_acks + known->async_acks),
                 static_cast<unsigned long>(known->comp_events + known->async_events));
    std::abort();
  }
  --context_of(cq->context).uses;
  world().remove(known);
  delete known;
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  auto& known = *static_cast<Channel*>(channel);
  for (;;) {
    if (!known.readable.wait()) return -1;
    const Lock lock;
    world().check(&known, Kind::kChannel, "ibv_get_cq_event");
    if (const int error = world().injected("ibv_get_cq_event")) return errno = error, -1;
    if (known.events.empty()) continue;  // another thread has it
    auto* const found = static_cast<Cq*>(known.events.front());
    known.events.pop_front();
    known.readable.set(!known.events.empty());
    ++found->comp_events;
    *cq = found;
    *cq_context = found->cq_context;
    return 0;
  }
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
  const Lock lock;
  auto* const known = checked<Cq>(cq, Kind::kCq, "ibv_ack_cq_events");
  known->comp_acks += count;
  if (known->comp_acks > known->comp_events) {
    std::fprintf(stderr, "fake verbs: ibv_ack_cq_events acknowledged more events than there were\n");
    std::abort();
  }
  world().acknowledged.notify_all();
}

}  // extern "C"
