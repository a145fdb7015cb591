// SPDX-License-Identifier: Apache-2.0
// Two sides for the tests of the fake: each has a device, a queue pair and registered memory; they are connected with each other.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "support/fake_verbs/fake_verbs.h"
#include "support/seed.h"

namespace treering::fake_verbs {

constexpr int kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
constexpr uint32_t kPsn = 0x4711;

struct SideOptions {
  int device = 0;
  uint32_t send_wr = 64, receive_wr = 64, inline_data = 64;
  int cqe = 256;
  bool with_channel = false;
  ibv_qp_type type = IBV_QPT_RC;
  size_t bytes = 1 << 16;
};

struct Side {
  explicit Side(const SideOptions& options = {}) : memory(options.bytes) {
    int count = 0;
    ibv_device** const list = ibv_get_device_list(&count);
    EXPECT_LT(options.device, count);
    context = ibv_open_device(list[options.device]);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    if (options.with_channel) channel = ibv_create_comp_channel(context);
    cq = ibv_create_cq(context, options.cqe, this, channel, 0);
    mr = ibv_reg_mr(pd, memory.data(), memory.size(), kAll);
    make_qp(options);
    EXPECT_TRUE(context != nullptr && pd != nullptr && cq != nullptr && mr != nullptr && qp != nullptr);
  }
  ~Side() {
    EXPECT_EQ(qp != nullptr ? ibv_destroy_qp(qp) : 0, 0);
    EXPECT_EQ(mr != nullptr ? ibv_dereg_mr(mr) : 0, 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_EQ(channel != nullptr ? ibv_destroy_comp_channel(channel) : 0, 0);
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    EXPECT_EQ(ibv_close_device(context), 0);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  void make_qp(const SideOptions& options) {
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = cq;
    init.cap = {options.send_wr, options.receive_wr, 4, 4, options.inline_data};
    init.qp_type = options.type;
    qp = ibv_create_qp(pd, &init);
  }

  int to_init(unsigned access = IBV_ACCESS_REMOTE_WRITE) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = access;
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }
  int to_receive(const ibv_gid& gid, uint32_t number, uint32_t psn = kPsn, uint8_t rnr_timer = 1) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = number;
    attr.rq_psn = psn;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = rnr_timer;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = gid;
    attr.ah_attr.grh.sgid_index = 1;
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.port_num = 1;
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  }
  int to_send(uint8_t rnr_retry = 7, uint8_t timeout = 8) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = timeout;
    attr.retry_cnt = 3;
    attr.rnr_retry = rnr_retry;
    attr.sq_psn = kPsn;
    attr.max_rd_atomic = 1;
    return ibv_modify_qp(
        qp, &attr,
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  void connect(const Side& other, uint8_t rnr_retry = 7) {
    EXPECT_EQ(to_init(), 0);
    EXPECT_EQ(to_receive(other.gid(), other.qp->qp_num), 0);
    EXPECT_EQ(to_send(rnr_retry), 0);
  }
  ibv_gid gid(int index = 1) const {
    ibv_gid result = {};
    EXPECT_EQ(ibv_query_gid(context, 1, index, &result), 0);
    return result;
  }
  ibv_qp_state state() const {
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
    return attr.qp_state;
  }

  ibv_sge sge(size_t offset, size_t length) const {
    return {reinterpret_cast<uint64_t>(memory.data() + offset), static_cast<uint32_t>(length), mr->lkey};
  }
  // A write from `from` here to `to` there; with `imm`, which announces it.
  struct Write {
    uint64_t id = 0;
    size_t from = 0, to = 0, length = 0;
    unsigned flags = IBV_SEND_SIGNALED;
    bool with_imm = false;
    uint32_t imm = 0;
    uint32_t lkey = 0, rkey = 0;  // others than those of the two
  };
  int write(const Side& other, const Write& it) const {
    ibv_sge sge = this->sge(it.from, it.length);
    if (it.lkey != 0) sge.lkey = it.lkey;
    ibv_send_wr wr = {};
    wr.wr_id = it.id;
    wr.sg_list = &sge;
    wr.num_sge = it.length > 0 ? 1 : 0;
    wr.opcode = it.with_imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    wr.send_flags = it.flags;
    wr.imm_data = it.imm;
    wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(other.memory.data() + it.to);
    wr.wr.rdma.rkey = it.rkey != 0 ? it.rkey : other.mr->rkey;
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(qp, &wr, &bad);
    EXPECT_EQ(bad, error != 0 ? &wr : nullptr);
    return error;
  }
  int receive(uint64_t id, std::vector<ibv_sge> sges = {}) const {
    ibv_recv_wr wr = {};
    wr.wr_id = id;
    wr.sg_list = sges.data();
    wr.num_sge = static_cast<int>(sges.size());
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
  }
  std::vector<ibv_wc> poll(int most = 4) const {
    std::vector<ibv_wc> found(static_cast<size_t>(most));
    const int count = ibv_poll_cq(cq, most, found.data());
    EXPECT_GE(count, 0);
    found.resize(static_cast<size_t>(std::max(count, 0)));
    return found;
  }
  // `count` completions; fewer where they do not come.
  std::vector<ibv_wc> wait(size_t count) const {
    std::vector<ibv_wc> all;
    for (int polls = 0; polls < 1'000'000 && all.size() < count; ++polls) {
      for (const ibv_wc& wc : poll(static_cast<int>(count - all.size()))) all.push_back(wc);
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }
  ibv_wc wait_one() const {
    const std::vector<ibv_wc> all = wait(1);
    return all.empty() ? ibv_wc{} : all[0];
  }
  void expect_nothing() const {
    for (int polls = 0; polls < 2000; ++polls) EXPECT_TRUE(poll().empty());
  }

  std::vector<uint8_t> memory;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  ibv_qp* qp = nullptr;
};

struct Two {
  explicit Two(const SideOptions& options = {}, uint8_t rnr_retry = 7)
      : a(options), b([&] {
          SideOptions other = options;
          other.device = 1;
          return other;
        }()) {
    a.connect(b, rnr_retry);
    b.connect(a, rnr_retry);
  }
  Side a, b;
};

inline fake_verbs_counters counters() {
  fake_verbs_counters now;
  fake_verbs_get_counters(&now);
  return now;
}

// Each test has the fake as at the start, at a disorder, and leaves nothing behind.
class FakeVerbs : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    ASSERT_EQ(fake_verbs_reset(), 0);
    const uint64_t seed = test_seed();
    fake_verbs_set_seed(seed);
    random.seed(seed);
    fake_verbs_set_progress(FAKE_VERBS_POLLING);
    fake_verbs_set_disorder(GetParam());
  }
  void TearDown() override {
    char text[256];
    EXPECT_EQ(fake_verbs_left_over(text, sizeof text), 0) << text;
  }
  size_t below(size_t end) { return random() % end; }
  std::mt19937_64 random;
};

}  // namespace treering::fake_verbs
