// SPDX-License-Identifier: Apache-2.0
// Completion events, programs that sleep, and datagrams.
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "support/fake_verbs/test_rig.h"

namespace treering::fake_verbs {
namespace {

bool is_readable(int fd, int timeout_ms = 0) {
  const int poller = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event = {};
  event.events = EPOLLIN;
  EXPECT_EQ(epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event), 0);
  const int found = epoll_wait(poller, &event, 1, timeout_ms);
  close(poller);
  return found == 1;
}

void take_event(const Side& side) {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(side.channel, &cq, &context), 0);
  EXPECT_EQ(cq, side.cq);
  EXPECT_EQ(context, &side);
  ibv_ack_cq_events(cq, 1);
}

TEST_P(FakeVerbs, AnArmedQueueTellsOfWhatComesNext) {
  Two two({.with_channel = true});
  const auto send = [&](unsigned flags) {
    ASSERT_EQ(two.b.receive(1), 0);
    ASSERT_EQ(two.a.write(two.b, {.flags = flags, .with_imm = true}), 0);
    while (fake_verbs_advance(10) != 0) {
    }
  };
  const int fd = two.b.channel->fd;
  send(0);
  EXPECT_FALSE(is_readable(fd)) << "not armed";
  ASSERT_EQ(ibv_req_notify_cq(two.b.cq, 0), 0);
  EXPECT_FALSE(is_readable(fd)) << "what was there before does not count";
  send(0);
  EXPECT_TRUE(is_readable(fd));
  send(0);
  take_event(two.b);
  EXPECT_FALSE(is_readable(fd)) << "armed once, one event";
  ASSERT_EQ(ibv_req_notify_cq(two.b.cq, 1), 0);
  send(0);
  EXPECT_FALSE(is_readable(fd)) << "not solicited";
  send(IBV_SEND_SOLICITED);
  EXPECT_TRUE(is_readable(fd));
  take_event(two.b);
  ASSERT_EQ(ibv_req_notify_cq(two.b.cq, 1), 0);
  ASSERT_EQ(two.b.receive(9), 0);
  ASSERT_EQ(fake_verbs_break_qp(two.b.qp->qp_num), 0);
  while (fake_verbs_advance(10) != 0) {
  }
  EXPECT_TRUE(is_readable(fd)) << "errors count as solicited";
  EXPECT_EQ(two.b.wait(6).back().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(counters().completion_events, 3u);
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(two.b.context, &event), 0);
  ibv_ack_async_event(&event);
}

TEST_P(FakeVerbs, ADescriptorThatDoesNotBlock) {
  Side side({.with_channel = true});
  EXPECT_EQ(fcntl(side.channel->fd, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(fcntl(side.context->async_fd, F_SETFL, O_NONBLOCK), 0);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  EXPECT_EQ(ibv_get_cq_event(side.channel, &cq, &context), -1);
  EXPECT_EQ(errno, EAGAIN);
  ibv_async_event event;
  EXPECT_EQ(ibv_get_async_event(side.context, &event), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(ibv_destroy_comp_channel(side.channel), EBUSY);
}

// Both sides sleep whenever they find nothing.
TEST_P(FakeVerbs, SleepersAreWokenUp) {
  fake_verbs_set_progress(FAKE_VERBS_ARMED);
  Two two({.with_channel = true});
  constexpr uint32_t kRounds = 50;
  const auto next = [](Side& side, ibv_wc_opcode wanted) {
    for (;;) {
      for (int again = 0; again < 2; ++again) {
        for (std::vector<ibv_wc> got = side.poll(1); !got.empty(); got = side.poll(1)) {
          if (got[0].opcode == wanted) return got[0];
        }
        EXPECT_EQ(again == 0 ? ibv_req_notify_cq(side.cq, 0) : 0, 0);
      }
      if (!is_readable(side.channel->fd, 20'000)) return ibv_wc{};
      take_event(side);
    }
  };
  const auto expect_round = [&](Side& side, uint32_t round) {
    EXPECT_EQ(next(side, IBV_WC_RECV_RDMA_WITH_IMM).imm_data, round);
  };
  const auto play = [&](Side& side, Side& other, bool first) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      if (!first) expect_round(side, round);
      EXPECT_EQ(side.receive(round), 0);
      EXPECT_EQ(
          side.write(other, {.to = 8192, .length = 100, .flags = IBV_SEND_SIGNALED, .with_imm = true, .imm = round}),
          0);
      if (first) expect_round(side, round);
    }
  };
  ASSERT_EQ(two.b.receive(0), 0);
  std::thread second([&] { play(two.b, two.a, false); });
  play(two.a, two.b, true);
  second.join();
}

struct Datagrams {
  explicit Datagrams(Side& side) : side(side) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = 0x77;
    EXPECT_EQ(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
    attr.qp_state = IBV_QPS_RTR;
    EXPECT_EQ(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE), 0);
    attr.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
  }
  int send(ibv_ah* ah, uint32_t number, size_t length, uint32_t qkey = 0x77) {
    ibv_sge sge = side.sge(0, length);
    ibv_send_wr wr = {};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud = {ah, number, qkey};
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(side.qp, &wr, &bad);
  }
  Side& side;
};

TEST_P(FakeVerbs, DatagramsComeWithAHeader) {
  Side a({.type = IBV_QPT_UD}), b({.device = 1, .type = IBV_QPT_UD});
  Datagrams from(a), to(b);
  ibv_ah_attr attr = {.grh = {.dgid = b.gid(), .sgid_index = 1, .hop_limit = 64}, .is_global = 1, .port_num = 1};
  ibv_ah* const ah = ibv_create_ah(a.pd, &attr);
  ASSERT_NE(ah, nullptr);
  std::fill(a.memory.begin(), a.memory.end(), 5);
  ASSERT_EQ(from.send(ah, b.qp->qp_num, 100), 0);
  EXPECT_EQ(a.wait_one().status, IBV_WC_SUCCESS) << "a datagram that no receive takes is sent all the same";
  ASSERT_EQ(b.receive(1, {b.sge(0, 1000)}), 0);
  ASSERT_EQ(from.send(ah, b.qp->qp_num, 100, 0x78), 0);
  EXPECT_EQ(a.wait_one().status, IBV_WC_SUCCESS);
  EXPECT_EQ(counters().datagrams_dropped, 2u);
  ASSERT_EQ(from.send(ah, b.qp->qp_num, 100), 0);
  const ibv_wc got = b.wait_one();
  EXPECT_EQ(got.opcode, IBV_WC_RECV);
  EXPECT_EQ(got.byte_len, 140u);
  EXPECT_EQ(got.src_qp, a.qp->qp_num);
  EXPECT_TRUE((got.wc_flags & IBV_WC_GRH) != 0);
  EXPECT_EQ(std::count(b.memory.begin() + 40, b.memory.begin() + 140, 5), 100);
  EXPECT_EQ(b.memory[140], 0);
  ibv_grh header;
  std::memcpy(&header, b.memory.data(), sizeof header);
  const ibv_gid sender = a.gid();
  EXPECT_EQ(std::memcmp(&header.sgid, &sender, sizeof sender), 0);
  EXPECT_EQ(a.wait_one().status, IBV_WC_SUCCESS);
  ASSERT_EQ(from.send(ah, b.qp->qp_num, 4097), 0);
  EXPECT_EQ(a.wait_one().status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST_P(FakeVerbs, SendsGoIntoReceives) {
  Two two;
  std::fill(two.a.memory.begin(), two.a.memory.end(), 7);
  const auto send = [&](size_t length) {
    ibv_sge sge = two.a.sge(0, length);
    ibv_send_wr wr = {};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(two.a.qp, &wr, &bad), 0);
  };
  ASSERT_EQ(two.b.receive(1, {two.b.sge(10, 50), two.b.sge(1000, 100)}), 0);
  send(120);
  EXPECT_EQ(two.b.wait_one().byte_len, 120u);
  EXPECT_EQ(std::count(two.b.memory.begin(), two.b.memory.end(), 7), 120);
  EXPECT_EQ(two.b.memory[1069], 7);
  EXPECT_EQ(two.a.wait_one().opcode, IBV_WC_SEND);
  ASSERT_EQ(two.b.receive(2, {two.b.sge(10, 50)}), 0);
  send(51);
  EXPECT_EQ(two.b.wait_one().status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(two.a.wait_one().status, IBV_WC_REM_INV_REQ_ERR);
}

}  // namespace
}  // namespace treering::fake_verbs
