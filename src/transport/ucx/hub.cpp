// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/hub.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <utility>

#include "transport/link_connection.h"
#include "transport/ucx/stuck_hubs.h"

namespace treering::ucx {
namespace {

// More calls than what may be under way needs, for one that always finds something.
constexpr uint32_t kMaxDrains = 1000;
// A rank that waits for another transport asks thousands of times a millisecond, and progress() takes some system calls.
constexpr auto kProgressesEvery = std::chrono::microseconds(20);
constexpr uint32_t kAsksPerLook = 8;  // at the clock

uint64_t random_key() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

class UcxConnection final : public LinkConnection<Link> {
 public:
  using LinkConnection::LinkConnection;
  Status fetch(const Message&, size_t, void*, size_t) override {
    return {trSystemError, "UCX brings payloads along: there is nothing to fetch"};
  }
  std::optional<UserAddress> reference(const UserMemory& memory) const override {
    return UserAddress{0, reinterpret_cast<uint64_t>(memory.data)};
  }
  const char* transport_name() const override { return "ucx"; }
};

}  // namespace

Status Hub::open(HubOptions options, std::shared_ptr<Hub>* opened) {
  std::shared_ptr<Hub> hub(new Hub(std::move(options)), &Hub::end);
  TR_RETURN_IF_ERROR(Worker::open(hub->options_.ranks, hub->options_.place_bytes, &hub->worker_));
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kActiveMessage;
  handler.cb = &Hub::on_message;
  handler.arg = hub.get();
  if (const ucs_status_t set = ucp_worker_set_am_recv_handler(hub->worker(), &handler); set != UCS_OK)
    return ucx_error("ucp_worker_set_am_recv_handler", set);
  *opened = std::move(hub);
  return {};
}

Hub::Hub(HubOptions options)
    : options_(std::move(options)),
      key_(random_key()),
      infos_(options_.ranks),
      links_(options_.ranks),
      departed_(options_.ranks) {}

Hub::~Hub() {
  for (const auto& link : links_)
    if (link) link->release();
}

void Hub::end(Hub* hub) {
  std::unique_ptr<Hub> ended(hub);
  if (hub->worker_ == nullptr) return;
  hub->stop();
  while (!hub->has_stopped()) sched_yield();
  const bool any_stuck =
      std::any_of(hub->links_.begin(), hub->links_.end(), [](const auto& link) { return link && link->is_stuck(); });
  if (any_stuck) StuckHubs::add(std::move(ended));
}

bool Hub::end_stuck() {
  progress();
  bool all_ended = true;
  for (const auto& link : links_) all_ended &= !link || link->end_stuck();
  return all_ended;
}

std::string Hub::info() const {
  Writer writer;
  writer(RankInfo{key_, options_.channels, options_.place_bytes, worker_->address()});
  return writer.take();
}

Status Hub::take_info(uint32_t peer, const std::string& info) {
  if (info.empty()) return {};
  Reader reader(info);
  RankInfo read;
  reader(read);
  if (!reader.complete() || read.address.empty())
    return {trSystemError,
            fmt::format("rank {} gave {} bytes that name no UCX worker; do all ranks run the same version?", peer,
                        info.size())};
  infos_[peer] = std::move(read);
  return {};
}

Link& Hub::link(uint32_t peer) {
  if (!links_[peer]) links_[peer] = std::make_unique<Link>(this, peer);
  return *links_[peer];
}

Status Hub::reach(uint32_t peer, Clock::time_point deadline) {
  const RankInfo& other = infos_[peer];
  if (other.address.empty()) return {trSystemError, "the other rank has no UCX worker"};
  if (other.channels != options_.channels || other.place_bytes != options_.place_bytes)
    return {trSystemError, fmt::format("the other rank has {} channels and messages of {} bytes, this one {} and {}",
                                       other.channels, other.place_bytes, options_.channels, options_.place_bytes)};
  constexpr const char* kAdvice =
      "check UCX_TLS and UCX_NET_DEVICES (ucx_info -d lists what there is), and firewalls between the hosts";
  Link& to = link(peer);
  while (!to.reaches()) {
    if (const Status why = to.unreachable(); !why.ok())
      return {why.code(), fmt::format("UCX does not reach the other rank: {}: {}", why.message(), kAdvice)};
    if (Clock::now() > deadline)
      return {trTimeout, fmt::format("the other rank was not heard over UCX in time: {}", kAdvice)};
    TR_RETURN_IF_ERROR(options_.look());
    progress();
    sched_yield();
  }
  return {};
}

PeerConnections Hub::connect(uint32_t peer) {
  Link& to = link(peer);
  to.start();
  const std::shared_ptr<Link> shared(shared_from_this(), &to);
  PeerConnections made;
  for (uint32_t channel = 0; channel < options_.channels; ++channel)
    made.channels.push_back(std::make_unique<UcxConnection>(shared, channel));
  made.queue = shared;
  return made;
}

bool Hub::is_due() {
  if (++asked_ % kAsksPerLook != 0) return false;
  const Clock::time_point now = Clock::now();
  const bool was_called = std::exchange(seen_, progress_made_) != progress_made_;
  if (!was_called && now < due_) return false;
  due_ = now + kProgressesEvery;
  return !was_called;
}

void Hub::drain() {
  for (uint32_t calls = 0; calls < kMaxDrains && worker_->progress(); ++calls) {
  }
  ++progress_made_;
}

void Hub::progress() {
  (void)worker_->progress();
  ++progress_made_;
  if (!any_owes_) return;
  any_owes_ = false;
  for (const auto& link : links_)
    if (link) link->settle();
}

ucs_status_t Hub::on_message(void* hub, const void* header, size_t header_bytes, void* data, size_t length,
                             const ucp_am_recv_param_t* param) {
  Header read;
  if (header_bytes != sizeof read) return UCS_OK;
  std::memcpy(&read, header, sizeof read);
  return static_cast<Hub*>(hub)->arrive(read, data, length, param->recv_attr);
}

// What is not for this rank is dropped: another job may have had the address before.
ucs_status_t Hub::arrive(const Header& header, void* data, size_t length, uint64_t attributes) {
  if (header.key == key_ && header.from < options_.ranks && header.from != options_.rank) {
    if (is_stopped_ && !links_[header.from]) return UCS_OK;  // a link from now on would not be closed
    return link(header.from).arrive(header, data, length, attributes);
  }
  if (!std::exchange(has_warned_, true)) options_.log(LogLevel::kWarn, "ucx: a message of a stranger was dropped");
  return UCS_OK;
}

void Hub::finish(Clock::time_point deadline) {
  std::vector<Link*> left;
  for (const auto& link : links_)
    if (link) left.push_back(link.get());
  while (!left.empty() && Clock::now() < deadline) {
    progress();
    std::erase_if(left, [](Link* link) { return link->finish(); });
    (void)options_.look();
    sched_yield();
  }
}

void Hub::stop() {
  const bool is_first = !std::exchange(is_stopped_, true);
  for (const auto& link : links_)
    if (link) link->stop();
  if (is_first) looked_ = Clock::now();
}

bool Hub::has_stopped() {
  progress();
  const bool all_ended =
      std::all_of(links_.begin(), links_.end(), [](const auto& link) { return !link || link->ended(); });
  const auto now = Clock::now();
  ended_for_ += std::min<Clock::duration>(now - std::exchange(looked_, now), kMaxBetweenLooks);
  if (!all_ended && ended_for_ < kEndsWithin) return false;
  for (const auto& link : links_)
    if (link) link->settle();
  return true;
}

}  // namespace treering::ucx
