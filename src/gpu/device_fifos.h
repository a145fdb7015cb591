// SPDX-License-Identifier: Apache-2.0
// DeviceFifos: the FIFOs between the GPUs of a communicator (device/work.h), over links that were proved at init.
//
// Every rank has a block of device memory, its area (device_areas.h, fifo_layout.h). It holds what arrives at the rank,
// and what peers tell it of its own sends. The first channels are in the area that the proofs write to; where the links
// that those measured need more, these are in another.
//
// Kernels that wait for one another must run at the same time: where two processes share a GPU, which then runs them in
// turn, and wherever a proof fails, there are no links, and operations are staged (device_rank.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/device_proof.h"
#include "gpu/memory/fifo_layout.h"
#include "gpu/memory/occupancy_budget.h"

namespace treering {

class Communicator;

class DeviceFifos {
 public:
  // Collective over the communicator: every rank calls it, with nullptr where it has no device. Afterwards either all
  // ranks have links or none: `why_not` says why.
  static Status create(Communicator* communicator, Device* device, std::unique_ptr<DeviceFifos>* made,
                       std::string* why_not);
  ~DeviceFifos();
  DeviceFifos(const DeviceFifos&) = delete;
  DeviceFifos& operator=(const DeviceFifos&) = delete;

  static constexpr uint32_t kDepth = FifoLayout::kDepth;
  static constexpr size_t kSlotBytes = FifoLayout::kSlotBytes;

  uint32_t channels() const { return channels_; }
  bool keep_lines() const { return findings_.keep_lines; }
  const cuda::LinkFigures& link() const { return findings_.link; }
  double host_gbps() const { return findings_.host_gbps; }
  // [channel * ranks + peer], in device memory.
  cuda::PeerFifos* table() const { return table_; }

 private:
  struct Info;
  DeviceFifos(Communicator* communicator, Device* device, const std::vector<Info>& infos, DeviceAreas::Memory memory);
  // Collective; `why_not` stays empty where it worked for all ranks.
  Status attempt(std::string* why_not);
  Status connect(DeviceCopies* copies, Status* own, std::string* why_not);
  Status map(DeviceAreas* areas, DeviceCopies* copies);
  cuda::PeerFifos to(uint32_t channel, uint32_t peer) const;
  Status fill_table(DeviceCopies* copies);

  Communicator* communicator_;
  Device* device_;
  uint32_t rank_, ranks_;
  uint32_t sharing_ = 0, first_sharing_ = 0;  // ranks on this one's GPU, and the first of them
  uint32_t wanted_channels_ = 0;              // 0: as many as the links need
  uint32_t most_channels_ = cuda::kMaxDeviceChannels;
  uint32_t first_channels_ = 0, channels_ = 0;
  bool alone_ = false;  // all ranks are of this process
  LinkFindings findings_;
  DeviceAreas areas_, more_areas_;              // of the first channels, and of the others
  std::unique_ptr<OccupancyBudget> occupancy_;  // of the first rank on each GPU
  cuda::PeerFifos* table_ = nullptr;
};

}  // namespace treering
