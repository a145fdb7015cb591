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
#include "transport/verbs/end_check.h"
#include "transport/verbs/handshake.h"
#include "transport/verbs/incoming.h"
#include "transport/verbs/locked_memory.h"
#include "transport/verbs/rails.h"

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
        channels_(size_t{options_.channels} + 1),
        queue_(messages()) {
    refusal_ = open();
    has_lost_peer_ = !refusal_.ok();
    if (!refusal_.ok()) fail(refusal_), rails_.close();
  }

  // The queue pairs end before the memory that the peer writes into.
  ~Link() override {
    rails_.close();
    block_.end_registration();
  }

  void start() override {
    std::lock_guard lock(mutex_);
    if (handshake_.start().introduce) introduce_self();
  }

  void hear(const EndPoint& peer) override {
    std::lock_guard lock(mutex_);
    if (finished_ || stopped_.load()) return;
    if (!peer.refusal.empty()) return refuse({trSystemError, "it says: " + peer.refusal});
    if (!refusal_.ok()) return introduce_self();
    if (!handshake_.is_connected()) {
      if (const Status checked = check_end(peer, own_end()); !checked.ok()) return decline(checked);
      peers_block_ = peer.block;
      peers_layout_ = {peer.channels, peer.place_bytes, peer.places};
      if (const Status connected = rails_.connect(peer.rails, options_.path); !connected.ok())
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
    stopped_.store(true);  // first: what a peer is not connected for then is no refusal
    rails_.stop();
  }
  void arm() override { rails_.arm(); }
  void end_introductions() override {
    std::lock_guard lock(mutex_);
    finished_ = true;
  }

  bool finish() override {
    if (stopped_.load(std::memory_order_relaxed) || !is_good() || departed_.load(std::memory_order_acquire))
      return close();
    if (!flush()) return !is_good() && close();
    if (is_ready_.load(std::memory_order_acquire)) mark_end();
    poll();
    return (rails_.is_done() || !is_good()) && close();
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
    Payload payload;
    if (carries)
      if (const Status found = card_->find_payload(message, &payload); !found.ok()) return fail(found);
    const bool is_delivered =
        carries && peers_output_.holds(message.output_operation, message.output_offset, message.bytes);
    Outgoing& outgoing = channel.sending.outgoing[channel.sending.posted % kFifoDepth];
    auto* header = new (own_header(index, channel.sending.posted)) Header;
    header->signature = message.signature;
    header->bytes = message.bytes;
    header->whole = message.whole;
    header->kind = static_cast<uint8_t>(is_delivered ? PayloadKind::kDelivered : message.kind);
    header->wide = message.wide;
    outgoing = {payload, is_delivered ? peers_output_.address + message.output_offset : 0, peers_output_.keys,
                kHeaderBytes};
    if (message.kind == PayloadKind::kInline) {
      if (message.bytes > 0) std::memcpy(header->data, message.data, message.bytes);
      outgoing.header_bytes += message.bytes;
    } else if (carries) {
      channel.sending.with_payload = channel.sending.posted + 1;
    }
    ++channel.sending.posted;
    queue_.push(index);
    if (is_ready_.load(std::memory_order_acquire)) send_pending();
  }

  // A peer that is not there yet, or has not read what it was shown before, is shown nothing.
  void show_output(uint64_t operation, const UserMemory& output) {
    if (!is_good() || has_lost_peer_ || !is_ready_.load(std::memory_order_acquire) || !output.lies_in_region()) return;
    const auto place = card_->regions->find(output.region->id);
    if (!place || !channels_[layout_.shows()].sending.has_room(kMinPlaces)) return;
    const ShownOutput shown{operation, reinterpret_cast<uint64_t>(output.data), output.bytes, place->remote_keys};
    Message message;
    message.bytes = sizeof shown;
    message.data = &shown;
    has_shown_output_ = true;
    post(layout_.shows(), message);
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
    TR_RETURN_IF_ERROR(block_.make(card_->devices, options_.rails, block_bytes(layout_)));
    // Each channel may get the peer's messages, or fragments of them, and a credit for each of this rank's before a
    // poll.
    const auto all = static_cast<uint32_t>(messages());
    return rails_.open(card_->devices, options_.rails, {sends(), 2 * all + 16}, sizeof(Header));
  }
  size_t messages() const { return channels_.size() * kFifoDepth; }
  uint32_t sends() const { return 3 * static_cast<uint32_t>(messages()) + 8; }  // work requests of a rail under way
  // Messages of a channel that may be under way; how many the peer takes is known once it has introduced itself.
  uint32_t room() const { return is_ready_.load(std::memory_order_acquire) ? peers_layout_.places : kMinPlaces; }
  bool is_good() const { return health_.ok(); }
  bool is_pending() const { return !queue_.empty() || owes_; }
  std::byte* own_header(uint32_t channel, uint64_t number) const {
    return block_.base() + layout_.own_header(channel, number);
  }

  void introduce_self() {
    last_introduced_ = Clock::now();
    if (finished_ || stopped_.load()) return;
    if (refusal_.ok()) return introduce_(own_end());
    EndPoint none;
    none.refusal = refusal_.message();
    introduce_(none);
  }
  EndPoint own_end() const {
    EndPoint own;
    own.rails = rails_.ends(block_);
    own.block = reinterpret_cast<uint64_t>(block_.base());
    own.channels = options_.channels;
    own.place_bytes = options_.place_bytes;
    own.places = options_.places;
    own.is_connected = handshake_.is_connected();
    own.may_send = handshake_.may_send();
    return own;
  }
  void introduce_again() {
    std::lock_guard lock(mutex_);
    if (!handshake_.may_send() && Clock::now() - last_introduced_ > kIntroducedAgain) introduce_self();
  }
  // From another thread; the rank's own thread takes it.
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

  void fail(const Status& status) { fail(status, rails_.path_text(is_ready_.load(std::memory_order_acquire))); }
  void fail(const Status& status, const std::string& path) {
    if (!health_.ok()) return;
    health_ = {status.code(), fmt::format("verbs with {}{}{}: {}", options_.peer_name, path.empty() ? "" : ", by ",
                                          path, status.message())};
    queue_.clear();
    owes_ = false;
  }
  void note(const Status& status, const LinkRail& rail) {
    if (status.ok()) return;
    // What was under way to a rank that has left is no failure.
    if (departed_.load(std::memory_order_acquire)) return forget_sends();
    fail(status, rail.path_text(is_ready_.load(std::memory_order_acquire)));
  }
  void forget_sends() {
    queue_.clear();
    owes_ = false;
    for (Channel& channel : channels_) channel.sending.forget();
    has_lost_peer_ = true;
  }
  void send_pending() {
    if (has_lost_peer_) return forget_sends();
    while (!queue_.empty() && rails_.can_write(kRequestsOfMessage)) {
      send(queue_.front());
      if (!is_good() || has_lost_peer_) return;
      queue_.pop();
    }
    if (!owes_ || !queue_.empty()) return;
    owes_ = false;
    for (uint32_t index = 0; index < channels_.size() && is_good() && !has_lost_peer_; ++index) {
      Incoming& incoming = channels_[index].incoming;
      if (!incoming.owes_credit()) continue;
      LinkRail& rail = rails_.of(index);
      if (!rail.pair->can_write(1)) {
        owes_ = true;
        return;
      }
      note(rail.pair->tell(pack_immediate({ImmediateType::kCredit, index, static_cast<uint32_t>(incoming.popped())})),
           rail);
      incoming.told();
    }
  }

  void send(uint32_t index) {
    Channel& channel = channels_[index];
    const uint64_t number = channel.sending.sent;
    const Outgoing& outgoing = channel.sending.outgoing[number % kFifoDepth];
    const uint32_t position = rails_.position_of(index);
    LinkRail& rail = rails_.at(position);
    Fragments fragments;
    uint32_t count = 0;
    if (outgoing.payload.bytes > 0)
      count = divide(outgoing.payload.bytes, rails_.rates(), position, options_.least_divided, &fragments);
    std::byte* header = own_header(index, number);
    reinterpret_cast<Header*>(header)->popped = static_cast<uint32_t>(channel.incoming.popped());
    reinterpret_cast<Header*>(header)->fragments = static_cast<uint8_t>(count);
    channel.incoming.told();
    for (uint32_t fragment = 1; fragment < count && is_good() && !has_lost_peer_; ++fragment)
      send_fragment(index, fragment, fragments[fragment], &rails_.at((position + fragment) % rails_.used()));
    if (!is_good() || has_lost_peer_) return;
    const Source source{header, outgoing.header_bytes, block_.registered().local_keys()[rail.number]};
    const Immediate immediate{ImmediateType::kHeader, index, static_cast<uint32_t>(number)};
    const Source first{outgoing.payload.data, count == 0 ? 0 : fragments[0].bytes, outgoing.payload.keys[rail.number]};
    const QueuePair::Target place{peers_block_ + peers_layout_.header(index, number), rail.peers_key};
    note(rail.pair->write(source, first, place, {outgoing.output, outgoing.output_keys[rail.number]},
                          pack_immediate(immediate), count > 0),
         rail);
    if (!is_good() || has_lost_peer_) return;
    ++channel.sending.sent;
    if (count > 0) follow(index, number, &rail);
  }
  // Where the payload of the next message of a channel goes.
  QueuePair::Target target(uint32_t index, const LinkRail& rail) const {
    const uint64_t number = channels_[index].sending.sent;
    const Outgoing& outgoing = channels_[index].sending.outgoing[number % kFifoDepth];
    if (outgoing.output != 0) return {outgoing.output, outgoing.output_keys[rail.number]};
    return {peers_block_ + peers_layout_.data(index, number), rail.peers_key};
  }
  // Fragment 1 and on: fragment 0 goes with the header.
  void send_fragment(uint32_t index, uint32_t number, const Fragment& fragment, LinkRail* rail) {
    const uint64_t message = channels_[index].sending.sent;
    const Payload& payload = channels_[index].sending.outgoing[message % kFifoDepth].payload;
    QueuePair::Target place = target(index, *rail);
    place.address += fragment.offset;
    note(rail->pair->write_fragment({payload.data + fragment.offset, fragment.bytes, payload.keys[rail->number]}, place,
                                    pack_immediate({ImmediateType::kFragment, index, pack_fragment(number, message)})),
         *rail);
    if (is_good() && !has_lost_peer_) follow(index, message, rail);
  }
  // A completion of what was posted last is to come.
  void follow(uint32_t index, uint64_t number, LinkRail* rail) {
    rail->written.push({rail->pair->posted(), index, number});
    channels_[index].sending.give(rail->number, number);
  }

  void mark_end() {
    for (uint32_t i = 0; i < rails_.used(); ++i) {
      LinkRail& rail = rails_.at(i);
      if (rail.is_marked || !rail.pair->can_write(1)) continue;
      note(rail.pair->mark(peers_block_, rail.peers_key), rail);
      rail.is_marked = true;
    }
  }

  void poll() {
    for (LinkRail& rail : rails_.all()) {
      if (rail.has_failed) continue;
      const Status polled = rail.pair->poll([this](uint32_t word) { take(unpack_immediate(ntohl(word))); });
      for (; !rail.written.empty() && rail.written.front().request <= rail.pair->done(); rail.written.pop())
        if (!has_lost_peer_)
          channels_[rail.written.front().channel].sending.written[rail.number] = rail.written.front().number + 1;
      // What the peer sent by the other rails before it left is still taken.
      rail.has_failed = !polled.ok();
      note(polled, rail);
      if (!has_lost_peer_ && rail.pair->is_flushed()) await_cause(rail);
    }
  }

  // The device had all that it sent before it left, but may tell of it late.
  void look_for_end() {
    const Clock::time_point now = Clock::now();
    if (left_since_ == Clock::time_point()) left_since_ = now;
    if (now - left_since_ > kToldWithin) fail({trRemoteError, "it has left"});
  }

  // Requests that were flushed are no cause. The peer's card may have one that this card is not told.
  void await_cause(const LinkRail& rail) {
    const Clock::time_point now = Clock::now();
    if (flushed_since_ == Clock::time_point()) flushed_since_ = now;
    if (now - flushed_since_ > kCauseComesWithin)
      note({trRemoteError,
            "the queue pair is in the error state, and the device gives no reason: the peer may have ended"},
           rail);
  }

  void take(const Immediate& immediate) {
    if (immediate.channel >= channels_.size())
      return fail(
          {trSystemError, fmt::format("it told of channel {}; there are {}", immediate.channel, channels_.size())});
    Channel& channel = channels_[immediate.channel];
    if (immediate.type == ImmediateType::kCredit)
      return take_credit(&channel, full_count(channel.sending.freed, immediate.count));
    const auto rails = static_cast<uint32_t>(rails_.all().size());
    if (immediate.type == ImmediateType::kFragment) {
      if (const Status taken = channel.incoming.arrive_fragment(layout_, immediate.count, rails); !taken.ok())
        fail(taken);
      return;
    }
    if (immediate.type != ImmediateType::kHeader)
      return fail({trSystemError, fmt::format("it told an immediate of type {}", static_cast<int>(immediate.type))});
    Header header;
    if (const Status taken =
            channel.incoming.arrive(block_.base(), layout_, immediate.channel, immediate.count, rails, &header);
        !taken.ok())
      return fail(taken);
    take_credit(&channel, channel.sending.freed + (header.popped - static_cast<uint32_t>(channel.sending.freed)));
    if (header.kind == static_cast<uint8_t>(PayloadKind::kDelivered) && !has_shown_output_)
      return fail({trSystemError, "it says that it wrote into this rank's output, which was never shown to it"});
    if (immediate.channel == layout_.shows()) take_shown_output(&channel.incoming);
  }
  void take_shown_output(Incoming* incoming) {
    const Message* message = incoming->front();
    if (message == nullptr || message->kind != PayloadKind::kInline || message->bytes != sizeof peers_output_)
      return fail({trSystemError, "it showed an output by a message that is none of that kind"});
    std::memcpy(&peers_output_, message->data, sizeof peers_output_);
    incoming->pop();
    owes_ |= incoming->owes_credit();
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
  Rails rails_;

  std::vector<Channel> channels_;
  Ring<uint32_t> queue_;  // channels, in the order of their posts that were not sent yet
  Status health_;
  ShownOutput peers_output_;       // of its latest call that showed one
  bool has_shown_output_ = false;  // to the peer
  bool owes_ = false;              // credits
  bool has_lost_peer_ = false;     // ... which has left: nothing is sent any more
  Clock::time_point flushed_since_{}, left_since_{};

  std::atomic<bool> is_ready_{false}, departed_{false}, stopped_{false}, is_refused_{false};
  std::mutex mutex_;  // of what follows; the peer's are read without it once is_ready_
  Handshake handshake_;
  uint64_t peers_block_ = 0;  // its address
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
  void show_output(uint64_t operation, const UserMemory& output) override { link().show_output(operation, output); }
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
