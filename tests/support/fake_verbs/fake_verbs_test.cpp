// SPDX-License-Identifier: Apache-2.0
// The path of writes: what has landed when, order, queues, states.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "support/fake_verbs/test_rig.h"

namespace treering::fake_verbs {
namespace {

INSTANTIATE_TEST_SUITE_P(Disorder, FakeVerbs, ::testing::Values(0, 1, 2, 3));

void fill(std::vector<uint8_t>& memory, std::mt19937_64& random) {
  for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random() | 1);  // never 0
}

TEST_P(FakeVerbs, WhatAnImmediateAnnouncesIsThere) {
  Two two;
  fill(two.a.memory, random);
  constexpr size_t kArea = 4096;
  for (uint32_t round = 0; round < 100; ++round) {
    std::fill(two.b.memory.begin(), two.b.memory.end(), 0);
    const size_t writes = 1 + below(8);
    for (size_t i = 0; i < writes; ++i) {
      ASSERT_EQ(
          two.a.write(two.b, {.id = i, .from = i * kArea, .to = i * kArea, .length = 1 + below(kArea), .flags = 0}), 0);
    }
    ASSERT_EQ(two.b.receive(1000 + round), 0);
    const bool inlined = below(2) == 1;
    const size_t tail = inlined ? below(64) : below(kArea);
    ASSERT_EQ(two.a.write(two.b, {.id = 77,
                                  .from = writes * kArea,
                                  .to = writes * kArea,
                                  .length = tail,
                                  .flags = unsigned{IBV_SEND_SIGNALED} | (inlined ? unsigned{IBV_SEND_INLINE} : 0u),
                                  .with_imm = true,
                                  .imm = round}),
              0);
    if (inlined) std::fill_n(two.a.memory.begin() + static_cast<long>(writes * kArea), tail, uint8_t{3});
    const ibv_wc got = two.b.wait_one();
    EXPECT_EQ(got.status, IBV_WC_SUCCESS);
    EXPECT_EQ(got.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(got.wr_id, 1000 + round);
    EXPECT_EQ(got.imm_data, round);
    EXPECT_EQ(got.byte_len, tail);
    EXPECT_EQ(got.qp_num, two.b.qp->qp_num);
    EXPECT_TRUE((got.wc_flags & IBV_WC_WITH_IMM) != 0);
    for (size_t i = 0; i < writes; ++i) EXPECT_NE(two.b.memory[i * kArea], 0) << "round " << round << ", write " << i;
    const size_t compared = writes * kArea + (inlined ? 0 : tail);
    for (size_t i = 0; i < compared; ++i) {
      if (two.b.memory[i] != 0 && two.b.memory[i] != two.a.memory[i]) FAIL() << "round " << round << ", byte " << i;
    }
    const ibv_wc sent = two.a.wait_one();
    EXPECT_EQ(sent.wr_id, 77u);
    EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
    EXPECT_EQ(sent.opcode, IBV_WC_RDMA_WRITE);
  }
}

TEST_P(FakeVerbs, CompletionsOfAQueueStayInOrder) {
  Two two({.send_wr = 32, .receive_wr = 32});
  fill(two.a.memory, random);
  fill(two.b.memory, random);
  struct Flow {
    Side *from, *to;
    uint64_t posted = 0, sent = 0, offered = 0, received = 0;
  } flows[2] = {{&two.a, &two.b}, {&two.b, &two.a}};
  constexpr uint64_t kCount = 2000;
  const auto take = [&](Side& side, Flow& out, Flow& in) {
    for (const ibv_wc& wc : side.poll()) {
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
        ASSERT_EQ(wc.wr_id, in.received);
        ASSERT_EQ(wc.imm_data, in.received++);
      } else {
        ASSERT_EQ(wc.wr_id, out.sent++);
      }
    }
  };
  while (
      std::any_of(flows, flows + 2, [&](const Flow& flow) { return flow.sent < kCount || flow.received < kCount; })) {
    for (Flow& flow : flows) {
      if (flow.offered < kCount && flow.offered - flow.received < 32 && below(2) == 1) {
        ASSERT_EQ(flow.to->receive(flow.offered++), 0);
      }
      if (flow.posted < kCount && flow.posted - flow.sent < 32) {
        const size_t length = below(3000);
        ASSERT_EQ(flow.from->write(*flow.to, {.id = flow.posted,
                                              .from = below(1000),
                                              .to = 8192 + below(1000),
                                              .length = length,
                                              .with_imm = true,
                                              .imm = static_cast<uint32_t>(flow.posted)}),
                  0);
        ++flow.posted;
      }
    }
    take(two.a, flows[0], flows[1]);
    take(two.b, flows[1], flows[0]);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(counters().sends_posted[IBV_WR_RDMA_WRITE_WITH_IMM], 2 * kCount);
  EXPECT_EQ(counters().completions, 4 * kCount);
}

TEST_P(FakeVerbs, BytesLandInAnyOrderAndEarly) {
  Two two;
  bool early = false, later_first = false;
  for (int round = 0; round < 200; ++round) {
    std::fill(two.a.memory.begin(), two.a.memory.end(), 1);
    std::fill(two.b.memory.begin(), two.b.memory.end(), 0);
    ASSERT_EQ(two.a.write(two.b, {.length = 8192}), 0);
    ASSERT_EQ(two.a.write(two.b, {.id = 1, .to = 8192, .length = 8192}), 0);
    for (size_t done = 0; done < 2; done += two.a.poll().size()) {
      const bool first = two.b.memory[0] == 1, last = two.b.memory[8191] == 1, next = two.b.memory[8192] == 1;
      early |= done == 0 && (first || last || next);
      later_first |= (last || next) && !first;
      EXPECT_TRUE(done == 0 || (first && last));
    }
  }
  EXPECT_EQ(later_first, GetParam() > 0);
  EXPECT_TRUE(early || GetParam() == 0);
}

TEST_P(FakeVerbs, SeveralEntriesAreGathered) {
  Two two;
  fill(two.a.memory, random);
  ibv_sge sges[] = {two.a.sge(100, 50), two.a.sge(0, 0), two.a.sge(10, 1000), two.a.sge(5000, 1)};
  ibv_send_wr wr = {};
  wr.sg_list = sges;
  wr.num_sge = 4;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(two.b.memory.data());
  wr.wr.rdma.rkey = two.b.mr->rkey;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(two.a.qp, &wr, &bad), 0);
  EXPECT_EQ(two.a.wait_one().status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(two.b.memory.data(), two.a.memory.data() + 100, 50), 0);
  EXPECT_EQ(std::memcmp(two.b.memory.data() + 50, two.a.memory.data() + 10, 1000), 0);
  EXPECT_EQ(two.b.memory[1050], two.a.memory[5000]);
}

TEST_P(FakeVerbs, QueuesAreFullUntilCompletionsArePolled) {
  Two two({.send_wr = 4, .receive_wr = 3});
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(two.a.write(two.b, {.id = i, .length = 1, .flags = 0}), 0);
  two.a.expect_nothing();
  ASSERT_EQ(two.a.write(two.b, {.id = 3, .length = 1}), 0);
  EXPECT_EQ(two.a.write(two.b, {.id = 4, .length = 1}), ENOMEM);
  fake_verbs_advance(1000);
  EXPECT_EQ(two.a.write(two.b, {.id = 4, .length = 1}), ENOMEM) << "complete, but not polled";
  EXPECT_EQ(two.a.wait_one().wr_id, 3u);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(two.a.write(two.b, {.id = i, .length = 1}), 0);
  EXPECT_EQ(two.a.wait(4).back().wr_id, 3u);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(two.b.receive(i), 0);
  EXPECT_EQ(two.b.receive(3), ENOMEM);
  ASSERT_EQ(two.a.write(two.b, {.flags = 0, .with_imm = true}), 0);
  EXPECT_EQ(two.b.wait_one().wr_id, 0u);
  EXPECT_EQ(two.b.receive(3), 0);
}

TEST_P(FakeVerbs, RequestsAreCheckedWhenPosted) {
  Two two;
  EXPECT_EQ(two.a.write(two.b, {.length = 65, .flags = IBV_SEND_INLINE}), EINVAL);
  EXPECT_EQ(two.a.write(two.b, {.length = 64, .flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED}), 0);
  EXPECT_EQ(two.a.wait_one().status, IBV_WC_SUCCESS);
  Side fresh;
  EXPECT_EQ(fresh.receive(0), EINVAL);
  EXPECT_EQ(fresh.write(two.b, {.length = 1}), EINVAL);
  EXPECT_EQ(fresh.to_receive(two.b.gid(), two.b.qp->qp_num), EINVAL) << "from RESET";
  EXPECT_EQ(fresh.to_init(), 0);
  EXPECT_EQ(fresh.receive(0), 0);
  EXPECT_EQ(fresh.write(two.b, {.length = 1}), EINVAL);
  EXPECT_EQ(fresh.to_send(), EINVAL) << "from INIT";
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTR;
  EXPECT_EQ(ibv_modify_qp(fresh.qp, &attr, IBV_QP_STATE), EINVAL) << "without an address";
  EXPECT_EQ(fresh.to_receive(ibv_gid{}, 1), EINVAL) << "GID of zeros";
  EXPECT_EQ(fresh.to_receive(two.b.gid(), two.b.qp->qp_num, kPsn, 32), EINVAL);
  EXPECT_EQ(fresh.to_receive(two.b.gid(), two.b.qp->qp_num), 0);
  EXPECT_EQ(fresh.write(two.b, {.length = 1}), EINVAL);
  EXPECT_EQ(fresh.to_send(8), EINVAL);
  EXPECT_EQ(fresh.to_send(), 0);
  EXPECT_EQ(fresh.state(), IBV_QPS_RTS);
}

TEST_P(FakeVerbs, ObjectsInUseStay) {
  Two two;
  EXPECT_EQ(ibv_destroy_cq(two.a.cq), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(two.a.pd), EBUSY);
  EXPECT_EQ(ibv_close_device(two.a.context), EBUSY);
  fake_verbs_hold_qp(two.a.qp->qp_num, 1);
  ASSERT_EQ(two.a.write(two.b, {.length = 1}), 0);
  EXPECT_EQ(ibv_dereg_mr(two.a.mr), EBUSY);
  fake_verbs_hold_qp(two.a.qp->qp_num, 0);
  EXPECT_EQ(two.a.wait_one().status, IBV_WC_SUCCESS);
}

TEST_P(FakeVerbs, ManyQueuePairsBetweenThreads) {
  // One thread posts and polls; another creates, connects and destroys queue pairs on the same completion queues.
  fake_verbs_set_progress(FAKE_VERBS_THREAD);
  Two two;
  std::atomic<bool> stop = false;
  std::thread other([&] {
    const ibv_gid gids[] = {two.a.gid(), two.b.gid()};
    while (!stop) {
      ibv_qp* made[2];
      Side* const sides[] = {&two.a, &two.b};
      for (int i = 0; i < 2; ++i) {
        ibv_qp_init_attr init = {};
        init.send_cq = init.recv_cq = sides[i]->cq;
        init.cap = {4, 4, 1, 1, 0};
        init.qp_type = IBV_QPT_RC;
        made[i] = ibv_create_qp(sides[i]->pd, &init);
        ASSERT_NE(made[i], nullptr);
      }
      for (int i = 0; i < 2; ++i) {
        ibv_qp_attr attr = {};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = 1;
        EXPECT_EQ(ibv_modify_qp(made[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
                  0);
        attr = {};
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = IBV_MTU_1024;
        attr.dest_qp_num = made[1 - i]->qp_num;
        attr.ah_attr = {.grh = {.dgid = gids[1 - i], .sgid_index = 1}, .is_global = 1, .port_num = 1};
        EXPECT_EQ(ibv_modify_qp(made[i], &attr,
                                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
                  0);
      }
      for (ibv_qp* qp : made) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    }
  });
  std::fill(two.a.memory.begin(), two.a.memory.end(), 0);
  for (uint32_t round = 1; round <= 200; ++round) {
    std::memcpy(two.a.memory.data() + 100, &round, sizeof round);
    ASSERT_EQ(two.b.receive(round), 0);
    ASSERT_EQ(two.a.write(two.b, {.id = round, .length = 1000, .with_imm = true, .imm = round}), 0);
    EXPECT_EQ(two.b.wait_one().imm_data, round);
    uint32_t got;
    std::memcpy(&got, two.b.memory.data() + 100, sizeof got);
    EXPECT_EQ(got, round);
    EXPECT_EQ(two.a.wait_one().wr_id, round);
  }
  stop = true;
  other.join();
}

TEST(FakeVerbsLibrary, SymbolsHaveTheRealVersions) {
  const std::pair<const char*, const char*> symbols[] = {
      {"ibv_create_comp_channel", "IBVERBS_1.0"}, {"ibv_get_device_list", "IBVERBS_1.1"},
      {"ibv_create_qp", "IBVERBS_1.1"},           {"ibv_reg_mr_iova2", "IBVERBS_1.8"},
      {"_ibv_query_gid_ex", "IBVERBS_1.11"},      {"fake_verbs_reset", "FAKE_VERBS_1"}};
  for (const auto& [name, version] : symbols) EXPECT_NE(dlvsym(RTLD_DEFAULT, name, version), nullptr) << name;
}

TEST(FakeVerbsLibrary, DevicesSayWhatTheyAre) {
  ASSERT_EQ(fake_verbs_reset(), 0);
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ASSERT_EQ(count, 2);
  EXPECT_STREQ(ibv_get_device_name(list[1]), "fake1");
  EXPECT_EQ(list[2], nullptr);
  ibv_context* const context = ibv_open_device(list[1]);
  EXPECT_EQ(fake_verbs_set_devices(3, 1), EBUSY);
  ibv_free_device_list(list);
  ibv_port_attr port;
  ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.active_mtu, IBV_MTU_4096);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(ibv_query_port(context, 2, &port), EINVAL);
  ibv_gid_entry entry;
  ASSERT_EQ(ibv_query_gid_ex(context, 1, 1, &entry, 0), 0);
  const uint8_t expected[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 98, 1, 1};
  EXPECT_EQ(std::memcmp(entry.gid.raw, expected, 16), 0);
  EXPECT_EQ(entry.gid_type, static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V2));
  EXPECT_EQ(ibv_query_gid_ex(context, 1, 2, &entry, 0), ENODATA);
  ibv_gid_entry all[8];
  EXPECT_EQ(ibv_query_gid_table(context, all, 8, 0), 2);
  ibv_device_attr device;
  ASSERT_EQ(ibv_query_device(context, &device), 0);
  EXPECT_EQ(device.phys_port_cnt, 1);
  EXPECT_EQ(ibv_close_device(context), 0);
  ASSERT_EQ(fake_verbs_set_devices(3, 2), 0);
  list = ibv_get_device_list(&count);
  EXPECT_EQ(count, 3);
  ibv_free_device_list(list);
  EXPECT_EQ(fake_verbs_reset(), 0);
}

}  // namespace
}  // namespace treering::fake_verbs
