// SPDX-License-Identifier: Apache-2.0
// Device: a verbs device that this process has opened, with the port and the address (GID) that it uses of it.
//
// Which port: of the devices that the options allow, the first that is active. Which GID: on InfiniBand the first; on
// Ethernet (RoCE) those of RoCE v2 before those of v1, and of these IPv4 addresses before IPv6 addresses before
// link-local ones, which no router passes on. candidates() has all that were looked at, and why each was rejected.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/status.h"
#include "transport/verbs/wire.h"

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
};

// The way from a port to a peer's.
ibv_ah_attr path_to(const Rail& own, const Rail& peer, const PathOptions& options);

class Device {
 public:
  // The first device that can be used; an error lists what there is and why it cannot.
  static Status open(const Config& config, std::unique_ptr<Device>* opened);
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
  const std::vector<std::string>& candidates() const { return candidates_; }

  // With IBV_ACCESS_*.
  Status register_memory(void* data, size_t bytes, int access, RegisteredMemory* registered) const;

 private:
  Device() = default;
  Status make_objects();

  Rail rail_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* events_ = nullptr;
  std::vector<std::string> candidates_;
};

}  // namespace treering::verbs
