// DeviceLinks: the FIFOs between the GPUs of a communicator (executor/cuda/work.h), proved at init.
//
// Every rank has one block of device memory, its area, which the peers map: by pointer in the same process, else opened
// from a handle. A rank's area holds what arrives at it, and what peers tell it of its own sends:
//
//   | nonces | flags | consumed | LL lines | LL128 lines | slots |        each [channel][peer][slot of the FIFO]
//
// Kernels that wait for one another must run at the same time: where two processes share a GPU, which then runs them in
// turn, and wherever a proof fails, there are no links, and operations are staged (device_rank.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "communicator/device_probe.h"
#include "executor/device.h"

namespace treering {

class Communicator;

class DeviceLinks {
 public:
  // Collective over the communicator: every rank calls it, with nullptr where it has no device. `stream` is the library's own. Afterwards either all
  // ranks have links or none: `why_not` says why.
  static Status create(Communicator* communicator, Device* device, DeviceStream stream,
                       std::unique_ptr<DeviceLinks>* made, std::string* why_not);
  ~DeviceLinks();
  DeviceLinks(const DeviceLinks&) = delete;
  DeviceLinks& operator=(const DeviceLinks&) = delete;

  static constexpr uint32_t kDepth = 4;
  static constexpr size_t kSlotBytes = 128 << 10;

  // Peers tell of what they consumed when this rank has ended already, so its area stays until all of them have left
  // the communicator. Frees the areas for which that has come.
  static void free_retired();

  uint32_t channels() const { return channels_; }
  // Whether lines arrive whole between all ranks (Device::keeps_lines).
  bool keep_lines() const { return keep_lines_; }
  // The slowest link between any two ranks, and the slowest path between a GPU and the host; the same on all ranks.
  const cuda::LinkFigures& link() const { return link_; }
  double host_gbps() const { return host_gbps_; }
  // [channel * ranks + peer], in device memory.
  cuda::Link* table() const { return table_; }

 private:
  DeviceLinks(Device* device, DeviceStream stream, uint32_t rank, uint32_t ranks, uint32_t channels);
  struct Card;
  size_t entry(uint32_t channel, uint32_t peer) const { return size_t{channel} * ranks_ + peer; }
  std::byte* flags(std::byte* area, uint32_t channel, uint32_t peer) const;
  std::byte* consumed(std::byte* area, uint32_t channel, uint32_t peer) const;
  std::byte* ll(std::byte* area, uint32_t channel, uint32_t peer) const;
  std::byte* ll128(std::byte* area, uint32_t channel, uint32_t peer) const;
  std::byte* slots(std::byte* area, uint32_t channel, uint32_t peer) const;
  size_t area_bytes() const;
  // How an area is shared between processes: by the driver's own handles, or, where those do not work, by descriptors.
  enum class Memory { kPlain, kByDescriptor };
  struct Outcome;
  // Collective; `why_not` stays empty where it worked for all ranks.
  Status attempt(Communicator* communicator, Memory memory, Card own, std::string* why_not);
  Status share(Memory memory, Card* own);
  Status map(const Card& card, uint32_t peer, uint64_t own_process);
  Status prove(const std::vector<Card>& cards);
  Status measure(DeviceProbe* probe, uint32_t peer, cuda::LinkFigures* figures);
  Status fill_table();

  Device* device_;
  DeviceStream stream_;  // for copies of its own
  uint32_t rank_, ranks_, channels_;
  bool alone_ = false;  // all ranks are of this process: nothing is exported
  bool keep_lines_ = true;
  cuda::LinkFigures link_;
  double host_gbps_ = 0;
  std::byte* area_ = nullptr;
  std::function<bool()> peers_left_;
  std::vector<std::byte*> areas_;  // of all ranks, as this device sees them
  std::vector<bool> imported_;
  cuda::Link* table_ = nullptr;
};

}  // namespace treering
