// SPDX-License-Identifier: Apache-2.0
// RegisteredRegions: the regions of this process (transport/region.h) that its rank's devices read payloads from, and
// that peers write results into.
//
//   call whose buffers lie in a region -> add() -> ibv_reg_mr, at the first time
//   message that refers to it          -> find() -> address and key
//   pages move or are given back       -> end() -> ibv_dereg_mr, before that
//
// Invariant: a region is asked for by its id, which is never used twice. So memory that was freed and given out again is
// never taken for what was registered.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "transport/region.h"
#include "transport/verbs/devices/device.h"

namespace treering::verbs {

class RegisteredRegions {
 public:
  struct Place {
    const std::byte* base = nullptr;
    size_t bytes = 0;
    RailKeys keys{}, remote_keys{};
  };

  // The devices outlive it.
  explicit RegisteredRegions(const Devices& devices) : devices_(devices) {}

  // Whether it was added, be it in vain.
  bool knows(uint32_t id) const;
  // Registers a region that is not known, where so many bytes may be locked. One that could not be is known from then on,
  // and not tried again.
  Status add(const Region& region, size_t room);
  // Nothing: it is not registered, or has ended. Any thread.
  std::optional<Place> find(uint32_t id) const;
  // Once it returns, no device reaches the region any more. Any thread.
  void end(uint32_t id);

 private:
  struct Entry {
    Place place;
    RailMemory registered;  // none: it could not be
  };

  const Devices& devices_;
  mutable std::mutex mutex_;
  std::map<uint32_t, Entry> entries_;
};

}  // namespace treering::verbs
