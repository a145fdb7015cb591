// SPDX-License-Identifier: Apache-2.0
// The functions of fake_verbs.h.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "support/fake_verbs/world.h"

using namespace treering::fake_verbs;

namespace {

Qp* qp_of(uint32_t number) {
  const auto found = world().qps.find(number);
  return found == world().qps.end() ? nullptr : found->second;
}

void port_event(int device, int port, ibv_event_type type) {
  ibv_async_event event = {};
  event.element.port_num = port;
  event.event_type = type;
  for (Context* context : world().contexts) {
    if (context->fake->index == device) queue_event(*context, event);
  }
}

}  // namespace

extern "C" {

int fake_verbs_reset(void) {
  const Lock lock;
  const fake_verbs_counters before = world().counters;
  world().settings = {};
  world().counters = {};
  world().counters.bytes_registered = before.bytes_registered;
  for (const auto& [number, qp] : world().qps) qp->held = false;
  if (!world().contexts.empty() || world().count(Kind::kList) != 0) return EBUSY;
  world().set_devices(2, 1);
  return 0;
}

void fake_verbs_set_seed(uint64_t seed) {
  const Lock lock;
  world().seed(seed);
}

void fake_verbs_set_disorder(int level) {
  const Lock lock;
  world().settings.disorder = std::clamp(level, 0, 3);
  changed();
}

void fake_verbs_set_progress(fake_verbs_progress mode) {
  const Lock lock;
  world().settings.progress = mode;
  wake_pump();
}

int fake_verbs_advance(int polls) {
  const Lock lock;
  if (polls == 0) settle();
  for (int i = 0; i < polls; ++i) advance(world().settings.disorder == 0);
  return world().active.empty() ? 0 : 1;
}

void fake_verbs_advance_clock(uint64_t nanoseconds) {
  const Lock lock;
  world().clock += nanoseconds;
}

int fake_verbs_set_devices(int count, int ports) {
  const Lock lock;
  if (count < 0 || ports < 1 || ports > 255) return EINVAL;
  if (!world().contexts.empty() || world().count(Kind::kList) != 0) return EBUSY;
  world().set_devices(count, ports);
  return 0;
}

int fake_verbs_set_port_attr(int device, int port, const ibv_port_attr* attr) {
  const Lock lock;
  Port* const known = world().port(device, port);
  if (known == nullptr) return EINVAL;
  known->attr = *attr;
  known->gids.resize(static_cast<size_t>(attr->gid_tbl_len));
  return 0;
}

int fake_verbs_set_gid(int device, int port, int index, const ibv_gid* gid, ibv_gid_type type) {
  const Lock lock;
  Port* const known = world().port(device, port);
  if (known == nullptr || index < 0 || index >= static_cast<int>(known->gids.size())) return EINVAL;
  const auto place = static_cast<uint32_t>(index);
  known->gids[place] = {*gid, place, static_cast<uint32_t>(port), static_cast<uint32_t>(type), 0};
  return 0;
}

int fake_verbs_set_sysfs(int device, const char* path) {
  const Lock lock;
  if (device < 0 || device >= static_cast<int>(world().devices.size())) return EINVAL;
  char(&into)[IBV_SYSFS_PATH_MAX] = world().devices[static_cast<size_t>(device)]->ibdev_path;
  std::snprintf(into, sizeof into, "%s", path);
  return 0;
}

int fake_verbs_set_port_up(int device, int port, int up) {
  const Lock lock;
  Port* const known = world().port(device, port);
  if (known == nullptr) return EINVAL;
  if ((known->attr.state == IBV_PORT_ACTIVE) == (up != 0)) return 0;
  known->attr.state = up != 0 ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  known->attr.phys_state = up != 0 ? 5 : 3;
  port_event(device, port, up != 0 ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
  changed();
  return 0;
}

void fake_verbs_get_limits(fake_verbs_limits* limits) {
  const Lock lock;
  *limits = world().settings.limits;
}

void fake_verbs_set_limits(const fake_verbs_limits* limits) {
  const Lock lock;
  world().settings.limits = *limits;
}

void fake_verbs_set_memlock(uint64_t bytes) {
  const Lock lock;
  world().settings.limits.memlock = bytes;
}

void fake_verbs_fail_call(const char* function, int nth, int error) {
  const Lock lock;
  world().settings.calls.push_back({function, nth, error});
}

void fake_verbs_hold_calls(const char* function, int nth) {
  const Lock lock;
  world().held_calls = {function, nth};
}

void fake_verbs_release_calls(void) {
  const Lock lock;
  world().held_calls = {};
  world().released.notify_all();
}

int fake_verbs_held_calls(void) {
  const Lock lock;
  return world().held_calls.waiting;
}

void fake_verbs_fail_completion(uint32_t qp_num, fake_verbs_queue queue, int nth, ibv_wc_status status) {
  const Lock lock;
  world().settings.completions.push_back({qp_num, queue, nth, status});
}

int fake_verbs_break_qp(uint32_t qp_num) {
  const Lock lock;
  Qp* const qp = qp_of(qp_num);
  if (qp == nullptr) return EINVAL;
  queue_event(*qp, IBV_EVENT_QP_FATAL);
  fail_now(*qp);
  changed();
  return 0;
}

int fake_verbs_hold_qp(uint32_t qp_num, int held) {
  const Lock lock;
  Qp* const qp = qp_of(qp_num);
  if (qp == nullptr) return EINVAL;
  qp->held = held != 0;
  changed();
  return 0;
}

int fake_verbs_invalidate_key(uint32_t key) {
  const Lock lock;
  return world().lkeys.erase(key) + world().rkeys.erase(key) > 0 ? 0 : EINVAL;
}

void fake_verbs_keep_completions(int keep) {
  const Lock lock;
  world().settings.keep_completions = keep != 0;
}

size_t fake_verbs_qp_numbers(uint32_t* numbers, size_t room) {
  const Lock lock;
  size_t count = 0;
  for (const auto& [number, qp] : world().qps) {
    if (count++ < room) numbers[count - 1] = number;
  }
  return count;
}

void fake_verbs_set_owner(int owner) { owner_of_thread = owner; }

size_t fake_verbs_qps(fake_verbs_qp* qps, size_t room) {
  const Lock lock;
  size_t count = 0;
  for (const auto& [number, qp] : world().qps) {
    if (qp->qp_type != IBV_QPT_RC || count++ >= room) continue;
    const bool is_connected = qp->receiving();
    qps[count - 1] = {number, is_connected ? qp->attr.dest_qp_num : 0, context_of(qp->context).owner, is_connected,
                      qp->now == IBV_QPS_ERR};
  }
  return count;
}

size_t fake_verbs_keys(int owner, uint32_t* keys, size_t room) {
  const Lock lock;
  size_t count = 0;
  for (const auto& [key, mr] : world().rkeys) {
    if ((mr->access & IBV_ACCESS_REMOTE_WRITE) == 0 || context_of(mr->context).owner != owner) continue;
    if (count++ < room) keys[count - 1] = key;
  }
  std::sort(keys, keys + std::min(count, room));  // the draw of one repeats
  return count;
}

void fake_verbs_get_counters(fake_verbs_counters* counters) {
  const Lock lock;
  *counters = world().counters;
  counters->qps_alive = world().qps.size();
  counters->nanoseconds = world().clock;
}

void fake_verbs_watch_memory(const void* begin, size_t bytes) {
  const Lock lock;
  world().watched_begin = static_cast<const uint8_t*>(begin);
  world().watched_bytes = bytes;
}

void fake_verbs_get_objects(fake_verbs_objects* objects) {
  const Lock lock;
  const World& all = world();
  *objects = {all.count(Kind::kList),    all.count(Kind::kContext), all.count(Kind::kPd), all.count(Kind::kMr),
              all.count(Kind::kChannel), all.count(Kind::kCq),      all.count(Kind::kQp), all.count(Kind::kAh)};
}

int fake_verbs_left_over(char* text, size_t room) {
  fake_verbs_objects now;
  fake_verbs_get_objects(&now);
  const std::pair<const char*, int> kinds[] = {{"device lists", now.lists},     {"contexts", now.contexts},
                                               {"protection domains", now.pds}, {"memory regions", now.mrs},
                                               {"channels", now.channels},      {"completion queues", now.cqs},
                                               {"queue pairs", now.qps},        {"address handles", now.ahs}};
  std::string words;
  int total = 0;
  for (const auto& [kind, count] : kinds) {
    total += count;
    if (count > 0) words += (words.empty() ? "" : ", ") + std::to_string(count) + " " + kind;
  }
  if (room > 0) std::snprintf(text, room, "%s", words.c_str());
  return total;
}

}  // extern "C"
