// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/devices/probe.h"

#include <fmt/format.h>
#include <sched.h>

#include <cerrno>
#include <cstring>
#include <random>

namespace treering::verbs {
namespace {

constexpr uint32_t kReceives = 128, kSends = 64;
constexpr size_t kRoutingHeaderBytes = 40;  // in front of each datagram: the global routing header
constexpr size_t kSlotBytes = 128;
constexpr auto kAgain = std::chrono::milliseconds(5);
constexpr int kAfterwards = 3;  // datagrams, for the peer that may have heard none yet

struct Datagram {
  uint32_t from, to;
  uint32_t key;    // of the receiver: not one of another job
  uint32_t heard;  // 1: its sender has heard the receiver
};
static_assert(kRoutingHeaderBytes + sizeof(Datagram) <= kSlotBytes);

}  // namespace

Status Probe::open(const Device& device, uint32_t rank, const PathOptions& path, std::unique_ptr<Probe>* opened) {
  std::unique_ptr<Probe> probe(new Probe(device, rank, path));
  probe->memory_.resize((kReceives + 1) * kSlotBytes);
  TR_RETURN_IF_ERROR(device.register_memory(probe->memory_.data(), probe->memory_.size(), IBV_ACCESS_LOCAL_WRITE,
                                            &probe->registered_));
  TR_RETURN_IF_ERROR(probe->make_queue_pair());
  for (uint32_t slot = 0; slot < kReceives; ++slot) TR_RETURN_IF_ERROR(probe->post_receive(slot));
  *opened = std::move(probe);
  return {};
}

Probe::~Probe() {
  for (const auto& [peer, known] : peers_)
    if (known.handle != nullptr) (void)ibv_destroy_ah(known.handle);
  if (pair_ != nullptr) (void)ibv_destroy_qp(pair_);
  if (completions_ != nullptr) (void)ibv_destroy_cq(completions_);
}

Status Probe::make_queue_pair() {
  completions_ = ibv_create_cq(device_.context(), kReceives + kSends, nullptr, nullptr, 0);
  if (completions_ == nullptr) return call_failed("ibv_create_cq");
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completions_;
  wanted.qp_type = IBV_QPT_UD;
  wanted.cap = {kSends, kReceives, 1, 1, 0};
  pair_ = ibv_create_qp(device_.domain(), &wanted);
  if (pair_ == nullptr) return call_failed("ibv_create_qp of datagrams");
  key_ = std::random_device()() & 0x7fffffff;  // the highest bit has a meaning of its own
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device_.rail().port;
  attributes.qkey = key_;
  errno = ibv_modify_qp(pair_, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  if (errno != 0) return call_failed("ibv_modify_qp of datagrams to INIT");
  attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  errno = ibv_modify_qp(pair_, &attributes, IBV_QP_STATE);
  if (errno != 0) return call_failed("ibv_modify_qp of datagrams to RTR");
  attributes.qp_state = IBV_QPS_RTS;
  errno = ibv_modify_qp(pair_, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN);
  return errno == 0 ? Status() : call_failed("ibv_modify_qp of datagrams to RTS");
}

ProbeAddress Probe::address() const { return {pair_->qp_num, key_}; }

void Probe::set_peer(uint32_t peer, const Rail& rail, const ProbeAddress& address) {
  peers_[peer].rail = rail;
  peers_[peer].address = address;
}

Status Probe::post_receive(uint32_t slot) {
  ibv_sge part{reinterpret_cast<uint64_t>(memory_.data() + slot * kSlotBytes), kSlotBytes, registered_.local_key()};
  ibv_recv_wr request{};
  request.wr_id = slot;
  request.sg_list = &part;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  errno = ibv_post_recv(pair_, &request, &bad);
  return errno == 0 ? Status() : call_failed("ibv_post_recv of datagrams");
}

Status Probe::send(uint32_t peer) {
  Peer& to = peers_[peer];
  if (to.handle == nullptr) {
    ibv_ah_attr attributes = path_to(device_.rail(), to.rail, path_);
    to.handle = ibv_create_ah(device_.domain(), &attributes);
    if (to.handle == nullptr) return call_failed("ibv_create_ah");
  }
  if (under_way_ > 0) return {};  // the slot of sends is in use: what is sent is repeated
  const Datagram datagram{rank_, peer, to.address.key, to.heard};
  std::byte* const slot = memory_.data() + kReceives * kSlotBytes;
  std::memcpy(slot, &datagram, sizeof datagram);
  ibv_sge part{reinterpret_cast<uint64_t>(slot), sizeof datagram, registered_.local_key()};
  ibv_send_wr request{};
  request.wr_id = kReceives;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  request.sg_list = &part;
  request.num_sge = 1;
  request.wr.ud = {to.handle, to.address.queue_pair, to.address.key};
  ibv_send_wr* bad = nullptr;
  errno = ibv_post_send(pair_, &request, &bad);
  if (errno != 0) return call_failed("ibv_post_send of datagrams");
  ++under_way_;
  return {};
}

Status Probe::take(uint32_t slot) {
  Datagram datagram;
  std::memcpy(&datagram, memory_.data() + slot * kSlotBytes + kRoutingHeaderBytes, sizeof datagram);
  TR_RETURN_IF_ERROR(post_receive(slot));
  const auto found = peers_.find(datagram.from);
  if (found == peers_.end() || datagram.to != rank_ || datagram.key != key_) return {};
  found->second.heard = true;
  if (datagram.heard == 0) (void)send(datagram.from);  // what fails, fails again when that peer is tried
  return {};
}

Status Probe::poll() {
  ibv_wc completion;
  for (int count; (count = ibv_poll_cq(completions_, 1, &completion)) != 0;) {
    if (count < 0) return {trSystemError, "ibv_poll_cq of datagrams failed"};
    if (completion.wr_id == kReceives) --under_way_;
    if (completion.status != IBV_WC_SUCCESS)
      failure_ = {trSystemError, fmt::format("a datagram: {}", ibv_wc_status_str(completion.status))};
    if (!failure_.ok()) return failure_;
    if (completion.wr_id != kReceives) TR_RETURN_IF_ERROR(take(static_cast<uint32_t>(completion.wr_id)));
  }
  return {};
}

Status Probe::step(uint32_t peer, Attempt* attempt) {
  TR_RETURN_IF_ERROR(failure_);
  TR_RETURN_IF_ERROR(poll());
  const Peer& other = peers_[peer];
  const Clock::time_point now = Clock::now();
  if (other.heard && (attempt->afterwards == kAfterwards || now > attempt->deadline)) attempt->is_over = true;
  if (attempt->is_over) return {};
  if (other.heard || now >= attempt->next) {
    attempt->afterwards += other.heard && under_way_ == 0;
    TR_RETURN_IF_ERROR(send(peer));
    attempt->next = now + kAgain;
  }
  return now > attempt->deadline ? not_heard(peer) : Status();
}

Status Probe::not_heard(uint32_t peer) {
  const Rail& rail = peers_[peer].rail;
  return {trTimeout,
          fmt::format("no datagram came from {} port {} (GID {}) to {}: on RoCE, check TREERING_VERBS_GID, VLANs, and "
                      "firewalls for UDP port 4791",
                      rail.device, rail.port, gid_text(rail.gid), device_.name())};
}

void Probe::advance(uint32_t peer, Attempt* attempt) {
  if (attempt->is_over) return (void)poll();  // the peer may not have heard this rank yet
  attempt->result = step(peer, attempt);
  attempt->is_over |= !attempt->result.ok();
}

Status Probe::reach(uint32_t peer, Clock::time_point deadline) {
  Attempt attempt{.deadline = deadline};
  while (!attempt.is_over) {
    advance(peer, &attempt);
    sched_yield();
  }
  return attempt.result;
}

}  // namespace treering::verbs
