// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/link.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/clock.h"
#include "core/log.h"
#include "transport/link_connection.h"
#include "transport/verbs/block.h"
#include "transport/verbs/handshake.h"
#include "transport/verbs/incoming.h"
#include "transport/verbs/locked_memory.h"
#include "transport/verbs/sending.h"

namespace treering::verbs {
namespace {

// An introduction may be lost while the control tree is mended.
constexpr auto kIntroducedAgain = std::chrono::seconds(1);
// A completion with the reason follows requests that were flushed.
constexpr auto kToldWithin = std::chrono::milliseconds(200);
constexpr auto kCauseComesWithin = std::chrono::milliseconds(100);
constexpr uint32_t kRequestsOfMessage = 2;

struct Channel {
  Sending sending;
  Incoming incoming;
};

class Link final : public VerbsLink, public std::enable_shared_from_this<Link> {
 public:
  Link(std::shared_ptr<const Card> card, LinkOptions options, Introduce introduce)
      : card_(std::move(card)),
        options_(std::move(options)),
        layout_{options_.channels, options_.place_bytes, options_.places},
        introduce_(std::move(introduce)),
        channels_(options_.channels),
        queue_(messages()),
        written_(sends()) {
    refusal_ = open();
    has_lost_peer_ = !refusal_.ok();
    if (!refusal_.ok()) pair_.reset(), fail(refusal_);
  }

  // The queue pair ends before the memory that its peer writes into.
  ~Link() override {
    pair_.reset();
    block_.end_registration();
  }

  void start() override {
    std::lock_guard lock(mutex_);
    if (handshake_.start().introduce) introduce_self();
  }

  void hear(const EndPoint& peer) override {
    std::lock_guard lock(mutex_);
    if (finished_) return;
    if (!peer.refusal.empty()) return refuse({trSystemError, "it says: " + peer.refusal});
    if (!refusal_.ok()) return introduce_self();
    if (peer.channels != options_.channels || peer.place_bytes != options_.place_bytes || peer.places < kFewestPlaces ||
        peer.places > kFifoDepth)
      return decline({trSystemError, fmt::format("it has {} channels and {} places of {} bytes, this rank {} and {} of "
                                                 "{}",
                                                 peer.channels, peer.places, peer.place_bytes, options_.channels,
                                                 options_.places, options_.place_bytes)});
    if (!handshake_.is_connected()) {
      peer_ = peer;
      peers_layout_ = {peer.channels, peer.place_bytes, peer.places};
      if (const Status connected = pair_->connect(card_->device->rail(), peer, options_.path); !connected.ok())
        return decline(connected);
    }
    const Handshake::Actions actions = handshake_.hear(peer.is_connected, peer.may_send);
    card_->log(LogLevel::kTrace,
               fmt::format("verbs: {} {} connected and {} send; this rank {} send", options_.peer_name,
                           peer.is_connected ? "is" : "is not", peer.may_send ? "may" : "may not",
                           handshake_.may_send() ? "may" : "may not"));
    if (actions.introduce) introduce_self();
    if (handshake_.may_send()) is_ready_.store(true, std::memory_order_release);
  }
  void depart() override { departed_.store(true, std::memory_order_release); }
  void stop() override {
    stopped_.store(true, std::memory_order_relaxed);
    if (pair_) pair_->stop();
  }
  void arm() override {
    if (pair_) pair_->arm();
  }

  void end_introductions() override {
    std::lock_guard lock(mutex_);
    finished_ = true;
  }

  bool finish() override {
    if (stopped_.load(std::memory_order_relaxed) || !is_good() || departed_.load(std::memory_order_acquire))
      return close();
    if (!flush()) return !is_good() && close();
    if (!is_marked_ && pair_->can_write(1) && is_ready_.load(std::memory_order_acquire)) {
      note(pair_->mark(peer_.block, peer_.key));
      is_marked_ = true;
    }
    poll();
    const bool all_done = pair_->done() == pair_->posted();
    return (all_done || !is_good()) && close();
  }

  std::unique_ptr<Connection> connection(uint32_t channel) override;

  bool flush() override {
    take_refusal();
    if (!is_pending()) return true;
    if (!is_ready_.load(std::memory_order_acquire)) {
      introduce_again();
      drop_if_left();
      return !is_pending();
    }
    send_pending();
    if (is_pending()) poll();
    return !is_pending();
  }
  Status health() const override { return health_; }

  bool can_post(uint32_t channel) {
    if (!is_good()) return false;
    if (channels_[channel].sending.has_room(room())) return true;
    const bool left = departed_.load(std::memory_order_acquire);
    if (is_pending()) flush();
    poll();
    if (is_good() && channels_[channel].sending.has_room(room())) return true;
    if (left) fail({trRemoteError, "it has left, and does not take what was sent to it"});
    return false;
  }

  void post(uint32_t index, const Message& message) {
    if (!is_good()) return;
    Channel& channel = channels_[index];
    const bool is_referred = message.kind == PayloadKind::kUser && message.user.region != 0;
    const bool carries = (message.kind == PayloadKind::kStaging || is_referred) && message.bytes > 0;
    if (carries && message.bytes > options_.place_bytes)
      return fail({trInternalError, fmt::format("a message of {} bytes; at most {} were agreed on", message.bytes,
                                                options_.place_bytes)});
    Source payload;
    if (carries)
      if (const Status found = find_payload(message, &payload); !found.ok()) return fail(found);
    Outgoing& outgoing = channel.sending.outgoing[channel.sending.posted % kFifoDepth];
    auto* line = new (own_line(index, channel.sending.posted)) Line;
    line->signature = message.signature;
    line->bytes = message.bytes;
    line->whole = message.whole;
    line->kind = static_cast<uint8_t>(message.kind);
    line->wide = message.wide;
    outgoing = {payload, kLineHeader};
    if (message.kind == PayloadKind::kInline) {
      if (message.bytes > 0) std::memcpy(line->data, message.data, message.bytes);
      outgoing.line_bytes += message.bytes;
    } else if (carries) {
      line->has_payload = 1;
      channel.sending.with_payload = channel.sending.posted + 1;
    }
    ++channel.sending.posted;
    queue_.push(index);
    if (is_ready_.load(std::memory_order_acquire)) send_pending();
  }

  // How a message may refer to memory: where it lies in a region that the device has.
  std::optional<UserAddress> reference(const UserMemory& memory) const {
    if (!memory.lies_in_region() || memory.bytes > options_.place_bytes) return {};
    if (!card_->regions->find(memory.region->id)) return {};
    return UserAddress{memory.region->id, static_cast<uint64_t>(memory.data - memory.region->base)};
  }

  uint64_t released(uint32_t index) {
    Channel& channel = channels_[index];
    if (channel.sending.released() != channel.sending.posted && is_good()) {
      if (is_pending()) flush();
      poll();
    }
    return channel.sending.released();
  }

  const Message* front(uint32_t index) {
    Incoming& incoming = channels_[index].incoming;
    if (const Message* message = incoming.front(); message != nullptr) return message;
    if (is_pending()) flush();
    poll();
    if (const Message* message = incoming.front(); message != nullptr) return message;
    take_refusal();
    if (departed_.load(std::memory_order_acquire)) look_for_end();
    return nullptr;
  }
  void pop(uint32_t index) {
    Incoming& incoming = channels_[index].incoming;
    incoming.pop();
    if (!incoming.owes_credit()) return;
    owes_ = true;
    if (is_ready_.load(std::memory_order_acquire)) send_pending();
  }

 private:
  Status open() {
    TR_RETURN_IF_ERROR(block_.make(*card_->device, block_bytes(layout_)));
    // Of each channel the peer's messages, and a credit for each of this rank's, may arrive before a poll.
    const auto all = static_cast<uint32_t>(messages());
    return QueuePair::create(*card_->device, {sends(), 2 * all + 16}, sizeof(Line), &pair_);
  }
  size_t messages() const { return size_t{options_.channels} * kFifoDepth; }
  uint32_t sends() const { return 3 * static_cast<uint32_t>(messages()) + 8; }  // work requests under way
  // Messages of a channel that may be under way; how many the peer takes is known once it has introduced itself.
  uint32_t room() const { return is_ready_.load(std::memory_order_acquire) ? peers_layout_.places : kFewestPlaces; }
  bool is_good() const { return health_.ok(); }
  bool is_pending() const { return !queue_.empty() || owes_; }
  // Behind the block that the peer writes into.
  std::byte* own_line(uint32_t channel, uint64_t number) const {
    return block_.base() + layout_.bytes() + layout_.line(channel, number);
  }

  Status find_payload(const Message& message, Source* payload) const {
    if (message.kind == PayloadKind::kStaging) {
      *payload = {card_->staging->base() + message.user.offset, message.bytes, 0};
      return card_->staging->key(message.user.offset, &payload->key);
    }
    const auto place = card_->regions->find(message.user.region);
    if (!place || message.user.offset > place->bytes || message.bytes > place->bytes - message.user.offset)
      return {trInvalidUsage,
              "registered memory that this call uses was freed, or its registration ended, while the call runs"};
    *payload = {place->base + message.user.offset, message.bytes, place->key};
    return {};
  }

  void introduce_self() {
    last_introduced_ = Clock::now();
    if (finished_) return;
    EndPoint own;
    own.refusal = refusal_.message();
    if (!refusal_.ok()) return introduce_(own);
    own.queue_pair = pair_->number();
    own.first_packet = pair_->first_packet();
    own.rail = card_->device->rail();
    own.block = reinterpret_cast<uint64_t>(block_.base());
    own.key = block_.registered().remote_key();
    own.channels = options_.channels;
    own.place_bytes = options_.place_bytes;
    own.places = options_.places;
    own.is_connected = handshake_.is_connected();
    own.may_send = handshake_.may_send();
    introduce_(own);
  }
  void introduce_again() {
    std::lock_guard lock(mutex_);
    if (!handshake_.may_send() && Clock::now() - last_introduced_ > kIntroducedAgain) introduce_self();
  }
  // From the control thread; the rank's own thread takes it.
  void refuse(Status why) {
    peers_refusal_ = std::move(why);
    is_refused_.store(true, std::memory_order_release);
  }
  // ... and the peer is told why there is no end for it.
  void decline(const Status& why) {
    refusal_ = why;
    refuse(why);
    introduce_self();
  }
  void take_refusal() {
    if (!is_refused_.load(std::memory_order_acquire)) return;
    std::lock_guard lock(mutex_);
    fail(peers_refusal_);
  }
  // A rank that left in order has taken what it wanted: credits need not reach it.
  void drop_if_left() {
    if (!departed_.load(std::memory_order_acquire)) return;
    owes_ = false;
    if (!queue_.empty()) fail({trRemoteError, "it has left, and does not take what was sent to it"});
  }
  bool close() {
    end_introductions();
    return true;
  }

  void fail(const Status& status) {
    if (!health_.ok()) return;
    health_ = {status.code(),
               fmt::format("verbs with {}, by {}: {}", options_.peer_name, path_text(), status.message())};
    queue_.clear();
    owes_ = false;
  }
  void note(const Status& status) {
    if (status.ok()) return;
    // What was under way to a rank that has left is no failure.
    if (departed_.load(std::memory_order_acquire)) return forget_sends();
    fail(status);
  }
  void forget_sends() {
    queue_.clear();
    owes_ = false;
    for (Channel& channel : channels_) channel.sending.payload_taken = channel.sending.with_payload;
    has_lost_peer_ = true;
  }
  std::string path_text() const {
    if (!is_ready_.load(std::memory_order_acquire)) return card_->device->name() + ", not connected yet";
    return fmt::format("{} to {} port {} (GID {})", card_->device->name(), peer_.rail.device, peer_.rail.port,
                       gid_text(peer_.rail.gid));
  }

  void send_pending() {
    if (has_lost_peer_) return forget_sends();
    while (!queue_.empty() && pair_->can_write(kRequestsOfMessage)) {
      send(queue_.front());
      if (!is_good() || has_lost_peer_) return;
      queue_.pop();
    }
    if (!owes_ || !queue_.empty()) return;
    owes_ = false;
    for (uint32_t index = 0; index < channels_.size() && is_good() && !has_lost_peer_; ++index) {
      Incoming& incoming = channels_[index].incoming;
      if (!incoming.owes_credit()) continue;
      if (!pair_->can_write(1)) {
        owes_ = true;
        return;
      }
      note(pair_->tell(pack_immediate({ImmediateType::kCredit, index, static_cast<uint32_t>(incoming.popped())})));
      incoming.told();
    }
  }

  void send(uint32_t index) {
    Channel& channel = channels_[index];
    const uint64_t number = channel.sending.sent;
    const Outgoing& outgoing = channel.sending.outgoing[number % kFifoDepth];
    std::byte* line = own_line(index, number);
    reinterpret_cast<Line*>(line)->popped = static_cast<uint32_t>(channel.incoming.popped());
    channel.incoming.told();
    const bool has_payload = outgoing.payload.bytes > 0;
    const Source source{line, outgoing.line_bytes, block_.registered().local_key()};
    const Immediate immediate{ImmediateType::kLine, index, static_cast<uint32_t>(number)};
    note(pair_->write(outgoing.payload, peer_.block + peers_layout_.place(index, number), source,
                      peer_.block + peers_layout_.line(index, number), peer_.key, pack_immediate(immediate),
                      has_payload));
    if (!is_good() || has_lost_peer_) return;
    ++channel.sending.sent;
    if (has_payload) written_.push({pair_->posted(), index, number});
  }

  void poll() {
    if (has_lost_peer_) return;
    note(pair_->poll([this](uint32_t word) { take(unpack_immediate(ntohl(word))); }));
    for (; !written_.empty() && written_.front().request <= pair_->done(); written_.pop())
      channels_[written_.front().channel].sending.payload_taken = written_.front().number + 1;
    if (pair_->is_flushed()) await_cause();
  }

  // The device had all that it sent before it left, but may tell of it late.
  void look_for_end() {
    const Clock::time_point now = Clock::now();
    if (left_since_ == Clock::time_point()) left_since_ = now;
    if (now - left_since_ > kToldWithin) fail({trRemoteError, "it has left"});
  }

  // Requests that were flushed are no cause. The peer's card may have one that this card is not told.
  void await_cause() {
    const Clock::time_point now = Clock::now();
    if (flushed_since_ == Clock::time_point()) flushed_since_ = now;
    if (now - flushed_since_ > kCauseComesWithin)
      note({trRemoteError,
            "the queue pair is in the error state, and the device gives no reason: the peer may have ended"});
  }

  void take(const Immediate& immediate) {
    if (immediate.channel >= channels_.size())
      return fail(
          {trSystemError, fmt::format("it told of channel {}; there are {}", immediate.channel, channels_.size())});
    Channel& channel = channels_[immediate.channel];
    if (immediate.type == ImmediateType::kCredit)
      return take_credit(&channel, full_count(channel.sending.freed, immediate.count));
    if (immediate.type != ImmediateType::kLine)
      return fail({trSystemError, fmt::format("it told an immediate of type {}", static_cast<int>(immediate.type))});
    Line line;
    if (const Status taken = channel.incoming.arrive(block_.base(), layout_, immediate.channel, immediate.count, &line);
        !taken.ok())
      return fail(taken);
    take_credit(&channel, channel.sending.freed + (line.popped - static_cast<uint32_t>(channel.sending.freed)));
  }
  void take_credit(Channel* channel, uint64_t popped) {
    if (popped > channel->sending.sent)
      return fail({trSystemError,
                   fmt::format("it has popped {} messages of {} that were sent", popped, channel->sending.sent)});
    channel->sending.freed = popped;
  }

  const std::shared_ptr<const Card> card_;
  const LinkOptions options_;
  const BlockLayout layout_;
  const Introduce introduce_;
  Block block_;
  std::unique_ptr<QueuePair> pair_;

  std::vector<Channel> channels_;
  Ring<uint32_t> queue_;   // channels, in the order of their posts that were not sent yet
  Ring<Written> written_;  // payloads under way
  Status health_;
  bool owes_ = false;           // credits
  bool has_lost_peer_ = false;  // ... which has left: nothing is sent any more
  Clock::time_point flushed_since_{}, left_since_{};
  bool is_marked_ = false;  // at the end: a completion of everything was asked for

  std::atomic<bool> is_ready_{false}, departed_{false}, stopped_{false}, is_refused_{false};
  std::mutex mutex_;  // of what follows; the peer's are read without it once is_ready_
  Handshake handshake_;
  EndPoint peer_;
  BlockLayout peers_layout_;
  Clock::time_point last_introduced_{};
  Status refusal_;        // why this rank has no end
  Status peers_refusal_;  // or the peer, or this rank: for the rank's own thread
  bool finished_ = false;
};

class VerbsConnection final : public LinkConnection<Link> {
 public:
  using LinkConnection::LinkConnection;
  Status fetch(const Message&, size_t, void*, size_t) override {
    return {trSystemError, "the payload lies in memory of its sender that is not registered with a verbs device"};
  }
  std::optional<UserAddress> reference(const UserMemory& memory) const override { return link().reference(memory); }
  const char* transport_name() const override { return "verbs"; }
};

std::unique_ptr<Connection> Link::connection(uint32_t channel) {
  return std::make_unique<VerbsConnection>(shared_from_this(), channel);
}

}  // namespace

std::shared_ptr<VerbsLink> VerbsLink::make(std::shared_ptr<const Card> card, LinkOptions options, Introduce introduce) {
  return std::make_shared<Link>(std::move(card), std::move(options), std::move(introduce));
}

}  // namespace treering::verbs
