// SPDX-License-Identifier: Apache-2.0
// Two ranks' worth of transport memory and the table of transports, for the conformance suite. A new
// transport adds a row to conformance_rows() and passes.
//
//   side 0: exports, FIFOs, staging  <--- connection of side 1 looks here
//   side 1: exports, FIFOs, staging  <--- connection of side 0 looks here
//
// Both sides may live in one process, or fork() gives one of them to a child: mapped memory is shared with
// it, memory of a transport that maps nothing becomes a private copy at the same address.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/same_bytes.h"
#include "support/seed.h"
#include "support/waiting.h"
#include "transport/cma/cma.h"
#include "transport/linked.h"
#include "transport/memory/mapped.h"
#include "transport/tcp/pair.h"
#include "transport/unix/unix_transport.h"
#ifdef TREERING_HAVE_VERBS
#include "transport/verbs/pair.h"
#endif
#ifdef TREERING_HAVE_UCX
#include "transport/ucx/pair.h"
#endif

namespace treering {

inline constexpr uint32_t kChannels = 2;
inline constexpr size_t kSlotBytes = 4096;

struct Side {
  OpenBuffers buffers;
  RegionExport exports[kMaxExports];
  Fifo fifos[kChannels];
  std::byte staging[kChannels * kFifoDepth * kSlotBytes];
};

struct ConformanceRow;

class TwoSides {
 public:
  explicit TwoSides(const ConformanceRow& row);
  ~TwoSides() {
#ifdef TREERING_HAVE_VERBS
    verbs_.reset();  // before the memory that is registered with its devices
#endif
#ifdef TREERING_HAVE_UCX
    ucx_.reset();
#endif
    munmap(sides_, 2 * sizeof(Side));
    for (auto& pair : unix_sockets_)
      for (const int fd : pair)
        if (fd >= 0) close(fd);
  }
  TwoSides(const TwoSides&) = delete;
  TwoSides& operator=(const TwoSides&) = delete;

  Side& side(int index) { return sides_[index]; }
  int pid(int index) const { return pids_[index]; }
  void set_pid(int index, int pid) { pids_[index] = pid; }
  // The connection of side `own` to the other one.
  Linked connect(int own, uint32_t channel);
  TcpPair* tcp() { return tcp_.get(); }
#ifdef TREERING_HAVE_VERBS
  void use_verbs(int rails) {
    verbs_ = std::make_unique<verbs::VerbsPair>(kChannels, kFifoDepth * kSlotBytes, kFifoDepth, rails, rails);
    verbs_->set_least_divided(kSlotBytes / 2);
  }
  verbs::VerbsPair* verbs() { return verbs_.get(); }
#endif
#ifdef TREERING_HAVE_UCX
  void use_ucx() { ucx_ = std::make_unique<ucx::UcxPair>(kChannels, size_t{1} << 20); }
  ucx::UcxPair* ucx() { return ucx_.get(); }
#endif
  void use_tcp(uint32_t streams) { tcp_ = std::make_unique<TcpPair>(streams); }
  // Both ends of a pair of Unix sockets for each channel: [channel][side].
  int (*unix_sockets())[2] { return unix_sockets_; }
  // Registered memory of `own`, mapped by the other side where the transport does that.
  PeerRegions& regions_of_peer(int own) {
    if (!regions_[own]) regions_[own] = std::make_unique<PeerRegions>(sides_[1 - own].exports, pids_[1 - own]);
    return *regions_[own];
  }

 private:
  const ConformanceRow& row_;
  Side* sides_;
  int pids_[2] = {getpid(), getpid()};
  std::unique_ptr<PeerRegions> regions_[2];
  std::unique_ptr<TcpPair> tcp_;
#ifdef TREERING_HAVE_VERBS
  std::unique_ptr<verbs::VerbsPair> verbs_;
#endif
#ifdef TREERING_HAVE_UCX
  std::unique_ptr<ucx::UcxPair> ucx_;
#endif
  int unix_sockets_[kChannels][2] = {{-1, -1}, {-1, -1}};
};

struct ConformanceRow {
  const char* name;
  bool mapped;                                               // the FIFOs' memory is shared
  bool between_processes;                                    // else between threads of one process
  enum class Plain { kNever, kWhereItPays, kAlways } plain;  // messages refer to memory that is not registered
  bool maps_regions;                                         // by region id, in another process
  bool copies;                                               // payloads: they are released when it has taken them
  // Makes what both sides need before they part.
  void (*prepare)(TwoSides* sides);
  Linked (*connect)(TwoSides* sides, int own, uint32_t channel);
  // A payload may have arrived before the sender is told that its memory is free.
  bool tells_late = false;
  // Messages refer to regions that the sender's transport was given; nullptr: that makes no difference.
  void (*register_region)(TwoSides* sides, int own, const Region& region) = nullptr;
};

inline Linked connect_tcp(TwoSides* sides, int own, uint32_t channel) {
  TcpOptions options;
  options.channels = kChannels;
  options.peer_name = "process " + std::to_string(sides->pid(1 - own));
  options.staging = sides->side(own).staging;
  // A child has copies of the parent's sockets, which would keep them open.
  const bool alone = sides->pid(0) != sides->pid(1);
  return linked(sides->tcp()->link(own, options, alone), channel);
}

inline void make_unix_sockets(TwoSides* sides) {
  for (uint32_t channel = 0; channel < kChannels; ++channel)
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sides->unix_sockets()[channel]) != 0)
      throw std::runtime_error("socketpair failed");
}

inline Linked connect_unix(TwoSides* sides, int own, uint32_t channel) {
  int* const pair = sides->unix_sockets()[channel];
  // A child has a copy of the other side's socket, which would keep it open.
  if (sides->pid(0) != sides->pid(1)) close(std::exchange(pair[1 - own], -1));
  auto connection = std::make_unique<testing::UnixConnection>(std::exchange(pair[own], -1), sides->side(own).staging,
                                                              "process " + std::to_string(sides->pid(1 - own)));
  auto queue = std::make_shared<testing::UnixQueue>(connection.get());
  return {std::move(connection), std::move(queue)};
}

#ifdef TREERING_HAVE_VERBS
inline Linked connect_verbs(TwoSides* sides, int own, uint32_t channel) {
  std::byte* const staging = sides->side(own).staging;
  const auto link = sides->verbs()->link(own, staging, sizeof sides->side(own).staging);
  return {link->connection(channel), link};
}
inline void register_with_device(TwoSides* sides, int own, const Region& region) {
  if (const Status added = sides->verbs()->regions(own).add(region, SIZE_MAX); !added.ok())
    throw std::runtime_error(added.message());
}
#endif

#ifdef TREERING_HAVE_UCX
inline Linked connect_ucx(TwoSides* sides, int own, uint32_t channel) {
  for (const int side : {0, 1}) {
    sides->ucx()->set_staging(side, sides->side(side).staging);
    sides->ucx()->set_name(side, "process " + std::to_string(sides->pid(side)));
  }
  PeerConnections made = sides->ucx()->connect(own, sides->pid(0) != sides->pid(1));
  return {std::move(made.channels[channel]), made.queue};
}
#endif

inline MappedEndpoint mapped_endpoint(TwoSides* sides, int own, uint32_t channel, PeerRegions* regions) {
  Side &mine = sides->side(own), &peer = sides->side(1 - own);
  return {&peer.fifos[channel], &mine.fifos[channel], peer.staging, &peer.buffers, regions};
}

inline const std::vector<ConformanceRow>& conformance_rows() {
  using Plain = ConformanceRow::Plain;
  static const std::vector<ConformanceRow> rows = {
      {"in-process", true, false, Plain::kAlways, false, false, nullptr,
       [](TwoSides* sides, int own, uint32_t channel) {
         return Linked(connect_in_process(mapped_endpoint(sides, own, channel, nullptr)));
       }},
      {"shared-memory", true, true, Plain::kNever, true, false, nullptr,
       [](TwoSides* sides, int own, uint32_t channel) {
         return Linked(connect_shared_memory(mapped_endpoint(sides, own, channel, &sides->regions_of_peer(own))));
       }},
      {"shared-memory-and-kernel", true, true, Plain::kWhereItPays, true, false, nullptr,
       [](TwoSides* sides, int own, uint32_t channel) {
         MappedEndpoint endpoint = mapped_endpoint(sides, own, channel, &sides->regions_of_peer(own));
         endpoint.fetch_pid = sides->pid(1 - own);
         return Linked(connect_shared_memory(endpoint));
       }},
      {"cma", false, true, Plain::kAlways, false, false, nullptr,
       [](TwoSides* sides, int own, uint32_t channel) {
         Side& peer = sides->side(1 - own);
         CmaAddress address{sides->pid(1 - own), reinterpret_cast<uint64_t>(&peer.fifos[channel]),
                            reinterpret_cast<uint64_t>(peer.staging)};
         return Linked(connect_cma(address, &sides->side(own).fifos[channel]));
       }},
      {"tcp", false, true, Plain::kAlways, false, true, [](TwoSides* sides) { sides->use_tcp(1); }, connect_tcp},
      {"tcp-4-streams", false, true, Plain::kAlways, false, true, [](TwoSides* sides) { sides->use_tcp(4); },
       connect_tcp},
#ifdef TREERING_HAVE_VERBS
      {"verbs", false, false, Plain::kNever, false, true, [](TwoSides* sides) { sides->use_verbs(1); }, connect_verbs,
       true, register_with_device},
      {"verbs-2-rails", false, false, Plain::kNever, false, true, [](TwoSides* sides) { sides->use_verbs(2); },
       connect_verbs, true, register_with_device},
#endif
#ifdef TREERING_HAVE_UCX
      {"ucx", false, true, Plain::kAlways, false, true, [](TwoSides* sides) { sides->use_ucx(); }, connect_ucx, true},
#endif
      {"unix", false, true, Plain::kAlways, false, true, make_unix_sockets, connect_unix},
  };
  return rows;
}

inline TwoSides::TwoSides(const ConformanceRow& row) : row_(row) {
  int sharing = row.mapped ? MAP_SHARED : MAP_PRIVATE;
  void* base = mmap(nullptr, 2 * sizeof(Side), PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw std::runtime_error("mmap failed");
  sides_ = static_cast<Side*>(base);
  if (row.prepare != nullptr) row.prepare(this);
}

using testing::eventually;

inline Linked TwoSides::connect(int own, uint32_t channel) { return row_.connect(this, own, channel); }

inline std::string row_name(const ::testing::TestParamInfo<ConformanceRow>& info) {
  std::string name = info.param.name;
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

inline Message inline_message(uint32_t signature, const void* data, uint32_t bytes) {
  Message message;
  message.signature = signature;
  message.bytes = bytes;
  message.data = data;
  return message;
}

// The payload of the message at the head, however it is reached; in two parts where it is fetched.
inline std::vector<std::byte> payload_of(Connection* connection, const Message& message) {
  std::vector<std::byte> bytes(message.bytes);
  if (message.bytes == 0) return bytes;
  if (message.data != nullptr) {
    std::memcpy(bytes.data(), message.data, bytes.size());
    return bytes;
  }
  size_t half = bytes.size() / 2;
  for (auto [offset, length] : {std::pair{size_t{0}, half}, std::pair{half, bytes.size() - half}})
    if (Status status = connection->fetch(message, offset, bytes.data() + offset, length); !status.ok())
      throw std::runtime_error(status.message());
  return bytes;
}

inline std::vector<std::byte> pattern(uint64_t seed, size_t bytes) {
  std::vector<std::byte> data(bytes);
  SplitMix64 random(seed);
  size_t at = 0;
  for (uint64_t word; at + sizeof word <= bytes; at += sizeof word) {
    word = random();
    std::memcpy(data.data() + at, &word, sizeof word);
  }
  for (uint64_t rest = random(); at < bytes; ++at, rest >>= 8) data[at] = static_cast<std::byte>(rest);
  return data;
}

}  // namespace treering
