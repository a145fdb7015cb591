// SPDX-License-Identifier: Apache-2.0
#include "peers/transport_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace treering {
namespace {

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
TransportSet most_common(const std::vector<TransportException>& found) {
  std::map<TransportSet, size_t> counts;
  for (const TransportException& entry : found) ++counts[entry.bits];
  return std::max_element(counts.begin(), counts.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

// What works towards one peer.
class Prover {
 public:
  Prover(const OpenTransports& opened, uint32_t peer) : opened_(opened), peer_(peer) {}

  // `asked`: the transports that are tried.
  TransportSet prove(TransportSet asked, bool regions) {
    TransportSet bits = 0;
    for (size_t i = 0; i < opened_.size(); ++i) {
      const TransportRow& row = transports()[i];
      const TransportSet bit = TransportSet{1} << i;
      if ((asked & bit) == 0) continue;
      if (opened_[i] == nullptr) {
        if (bits == 0 && row.scope == Scope::kHost)
          excluded_ += fmt::format("{}{}", excluded_.empty() ? "" : ", ", row.name);
        continue;
      }
      if (Status works = opened_[i]->prove(peer_); !works.ok()) {
        if (bits == 0 && row.scope != Scope::kProcess) note(row.name, works);
        continue;
      }
      bits |= bit;
      if (!regions || !row.maps || row.scope == Scope::kProcess) continue;
      if (Status maps = opened_[i]->prove_regions(peer_); maps.ok())
        bits |= kRegionsBit;
      else
        note("registered buffers", maps);
    }
    return bits;
  }
  // First what was tried and failed. trTimeout where a network may do later what it did not do in time.
  Status reason() const {
    if (excluded_.empty()) return reason_;
    return joined(reason_, {trSystemError, excluded_ + ": TREERING_TRANSPORTS or config->transports excludes it"});
  }

 private:
  void note(const std::string& what, const Status& why) {
    reason_ = joined(reason_, {why.code(), what + ": " + why.message()});
  }

  const OpenTransports& opened_;
  const uint32_t peer_;
  Status reason_;
  std::string excluded_;
};

}  // namespace

TransportReport probe_transports(const std::vector<RankInfo>& infos, uint32_t rank, const OpenTransports& opened,
                                 std::map<uint32_t, Status>* reasons) {
  const RankInfo& own = infos[rank];
  const TransportSet anywhere = transports_of(Scope::kAnywhere), cheap = transports_with(&TransportRow::cheap_proof);
  std::vector<uint32_t> ranks, others;  // of this host; of others
  for (const RankInfo& info : infos) (info.location.host == own.location.host ? ranks : others).push_back(info.rank);
  TransportReport report;
  report.complete = ranks.size() <= kMaxProved;
  const std::set<uint32_t> partners = choose_partners(ranks, rank);
  std::vector<TransportException> proved, cheaply;  // all bits are known; those of cheap proofs are
  for (uint32_t peer : ranks) {
    if (peer == rank) continue;
    Prover cheap_prover(opened, peer), full_prover(opened, peer);
    const TransportSet bits = cheap_prover.prove(cheap, false);
    const bool in_process = same_process(own, infos[peer]) && (bits & transports_of(Scope::kProcess)) != 0;
    const bool fully = !in_process && partners.count(peer) != 0;
    if (fully)
      proved.push_back({peer, full_prover.prove(~TransportSet{0}, true)});
    else
      cheaply.push_back({peer, bits});
    if (Status reason = (fully ? full_prover : cheap_prover).reason(); !reason.ok()) (*reasons)[peer] = reason;
  }
  const std::vector<TransportException>& typical = proved.empty() ? cheaply : proved;
  report.local = typical.empty() ? 0 : most_common(typical);
  for (const TransportException& entry : proved)
    if (entry.bits != report.local) report.exceptions.push_back(entry);
  for (const TransportException& entry : cheaply)
    if (((entry.bits ^ report.local) & cheap) != 0) report.exceptions.push_back(entry);

  std::vector<TransportException> remote;
  others.push_back(rank);
  std::sort(others.begin(), others.end());
  for (uint32_t peer : choose_partners(others, rank)) {
    if (peer == rank) continue;
    Prover prover(opened, peer);
    remote.push_back({peer, prover.prove(anywhere, false)});
    if (!prover.reason().ok()) (*reasons)[peer] = prover.reason();
  }
  if (!remote.empty()) report.remote = most_common(remote);
  for (const TransportException& entry : remote)
    if (entry.bits != report.remote) report.exceptions.push_back(entry);
  std::sort(report.exceptions.begin(), report.exceptions.end(),
            [](const TransportException& a, const TransportException& b) { return a.rank < b.rank; });
  for (const auto& [peer, reason] : *reasons)
    if (reason.code() == trTimeout) report.late.push_back(peer);
  return report;
}

std::pair<trResult_t, std::string> join_reasons(const Status& own, bool peer_is_late) {
  if (peer_is_late && own.code() != trTimeout)
    return {trTimeout, "the other rank's side could not in time; its own error says why"};
  if (own.ok()) return {trSystemError, "the other rank's side could not; its own error says why"};
  return {own.code() == trTimeout ? trTimeout : trSystemError, own.message()};
}

// Among many ranks it may not have tried the peer.
bool TransportMatrix::is_late(uint32_t rank, uint32_t peer) const {
  const std::vector<uint32_t>& late = reports_[rank].late;
  return infos_.size() > kMaxProved ? !late.empty() : std::binary_search(late.begin(), late.end(), peer);
}

TransportMatrix::TransportMatrix(const std::vector<RankInfo>& infos, std::vector<TransportReport> reports)
    : infos_(infos), reports_(std::move(reports)), denied_(infos.size(), 0) {
  for (const RankInfo& info : infos_) hosts_[info.location.host].ranks.push_back(info.rank);
  for (size_t rank = 0; rank < reports_.size(); ++rank)
    for (const TransportException& entry : reports_[rank].exceptions) {
      if (entry.rank >= denied_.size()) continue;
      const bool local = infos_[rank].location.host == infos_[entry.rank].location.host;
      denied_[entry.rank] |= (local ? reports_[rank].local : reports_[rank].remote) & ~entry.bits;
    }
  for (auto& [number, host] : hosts_) summarise(&host);
  if (hosts_.size() > 1) summarise_hosts();
}

// What rank a has found towards rank b, or what may be taken for it.
TransportSet TransportMatrix::found(uint32_t a, uint32_t b) const {
  const TransportReport& report = reports_[a];
  const bool local = infos_[a].location.host == infos_[b].location.host;
  const auto at = std::lower_bound(report.exceptions.begin(), report.exceptions.end(), b,
                                   [](const TransportException& entry, uint32_t rank) { return entry.rank < rank; });
  const bool complete =
      local ? report.complete : infos_.size() - hosts_.at(infos_[a].location.host).ranks.size() < kMaxProved;
  TransportSet bits = local ? report.local : report.remote;
  if (at != report.exceptions.end() && at->rank == b)
    bits = at->bits;
  else if (!complete)
    bits &= ~denied_[b];
  return same_process(infos_[a], infos_[b]) ? bits : bits & ~transports_of(Scope::kProcess);
}

// Keeps what all hosts have in common, and each pair that was an exception.
void TransportMatrix::summarise_hosts() {
  TransportSet common = ~TransportSet{0};
  for (const TransportReport& report : reports_) common &= report.remote;
  transports_ |= preferred(common);
  for (uint32_t rank = 0; rank < reports_.size(); ++rank)
    for (const TransportException& entry : reports_[rank].exceptions)
      if (entry.rank < infos_.size() && infos_[rank].location.host != infos_[entry.rank].location.host)
        transports_ |= preferred(between(rank, entry.rank) & ~kRegionsBit);
}

void TransportMatrix::summarise(Host* host) {
  const TransportSet maps = transports_with(&TransportRow::maps), fetches = transports_with(&TransportRow::fetches);
  const auto settle = [&](TransportSet bits) {
    transports_ |= preferred(bits & ~kRegionsBit);
    host->mapped &= (bits & maps) != 0;
    host->fetches &= (bits & fetches) != 0;
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
  for (uint32_t rank : ranks) processes.insert(infos_[rank].process_token);
  const TransportSet common = reports_[ranks[0]].local;
  if (processes.size() < ranks.size()) settle(common);
  if (processes.size() > 1) settle(common & ~transports_of(Scope::kProcess));
}

}  // namespace treering
