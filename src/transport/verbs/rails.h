// SPDX-License-Identifier: Apache-2.0
// Rails: the queue pairs of a link, one for each rail that this rank has proved towards the peer.
//
//   rail 0: queue pair === queue pair of the peer's rail 0      header and credits of channels 0, 2, ...
//   rail 1: queue pair === queue pair of the peer's rail 1      header and credits of channels 1, 3, ...
//   rail 2: queue pair     the peer has not proved it: not used
//
// A rail has the same number at both ends. Used by one thread at a time, but for connect() and stop(), which another
// thread may call meanwhile; what connect() sets is read once that thread has told that it is done.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/verbs/block.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/sending.h"

namespace treering::verbs {

struct LinkRail {
  uint32_t number = 0;
  const Device* device = nullptr;
  std::unique_ptr<QueuePair> pair;
  Ring<Written> written;   // payloads, or fragments of them, under way
  bool is_marked = false;  // at the end: a completion of everything was asked for
  bool has_failed = false;
  Rail peer;               // by connect()
  uint32_t peers_key = 0;  // of its block

  // "mlx5_0 port 1 (...) to mlx5_0 port 1 (GID 10.0.0.2)"
  std::string path_text(bool is_connected) const;
};

class Rails {
 public:
  Status open(const Devices& devices, RailSet rails, const QueueSizes& sizes, uint32_t inline_bytes);
  void close() { all_.clear(); }
  // The own ends, with the block's keys.
  std::vector<RailEnd> ends(const Block& block) const;
  // Those that the peer has, too, are used; at least one.
  Status connect(const std::vector<RailEnd>& peers, const PathOptions& path);
  void stop();
  void arm();

  std::span<LinkRail> all() { return all_; }

  // The rails that are used, by position:
  uint32_t used() const { return static_cast<uint32_t>(used_.size()); }
  LinkRail& at(uint32_t position) { return all_[used_[position]]; }
  uint32_t position_of(uint32_t channel) const { return used_.size() == 1 ? 0 : channel % used(); }
  LinkRail& of(uint32_t channel) { return at(position_of(channel)); }
  // How fast each is, as the slower end says.
  std::span<const uint32_t> rates() const { return rates_; }
  bool can_write(uint32_t requests) const {
    for (const uint32_t rail : used_)
      if (!all_[rail].pair->can_write(requests)) return false;
    return true;
  }
  // The paths that are used, or all of them where it is not connected.
  std::string path_text(bool is_connected) const;
  // Whether the devices have done all that was posted.
  bool is_done() const;

 private:
  std::vector<LinkRail> all_;
  std::vector<uint32_t> used_, rates_;
};

}  // namespace treering::verbs
