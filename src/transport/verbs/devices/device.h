// SPDX-License-Identifier: Apache-2.0
// Device: a verbs device that this process has opened, with the port and the address (GID) that it uses of it. A rank
// has one for each of its rails.
//
// Which ports: of the devices that the options allow those that are active and nearest (rail_choice.h). Which GID: on
// InfiniBand the first; on Ethernet (RoCE) those of RoCE v2 before those of v1, and of these IPv4 addresses before IPv6
// addresses before link-local ones, which no router passes on.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/status.h"
#include "transport/verbs/devices/rail_choice.h"
#include "transport/verbs/sending.h"

namespace treering::verbs {

// "fe80::1", "10.0.0.1" (of an IPv4-mapped address)
std::string gid_text(const Gid& gid);

// Memory registered with a device. Ends with it.
class RegisteredMemory {
 public:
  RegisteredMemory() = default;
  explicit RegisteredMemory(ibv_mr* region) : region_(region) {}
  explicit operator bool() const { return region_ != nullptr; }
  uint32_t local_key() const { return region_->lkey; }
  uint32_t remote_key() const { return region_->rkey; }

 private:
  struct End {
    void operator()(ibv_mr* region) const { (void)ibv_dereg_mr(region); }
  };
  std::unique_ptr<ibv_mr, End> region_;
};

// Parts of a path that the options set.
struct PathOptions {
  uint8_t service_level = 0;
  uint8_t traffic_class = 0;
  uint8_t timeout = 14;  // of an acknowledgement: 4.096 us * 2^timeout
  uint8_t retries = 6;   // soft-RoCE takes the most, 7, for ever

  // The timeout after which a device gives up within an eighth of the deadline (0: there is none), and 7.5 s. A lost last
  // packet costs one timeout: it is not longer than a second. Nor is it shorter than 67 ms, which a busy peer may take.
  static uint8_t timeout_for(std::chrono::milliseconds deadline);
  // For so long a link may be away: it is tried a last time then.
  double survived_seconds() const { return retries * 4.096e-6 * static_cast<double>(uint64_t{1} << timeout); }
  // After which a card gives up. Devices may take longer.
  double retry_seconds() const { return (retries + 1) * 4.096e-6 * static_cast<double>(uint64_t{1} << timeout); }
};

// The way from a port to a peer's.
ibv_ah_attr path_to(const Rail& own, const Rail& peer, const PathOptions& options);

class Device {
 public:
  // Takes the context over.
  static Status open(ibv_context* context, const Rail& rail, std::unique_ptr<Device>* opened);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Rail& rail() const { return rail_; }
  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }
  // Readable when a completion queue of the device that was armed has something.
  ibv_comp_channel* events() const { return events_; }
  // "mlx5_0 port 1 (RoCE v2 GID 3: 10.0.0.1, 100 Gbit/s)"
  std::string name() const;

  // With IBV_ACCESS_*.
  Status register_memory(void* data, size_t bytes, int access, RegisteredMemory* registered) const;

 private:
  Device(ibv_context* context, const Rail& rail) : rail_(rail), context_(context) {}
  Status make_objects();

  const Rail rail_;
  ibv_context* const context_;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* events_ = nullptr;
};

// A rank's, in the order of its rails.
using Devices = std::vector<std::unique_ptr<Device>>;

// How far a PCI device ("0000:3b:00.0") is from the rank's cores; negative: that is not known.
using DistanceOf = std::function<int(const std::string& pci_bus_id)>;

// Opens what become the rank's rails. `rejected` tells why the other ports do not; an error lists them, too.
Status open_devices(const Config& config, const DistanceOf& distance_of, Devices* devices,
                    std::vector<std::string>* rejected);

// Memory that is registered with several of a rank's devices.
class RailMemory {
 public:
  // With those whose bits are in `rails`.
  Status make(const Devices& devices, RailSet rails, void* data, size_t bytes, int access);
  void end() { *this = {}; }
  explicit operator bool() const { return is_made_; }
  const RailKeys& local_keys() const { return local_keys_; }
  uint32_t remote_key(uint32_t rail) const { return registered_[rail].remote_key(); }
  const RailKeys& remote_keys() const { return remote_keys_; }

 private:
  std::array<RegisteredMemory, kMaxRails> registered_;
  RailKeys local_keys_{}, remote_keys_{};
  bool is_made_ = false;
};

// The error of a call that has set errno.
Status call_failed(const char* call);

}  // namespace treering::verbs
