// SPDX-License-Identifier: Apache-2.0
// Why ranks share no memory, from fabricated infos.
#include "transport/memory/reasons.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace treering::testing {
namespace {

PeerInfo with_segment(uint32_t rank) {
  PeerInfo info{};
  info.rank = rank;
  info.pid = 100 + rank;
  info.pid_namespace = 11;
  info.network_namespace = 21;
  info.user_namespace = 31;
  info.uid = 1000;
  info.machine = 41;
  info.got_segment = info.in_segment = 1;
  return info;
}

PeerInfo without_segment(uint32_t rank) {
  PeerInfo info = with_segment(rank);
  info.got_segment = info.in_segment = 0;
  return info;
}

// The reason. Both directions give the same one.
std::string why(const PeerInfo& a, const PeerInfo& b, const PeerInfo* holder, const PeerInfo* loser = nullptr) {
  const std::string text = why_no_segment(a, b, holder, loser);
  EXPECT_EQ(text, why_no_segment(b, a, holder, loser));
  return text;
}

TEST(NoSegment, BetweenNetworkNamespaces) {
  const PeerInfo a = with_segment(0);
  PeerInfo b = without_segment(1);
  b.network_namespace = 22;
  const std::string expected =
      "no segment (ranks 0 and 1 are in different network namespaces, between which its descriptor cannot travel)";
  EXPECT_EQ(why(a, b, &a), expected);
  b.user_namespace = 32;
  b.uid = 0;
  b.pid_namespace = 12;
  EXPECT_EQ(why(a, b, &a), expected) << "a container of its own: it is the network that alone would do";
}

TEST(NoSegment, BetweenUserNamespaces) {
  const PeerInfo a = with_segment(3);
  PeerInfo b = without_segment(1);
  b.user_namespace = 32;
  b.uid = 0;
  EXPECT_EQ(
      why(a, b, &a),
      "no segment (ranks 1 and 3 are in different user namespaces, and the kernel takes their users (uid 0 and 1000 there) "
      "for different ones)");
}

TEST(NoSegment, BetweenUsers) {
  const PeerInfo a = with_segment(0);
  PeerInfo b = without_segment(1);
  b.uid = 1001;
  EXPECT_EQ(why(a, b, &a), "no segment (ranks 0 and 1 are of different users (uid 1000 and 1001))");
}

TEST(NoSegment, BetweenMachines) {
  const PeerInfo a = with_segment(0);
  PeerInfo b = without_segment(1);
  b.machine = 42;
  EXPECT_EQ(why(a, b, &a),
            "no segment (ranks 0 and 1 run on different machines, which TREERING_HOSTID calls one host)");
  b.network_namespace = b.user_namespace = b.pid_namespace = 0;
  EXPECT_EQ(why(a, b, &a),
            "no segment (rank 1 has no /proc (its mount namespace lacks it), so its network namespace is not known)")
      << "nor its machine";
}

// In the namespaces of one that lacks it too, and has it as little from the third.
TEST(NoSegment, WhereBothLackIt) {
  const PeerInfo holder = with_segment(0);
  PeerInfo a = without_segment(1), b = without_segment(2);
  a.network_namespace = b.network_namespace = 22;
  EXPECT_NE(why_no_segment(a, b, &holder, nullptr).find("ranks 0 and 1 are in different network"), std::string::npos);
  EXPECT_NE(why_no_segment(b, a, &holder, nullptr).find("ranks 0 and 2 are in different network"), std::string::npos);
}

TEST(NoSegment, WhereAPidNamespaceAloneDiffersItIsNotBlamed) {
  const PeerInfo a = with_segment(0);
  PeerInfo b = without_segment(1);
  b.pid_namespace = 12;
  EXPECT_EQ(
      why(a, b, &a),
      "no segment (a process that its descriptor would have come through is in another network namespace or another user's)");
}

TEST(NoSegment, TheOneWithoutDescriptorsIsNamed) {
  const PeerInfo holder = with_segment(0);
  PeerInfo a = without_segment(1), b = without_segment(2), loser = without_segment(3);
  loser.lost_segment = 1;
  const std::string expected =
      "no segment (rank 3 (pid 103) has no file descriptor left to take it or to pass it on; see ulimit -n there)";
  EXPECT_EQ(why(a, b, &holder, &loser), expected) << "it would have come through that one";
  EXPECT_EQ(why(a, b, nullptr, &loser), expected) << "which makes it";
  EXPECT_EQ(why(holder, loser, &holder, &loser), expected);
  b.network_namespace = 22;
  EXPECT_NE(why(holder, b, &holder, &loser).find("ranks 0 and 2 are in different network"), std::string::npos)
      << "what would do alone";
}

TEST(NoSegment, FailuresOfTheMachine) {
  PeerInfo a = with_segment(0), b = with_segment(1);
  b.in_segment = 0;
  EXPECT_EQ(why(a, b, &a), "no segment (mmap failed on rank 1, whose log says why)");
  a = without_segment(0), b = without_segment(1);
  EXPECT_NE(why(a, b, nullptr).find("no rank of the host was given it: memfd_create failed"), std::string::npos);
}

TEST(NoRegions, TheCauseIsWhatDiffers) {
  const PeerInfo a = with_segment(0);
  PeerInfo b = with_segment(1);
  EXPECT_EQ(why_no_pid(a, b), "");
  EXPECT_EQ(why_no_regions(a, b, EACCES), "the peer's descriptors cannot be opened through /proc: Permission denied");
  EXPECT_EQ(
      why_no_regions(a, b, ENOENT),
      "the peer's descriptors cannot be opened through /proc: No such file or directory (/proc of this rank's mount "
      "namespace does not show process 101)");
  b.uid = 1001;
  EXPECT_EQ(
      why_no_regions(a, b, EACCES),
      "the peer's descriptors cannot be opened through /proc: Permission denied (the ranks are of different users (uid "
      "1000 and 1001))");
  b.user_namespace = 32;
  EXPECT_NE(why_no_regions(a, b, EACCES).find("the ranks are in different user namespaces"), std::string::npos);
  b.pid_namespace = 12;
  EXPECT_EQ(why_no_regions(a, b, 0), "the ranks are in different pid namespaces");
  b.pid_namespace = 0;
  EXPECT_NE(why_no_regions(a, b, 0).find("rank 1 has no /proc"), std::string::npos);
}

}  // namespace
}  // namespace treering::testing
