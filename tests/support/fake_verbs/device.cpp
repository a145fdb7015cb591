// SPDX-License-Identifier: Apache-2.0
// Devices, what they say about themselves, and asynchronous events.
#include <endian.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "support/fake_verbs/world.h"

#undef ibv_query_port

namespace treering::fake_verbs {

thread_local int owner_of_thread = -1;

namespace {

ibv_gid gid_of(int device, int port, bool ipv4) {
  ibv_gid gid = {};
  if (ipv4) {
    const uint8_t tail[6] = {0xff, 0xff, 10, 98, static_cast<uint8_t>(device), static_cast<uint8_t>(port)};
    std::memcpy(gid.raw + 10, tail, sizeof tail);
  } else {
    const uint8_t head[2] = {0xfe, 0x80};
    const uint8_t tail[8] = {2, 0, 0, 0xff, 0xfe, 98, static_cast<uint8_t>(device), static_cast<uint8_t>(port)};
    std::memcpy(gid.raw, head, sizeof head);
    std::memcpy(gid.raw + 8, tail, sizeof tail);
  }
  return gid;
}

Port make_port(int device, int number) {
  Port port = {};
  port.attr.state = IBV_PORT_ACTIVE;
  port.attr.max_mtu = port.attr.active_mtu = IBV_MTU_4096;
  port.attr.gid_tbl_len = 16;
  port.attr.max_msg_sz = 1u << 30;
  port.attr.pkey_tbl_len = 1;
  port.attr.active_width = 2;   // 4x
  port.attr.active_speed = 64;  // HDR: 200 Gbit/s
  port.attr.phys_state = 5;     // link up
  port.attr.link_layer = IBV_LINK_LAYER_ETHERNET;
  port.attr.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
  port.gids.resize(static_cast<size_t>(port.attr.gid_tbl_len));
  for (uint32_t index = 0; index < 2; ++index) {
    port.gids[index] = {gid_of(device, number, index == 1), index, static_cast<uint32_t>(number), IBV_GID_TYPE_ROCE_V2,
                        0};
  }
  return port;
}

int port_attr(ibv_context* context, uint8_t number, void* attr, size_t size) {
  const Lock lock;
  Context& known = context_of(context);
  world().check(&known, Kind::kContext, "ibv_query_port");
  if (const int error = world().injected("ibv_query_port")) return error;
  const Port* port = world().port(known.fake->index, number);
  if (port == nullptr) return EINVAL;
  std::memcpy(attr, &port->attr, size < sizeof port->attr ? size : sizeof port->attr);
  return 0;
}

const ibv_gid_entry* gid_entry(Context& context, uint32_t number, uint32_t index) {
  const Port* port = world().port(context.fake->index, static_cast<int>(number));
  return port == nullptr || index >= port->gids.size() ? nullptr : &port->gids[index];
}

void count_ack(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      ++checked<Cq>(event.element.cq, Kind::kCq, "ibv_ack_async_event")->async_acks;
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
      ++checked<Qp>(event.element.qp, Kind::kQp, "ibv_ack_async_event")->async_acks;
      break;
    default:
      break;
  }
}

}  // namespace

void World::set_devices(int count, int ports) {
  devices.clear();
  for (int index = 0; index < count; ++index) {
    auto device = std::make_unique<Device>();
    const std::string number = std::to_string(index);
    const std::string texts[] = {"fake" + number, "uverbs" + number, "/sys/class/infiniband_verbs/uverbs" + number,
                                 "/sys/class/infiniband/fake" + number};
    device->index = index;
    device->node_type = IBV_NODE_CA;
    device->transport_type = IBV_TRANSPORT_IB;
    texts[0].copy(device->name, sizeof device->name - 1);
    texts[1].copy(device->dev_name, sizeof device->dev_name - 1);
    texts[2].copy(device->dev_path, sizeof device->dev_path - 1);
    texts[3].copy(device->ibdev_path, sizeof device->ibdev_path - 1);
    for (int port = 1; port <= ports; ++port) device->ports.push_back(make_port(index, port));
    devices.push_back(std::move(device));
  }
}

void queue_event(Context& context, const ibv_async_event& event) {
  context.events.push_back(event);
  context.readable.set(true);
}

Port* port_of(const Qp& qp) { return world().port(context_of(qp.context).fake->index, qp.attr.port_num); }

void queue_event(Qp& qp, ibv_event_type type) {
  ibv_async_event event = {};
  ++qp.async_events;
  event.element.qp = &qp;
  event.event_type = type;
  queue_event(context_of(qp.context), event);
}

}  // namespace treering::fake_verbs

using namespace treering::fake_verbs;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  const Lock lock;
  if (const int error = world().injected("ibv_get_device_list")) return errno = error, nullptr;
  const size_t size = world().devices.size();
  auto* const list = static_cast<ibv_device**>(calloc(size + 1, sizeof(ibv_device*)));
  if (list == nullptr) return nullptr;
  for (size_t i = 0; i < size; ++i) list[i] = world().devices[i].get();
  world().add(list, Kind::kList);
  if (count != nullptr) *count = static_cast<int>(size);
  return list;
}

void ibv_free_device_list(ibv_device** list) {
  const Lock lock;
  world().check(list, Kind::kList, "ibv_free_device_list");
  world().remove(list);
  free(list);
}

const char* ibv_get_device_name(ibv_device* device) { return device->name; }

int ibv_get_device_index(ibv_device* device) { return static_cast<Device*>(device)->index; }

__be64 ibv_get_device_guid(ibv_device* device) {
  return htobe64(0x020000fffe620000ull + static_cast<uint64_t>(static_cast<Device*>(device)->index));
}

ibv_context* ibv_open_device(ibv_device* device) {
  const Lock lock;
  if (const int error = world().injected("ibv_open_device")) return errno = error, nullptr;
  auto* const made = new Context(static_cast<Device*>(device));
  made->sz = sizeof(verbs_context);
  made->query_port = [](ibv_context* context, uint8_t number, ibv_port_attr* attr, size_t size) {
    return port_attr(context, number, attr, size);
  };
  made->owner = owner_of_thread;
  ibv_context& context = made->context;
  context.device = device;
  context.ops.poll_cq = poll;
  context.ops.req_notify_cq = arm;
  context.ops.post_send = post_send;
  context.ops.post_recv = post_receive;
  context.cmd_fd = made->file.fd();
  context.async_fd = made->readable.fd();
  context.num_comp_vectors = 4;
  context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  world().contexts.push_back(made);
  world().add(made, Kind::kContext);
  return &context;
}

int ibv_close_device(ibv_context* context) {
  const Lock lock;
  Context& known = context_of(context);
  world().check(&known, Kind::kContext, "ibv_close_device");
  if (const int error = world().injected("ibv_close_device")) return error;
  if (known.uses != 0) return EBUSY;
  std::erase(world().contexts, &known);
  world().remove(&known);
  delete &known;
  return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  const Lock lock;
  Context& known = context_of(context);
  world().check(&known, Kind::kContext, "ibv_query_device");
  if (const int error = world().injected("ibv_query_device")) return error;
  const fake_verbs_limits& limits = world().settings.limits;
  *attr = {};
  std::strcpy(attr->fw_ver, "0.0.98");
  attr->node_guid = attr->sys_image_guid = ibv_get_device_guid(context->device);
  attr->max_mr_size = UINT64_MAX;
  attr->page_size_cap = 4096;
  attr->vendor_part_id = 98;
  attr->max_qp = static_cast<int>(limits.max_qp);
  attr->max_qp_wr = static_cast<int>(limits.max_qp_wr);
  attr->max_sge = attr->max_sge_rd = static_cast<int>(limits.max_sge);
  attr->max_cq = attr->max_mr = attr->max_pd = attr->max_ah = 1 << 20;
  attr->max_cqe = static_cast<int>(limits.max_cqe);
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = 16;
  attr->max_res_rd_atom = 16 << 10;
  attr->max_pkeys = 1;
  attr->local_ca_ack_delay = 16;
  attr->phys_port_cnt = static_cast<uint8_t>(known.fake->ports.size());
  return 0;
}

// Programs that have no extended context call it; their struct ends before port_cap_flags2.
int ibv_query_port(ibv_context* context, uint8_t number, _compat_ibv_port_attr* attr) {
  return port_attr(context, number, attr, offsetof(ibv_port_attr, flags));
}

int ibv_query_gid(ibv_context* context, uint8_t number, int index, ibv_gid* gid) {
  const Lock lock;
  if (const int error = world().injected("ibv_query_gid")) return errno = error, -1;
  const ibv_gid_entry* entry = gid_entry(context_of(context), number, static_cast<uint32_t>(index));
  if (entry == nullptr) return errno = EINVAL, -1;
  *gid = entry->gid;
  return 0;
}

int _ibv_query_gid_ex(ibv_context* context, uint32_t number, uint32_t index, ibv_gid_entry* into, uint32_t flags,
                      size_t size) {
  const Lock lock;
  if (const int error = world().injected("ibv_query_gid_ex")) return error;
  const ibv_gid_entry* entry = gid_entry(context_of(context), number, index);
  if (entry == nullptr || flags != 0 || size != sizeof *entry) return EINVAL;
  if (is_none(entry->gid)) return ENODATA;
  *into = *entry;
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* into, size_t room, uint32_t flags, size_t size) {
  const Lock lock;
  if (const int error = world().injected("ibv_query_gid_table")) return -error;
  if (flags != 0 || size != sizeof *into) return -EINVAL;
  size_t found = 0;
  for (const Port& port : context_of(context).fake->ports) {
    for (const ibv_gid_entry& entry : port.gids) {
      if (is_none(entry.gid)) continue;
      if (found == room) return -EINVAL;
      into[found++] = entry;
    }
  }
  return static_cast<ssize_t>(found);
}

int ibv_query_pkey(ibv_context* context, uint8_t number, int index, __be16* pkey) {
  const Lock lock;
  if (world().port(context_of(context).fake->index, number) == nullptr || index != 0) return errno = EINVAL, -1;
  *pkey = htobe16(0xffff);
  return 0;
}

int ibv_get_pkey_index(ibv_context* context, uint8_t number, __be16 pkey) {
  const Lock lock;
  if (world().port(context_of(context).fake->index, number) == nullptr || pkey != 0xffff) return errno = EINVAL, -1;
  return 0;
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  Context& known = context_of(context);
  for (;;) {
    if (!known.readable.wait()) return -1;
    const Lock lock;
    world().check(&known, Kind::kContext, "ibv_get_async_event");
    if (known.events.empty()) continue;  // another thread has it
    *event = known.events.front();
    known.events.pop_front();
    known.readable.set(!known.events.empty());
    return 0;
  }
}

void ibv_ack_async_event(ibv_async_event* event) {
  const Lock lock;
  count_ack(*event);
  world().acknowledged.notify_all();
}

}  // extern "C"
