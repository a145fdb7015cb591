// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/queue_pair.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "transport/verbs/locked_memory.h"

namespace treering::verbs {
namespace {

constexpr uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms
constexpr uint8_t kEndlessly = 7;               // of "receiver not ready": the receives are counted, so there are some

// What each status usually means for a user.
const char* meaning_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer's card does not acknowledge: its process has ended, the link is down, or the GIDs cannot reach "
             "each other (on RoCE, check TREERING_VERBS_GID, the VLAN and firewalls for UDP port 4791)";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer has no receive posted";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer's memory is not registered any more";
    case IBV_WC_LOC_PROT_ERR:
      return "memory of this rank is not registered any more";
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer's queue pair refused a request";
    default:
      return "see the kernel's log";
  }
}

}  // namespace

Status QueuePair::create(const Device& device, const QueueSizes& sizes, uint32_t inline_bytes,
                         std::unique_ptr<QueuePair>* made) {
  std::unique_ptr<QueuePair> pair(new QueuePair);
  pair->sizes_ = sizes;
  pair->first_packet_ = std::random_device()() & 0xffffff;
  const auto entries = static_cast<int>(sizes.sends + sizes.receives);
  pair->completions_ = ibv_create_cq(device.context(), entries, nullptr, device.events(), 0);
  if (pair->completions_ == nullptr) return call_failed("ibv_create_cq");
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = pair->completions_;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = sizes.sends;
  wanted.cap.max_recv_wr = sizes.receives;
  wanted.cap.max_send_sge = 2;  // a header and its payload
  wanted.cap.max_recv_sge = 1;
  // A device may have less room for inline data, or none: a header is then read from registered memory.
  for (const uint32_t bytes : {inline_bytes, inline_bytes / 4, 0u}) {
    wanted.cap.max_inline_data = bytes;
    pair->pair_ = ibv_create_qp(device.domain(), &wanted);
    if (pair->pair_ != nullptr) break;
    if (errno != EINVAL && errno != ENOMEM) break;
  }
  if (pair->pair_ == nullptr)
    return {trSystemError,
            fmt::format("ibv_create_qp: {}{}", std::strerror(errno), errno == ENOMEM ? locked_memory_text() : "")};
  pair->inline_bytes_ = wanted.cap.max_inline_data;
  TR_RETURN_IF_ERROR(pair->to_init(device));
  TR_RETURN_IF_ERROR(pair->post_receives(sizes.receives));
  *made = std::move(pair);
  return {};
}

QueuePair::~QueuePair() {
  if (pair_ != nullptr) (void)ibv_destroy_qp(pair_);
  if (completions_ != nullptr) (void)ibv_destroy_cq(completions_);
}

Status QueuePair::to_init(const Device& device) const {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device.rail().port;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  errno = ibv_modify_qp(pair_, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return errno == 0 ? Status() : call_failed("ibv_modify_qp to INIT");
}

Status QueuePair::connect(const Rail& own, const RailEnd& peer, const PathOptions& options) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(own.mtu, peer.rail.mtu));
  attributes.dest_qp_num = peer.queue_pair;
  attributes.rq_psn = peer.first_packet;
  attributes.min_rnr_timer = kReceiverNotReadyTimer;
  attributes.ah_attr = path_to(own, peer.rail, options);
  errno = ibv_modify_qp(pair_, &attributes,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (errno != 0) return call_failed("ibv_modify_qp to RTR");
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = first_packet_;
  attributes.timeout = options.timeout;
  attributes.retry_cnt = options.retries;
  attributes.rnr_retry = kEndlessly;
  errno = ibv_modify_qp(
      pair_, &attributes,
      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  return errno == 0 ? Status() : call_failed("ibv_modify_qp to RTS");
}

void QueuePair::stop() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  (void)ibv_modify_qp(pair_, &attributes, IBV_QP_STATE);
}

Status QueuePair::post_receives(uint32_t count) {
  constexpr uint32_t kAtOnce = 64;
  std::array<ibv_recv_wr, kAtOnce> requests{};
  for (uint32_t left = count; left > 0;) {
    const uint32_t batch = std::min(left, kAtOnce);
    for (uint32_t i = 0; i < batch; ++i) {
      requests[i].wr_id = kReceive;
      requests[i].next = i + 1 < batch ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    errno = ibv_post_recv(pair_, requests.data(), &bad);
    if (errno != 0) return call_failed("ibv_post_recv");
    left -= batch;
  }
  return {};
}

Status QueuePair::refill() { return post_receives(std::exchange(taken_, 0)); }

Status QueuePair::post(ibv_send_wr* first, uint32_t requests) {
  ibv_send_wr* bad = nullptr;
  errno = ibv_post_send(pair_, first, &bad);
  if (errno != 0) return call_failed("ibv_post_send");
  posted_ += requests;
  return {};
}

Status QueuePair::write(const Source& header, const Source& payload, const Target& place, const Target& output,
                        uint32_t immediate, bool signaled) {
  ibv_sge parts[2] = {{reinterpret_cast<uint64_t>(header.data), header.bytes, header.key},
                      {reinterpret_cast<uint64_t>(payload.data), payload.bytes, payload.key}};
  const bool is_apart = payload.bytes > 0 && output.address != 0;
  const bool is_behind = payload.bytes > 0 && output.address == 0;
  ibv_send_wr requests[2]{};
  requests[0].opcode = IBV_WR_RDMA_WRITE;
  requests[0].sg_list = &parts[1];
  requests[0].num_sge = 1;
  requests[0].wr.rdma = {output.address, output.key};
  requests[0].next = &requests[1];
  requests[1].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  requests[1].sg_list = &parts[0];
  requests[1].num_sge = is_behind ? 2 : 1;
  requests[1].wr.rdma = {place.address, place.key};
  requests[1].imm_data = htonl(immediate);
  const uint32_t count = is_apart ? 2 : 1;
  const uint32_t bytes = header.bytes + (is_behind ? payload.bytes : 0);
  // Room comes back with completions alone.
  signaled |= posted_ + count - signaled_ >= sizes_.sends / 2;
  requests[1].wr_id = posted_ + count;
  requests[1].send_flags = (bytes <= inline_bytes_ ? IBV_SEND_INLINE : 0) | (signaled ? IBV_SEND_SIGNALED : 0);
  if (signaled) signaled_ = posted_ + count;
  return post(is_apart ? requests : requests + 1, count);
}

Status QueuePair::write_fragment(const Source& fragment, const Target& place, uint32_t immediate) {
  ibv_sge part{reinterpret_cast<uint64_t>(fragment.data), fragment.bytes, fragment.key};
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.sg_list = &part;
  request.num_sge = 1;
  request.wr.rdma = {place.address, place.key};
  request.imm_data = htonl(immediate);
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr_id = signaled_ = posted_ + 1;
  return post(&request, 1);
}

Status QueuePair::tell(uint32_t immediate) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = htonl(immediate);
  const bool signaled = posted_ + 1 - signaled_ >= sizes_.sends / 2;
  request.wr_id = posted_ + 1;
  request.send_flags = signaled ? IBV_SEND_SIGNALED : 0;
  if (signaled) signaled_ = posted_ + 1;
  return post(&request, 1);
}

Status QueuePair::mark(uint64_t place, uint32_t key) {
  if (signaled_ == posted_) return {};
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  request.wr.rdma = {place, key};
  request.wr_id = posted_ + 1;
  request.send_flags = IBV_SEND_SIGNALED;
  signaled_ = posted_ + 1;
  return post(&request, 1);
}

Status QueuePair::failure_of(const ibv_wc& completion) {
  return {trRemoteError,
          fmt::format("{}: {} (status {}, vendor {:#x}): {}", completion.wr_id == kReceive ? "receiving" : "sending",
                      ibv_wc_status_str(completion.status), static_cast<int>(completion.status), completion.vendor_err,
                      meaning_of(completion.status))};
}

}  // namespace treering::verbs
