// SPDX-License-Identifier: Apache-2.0
#include "peers/findings.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>

#include "peers/link_reasons.h"
#include "transport/cma/cma.h"

namespace treering {
namespace {

bool same_process(const RankCard& a, const RankCard& b) { return a.process_token == b.process_token; }

bool reads_nonce(const RankCard& own, const RankCard& peer, const AreaLayout& layout, const Segment* segment) {
  return segment != nullptr && own.in_segment != 0 && peer.in_segment != 0 &&
         *static_cast<volatile uint64_t*>(layout.view(segment->base(), peer.rank).nonce()) == peer.nonce;
}

uint8_t prove_regions(const RankCard& own, const RankCard& peer, std::string* reason) {
  const int fd = own.pid_namespace == peer.pid_namespace
                     ? open_peer_descriptor(static_cast<int>(peer.pid), peer.segment_descriptor, peer.segment_inode)
                     : -1;
  if (fd < 0) {
    *reason += "registered buffers: " + why_no_regions(own, peer, errno) + "; ";
    return 0;
  }
  close(fd);
  return kRegionsBit;
}

uint8_t prove_cma(const RankCard& own, const RankCard& peer, const AreaLayout& layout, std::string* reason) {
  const auto pid = static_cast<int>(peer.pid);
  const uint64_t address = peer.head_address + layout.nonce_offset;
  uint64_t nonce = 0;
  const std::string no_pid = why_no_pid(own, peer);
  Status status = no_pid.empty() ? cma_read(pid, address, &nonce, sizeof nonce) : Status(trSystemError, no_pid);
  // A word beside the nonce that is 0 anyway: the write itself is the proof.
  constexpr uint64_t kNothing = 0, kSpareWord = 2;
  if (status.ok()) status = cma_write(pid, address + kSpareWord * sizeof nonce, &kNothing, sizeof kNothing);
  if (status.ok() && nonce == peer.nonce) return kCmaBit;
  const std::string who = no_pid.empty() && !status.ok() ? who_they_are(own, peer) : std::string();
  *reason += "cma: " + (status.ok() ? std::string("the nonce differs") : status.message()) +
             (who.empty() ? "" : ", " + who) + "; ";
  return 0;
}

// Whom of the host's ranks, which are ascending, this rank proves system calls with.
std::set<uint32_t> choose_partners(const std::vector<uint32_t>& ranks, uint32_t rank) {
  if (ranks.size() <= kMaxProved) return {ranks.begin(), ranks.end()};
  std::set<uint32_t> partners;
  const auto own = static_cast<size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
  for (size_t distance = 1; distance < ranks.size(); distance *= 2) {
    partners.insert(ranks[(own + distance) % ranks.size()]);
    partners.insert(ranks[(own + ranks.size() - distance) % ranks.size()]);
  }
  return partners;
}

// The value that most have.
uint8_t most_common(const std::vector<LinkException>& found) {
  std::array<size_t, 256> counts{};
  for (const LinkException& entry : found) ++counts[entry.bits];
  return static_cast<uint8_t>(std::max_element(counts.begin(), counts.end()) - counts.begin());
}

}  // namespace

uint8_t transport_of(uint8_t bits) {
  for (const TransportName& row : kTransportNames)
    if ((bits & row.bit) != 0) return row.bit;
  return 0;
}

std::string transports_text(uint8_t bits) {
  std::string text;
  for (const TransportName& row : kTransportNames)
    if ((bits & row.bit) != 0) (text += text.empty() ? "" : "+") += row.short_name;
  return text.empty() ? "none" : text;
}

LinkReport prove_links(const std::vector<RankCard>& cards, uint32_t rank, const AreaLayout& layout,
                       const Segment* segment, uint8_t allowed, std::map<uint32_t, std::string>* reasons) {
  const RankCard& own = cards[rank];
  LinkReport report;
  report.remote = allowed & kTcpBit;
  report.local = allowed & (kTcpBit | kInProcessBit | kSharedMemoryBit);
  std::vector<uint32_t> ranks;
  for (const RankCard& card : cards)
    if (card.location.host == own.location.host) ranks.push_back(card.rank);
  report.complete = ranks.size() <= kMaxProved;
  const std::set<uint32_t> partners = choose_partners(ranks, rank);
  const auto given =
      std::find_if(ranks.begin(), ranks.end(), [&](uint32_t one) { return cards[one].got_segment != 0; });
  const RankCard* holder = given == ranks.end() ? nullptr : &cards[*given];
  std::vector<LinkException> proved, shares_only;  // all bits are known; those of shared memory are
  for (uint32_t peer : ranks) {
    if (peer == rank) continue;
    uint8_t bits = allowed & kTcpBit;
    std::string reason;
    if (reads_nonce(own, cards[peer], layout, segment))
      bits |= allowed & (kInProcessBit | kSharedMemoryBit);
    else
      reason = "shared memory: " +
               (segment == nullptr || cards[peer].in_segment == 0
                    ? why_no_segment(own, cards[peer], holder, (allowed & (kInProcessBit | kSharedMemoryBit)) != 0)
                    : "the peer's nonce is not in the mapped segment") +
               "; ";
    const bool in_process = (bits & kInProcessBit) != 0 && same_process(own, cards[peer]);
    if (in_process || partners.count(peer) == 0) {
      shares_only.push_back({peer, bits});
    } else {
      if ((bits & kSharedMemoryBit) != 0) bits |= prove_regions(own, cards[peer], &reason);
      if ((allowed & kCmaBit) != 0) bits |= prove_cma(own, cards[peer], layout, &reason);
      proved.push_back({peer, bits});
    }
    if (!reason.empty()) (*reasons)[peer] = reason;
  }
  if (!proved.empty() || !shares_only.empty()) report.local = most_common(proved.empty() ? shares_only : proved);
  for (const LinkException& entry : proved)
    if (entry.bits != report.local) report.exceptions.push_back(entry);
  for (const LinkException& entry : shares_only)
    if (((entry.bits ^ report.local) & (kInProcessBit | kSharedMemoryBit)) != 0) report.exceptions.push_back(entry);
  std::sort(report.exceptions.begin(), report.exceptions.end(),
            [](const LinkException& a, const LinkException& b) { return a.rank < b.rank; });
  return report;
}

Findings::Findings(const std::vector<RankCard>& cards, std::vector<LinkReport> reports)
    : cards_(cards), reports_(std::move(reports)), denied_(cards.size(), 0) {
  for (const RankCard& card : cards_) hosts_[card.location.host].ranks.push_back(card.rank);
  for (const LinkReport& report : reports_)
    for (const LinkException& entry : report.exceptions)
      if (entry.rank < denied_.size()) denied_[entry.rank] |= static_cast<uint8_t>(report.local & ~entry.bits);
  for (auto& [number, host] : hosts_) summarise(&host);
  if (hosts_.size() > 1) transports_ |= kTcpBit;
}

// What rank a has found towards rank b, or what may be taken for it.
uint8_t Findings::found(uint32_t a, uint32_t b) const {
  const LinkReport& report = reports_[a];
  if (cards_[a].location.host != cards_[b].location.host) return report.remote;
  const auto at = std::lower_bound(report.exceptions.begin(), report.exceptions.end(), b,
                                   [](const LinkException& entry, uint32_t rank) { return entry.rank < rank; });
  uint8_t bits = report.local;
  if (at != report.exceptions.end() && at->rank == b)
    bits = at->bits;
  else if (!report.complete)
    bits &= static_cast<uint8_t>(~denied_[b]);
  return same_process(cards_[a], cards_[b]) ? bits : bits & static_cast<uint8_t>(~kInProcessBit);
}

void Findings::summarise(Host* host) {
  const auto settle = [this, host](uint8_t bits) {
    transports_ |= transport_of(bits);
    host->mapped &= (bits & (kInProcessBit | kSharedMemoryBit)) != 0;
    host->fetches &= (bits & (kInProcessBit | kCmaBit)) != 0;
  };
  const std::vector<uint32_t>& ranks = host->ranks;
  const bool plain = std::all_of(ranks.begin(), ranks.end(), [&](uint32_t rank) {
    return reports_[rank].exceptions.empty() && denied_[rank] == 0 && reports_[rank].local == reports_[ranks[0]].local;
  });
  if (!plain) {
    for (size_t i = 0; i < ranks.size(); ++i)
      for (size_t k = 0; k < i; ++k) settle(between(ranks[i], ranks[k]));
    return;
  }
  if (ranks.size() == 1) return;
  std::set<uint64_t> processes;
  for (uint32_t rank : ranks) processes.insert(cards_[rank].process_token);
  const uint8_t common = reports_[ranks[0]].local;
  if (processes.size() < ranks.size()) settle(common);
  if (processes.size() > 1) settle(common & static_cast<uint8_t>(~kInProcessBit));
}

}  // namespace treering
