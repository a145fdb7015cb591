// SPDX-License-Identifier: Apache-2.0
// WatchedBuffers: ordinary memory of the user that a rank's calls use again is registered with its devices, as regions
// are, and watched (page_watch.h): where its pages are unmapped, moved or dropped the registration is never used again.
//
//   call -> begin_call() -> find(buffer) -> ReusedBuffers: copy
//                                                          register -> PageWatch, Transport::register_region()
//                                                          refer    -> is it intact? then the region
//
// The registration of a buffer whose pages have changed ends at the next call. Used by one thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "peers/reused_buffers.h"
#include "transport/page_watch.h"
#include "transport/transport.h"

namespace treering {

class WatchedBuffers {
 public:
  // The transports, which register regions, outlive it.
  WatchedBuffers(std::vector<Transport*> transports, uint32_t rank, size_t most_bytes);
  ~WatchedBuffers();
  WatchedBuffers(const WatchedBuffers&) = delete;
  WatchedBuffers& operator=(const WatchedBuffers&) = delete;

  // A call that uses no buffer of before begins. Costs nothing worth mentioning where no pages have changed.
  void begin_call();
  // The region of a buffer of the call, or one with id 0: it is copied.
  Region find(const void* data, size_t bytes);

 private:
  struct Watched {
    Region region;
    uint32_t range = 0;  // of the watch
  };

  bool open();
  bool is_settled();
  const Watched& watched(uint32_t id) const;
  Status watch(Watched* added);
  Status add(Watched* added);
  Status make_room_and_add(ByteRange bytes, Watched* added);
  Region try_add(ByteRange bytes);
  void end(uint32_t id);
  void end_changed();

  const std::vector<Transport*> transports_;
  const uint32_t rank_;
  ReusedBuffers reused_;
  std::shared_ptr<PageWatch> watch_;  // from the first buffer that is to be registered on
  bool is_denied_ = false;
  uint64_t seen_changes_ = 0;
  enum class Settled : uint8_t { kNotAsked, kNo, kYes } settled_ = Settled::kNotAsked;  // when the call began
  std::vector<Watched> watched_;
};

}  // namespace treering
