// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/devices/device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "transport/verbs/devices/device_choice.h"
#include "transport/verbs/devices/inherited_contexts.h"
#include "transport/verbs/locked_memory.h"

namespace treering::verbs {
namespace {

constexpr uint8_t kHops = 64;

bool is_mapped_ipv4(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](unsigned char byte) { return byte == 0; }) && gid[10] == 0xff &&
         gid[11] == 0xff;
}
bool is_link_local(const Gid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }
bool is_empty(const Gid& gid) {
  return std::all_of(gid.begin(), gid.end(), [](unsigned char byte) { return byte == 0; });
}

const char* type_name(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_IB:
      return "InfiniBand";
    case IBV_GID_TYPE_ROCE_V1:
      return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2:
      return "RoCE v2";
    default:
      return "unknown";
  }
}

// The lower the better.
int rank_of(uint32_t type, const Gid& gid) {
  int kind = 1;
  if (is_mapped_ipv4(gid))
    kind = 0;
  else if (is_link_local(gid))
    kind = 2;
  return type == IBV_GID_TYPE_ROCE_V2 ? kind : 3 + kind;
}

uint32_t lanes_of(uint8_t active_width) {
  switch (active_width) {
    case 1:
      return 1;
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    default:
      return 2;
  }
}

uint32_t lane_mbps(uint8_t active_speed) {
  switch (active_speed) {
    case 1:
      return 2'500;
    case 2:
      return 5'000;
    case 16:
      return 14'000;
    case 32:
      return 25'000;
    case 64:
      return 50'000;
    default:
      return active_speed <= 8 ? 10'000 : 100'000;
  }
}

uint32_t speed_mbps(const ibv_port_attr& port) { return lanes_of(port.active_width) * lane_mbps(port.active_speed); }

struct OpenedContext {
  ibv_context* context;
  explicit OpenedContext(ibv_device* device) : context(open_context(device)) {}
  ~OpenedContext() {
    if (context != nullptr) close_context(context);
  }
  ibv_context* take() { return std::exchange(context, nullptr); }
};

// The GID of a port; false with the reason.
bool choose_gid(ibv_context* context, const ibv_port_attr& port, int wanted, Rail* rail, std::string* why) {
  int best = -1, best_rank = 0;
  std::string seen;
  for (int index = 0; index < port.gid_tbl_len; ++index) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context, rail->port, static_cast<uint32_t>(index), &entry, 0) != 0) continue;
    Gid gid;
    std::memcpy(gid.data(), entry.gid.raw, gid.size());
    if (is_empty(gid)) continue;
    seen += fmt::format("{}{} {} ({})", seen.empty() ? "" : ", ", index, gid_text(gid), type_name(entry.gid_type));
    const int rank = rail->link_layer == IBV_LINK_LAYER_ETHERNET ? rank_of(entry.gid_type, gid) : index;
    if (wanted >= 0 ? index != wanted : best >= 0 && best_rank <= rank) continue;
    best = index, best_rank = rank;
    rail->gid = gid;
    rail->gid_index = static_cast<uint32_t>(index);
  }
  if (best >= 0) return true;
  *why = wanted < 0 ? "it has no GID"
                    : fmt::format("TREERING_VERBS_GID is {}; its GIDs are: {}", wanted, seen.empty() ? "none" : seen);
  return false;
}

// "0000:3b:00.0" of a device on the PCI bus; else "".
std::string pci_bus_id(const ibv_device* device) {
  std::error_code failed;
  return std::filesystem::read_symlink(std::string(device->ibdev_path) + "/device", failed).filename().string();
}

// The ports of all devices, as far as they could be asked.
class Ports {
 public:
  Ports(const Config& config, const DistanceOf& distance_of) : config_(config), distance_of_(distance_of) {}

  void add_device(ibv_device* device) {
    const std::string name = ibv_get_device_name(device);
    auto context = std::make_shared<OpenedContext>(device);
    ibv_device_attr attributes{};
    if (context->context == nullptr) return reject(name, fmt::format("it cannot be opened: {}", std::strerror(errno)));
    if (const int error = ibv_query_device(context->context, &attributes); error != 0)
      return reject(name, fmt::format("ibv_query_device: {}", std::strerror(error)));
    const int distance = distance_of_ ? distance_of_(pci_bus_id(device)) : -1;
    for (uint8_t number = 1; number <= attributes.phys_port_cnt; ++number) {
      Port port{device, context, {}};
      port.rail.device = name;
      port.rail.port = number;
      PortCandidate candidate{.name = fmt::format("{} port {}", name, number)};
      if (distance >= 0) candidate.distance = distance;
      candidate.why_not = look_at(&port);
      candidate.link_layer = port.rail.link_layer;
      candidate.mbps = port.rail.mbps;
      candidates_.push_back(std::move(candidate));
      ports_.push_back(std::move(port));
    }
  }

  Status open(Devices* devices, std::vector<std::string>* rejected) {
    for (const size_t chosen : choose_rails(&candidates_)) {
      Port& port = ports_[chosen];
      ibv_context* context = port.context->take();
      if (context == nullptr) context = open_context(port.device);  // the rail before has another port of it
      if (context == nullptr)
        return {trSystemError, fmt::format("{} cannot be opened: {}", port.rail.device, std::strerror(errno))};
      devices->emplace_back();
      TR_RETURN_IF_ERROR(Device::open(context, port.rail, &devices->back()));
    }
    for (const PortCandidate& candidate : candidates_)
      if (!candidate.why_not.empty()) rejected->push_back(fmt::format("{}: {}", candidate.name, candidate.why_not));
    return {};
  }

 private:
  struct Port {
    ibv_device* device;
    std::shared_ptr<OpenedContext> context;  // of the device's ports
    Rail rail;
  };

  void reject(const std::string& device, std::string why) {
    candidates_.push_back({.name = device, .why_not = std::move(why)});
    ports_.push_back({});
  }

  // Why it cannot be used, or "".
  std::string look_at(Port* port) const {
    Rail& rail = port->rail;
    ibv_port_attr found{};
    if (!DeviceChoice(config_.verbs_devices).allows(rail.device, rail.port))
      return fmt::format("TREERING_VERBS_DEVICES is '{}'", config_.verbs_devices);
    if (const int error = ibv_query_port(port->context->context, rail.port, &found); error != 0)
      return fmt::format("ibv_query_port: {}", std::strerror(error));
    if (found.state != IBV_PORT_ACTIVE) return fmt::format("its state is {}", ibv_port_state_str(found.state));
    rail.link_layer = found.link_layer;
    rail.mtu = static_cast<uint8_t>(found.active_mtu);
    rail.lid = found.lid;
    rail.mbps = speed_mbps(found);
    std::string why;
    (void)choose_gid(port->context->context, found, config_.verbs_gid, &rail, &why);
    return why;
  }

  const Config& config_;
  const DistanceOf& distance_of_;
  std::vector<Port> ports_;
  std::vector<PortCandidate> candidates_;  // with the same positions
};

// Descriptors of verbs keep a queue pair alive: what a child executes must not hold them.
void close_on_exec(int fd) { (void)fcntl(fd, F_SETFD, fcntl(fd, F_GETFD) | FD_CLOEXEC); }

}  // namespace

std::string gid_text(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_mapped_ipv4(gid))
    inet_ntop(AF_INET, gid.data() + 12, text, sizeof text);
  else
    inet_ntop(AF_INET6, gid.data(), text, sizeof text);
  return text;
}

uint8_t PathOptions::timeout_for(std::chrono::milliseconds deadline) {
  constexpr uint8_t kMin = 14, kMax = 18;
  PathOptions path;
  path.timeout = kMax;
  if (deadline.count() == 0) return kMax;
  const double limit = std::chrono::duration<double>(deadline).count() / 8;
  while (path.timeout > kMin && path.retry_seconds() > limit) --path.timeout;
  return path.timeout;
}

ibv_ah_attr path_to(const Rail& own, const Rail& peer, const PathOptions& options) {
  ibv_ah_attr path{};
  path.port_num = own.port;
  path.sl = options.service_level;
  path.dlid = peer.lid;
  if (own.link_layer != IBV_LINK_LAYER_ETHERNET) return path;
  path.is_global = 1;
  std::memcpy(path.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  path.grh.sgid_index = static_cast<uint8_t>(own.gid_index);
  path.grh.hop_limit = kHops;
  path.grh.traffic_class = options.traffic_class;
  return path;
}

Status open_devices(const Config& config, const DistanceOf& distance_of, Devices* devices,
                    std::vector<std::string>* rejected) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr || count == 0) {
    const int error = errno;
    if (list != nullptr) ibv_free_device_list(list);
    if (error == ENOSYS || list != nullptr)
      return {trSystemError, "there is no verbs device: no driver of one is loaded (see /sys/class/infiniband)"};
    return {trSystemError, fmt::format("verbs devices cannot be listed: {}", std::strerror(error))};
  }
  Ports ports(config, distance_of);
  for (int i = 0; i < count; ++i) ports.add_device(list[i]);
  const Status opened = ports.open(devices, rejected);
  ibv_free_device_list(list);
  TR_RETURN_IF_ERROR(opened);
  if (!devices->empty()) return {};
  return {trSystemError, fmt::format("no verbs device can be used: {}", fmt::join(*rejected, "; "))};
}

Status Device::open(ibv_context* context, const Rail& rail, std::unique_ptr<Device>* opened) {
  opened->reset(new Device(context, rail));
  return (*opened)->make_objects();
}

Status Device::make_objects() {
  close_on_exec(context_->cmd_fd);
  close_on_exec(context_->async_fd);
  domain_ = ibv_alloc_pd(context_);
  if (domain_ == nullptr) return {trSystemError, fmt::format("{}: ibv_alloc_pd: {}", name(), std::strerror(errno))};
  events_ = open_channel(context_);
  if (events_ == nullptr)
    return {trSystemError, fmt::format("{}: ibv_create_comp_channel: {}", name(), std::strerror(errno))};
  close_on_exec(events_->fd);
  (void)fcntl(events_->fd, F_SETFL, fcntl(events_->fd, F_GETFL) | O_NONBLOCK);
  return {};
}

Device::~Device() {
  if (events_ != nullptr) close_channel(events_);
  if (domain_ != nullptr) (void)ibv_dealloc_pd(domain_);
  close_context(context_);
}

std::string Device::name() const {
  const std::string address = rail_.link_layer == IBV_LINK_LAYER_ETHERNET
                                  ? fmt::format("GID {}: {}", rail_.gid_index, gid_text(rail_.gid))
                                  : fmt::format("LID {}", rail_.lid);
  return fmt::format("{} port {} ({}, {:g} Gbit/s)", rail_.device, rail_.port, address, rail_.mbps / 1000.0);
}

Status Device::register_memory(void* data, size_t bytes, int access, RegisteredMemory* registered) const {
  ibv_mr* region = ibv_reg_mr(domain_, data, bytes, access);
  if (region == nullptr)
    return {trSystemError, fmt::format("{}: registering {} KiB of memory: {}{}", name(), bytes >> 10,
                                       std::strerror(errno), errno == ENOMEM ? locked_memory_text() : "")};
  *registered = RegisteredMemory(region);
  return {};
}

Status RailMemory::make(const Devices& devices, RailSet rails, void* data, size_t bytes, int access) {
  for (uint32_t rail = 0; rail < devices.size(); ++rail) {
    if ((rails >> rail & 1) == 0) continue;
    TR_RETURN_IF_ERROR(devices[rail]->register_memory(data, bytes, access, &registered_[rail]));
    local_keys_[rail] = registered_[rail].local_key();
    remote_keys_[rail] = registered_[rail].remote_key();
  }
  is_made_ = true;
  return {};
}

Status call_failed(const char* call) { return {trSystemError, fmt::format("{}: {}", call, std::strerror(errno))}; }

}  // namespace treering::verbs
