// SPDX-License-Identifier: Apache-2.0
#include "peers/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "core/log.h"
#include "transport/cma/cma.h"
#include "transport/memory/mapped.h"

namespace treering {
namespace {

constexpr uint8_t kAllTransports = kInProcessBit | kSharedMemoryBit | kCmaBit | kTcpBit;
constexpr const char* kAdvice =
    "give a list of in-process, shared-memory, cma, tcp, or with one ^ in front those to leave out (for example ^cma or "
    "^cma,tcp); shm is short for shared-memory";

bool read_status_by_cma(const RankCard& card, RankStatusSnapshot* snapshot) {
  RankStatus copy;
  if (!cma_read(static_cast<int>(card.pid), card.head_address, static_cast<void*>(&copy), sizeof copy).ok())
    return false;
  *snapshot = snapshot_of(copy);
  return true;
}

}  // namespace

Status parse_transports(const std::string& text, uint8_t* allowed) {
  *allowed = kAllTransports;
  if (text.empty()) return {};
  bool exclude = text[0] == '^';
  uint8_t named = 0;
  std::istringstream words(exclude ? text.substr(1) : text);
  for (std::string word; std::getline(words, word, ',');) {
    auto found = std::find_if(std::begin(kTransportNames), std::end(kTransportNames),
                              [&](const TransportName& row) { return word == row.name || word == row.short_name; });
    if (found == std::end(kTransportNames))
      return {trInvalidArgument, fmt::format("TREERING_TRANSPORTS or config->transports is '{}': '{}' is unknown; {}",
                                             text, word, kAdvice)};
    named |= found->bit;
  }
  *allowed = exclude ? kAllTransports & ~named : named;
  if (named == 0 || *allowed == 0)
    return {trInvalidArgument, fmt::format("TREERING_TRANSPORTS or config->transports is '{}': {}; {}", text,
                                           named == 0 ? "a name is missing" : "nothing is left to use", kAdvice)};
  return {};
}

Links::Links(ExecutorContext* context, const std::vector<RankCard>& cards, const AreaLayout& layout,
             const Segment* segment, AreaView own, TcpLinkMaker* tcp)
    : context_(context),
      cards_(cards),
      layout_(layout),
      segment_(segment),
      own_(own),
      tcp_(tcp),
      kind_(cards.size(), Kind::kSelf),
      bits_(cards.size(), 0) {
  context_->connections.resize(size_t{layout.channels} * cards.size());
  context_->peer_statuses.assign(cards.size(), nullptr);
  context_->maker = this;
}

const char* Links::name_of(Kind kind) {
  switch (kind) {
    case Kind::kSelf:
      return "none";
    case Kind::kInProcess:
      return "in-process";
    case Kind::kSharedMemory:
      return "shared-memory";
    case Kind::kCma:
      return "cma";
    case Kind::kTcp:
      return "tcp";
  }
  return "?";
}

Status Links::settle(const Findings& findings, const std::map<uint32_t, std::string>& reasons) {
  const uint32_t rank = context_->rank;
  transports_ = findings.transports();
  all_mapped_ = findings.all_mapped();
  all_fetch_ = findings.all_fetch();
  host_mapped_ = findings.host_mapped(rank);
  bool explained = false;
  for (uint32_t peer = 0; peer < cards_.size(); ++peer) {
    if (peer == rank) continue;
    const uint8_t bits = bits_[peer] = findings.between(rank, peer);
    const bool same_host = cards_[peer].location.host == cards_[rank].location.host;
    const auto reason = reasons.find(peer);
    const std::string why = reason != reasons.end() ? reason->second
                            : same_host             ? "the other rank's side could not"
                                                    : "they are on different hosts, and tcp is excluded";
    if ((bits & kAllTransports) == 0)
      return {
          trSystemError,
          fmt::format("rank {} and rank {} (pid {}) share no transport of those that TREERING_TRANSPORTS allows: {}",
                      rank, peer, cards_[peer].pid, why)};
    const uint8_t used = transport_of(bits);
    kind_[peer] = used == kInProcessBit      ? Kind::kInProcess
                  : used == kSharedMemoryBit ? Kind::kSharedMemory
                  : used == kCmaBit          ? Kind::kCma
                                             : Kind::kTcp;
    context_->peer_statuses[peer] = mapped_status(peer);
    const bool best = (bits & kInProcessBit) != 0 || (bits & (kSharedMemoryBit | kRegionsBit)) > kRegionsBit;
    if (!explained && same_host && !best && reason != reasons.end()) {
      explained = true;  // once: the other pairs say the same
      explain_once(peer, why);
    }
  }
  return {};
}

void Links::explain_once(uint32_t peer, const std::string& reason) const {
  log_line(LogLevel::kInfo, fmt::format("rank {} reaches rank {} by {}: {}", context_->rank, peer,
                                        kind_[peer] == Kind::kSharedMemory ? "shared memory without registered buffers"
                                                                           : name_of(kind_[peer]),
                                        reason));
}

void Links::add(uint32_t channel, uint32_t peer, std::unique_ptr<Connection> connection) {
  if (paced_) connection = pace_connection(std::move(connection), paced_);
  context_->add_connection(channel, peer, connection.get());
  connections_.push_back(std::move(connection));
}

std::unique_ptr<Connection> Links::connect_mapped(uint32_t channel, uint32_t peer) {
  const AreaView theirs = layout_.view(segment_->base(), peer);
  const auto pid = static_cast<int>(cards_[peer].pid);
  if (kind_[peer] == Kind::kSharedMemory && (bits_[peer] & kRegionsBit) != 0 && regions_.count(peer) == 0)
    regions_[peer] = std::make_unique<PeerRegions>(theirs.exports(), pid);
  const auto regions = regions_.find(peer);
  const MappedEndpoint endpoint{theirs.fifo(context_->rank, channel), own_.fifo(peer, channel), theirs.staging(),
                                regions == regions_.end() ? nullptr : regions->second.get(),
                                (bits_[peer] & kCmaBit) != 0 ? pid : 0};
  return kind_[peer] == Kind::kInProcess ? connect_in_process(endpoint) : connect_shared_memory(endpoint);
}

void Links::connect(uint32_t peer) {
  const RankCard& card = cards_[peer];
  std::shared_ptr<TcpLink> tcp;
  if (kind_[peer] == Kind::kTcp) tcp = tcp_->make_tcp_link(peer, fmt::format("rank {} (pid {})", peer, card.pid));
  for (uint32_t channel = 0; channel < layout_.channels; ++channel) {
    if (tcp) {
      add(channel, peer, tcp->connection(channel));
    } else if (kind_[peer] == Kind::kCma) {
      add(channel, peer,
          connect_cma({static_cast<int>(card.pid), card.body_address + layout_.fifo_offset_of(context_->rank, channel),
                       card.body_address + layout_.staging_offset},
                      own_.fifo(peer, channel)));
    } else {
      add(channel, peer, connect_mapped(channel, peer));
    }
  }
}

const RankStatus* Links::mapped_status(uint32_t peer) const {
  const bool mapped = kind_[peer] == Kind::kInProcess || kind_[peer] == Kind::kSharedMemory;
  return mapped ? layout_.view(segment_->base(), peer).status() : nullptr;
}

bool Links::read_status(uint32_t peer, RankStatusSnapshot* snapshot) const {
  if (kind_[peer] == Kind::kTcp) return tcp_->read_tcp_status(peer, snapshot);
  if (kind_[peer] == Kind::kCma) return read_status_by_cma(cards_[peer], snapshot);
  *snapshot = snapshot_of(*mapped_status(peer));
  return true;
}

std::string Links::summary() const {
  std::map<std::string, size_t> counts;
  for (const Kind kind : kind_)
    if (kind != Kind::kSelf) ++counts[name_of(kind)];
  std::string text;
  for (const auto& [name, count] : counts) text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, name);
  return text.empty() ? "no peers" : text;
}

bool Links::any_in_process() const {
  return std::any_of(kind_.begin(), kind_.end(), [](Kind kind) { return kind == Kind::kInProcess; });
}

}  // namespace treering
