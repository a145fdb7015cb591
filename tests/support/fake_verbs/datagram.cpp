// SPDX-License-Identifier: Apache-2.0
// Addresses, and unreliable datagrams: sent and forgotten, dropped where no receive takes them.
#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "support/fake_verbs/world.h"

namespace treering::fake_verbs {

namespace {

bool has_gid(const Port& port, const ibv_gid& gid) {
  return !is_none(gid) && std::any_of(port.gids.begin(), port.gids.end(), [&](const ibv_gid_entry& entry) {
    return std::memcmp(entry.gid.raw, gid.raw, sizeof gid.raw) == 0;
  });
}

// Layout of IPv6, for IPv4 addresses too; programs tell the two apart by the version and ibv_init_ah_from_wc.
ibv_grh header_of(const Qp& qp, const Send& send) {
  ibv_grh header = {};
  header.version_tclass_flow = htobe32(6u << 28);
  header.paylen = htobe16(static_cast<uint16_t>(send.length));
  header.next_hdr = 0x11;
  header.hop_limit = 64;
  header.sgid = port_of(qp)->gids[send.to.grh.sgid_index].gid;
  header.dgid = send.to.grh.dgid;
  return header;
}

std::unique_ptr<Message> make_datagram(Qp& qp, const Send& send) {
  auto message = std::make_unique<Message>();
  message->datagram = message->needs_receive = message->is_owned = true;
  message->with_imm = send.wr.opcode == IBV_WR_SEND_WITH_IMM;
  message->imm = send.wr.imm_data;
  message->solicited = (send.wr.send_flags & IBV_SEND_SOLICITED) != 0;
  message->length = send.length;
  message->from = qp.qp_num;
  message->owned = send.inlined;
  if (!send.is_inlined) {
    message->owned.resize(send.length);
    size_t begin = 0;
    for (const ibv_sge& sge : send.sges) {
      Mr* region = nullptr;
      const uint8_t* const from = resolve(world().lkeys, sge.lkey, qp.pd, sge.addr, sge.length, 0, &region);
      observe(qp.post_mark);
      copy_bytes(message->owned.data() + begin, from, sge.length);
      publish(qp.send_mark);
      publish(region->mark);
      publish(message->owned_mark);
      begin += sge.length;
    }
  }
  message->header = header_of(qp, send);
  cut(*message);
  return message;
}

}  // namespace

Qp* find_peer(const Qp& qp, const ibv_ah_attr& to, uint32_t qp_num) {
  const Port* const from = port_of(qp);
  const auto found = world().qps.find(qp_num);
  if (from == nullptr || from->attr.state != IBV_PORT_ACTIVE || found == world().qps.end()) return nullptr;
  const Port* const port = port_of(*found->second);
  if (port == nullptr || port->attr.state != IBV_PORT_ACTIVE || port->attr.link_layer != from->attr.link_layer)
    return nullptr;
  const bool there = to.is_global != 0 ? has_gid(*port, to.grh.dgid) : to.dlid == port->attr.lid;
  return there ? found->second : nullptr;
}

int check_address(ibv_context* context, const ibv_ah_attr& attr) {
  const Port* const port = world().port(context_of(context).fake->index, attr.port_num);
  if (port == nullptr) return EINVAL;
  if (attr.is_global == 0) return port->attr.link_layer == IBV_LINK_LAYER_ETHERNET ? EINVAL : 0;
  const bool named = attr.grh.sgid_index < port->gids.size() && !is_none(port->gids[attr.grh.sgid_index].gid);
  return named && !is_none(attr.grh.dgid) ? 0 : EINVAL;
}

bool transmit_datagram(Qp& qp, Send& send) {
  send.stage = Send::Stage::kDelivered;
  const Port* const port = port_of(qp);
  if (send.length > (128u << static_cast<unsigned>(port->attr.active_mtu)))
    return fail_send(send, IBV_WC_LOC_LEN_ERR), true;
  Qp* const peer = find_peer(qp, send.to, send.wr.wr.ud.remote_qpn);
  const bool lost = world().below(1000) < world().settings.limits.datagram_loss;
  const bool there = peer != nullptr && peer->qp_type == IBV_QPT_UD && peer->receiving();
  if (lost || !there || peer->attr.qkey != send.wr.wr.ud.remote_qkey || peer->receives.empty()) {
    ++world().counters.datagrams_dropped;
    return true;
  }
  peer->incoming.push_back(make_datagram(qp, send));
  take_receive(*peer, peer->incoming.size() - 1);
  // A receive that it does not fit into ends the peer once what came before is delivered; here it is as if it was never sent.
  if (!peer->incoming.empty() && !peer->incoming.back()->receive) {
    peer->incoming.pop_back();
    ++world().counters.datagrams_dropped;
  }
  activate(*peer);
  return true;
}

}  // namespace treering::fake_verbs

using namespace treering::fake_verbs;

extern "C" {

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  const Lock lock;
  auto* const domain = checked<Pd>(pd, Kind::kPd, "ibv_create_ah");
  int error = world().injected("ibv_create_ah");
  if (error == 0) error = check_address(pd->context, *attr);
  if (error != 0) return errno = error, nullptr;
  auto* const ah = new Ah();
  ah->context = pd->context;
  ah->pd = pd;
  ah->attr = *attr;
  world().add(ah, Kind::kAh);
  ++domain->uses;
  return ah;
}

int ibv_destroy_ah(ibv_ah* ah) {
  const Lock lock;
  auto* const known = checked<Ah>(ah, Kind::kAh, "ibv_destroy_ah");
  if (const int error = world().injected("ibv_destroy_ah")) return error;
  --static_cast<Pd*>(known->pd)->uses;
  world().remove(known);
  delete known;
  return 0;
}

// Where the sender of a datagram is.
int ibv_init_ah_from_wc(ibv_context* context, uint8_t port_num, ibv_wc* wc, ibv_grh* grh, ibv_ah_attr* attr) {
  const Lock lock;
  const Port* const port = world().port(context_of(context).fake->index, port_num);
  if (port == nullptr || (wc->wc_flags & IBV_WC_GRH) == 0) return errno = EINVAL, -1;
  *attr = {};
  attr->port_num = port_num;
  attr->is_global = 1;
  attr->grh.dgid = grh->sgid;
  attr->grh.hop_limit = 255;
  for (const ibv_gid_entry& entry : port->gids) {
    if (std::memcmp(entry.gid.raw, grh->dgid.raw, sizeof entry.gid.raw) != 0) continue;
    attr->grh.sgid_index = static_cast<uint8_t>(entry.gid_index);
    return 0;
  }
  return errno = ENOENT, -1;
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, uint8_t port_num) {
  ibv_ah_attr attr;
  return ibv_init_ah_from_wc(pd->context, port_num, wc, grh, &attr) != 0 ? nullptr : ibv_create_ah(pd, &attr);
}

}  // extern "C"
