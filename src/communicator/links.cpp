#include "communicator/links.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <sstream>

#include "core/log.h"
#include "transport/cma.h"
#include "transport/mapped.h"
#include "transport/paced.h"

namespace treering {
namespace {

struct NamedBit {
  const char* name;
  TransportBit bit;
};
constexpr NamedBit kTransports[] = {
    {"in-process", kInProcessBit}, {"shared-memory", kSharedMemoryBit}, {"cma", kCmaBit}, {"tcp", kTcpBit}};
constexpr uint8_t kAllTransports = kInProcessBit | kSharedMemoryBit | kCmaBit | kTcpBit;

// Bits that work towards one peer; `reason` says why shared memory or CMA does not.
uint8_t probe_peer(const RankCard& own, const RankCard& peer, const AreaLayout& layout, const Segment* segment,
                   uint8_t allowed, std::string* reason) {
  uint8_t bits = allowed & kTcpBit;
  if (own.location.host != peer.location.host) {
    *reason += "they are on different hosts, and tcp is excluded; ";
    return bits;
  }
  bool same_process = own.process_token == peer.process_token;
  bool shares = segment != nullptr && peer.in_segment != 0 && own.in_segment != 0;
  if (shares) {
    AreaView view(segment->base() + layout.area_offset(peer.rank), &layout);
    shares = *static_cast<volatile uint64_t*>(view.nonce()) == peer.nonce;
    if (!shares) *reason += "shared memory: the peer's nonce is not in the mapped segment; ";
  } else {
    *reason += "shared memory: no segment (memfd_create or mmap failed, or it is excluded); ";
  }
  if (shares && same_process && (allowed & kInProcessBit) != 0) bits |= kInProcessBit;
  if (shares && (allowed & kSharedMemoryBit) != 0) {
    bits |= kSharedMemoryBit;
    int fd = own.pid_namespace == peer.pid_namespace
                 ? open_peer_descriptor(static_cast<int>(peer.pid), peer.segment_descriptor, peer.segment_inode)
                 : -1;
    if (fd >= 0) {
      bits |= kRegionsBit;
      close(fd);
    } else {
      *reason += "registered buffers: the peer's descriptors cannot be opened through /proc; ";
    }
  }
  if ((allowed & kCmaBit) != 0) {
    uint64_t nonce = 0;
    Status status =
        own.pid_namespace != peer.pid_namespace
            ? Status(trSystemError, "the ranks are in different pid namespaces")
            : cma_read(static_cast<int>(peer.pid), peer.area_address + layout.nonce_offset, &nonce, sizeof nonce);
    uint32_t nothing_yet = 0;  // what the counter holds anyway: the write itself is the proof
    uint64_t echo_address = peer.area_address + layout.fifo_offset_of(own.rank, 0) + offsetof(Fifo, acknowledged);
    if (status.ok()) status = cma_write(static_cast<int>(peer.pid), echo_address, &nothing_yet, sizeof nothing_yet);
    if (status.ok() && nonce == peer.nonce)
      bits |= kCmaBit;
    else
      *reason += "cma: " + (status.ok() ? std::string("the nonce differs") : status.message()) + "; ";
  }
  return bits;
}

}  // namespace

Status parse_transports(const std::string& text, uint8_t* allowed) {
  *allowed = kAllTransports;
  if (text.empty()) return {};
  bool exclude = text[0] == '^';
  uint8_t named = 0;
  std::istringstream words(exclude ? text.substr(1) : text);
  for (std::string word; std::getline(words, word, ',');) {
    auto found = std::find_if(std::begin(kTransports), std::end(kTransports),
                              [&](const NamedBit& row) { return word == row.name; });
    if (found == std::end(kTransports))
      return {trInvalidArgument,
              fmt::format("transports is '{}': '{}' is unknown; known are in-process, shared-memory, cma, tcp", text,
                          word)};
    named |= found->bit;
  }
  *allowed = exclude ? kAllTransports & ~named : named;
  if (*allowed == 0) return {trInvalidArgument, fmt::format("transports is '{}': nothing is left to use", text)};
  return {};
}

std::string Links::probe(const std::vector<RankCard>& cards, uint32_t rank, const AreaLayout& layout,
                         const Segment* segment, uint8_t allowed, std::vector<std::string>* reasons) {
  std::string found(cards.size(), '\0');
  reasons->assign(cards.size(), {});
  for (size_t peer = 0; peer < cards.size(); ++peer)
    if (peer != rank)
      found[peer] =
          static_cast<char>(probe_peer(cards[rank], cards[peer], layout, segment, allowed, &(*reasons)[peer]));
  return found;
}

Status Links::connect(const std::vector<RankCard>& cards, const std::vector<std::string>& found, uint32_t rank,
                      const AreaLayout& layout, const Segment* segment, std::byte* own_area,
                      const std::vector<std::string>& reasons, TcpLinkMaker* tcp) {
  auto ranks = static_cast<uint32_t>(cards.size());
  regions_.resize(ranks);
  connections_.resize(size_t{layout.channels} * ranks);
  for (uint32_t a = 0; a < ranks; ++a)
    for (uint32_t b = 0; b < ranks; ++b)
      if (a != b && (found[a][b] & found[b][a] & (kInProcessBit | kSharedMemoryBit)) == 0) {
        all_mapped_ = false;
        if (cards[a].location.host == cards[rank].location.host && cards[b].location.host == cards[rank].location.host)
          host_mapped_ = false;
      }
  const auto reads = [&](uint32_t a, uint32_t b) {
    return (found[a][b] & found[b][a] & (kInProcessBit | kCmaBit)) != 0;
  };
  for (uint32_t a = 0; a < ranks; ++a)
    for (uint32_t b = 0; b < a; ++b) all_fetch_ &= reads(a, b);
  bool warned = false;
  AreaView own(own_area, &layout);
  for (uint32_t peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    auto both = static_cast<uint8_t>(found[rank][peer] & found[peer][rank]);
    if ((both & kAllTransports) == 0)
      return {trSystemError, fmt::format("ranks {} and {} (pid {}) share no transport: {}", rank, peer, cards[peer].pid,
                                         reasons[peer])};
    bool mapped = (both & (kInProcessBit | kSharedMemoryBit)) != 0;
    const bool by_tcp = !mapped && (both & kCmaBit) == 0,
               same_host = cards[peer].location.host == cards[rank].location.host;
    if (!warned && same_host && (!mapped || (both & (kInProcessBit | kRegionsBit)) == 0) && !reasons[peer].empty()) {
      warned = true;  // once: the other pairs say the same
      log_line(LogLevel::kInfo, fmt::format("rank {} reaches rank {} by {}: {}", rank, peer,
                                            mapped   ? "shared memory without registered buffers"
                                            : by_tcp ? "tcp"
                                                     : "cma",
                                            reasons[peer]));
    }
    if (mapped && (both & kInProcessBit) == 0 && (both & kRegionsBit) != 0)
      regions_[peer] = std::make_unique<PeerRegions>(
          AreaView(segment->base() + layout.area_offset(peer), &layout).exports(), static_cast<int>(cards[peer].pid));
    const std::shared_ptr<TcpLink> tcp_link =
        by_tcp ? tcp->make_tcp_link(peer, fmt::format("rank {} (pid {})", peer, cards[peer].pid)) : nullptr;
    for (uint32_t channel = 0; channel < layout.channels; ++channel) {
      Fifo* incoming = own.fifo(peer, channel);
      auto& slot = connections_[size_t{channel} * ranks + peer];
      if (mapped) {
        AreaView view(segment->base() + layout.area_offset(peer), &layout);
        MappedEndpoint endpoint{
            view.fifo(rank, channel), incoming,
            view.staging(),           view.status(),
            regions_[peer].get(),     (both & kCmaBit) != 0 ? static_cast<int>(cards[peer].pid) : 0};
        slot = (both & kInProcessBit) != 0 ? connect_in_process(endpoint) : connect_shared_memory(endpoint);
      } else if (by_tcp) {
        slot = tcp_link->connection(channel);
      } else {
        uint64_t base = cards[peer].area_address;
        slot = connect_cma({static_cast<int>(cards[peer].pid), base + layout.fifo_offset_of(rank, channel),
                            base + layout.staging_offset, base},
                           incoming);
      }
    }
  }
  return {};
}

void Links::pace(int link_mbps) {
  auto link = std::make_shared<PacedLink>(link_mbps);
  for (auto& connection : connections_)
    if (connection) connection = pace_connection(std::move(connection), link);
}

std::string Links::summary() const {
  std::map<std::string, size_t> counts;
  for (size_t peer = 0; peer < regions_.size(); ++peer)
    if (connections_[peer]) ++counts[connections_[peer]->transport_name()];
  std::string text;
  for (const auto& [name, count] : counts) text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, name);
  return text.empty() ? "no peers" : text;
}

std::vector<Connection*> Links::connections() const {
  std::vector<Connection*> pointers;
  for (const auto& connection : connections_) pointers.push_back(connection.get());
  return pointers;
}

}  // namespace treering
