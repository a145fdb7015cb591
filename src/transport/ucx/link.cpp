// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "transport/ucx/hub.h"

namespace treering::ucx {
namespace {

// What a rank sent before it left may still be under way when its departure is told.
constexpr auto kToldWithin = std::chrono::seconds(2);
// The lower of two ranks opens the connection, the other one answers on it: UCX 1.13 may end the process where a connection
// breaks while both open one. After so long the other one opens it, too: the lower may be held up by a third rank.
constexpr auto kOpenedWithin = std::chrono::milliseconds(300);
// A rank that looks answers a farewell at once.
constexpr auto kAnswersWithin = std::chrono::milliseconds(50);

// Messages that may be larger than the room in their socket. Smaller ones find none where dozens are under way.
constexpr uint32_t kPushedBytes = 4096;

constexpr size_t index_of(Type type) { return static_cast<size_t>(type); }

}  // namespace

Link::Link(Hub* hub, uint32_t peer) : hub_(hub), peer_(peer), channels_(hub->options().channels) {
  for (uint32_t channel = 0; channel < channels_.size(); ++channel)
    for (Place& place : channels_[channel].places) place.link = this, place.channel = channel;
}

Link::~Link() = default;

Status Link::open() {
  if (!std::exchange(may_open_, false)) return {};
  return endpoint_.open(hub_->worker(), hub_->peer_info(peer_).address);
}

void Link::start() {
  if (is_started_) return;
  is_started_ = true;
  name_ = hub_->options().peer_name(peer_);
  if (const Status opened = open(); !opened.ok()) fail(opened);
}

// What arrives.

ucs_status_t Link::arrive(const Header& header, void* data, size_t length, uint64_t attributes) {
  if (header.channel >= channels_.size())
    return refuse(
               {trSystemError, fmt::format("it told of channel {}; there are {}", header.channel, channels_.size())}),
           UCS_OK;
  Channel& channel = channels_[header.channel];
  if (header.type == Type::kMessage || header.type == Type::kCredit)
    if (const Status credited = channel.sending.credit(header.popped); !credited.ok()) {
      refuse(credited);
      return UCS_OK;
    }
  switch (header.type) {
    case Type::kMessage:
      return take_message(header, data, length, attributes);
    case Type::kCredit:
    case Type::kPush:
      return UCS_OK;
    case Type::kHello:
      // This rank's own goes before: the peer looks no more once it has the answer.
      owed_[index_of(Type::kHello)] = !told_[index_of(Type::kHello)];
      owed_[index_of(Type::kHelloHeard)] = true;
      break;
    case Type::kBye:
      owed_[index_of(Type::kByeHeard)] = true;
      break;
    case Type::kHelloHeard:
    case Type::kByeHeard:
      break;
    default:
      return refuse({trSystemError, fmt::format("it sent something of type {}", static_cast<int>(header.type))}),
             UCS_OK;
  }
  came_[index_of(header.type)] = true;
  hub_->settle_later();
  return UCS_OK;
}

ucs_status_t Link::take_message(const Header& header, void* data, size_t length, uint64_t attributes) {
  Channel& channel = channels_[header.channel];
  Message message;
  message.signature = header.signature;
  message.bytes = header.bytes;
  message.whole = header.whole;
  message.kind = static_cast<PayloadKind>(header.kind);
  message.wide = header.wide != 0;
  uint64_t number = 0;
  Status taken = check(header, length, hub_->options().place_bytes);
  if (taken.ok()) taken = channel.incoming.arrive(header.number, message, &number);
  if (!taken.ok()) {
    refuse(taken);
    return UCS_OK;
  }
  Place& place = channel.places[number % kFifoDepth];
  place.number = number;
  if (header.has_payload != 0) return take_payload(&place, header, data, length, attributes);
  channel.incoming.complete(number, message.kind == PayloadKind::kInline ? place.inline_copy : nullptr);
  return UCS_OK;
}

ucs_status_t Link::take_payload(Place* place, const Header& header, void* data, size_t length, uint64_t attributes) {
  Incoming& incoming = channels_[place->channel].incoming;
  if ((attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return land(place, data, length);
  const bool is_inline = header.kind == static_cast<uint8_t>(PayloadKind::kInline);
  if (!is_inline && (attributes & UCP_AM_RECV_ATTR_FLAG_DATA) != 0) {
    place->held = data;
    incoming.complete(place->number, data);
    return UCS_INPROGRESS;
  }
  std::byte* const copy = is_inline ? place->inline_copy : memory_of(place);
  std::memcpy(copy, data, length);
  incoming.complete(place->number, copy);
  return UCS_OK;
}

// A rendezvous: the sender waits until the payload is fetched.
ucs_status_t Link::land(Place* place, void* data, size_t length) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = &Link::on_landed;
  params.user_data = place;
  const ucs_status_ptr_t begun = ucp_am_recv_data_nbx(hub_->worker(), data, memory_of(place), length, &params);
  if (UCS_PTR_IS_PTR(begun)) return UCS_INPROGRESS;
  on_landed(nullptr, UCS_PTR_STATUS(begun), length, place);
  return UCS_OK;
}

void Link::on_landed(void* request, ucs_status_t status, size_t, void* user_data) {
  auto* place = static_cast<Place*>(user_data);
  if (request != nullptr) ucp_request_free(request);
  if (status != UCS_OK)
    return place->link->refuse({trRemoteError, fmt::format("a payload: {}", ucs_status_string(status))});
  place->link->channels_[place->channel].incoming.complete(place->number, place->memory.get());
}

std::byte* Link::memory_of(Place* place) const {
  if (!place->memory)
    place->memory = std::make_unique_for_overwrite<std::byte[]>(std::max(kInlineBytes, hub_->options().place_bytes));
  return place->memory.get();
}

void Link::refuse(const Status& why) {
  if (refusal_.ok()) refusal_ = why;
  hub_->settle_later();
}

// What is sent.

void Link::address(Header* header, Type type) const {
  header->key = hub_->peer_info(peer_).key;
  header->from = hub_->options().rank;
  header->type = type;
}

bool Link::owes() const { return owes_credits_ || std::find(owed_.begin(), owed_.end(), true) != owed_.end(); }

void Link::send_owed() {
  if (owed_[index_of(Type::kHelloHeard)])
    if (const Status opened = open(); !opened.ok()) refuse(opened);
  if (!endpoint_.is_open() || endpoint_.failure() != UCS_OK) return;
  for (size_t type = 0; type < kTypes; ++type) {
    if (!owed_[type] || !notes_[type].is_done) continue;
    owed_[type] = false;
    told_[type] = true;
    address(&notes_[type].header, static_cast<Type>(type));
    endpoint_.send(&notes_[type], nullptr, 0);
  }
  if (owes_credits_) send_credits();
}

void Link::send_credits() {
  owes_credits_ = false;
  for (uint32_t index = 0; index < channels_.size(); ++index) {
    Channel& channel = channels_[index];
    if (!channel.incoming.owes_credit()) continue;
    if (!channel.credit.is_done) {
      owes_credits_ = true;
      continue;
    }
    address(&channel.credit.header, Type::kCredit);
    channel.credit.header.channel = index;
    channel.credit.header.popped = static_cast<uint32_t>(channel.incoming.popped());
    channel.incoming.told();
    endpoint_.send(&channel.credit, nullptr, 0);
  }
}

void Link::post(uint32_t index, const Message& message) {
  if (!is_good()) return;
  Channel& channel = channels_[index];
  const bool copies = message.kind == PayloadKind::kStaging || message.kind == PayloadKind::kUser;
  if (copies && message.bytes > hub_->options().place_bytes)
    return fail({trInternalError, fmt::format("a message of {} bytes; at most {} were agreed on", message.bytes,
                                              hub_->options().place_bytes)});
  const auto number = static_cast<uint32_t>(channel.sending.posted());
  Outgoing& outgoing = channel.sending.post();
  if (!endpoint_.is_open() || endpoint_.failure() != UCS_OK) return;
  Header& header = outgoing.note.header;
  address(&header, Type::kMessage);
  header.channel = index;
  header.number = number;
  header.popped = static_cast<uint32_t>(channel.incoming.popped());
  header.signature = message.signature;
  header.bytes = message.bytes;
  header.whole = message.whole;
  header.kind = static_cast<uint8_t>(message.kind);
  header.wide = message.wide;
  const std::byte* payload = nullptr;
  if (message.kind == PayloadKind::kInline) {
    if (message.bytes > 0) std::memcpy(outgoing.inline_copy, message.data, message.bytes);
    payload = outgoing.inline_copy;
  } else if (copies) {
    payload = message.kind == PayloadKind::kStaging ? hub_->options().staging + message.user.offset
                                                    : reinterpret_cast<const std::byte*>(message.user.offset);
  }
  header.has_payload = payload != nullptr && message.bytes > 0;
  channel.incoming.told();
  wants_push_ |= header.has_payload != 0 && message.bytes > kPushedBytes;
  endpoint_.send(&outgoing.note, header.has_payload != 0 ? payload : nullptr,
                 header.has_payload != 0 ? message.bytes : 0);
}

// Calls of the rank.

void Link::poll() {
  hub_->progress();
  settle();
}

void Link::settle() {
  look_at_endpoint();
  if (!refusal_.ok() && is_started_ && !has_lost_peer_) fail(refusal_);
  if (has_left()) owes_credits_ = false;
  if (owes()) send_owed();
}

bool Link::flush() {
  if (!is_good()) {
    poll();
    return !is_ending_;
  }
  // A peer may wait until this rank reads, though it waits for something else. And small messages may have found no room.
  if (endpoint_.under_way() > 0 || owes() || hub_->is_due()) poll();
  if (wants_push_ && endpoint_.under_way() == 0 && is_good()) push();
  return has_lost_peer_ || (endpoint_.under_way() == 0 && !owes());
}

// UCX is done with a message that it has copied, of which a part may still wait for room in a socket. It takes the next
// message when that part has left.
void Link::push() {
  wants_push_ = false;
  hub_->drain();  // as pop() does: the peer may have said that it leaves
  settle();
  if (!is_good() || has_left()) return;
  owed_[index_of(Type::kPush)] = true;
  send_owed();
}

bool Link::can_post(uint32_t index) {
  Sending& sending = channels_[index].sending;
  (void)sending.taken();
  if (!is_good()) {
    poll();
    return false;
  }
  if (sending.has_room()) return true;
  const bool left = has_left();
  poll();
  (void)sending.taken();
  if (is_good() && sending.has_room()) return true;
  if (left) fail({trRemoteError, "it has left, and does not take what was sent to it"});
  return false;
}

uint64_t Link::released(uint32_t index) {
  Sending& sending = channels_[index].sending;
  if (sending.taken() != sending.posted()) poll();
  return sending.taken();
}

// All channels and links share what one call of progress() brings.
const Message* Link::front(uint32_t index) {
  Channel& channel = channels_[index];
  if (const Message* message = channel.incoming.front(); message != nullptr) return message;
  if (channel.looked == hub_->progress_made()) hub_->progress();
  channel.looked = hub_->progress_made();
  settle();
  if (const Message* message = channel.incoming.front(); message != nullptr) return message;
  if (has_left()) look_for_end();
  return nullptr;
}

void Link::pop(uint32_t index) {
  Channel& channel = channels_[index];
  Place& place = channel.places[channel.incoming.popped() % kFifoDepth];
  if (place.held != nullptr) ucp_am_data_release(hub_->worker(), std::exchange(place.held, nullptr));
  channel.incoming.pop();
  if (!channel.incoming.owes_credit() || !is_good() || has_left()) return;
  owes_credits_ = true;
  // First all that has come: a rank that has left says so in the last of it. What is sent to its closed socket would be
  // answered by a reset, which drops what was not read yet.
  hub_->drain();
  settle();
}

void Link::release() {
  endpoint_.release();
  for (Channel& channel : channels_)
    for (Place& place : channel.places)
      if (place.held != nullptr) ucp_am_data_release(hub_->worker(), std::exchange(place.held, nullptr));
}

// The end.

bool Link::has_left() const { return came_[index_of(Type::kBye)] || hub_->has_departed(peer_); }

void Link::fail(const Status& status) {
  if (!is_good()) return;
  failure_ = {status.code(), fmt::format("ucx from rank {} to {}: {}", hub_->options().rank, name_, status.message())};
  is_ending_ = true;
  ending_since_ = Clock::now();
  endpoint_.close();
  look_at_endpoint();
}

void Link::look_at_endpoint() {
  if (is_ending_) {
    if (!ended() && Clock::now() - ending_since_ < kEndsWithin) return;
    health_ = failure_;
    is_ending_ = false;
    owed_ = {};
    owes_credits_ = false;
    return;
  }
  if (!is_started_ || has_lost_peer_ || !health_.ok() || endpoint_.failure() == UCS_OK) return;
  if (!has_left()) return fail({trRemoteError, ucs_status_string(endpoint_.failure())});
  // What was under way to a rank that has left is no failure.
  has_lost_peer_ = true;
  owed_ = {};
  owes_credits_ = false;
  endpoint_.close();
}

void Link::look_for_end() {
  const Clock::time_point now = Clock::now();
  if (left_since_ == Clock::time_point()) left_since_ = now;
  if (has_lost_peer_ || now - left_since_ > kToldWithin) fail({trRemoteError, "it has left"});
}

bool Link::reaches() {
  constexpr size_t kHello = index_of(Type::kHello), kHeard = index_of(Type::kHelloHeard);
  if (awaits_peer_since_ == Clock::time_point()) awaits_peer_since_ = Clock::now();
  const bool waits =
      hub_->options().rank > peer_ && !came_[kHello] && Clock::now() - awaits_peer_since_ < kOpenedWithin;
  if (!endpoint_.is_open() && waits) return false;
  if (const Status opened = open(); !opened.ok()) refuse(opened);
  if (!unreachable().ok()) return false;
  if (!told_[kHello]) {
    owed_[kHello] = true;
    send_owed();
  }
  // The peer may have tried this rank before, and look for nothing any more.
  return came_[kHeard] || (came_[kHello] && notes_[kHello].is_done);
}

Status Link::unreachable() const {
  return endpoint_.failure() == UCS_OK ? refusal_ : Status(trRemoteError, ucs_status_string(endpoint_.failure()));
}

bool Link::finish() {
  if (!endpoint_.is_open()) return endpoint_.ended();
  constexpr size_t kBye = index_of(Type::kBye);
  if (!is_good() || has_lost_peer_ || endpoint_.failure() != UCS_OK || hub_->has_departed(peer_)) {
    endpoint_.close();
    return endpoint_.ended();
  }
  if (!told_[kBye]) {
    owed_[kBye] = true;
    farewell_since_ = Clock::now();
  }
  send_owed();
  if (endpoint_.under_way() > 0 || owes()) return false;
  // The farewell went behind all else, which has left this rank. (A flush would also wait for lanes that were never
  // used, which takes a peer that looks.) What arrives at a socket that is closed resets it, and what the peer's host
  // does not have yet is lost. A peer that does not look sends nothing, and has what was sent by then.
  const bool may_miss = std::any_of(channels_.begin(), channels_.end(),
                                    [](const Channel& channel) { return !channel.sending.all_freed(); });
  const bool is_answered = came_[kBye] || came_[index_of(Type::kByeHeard)];
  if (may_miss && !is_answered && Clock::now() - farewell_since_ < kAnswersWithin) return false;
  endpoint_.close();
  return endpoint_.ended();
}

void Link::stop() {
  may_open_ = false;
  if (is_started_) fail({trRemoteError, "the communicator has ended, and what was under way with it"});
  endpoint_.close();
}

}  // namespace treering::ucx
