// SPDX-License-Identifier: Apache-2.0
#include "transport/memory/reasons.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace treering {
namespace {

// 0: the rank could not find its own out.
bool differ(uint64_t a, uint64_t b) { return a != 0 && b != 0 && a != b; }

std::string both(const PeerInfo& a, const PeerInfo& b) {
  return fmt::format("ranks {} and {}", std::min(a.rank, b.rank), std::max(a.rank, b.rank));
}

// Uids in the order of both().
std::string uids(const PeerInfo& a, const PeerInfo& b) {
  return a.rank < b.rank ? fmt::format("{} and {}", a.uid, b.uid) : fmt::format("{} and {}", b.uid, a.uid);
}

std::string has_lost_it(const PeerInfo& loser) {
  return fmt::format("rank {} (pid {}) has no file descriptor left to take it or to pass it on; see ulimit -n there",
                     loser.rank, loser.pid);
}

// Why the descriptor did not come from one to the other.
std::string why_it_did_not_travel(const PeerInfo& lacking, const PeerInfo& holder, const PeerInfo* loser) {
  const std::string ranks = both(lacking, holder);
  // Without /proc a machine is known by its host's name alone, which containers have of their own.
  const bool know_machines = lacking.network_namespace != 0 && holder.network_namespace != 0;
  if (know_machines && differ(lacking.machine, holder.machine))
    return ranks + " run on different machines, which TREERING_HOSTID calls one host";
  if (!know_machines)
    return fmt::format("rank {} has no /proc (its mount namespace lacks it), so its network namespace is not known",
                       lacking.network_namespace == 0 ? lacking.rank : holder.rank);
  if (differ(lacking.network_namespace, holder.network_namespace))
    return ranks + " are in different network namespaces, between which its descriptor cannot travel";
  if (differ(lacking.user_namespace, holder.user_namespace))
    return fmt::format(
        "{} are in different user namespaces, and the kernel takes their users (uid {} there) for different ones",
        ranks, uids(lacking, holder));
  if (lacking.uid != holder.uid) return fmt::format("{} are of different users (uid {})", ranks, uids(lacking, holder));
  // The processes of a host hand it on in a tree.
  if (loser != nullptr) return has_lost_it(*loser);
  return "a process that its descriptor would have come through is in another network namespace or another user's";
}

std::string why_absent(const PeerInfo& own, const PeerInfo& peer, const PeerInfo* holder, const PeerInfo* loser) {
  for (const PeerInfo* info : {&own, &peer})
    if (info->got_segment != 0 && info->in_segment == 0)
      return fmt::format("mmap failed on rank {}, whose log says why", info->rank);
  for (const PeerInfo* info : {&own, &peer})
    if (info->lost_segment != 0) return has_lost_it(*info);
  if (holder == nullptr && loser != nullptr) return has_lost_it(*loser);
  // A process without a rank, which only made the unique id, has no info.
  if (holder == nullptr)
    return "no rank of the host was given it: memfd_create failed, or the process that makes it holds no rank and is in another "
           "network namespace or another user's";
  return why_it_did_not_travel(own.got_segment == 0 ? own : peer, *holder, loser);
}

}  // namespace

std::string why_no_segment(const PeerInfo& own, const PeerInfo& peer, const PeerInfo* holder, const PeerInfo* loser) {
  return "no segment (" + why_absent(own, peer, holder, loser) + ")";
}

std::string why_no_pid(const PeerInfo& own, const PeerInfo& peer) {
  if (own.pid_namespace == peer.pid_namespace) return {};
  for (const PeerInfo* info : {&own, &peer})
    if (info->pid_namespace == 0)
      return fmt::format("rank {} has no /proc (its mount namespace lacks it), so its pid namespace is not known",
                         info->rank);
  return "the ranks are in different pid namespaces";
}

std::string who_they_are(const PeerInfo& own, const PeerInfo& peer) {
  if (differ(own.user_namespace, peer.user_namespace)) return "the ranks are in different user namespaces";
  if (own.uid != peer.uid) return fmt::format("the ranks are of different users (uid {} and {})", own.uid, peer.uid);
  return {};
}

std::string why_no_regions(const PeerInfo& own, const PeerInfo& peer, int error) {
  if (std::string why = why_no_pid(own, peer); !why.empty()) return why;
  std::string text = fmt::format("the peer's descriptors cannot be opened through /proc: {}", std::strerror(error));
  if (error == ENOENT)
    text += " (/proc of this rank's mount namespace does not show process " + std::to_string(peer.pid) + ")";
  if (error == ESTALE) text += " (process " + std::to_string(peer.pid) + " of this /proc is not the peer)";
  if (const std::string who = who_they_are(own, peer); (error == EACCES || error == EPERM) && !who.empty())
    text += " (" + who + ")";
  return text;
}

}  // namespace treering
