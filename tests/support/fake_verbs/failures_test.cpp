// SPDX-License-Identifier: Apache-2.0
// What goes wrong: keys, ranges, peers, receives, ports; and what a test asks for.
#include <algorithm>
#include <cerrno>

#include "support/fake_verbs/test_rig.h"

namespace treering::fake_verbs {
namespace {

// The first completion has the status, the others are flushed, in order.
void expect_flush(const std::vector<ibv_wc>& all, uint64_t first_id, ibv_wc_status status) {
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].wr_id, first_id + i);
    EXPECT_EQ(all[i].status, i == 0 ? status : IBV_WC_WR_FLUSH_ERR) << ibv_wc_status_str(all[i].status);
  }
}

void expect_event(ibv_context* context, ibv_event_type type) {
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(context, &event), 0);
  EXPECT_EQ(event.event_type, type) << ibv_event_type_str(event.event_type);
  ibv_ack_async_event(&event);
}

TEST_P(FakeVerbs, ABadLocalKeyEndsTheSender) {
  Two two;
  const Side other;  // with a protection domain of its own
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(two.a.receive(100 + i), 0);
  ASSERT_EQ(two.a.write(two.b, {.id = 0, .length = 100}), 0);
  EXPECT_EQ(two.a.wait_one().status, IBV_WC_SUCCESS);
  ASSERT_EQ(two.a.write(two.b, {.id = 1, .length = 100, .flags = 0, .lkey = other.mr->lkey}), 0);
  for (uint64_t i = 2; i < 6; ++i) ASSERT_EQ(two.a.write(two.b, {.id = i, .length = 100, .flags = 0}), 0);
  std::vector<ibv_wc> sends, receives;
  for (const ibv_wc& wc : two.a.wait(8)) (wc.wr_id >= 100 ? receives : sends).push_back(wc);
  expect_flush(sends, 1, IBV_WC_LOC_PROT_ERR);
  expect_flush(receives, 100, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(two.a.state(), IBV_QPS_ERR);
  EXPECT_EQ(two.b.state(), IBV_QPS_RTS) << "the peer does not know";
  ASSERT_EQ(two.a.write(two.b, {.id = 6, .length = 1}), 0);
  EXPECT_EQ(two.a.wait_one().status, IBV_WC_WR_FLUSH_ERR);
  ASSERT_EQ(two.a.receive(7), 0);
  EXPECT_EQ(two.a.wait_one().status, IBV_WC_WR_FLUSH_ERR);
}

TEST_P(FakeVerbs, ABadRemoteKeyEndsBoth) {
  enum Case { kNoKey, kLocalKey, kPastTheEnd, kBefore, kReadOnly, kOtherDomain, kGone, kInvalidated, kCases };
  for (int number = 0; number < kCases; ++number) {
    Two two;
    Side other;
    std::vector<uint8_t> more(100);
    ibv_mr* const read_only = ibv_reg_mr(two.b.pd, more.data(), more.size(), IBV_ACCESS_LOCAL_WRITE);
    Side::Write bad = {.id = 1, .length = 100};
    if (number == kNoKey) bad.rkey = 0x12345678;
    if (number == kLocalKey) bad.rkey = two.b.mr->lkey;
    if (number == kPastTheEnd) bad.to = two.b.memory.size() - 99;
    if (number == kBefore) bad.to = static_cast<size_t>(-1);
    if (number == kReadOnly) bad.rkey = read_only->rkey;
    if (number == kOtherDomain) bad.rkey = other.mr->rkey;
    const uint32_t key = two.b.mr->rkey;
    if (number == kGone) {
      bad.rkey = key;
      EXPECT_EQ(ibv_dereg_mr(two.b.mr), 0);
      two.b.mr = ibv_reg_mr(two.b.pd, two.b.memory.data(), two.b.memory.size(), kAll);
      EXPECT_NE(two.b.mr->rkey, key) << "keys are not used twice";
    }
    if (number == kInvalidated) fake_verbs_invalidate_key(key);
    ASSERT_EQ(two.b.receive(5), 0);
    ASSERT_EQ(two.a.write(two.b, bad), 0);
    ASSERT_EQ(two.a.write(two.b, {.id = 2, .length = 1}), 0);
    expect_flush(two.a.wait(2), 1, IBV_WC_REM_ACCESS_ERR);
    expect_flush(two.b.wait(1), 5, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(two.b.state(), IBV_QPS_ERR);
    expect_event(two.b.context, IBV_EVENT_QP_ACCESS_ERR);
    EXPECT_EQ(ibv_dereg_mr(read_only), 0);
  }
}

TEST_P(FakeVerbs, AnEmptyWriteNeedsNoKey) {
  Two two;
  ASSERT_EQ(two.b.receive(1), 0);
  ASSERT_EQ(two.a.write(two.b, {.with_imm = true, .imm = 9, .rkey = 0x1234}), 0);
  EXPECT_EQ(two.b.wait_one().imm_data, 9u);
  EXPECT_EQ(two.a.wait_one().status, IBV_WC_SUCCESS);
}

TEST_P(FakeVerbs, APeerWithoutTheRightRefusesWrites) {
  Side a, b;
  a.connect(b);
  EXPECT_EQ(b.to_init(0), 0);
  EXPECT_EQ(b.to_receive(a.gid(), a.qp->qp_num), 0);
  ASSERT_EQ(a.write(b, {.id = 1, .length = 1}), 0);
  EXPECT_EQ(a.wait_one().status, IBV_WC_REM_INV_REQ_ERR);
}

TEST_P(FakeVerbs, WithoutAReceiveAMessageWaits) {
  Two two;
  ASSERT_EQ(two.a.write(two.b, {.id = 1, .length = 10, .with_imm = true, .imm = 3}), 0);
  ASSERT_EQ(two.a.write(two.b, {.id = 2, .length = 10}), 0);
  fake_verbs_advance_clock(60'000'000'000);
  two.a.expect_nothing();
  fake_verbs_advance_clock(60'000'000'000);
  two.b.expect_nothing();
  EXPECT_EQ(counters().receives_awaited, 1u);
  ASSERT_EQ(two.b.receive(5), 0);
  EXPECT_EQ(two.b.wait_one().imm_data, 3u);
  EXPECT_EQ(two.a.wait(2).back().status, IBV_WC_SUCCESS);
}

TEST_P(FakeVerbs, RetriesForAReceiveEnd) {
  Two two({}, 2);
  ASSERT_EQ(two.a.write(two.b, {.id = 1, .with_imm = true}), 0);
  ASSERT_EQ(two.a.write(two.b, {.id = 2, .length = 10}), 0);
  expect_flush(two.a.wait(2), 1, IBV_WC_RNR_RETRY_EXC_ERR);
  ASSERT_EQ(two.b.receive(5), 0);
  two.b.expect_nothing();
}

TEST_P(FakeVerbs, NobodyAnswers) {
  {  // a queue pair that is gone
    Two two;
    EXPECT_EQ(ibv_destroy_qp(two.b.qp), 0);
    two.b.qp = nullptr;
    ASSERT_EQ(two.a.write(two.b, {.id = 1, .length = 10}), 0);
    ASSERT_EQ(two.a.write(two.b, {.id = 2, .length = 10}), 0);
    expect_flush(two.a.wait(2), 1, IBV_WC_RETRY_EXC_ERR);
  }
  {  // one in error
    Two two;
    ASSERT_EQ(fake_verbs_break_qp(two.b.qp->qp_num), 0);
    expect_event(two.b.context, IBV_EVENT_QP_FATAL);
    ASSERT_EQ(two.a.write(two.b, {.id = 1, .length = 10}), 0);
    EXPECT_EQ(two.a.wait_one().status, IBV_WC_RETRY_EXC_ERR);
  }
  {  // other packet numbers
    Side a, b;
    a.connect(b);
    EXPECT_EQ(b.to_init(), 0);
    EXPECT_EQ(b.to_receive(a.gid(), a.qp->qp_num, kPsn + 1), 0);
    ASSERT_EQ(a.write(b, {.id = 1, .length = 10}), 0);
    EXPECT_EQ(a.wait_one().status, IBV_WC_RETRY_EXC_ERR);
  }
  {  // not ready yet, but in time
    Side a, b;
    a.connect(b);
    ASSERT_EQ(a.write(b, {.id = 1, .length = 10}), 0);
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(a.poll().empty());
    b.connect(a);
    EXPECT_EQ(a.wait_one().status, IBV_WC_SUCCESS);
  }
}

TEST_P(FakeVerbs, APortGoesDown) {
  Two two;
  ASSERT_EQ(fake_verbs_set_port_up(0, 1, 0), 0);
  expect_event(two.a.context, IBV_EVENT_PORT_ERR);
  ASSERT_EQ(two.a.write(two.b, {.id = 1, .length = 10}), 0);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(two.a.poll().empty());
  ASSERT_EQ(fake_verbs_set_port_up(0, 1, 1), 0);
  expect_event(two.a.context, IBV_EVENT_PORT_ACTIVE);
  EXPECT_EQ(two.a.wait_one().status, IBV_WC_SUCCESS);
  ASSERT_EQ(fake_verbs_set_port_up(1, 1, 0), 0);
  ASSERT_EQ(two.a.write(two.b, {.id = 2, .length = 10}), 0);
  EXPECT_EQ(two.a.wait_one().status, IBV_WC_RETRY_EXC_ERR);
}

TEST_P(FakeVerbs, CompletionQueuesOverrun) {
  Two two({.cqe = 4});
  for (uint64_t i = 0; i < 6; ++i) ASSERT_EQ(two.a.write(two.b, {.id = i, .length = 1}), 0);
  while (fake_verbs_advance(10) != 0) {
  }
  expect_event(two.a.context, IBV_EVENT_CQ_ERR);
  expect_event(two.a.context, IBV_EVENT_QP_FATAL);
  EXPECT_EQ(two.a.state(), IBV_QPS_ERR);
  EXPECT_EQ(two.a.wait(4).back().wr_id, 3u);
  two.a.expect_nothing();
}

TEST_P(FakeVerbs, AnErrorStateFlushesInOrder) {
  Two two;
  for (uint64_t i = 0; i < 20; ++i) ASSERT_EQ(two.a.write(two.b, {.id = i, .length = below(2000)}), 0);
  for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(two.a.receive(100 + i), 0);
  fake_verbs_advance(static_cast<int>(1 + below(10)));
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(two.a.qp, &attr, IBV_QP_STATE), 0);
  uint64_t sent = 0, received = 100;
  bool flushed = false;
  for (const ibv_wc& wc : two.a.wait(25)) {
    EXPECT_EQ(wc.wr_id, wc.wr_id < 100 ? sent++ : received++);
    if (wc.wr_id >= 100) continue;
    EXPECT_TRUE(wc.status == IBV_WC_WR_FLUSH_ERR || (wc.status == IBV_WC_SUCCESS && !flushed));
    flushed |= wc.status != IBV_WC_SUCCESS;
  }
  attr.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(ibv_modify_qp(two.a.qp, &attr, IBV_QP_STATE), 0);
  EXPECT_EQ(two.a.to_init(), 0);
}

TEST_P(FakeVerbs, WhatWasSentMayArriveAfterItsSender) {
  bool arrived = false, lost = false;
  for (uint32_t round = 0; round < 100; ++round) {
    Two two;
    std::fill(two.a.memory.begin(), two.a.memory.end(), 1);
    ASSERT_EQ(two.b.receive(1), 0);
    ASSERT_EQ(two.a.write(two.b, {.length = 4000, .with_imm = true, .imm = round}), 0);
    fake_verbs_advance(static_cast<int>(below(4)));
    EXPECT_EQ(ibv_destroy_qp(two.a.qp), 0);
    two.a.qp = nullptr;
    std::fill(two.a.memory.begin(), two.a.memory.end(), 2);  // nothing reads it any more
    std::vector<ibv_wc> got;
    for (int i = 0; i < 1000 && got.empty(); ++i) got = two.b.poll();
    (got.empty() ? lost : arrived) = true;
    EXPECT_EQ(std::count(two.b.memory.begin(), two.b.memory.end(), 2), 0);
    const bool whole = std::count(two.b.memory.begin(), two.b.memory.begin() + 4000, 1) == 4000;
    EXPECT_TRUE(whole || got.empty());
  }
  EXPECT_TRUE(arrived);
  EXPECT_EQ(lost, GetParam() > 0);
}

TEST_P(FakeVerbs, MemoryThatIsTakenAwayMeanwhile) {
  for (int round = 0; round < 50; ++round) {
    Two two;
    ASSERT_EQ(two.a.write(two.b, {.id = 1, .length = 4000}), 0);
    ASSERT_EQ(two.a.write(two.b, {.id = 2, .length = 4000}), 0);
    fake_verbs_advance(static_cast<int>(below(4)));
    fake_verbs_invalidate_key(round % 2 == 0 ? two.b.mr->rkey : two.a.mr->lkey);
    const std::vector<ibv_wc> all = two.a.wait(2);
    ASSERT_EQ(all.size(), 2u);
    const ibv_wc_status expected = round % 2 == 0 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR;
    for (const ibv_wc& wc : all) {
      EXPECT_TRUE(wc.status == IBV_WC_SUCCESS || wc.status == expected ||
                  (&wc == &all[1] && wc.status == IBV_WC_WR_FLUSH_ERR));
    }
    ibv_async_event event;
    if (two.b.state() != IBV_QPS_ERR) continue;
    ASSERT_EQ(ibv_get_async_event(two.b.context, &event), 0);
    ibv_ack_async_event(&event);
  }
}

TEST_P(FakeVerbs, CompletionsFailOnRequest) {
  {
    Two two;
    fake_verbs_fail_completion(two.a.qp->qp_num, FAKE_VERBS_SEND_QUEUE, 3, IBV_WC_RETRY_EXC_ERR);
    for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(two.a.write(two.b, {.id = i, .length = 10}), 0);
    const std::vector<ibv_wc> all = two.a.wait(5);
    EXPECT_EQ(all.at(1).status, IBV_WC_SUCCESS);
    expect_flush({all.begin() + 2, all.end()}, 2, IBV_WC_RETRY_EXC_ERR);
  }
  Two two;
  fake_verbs_fail_completion(0, FAKE_VERBS_RECEIVE_QUEUE, 1, IBV_WC_GENERAL_ERR);
  ASSERT_EQ(two.b.receive(1), 0);
  ASSERT_EQ(two.b.receive(2), 0);
  ASSERT_EQ(two.a.write(two.b, {.id = 1, .with_imm = true}), 0);
  expect_flush(two.b.wait(2), 1, IBV_WC_GENERAL_ERR);
  expect_flush(two.a.wait(1), 1, IBV_WC_REM_OP_ERR);
}

TEST_P(FakeVerbs, CallsFailOnRequest) {
  Side side;
  fake_verbs_fail_call("ibv_create_qp", 2, EMFILE);
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = side.cq;
  init.qp_type = IBV_QPT_RC;
  ibv_qp* const first = ibv_create_qp(side.pd, &init);
  EXPECT_NE(first, nullptr);
  errno = 0;
  EXPECT_EQ(ibv_create_qp(side.pd, &init), nullptr);
  EXPECT_EQ(errno, EMFILE);
  EXPECT_EQ(ibv_destroy_qp(first), 0);
  fake_verbs_fail_call("ibv_modify_qp", 1, EIO);
  EXPECT_EQ(side.to_init(), EIO);
  EXPECT_EQ(side.to_init(), 0);
  fake_verbs_fail_call("ibv_post_recv", 1, ENOBUFS);
  EXPECT_EQ(side.receive(1), ENOBUFS);
  fake_verbs_fail_call("ibv_poll_cq", 1, EIO);
  ibv_wc wc;
  EXPECT_LT(ibv_poll_cq(side.cq, 1, &wc), 0);
}

TEST_P(FakeVerbs, RegistrationHasRulesAndALimit) {
  Side side;
  std::vector<uint8_t> more(1000);
  const uint64_t before = counters().bytes_registered;
  EXPECT_EQ(before, side.memory.size());
  int access = IBV_ACCESS_REMOTE_WRITE;
  EXPECT_EQ(ibv_reg_mr(side.pd, more.data(), more.size(), access), nullptr);
  EXPECT_EQ(errno, EINVAL);
  access = kAll | IBV_ACCESS_RELAXED_ORDERING;
  EXPECT_EQ(ibv_reg_mr(side.pd, reinterpret_cast<void*>(16), 100, access), nullptr);
  EXPECT_EQ(errno, EFAULT);
  fake_verbs_set_memlock(before + 999);
  EXPECT_EQ(ibv_reg_mr(side.pd, more.data(), more.size(), access), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  fake_verbs_set_memlock(before + 1000);
  ibv_mr* const mr = ibv_reg_mr(side.pd, more.data(), more.size(), access);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(counters().bytes_registered, before + 1000);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_reg_dmabuf_mr(side.pd, 0, 10, 0, -1, kAll), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

// Tests that hit one of several ranks in a process need the owner.
TEST_P(FakeVerbs, WhatAThreadOpensBelongsToItsOwner) {
  fake_verbs_set_owner(7);
  Side a;
  fake_verbs_set_owner(-1);
  SideOptions other;
  other.device = 1;
  Side b(other);
  a.connect(b);
  b.connect(a);
  fake_verbs_qp all[3] = {};
  ASSERT_EQ(fake_verbs_qps(all, 3), 2u);
  EXPECT_EQ(all[0].owner, 7);
  EXPECT_EQ(all[1].owner, -1);
  EXPECT_EQ(all[0].peer, all[1].number);
  EXPECT_EQ(all[1].peer, all[0].number);
  uint32_t keys[2] = {};
  ASSERT_EQ(fake_verbs_keys(7, keys, 2), 1u);
  EXPECT_EQ(keys[0], a.mr->rkey);
  ASSERT_EQ(fake_verbs_break_qp(all[0].number), 0);
  ASSERT_EQ(fake_verbs_qps(all, 1), 2u);
  EXPECT_TRUE(all[0].is_in_error);
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(a.context, &event), 0);
  ibv_ack_async_event(&event);
}

}  // namespace
}  // namespace treering::fake_verbs
