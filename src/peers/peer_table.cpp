// SPDX-License-Identifier: Apache-2.0
#include "peers/peer_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/log.h"

namespace treering {

PeerTable::PeerTable(ExecutorContext* context, const std::vector<RankInfo>& infos, uint32_t channels,
                     OpenTransports opened, AskStatus ask)
    : context_(context),
      infos_(infos),
      channels_(channels),
      ask_(std::move(ask)),
      used_(infos.size(), 0),
      works_(infos.size(), 0),
      opened_(std::move(opened)) {
  context_->connections.resize(size_t{channels} * infos.size());
  context_->maker = this;
}

PeerTable::~PeerTable() {
  if (!registering_.empty()) RegionTable::instance().forget(this);
}

void PeerTable::register_region(const Region& region) {
  if (registering_.empty()) return;
  for (Transport* transport : registering_)
    if (const Status registered = transport->register_region(region); !registered.ok())
      log_line(
          LogLevel::kWarn,
          fmt::format("rank {} copies what it sends and receives in the registered buffer {}, {} KiB: {}",
                      context_->rank, static_cast<const void*>(region.base), region.bytes >> 10, registered.message()));
  // Another thread may have ended it before the transports knew it.
  if (!RegionTable::instance().is_live(region.id)) end_region(region.id);
}

void PeerTable::end_region(uint32_t id) {
  for (Transport* transport : registering_) transport->end_region(id);
}

void PeerTable::watch_buffers(size_t most_bytes) {
  if (!registering_.empty()) watched_ = std::make_unique<WatchedBuffers>(registering_, context_->rank, most_bytes);
}

Transport& PeerTable::transport_of(uint32_t peer) const {
  return *opened_[static_cast<size_t>(std::countr_zero(used_[peer]))];
}

Status PeerTable::settle(const TransportMatrix& matrix, const std::map<uint32_t, Status>& reasons,
                         const std::string& allowed) {
  const uint32_t rank = context_->rank;
  transports_ = matrix.transports();
  all_mapped_ = matrix.all_mapped();
  all_fetch_ = matrix.all_fetch();
  host_mapped_ = matrix.host_mapped(rank);
  bool explained = false;
  for (uint32_t peer = 0; peer < infos_.size(); ++peer) {
    if (peer == rank) continue;
    works_[peer] = matrix.between(rank, peer);
    used_[peer] = preferred(works_[peer] & ~kRegionsBit);
    const bool same_host = infos_[peer].location.host == infos_[rank].location.host;
    const auto reason = reasons.find(peer);
    if (used_[peer] == 0)
      return unreachable(peer, reason != reasons.end() ? reason->second : Status(), matrix.is_late(peer, rank),
                         allowed);
    const TransportRow& row = row_of(used_[peer]);
    const bool best = row.scope == Scope::kProcess || (row.maps && (works_[peer] & kRegionsBit) != 0);
    if (!explained && same_host && !best && reason != reasons.end()) {
      explained = true;  // once: the other pairs say the same
      explain(peer, reason->second.message());
    }
  }
  for (size_t i = 0; i < opened_.size(); ++i)
    if (treering::transports()[i].registers && std::count(used_.begin(), used_.end(), TransportSet{1} << i) != 0)
      registering_.push_back(opened_[i].get());
  if (!registering_.empty()) RegionTable::instance().watch(this);
  return {};
}

// `is_late`: what the peer tried may work later.
Status PeerTable::unreachable(uint32_t peer, const Status& reason, bool is_late, const std::string& allowed) const {
  const bool same_host = infos_[peer].location.host == infos_[context_->rank].location.host;
  bool any = false;  // is allowed that may join two processes there
  std::string others;
  for (size_t i = 0; i < opened_.size(); ++i) {
    const TransportRow& row = treering::transports()[i];
    if (same_host ? row.scope == Scope::kProcess : row.scope != Scope::kAnywhere) continue;
    if (opened_[i] != nullptr)
      any = true;
    else if (!row.only_named)
      others += fmt::format("{}{}", others.empty() ? "" : " or ", row.name);
  }
  auto [code, why] = join_reasons(reason, is_late);
  if (!any && same_host) why = "they are two processes, and what is allowed joins threads of one process";
  if (!any && !same_host) why = "they are on different hosts, and what is allowed joins ranks of one host";
  return {any ? code : trInvalidUsage,
          fmt::format("rank {} and rank {} (pid {}) share no transport of those that TREERING_TRANSPORTS or "
                      "config->transports allows ('{}'): {}; {}leave it unset",
                      context_->rank, peer, infos_[peer].pid, allowed.empty() ? "all" : allowed, why,
                      others.empty() ? "" : fmt::format("allow {} too, or ", others))};
}

void PeerTable::explain(uint32_t peer, const std::string& reason) const {
  const TransportRow& row = row_of(used_[peer]);
  log_line(LogLevel::kInfo, fmt::format("rank {} reaches rank {} by {}{}: {}", context_->rank, peer, row.name,
                                        row.maps ? " without registered buffers" : "", reason));
}

void PeerTable::connect(uint32_t peer) {
  const bool fetches = (works_[peer] & transports_with(&TransportRow::fetches)) != 0;
  auto made = transport_of(peer).connect(peer, {(works_[peer] & kRegionsBit) != 0, fetches});
  if (paced_) made = treering::pace(std::move(made), paced_);
  for (uint32_t channel = 0; channel < channels_; ++channel) {
    context_->add_connection(channel, peer, made.channels[channel].get());
    connections_.push_back(std::move(made.channels[channel]));
  }
  if (made.queue == nullptr) return;
  context_->add_queue(peer, made.queue.get());
  queues_.push_back(std::move(made.queue));
}

const RankStatus* PeerTable::mapped_status(uint32_t peer) const {
  return used_[peer] == 0 ? nullptr : reinterpret_cast<const RankStatus*>(transport_of(peer).mapped_head(peer));
}

bool PeerTable::read_status(uint32_t peer, RankStatusSnapshot* snapshot) const {
  if (!row_of(used_[peer]).reads_heads) return ask_(peer, snapshot);
  if (const RankStatus* status = mapped_status(peer); status != nullptr) {
    *snapshot = snapshot_of(*status);
    return true;
  }
  RankStatus copy;
  if (!transport_of(peer).copy_head(peer, static_cast<void*>(&copy), sizeof copy)) return false;
  *snapshot = snapshot_of(copy);
  return true;
}

void PeerTable::abandon() {
  for (const auto& transport : opened_)
    if (transport) transport->abandon();
}

bool PeerTable::is_abandoned() {
  return std::all_of(opened_.begin(), opened_.end(),
                     [](const auto& transport) { return !transport || transport->is_abandoned(); });
}

void PeerTable::finish() {
  for (const auto& transport : opened_)
    if (transport) transport->finish();
}

void PeerTable::end_introductions() {
  for (const auto& transport : opened_)
    if (transport) transport->end_introductions();
}

const char* PeerTable::transport_name(uint32_t peer) const { return row_of(used_[peer]).name; }

std::string PeerTable::summary() const {
  std::map<std::string, size_t> counts;
  for (const TransportSet used : used_)
    if (used != 0) ++counts[row_of(used).name];
  std::string text;
  for (const auto& [name, count] : counts) text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, name);
  return text.empty() ? "no peers" : text;
}

bool PeerTable::any_in_process() const {
  return std::any_of(used_.begin(), used_.end(),
                     [](TransportSet used) { return used != 0 && row_of(used).scope == Scope::kProcess; });
}

}  // namespace treering
