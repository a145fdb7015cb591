// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/receive.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace treering {
namespace {
// A stream may be behind another by all messages that are under way; more channels than these are seldom busy at once.
constexpr size_t kChannelsRemembered = 8;
constexpr size_t kThrownAwayBytes = 64 << 10;  // at a time
}  // namespace

TcpReceiver::TcpReceiver(uint32_t channels, uint32_t max_message_bytes, WaitSet* waits)
    : waits_(waits),
      max_message_bytes_(max_message_bytes),
      channels_(channels),
      buffers_(size_t{channels} * kFifoDepth) {}

TcpReceiver::~TcpReceiver() {
  for (auto& stream : streams_)
    if (!stream->ended) end_stream(stream.get());
  for (Channel& channel : channels_)
    for (Arrival& arrival : channel.arrivals)
      if (arrival.data != nullptr && arrival.data != arrival.small)
        buffers_.give_back(TcpBuffers::size_class(arrival.payload), arrival.data);
}

bool TcpReceiver::add_stream(uint32_t index, uint64_t key, int fd) {
  for (const auto& other : streams_) {
    if (other->index == index && other->key == key) return false;
    resumed_ |= other->index == index;
  }
  if (spoken_.size() <= index) spoken_.resize(index + 1);
  if (key < spoken_[index]) {  // the peer has left this one behind already
    close(fd);
    return resumed_ = true;
  }
  if (waits_ != nullptr) waits_->add(fd, WaitSet::For::kInput);
  auto stream = std::make_unique<Stream>();
  stream->index = index;
  stream->key = key;
  stream->fd = fd;
  stream->parts.resize(index > 0 ? std::min<size_t>(channels_.size(), kChannelsRemembered) * kFifoDepth : 0);
  hot_looks_ = kHotLooks;
  // In the order of the numbers, the latest first: small messages are looked for on the first.
  auto place = std::find_if(streams_.begin(), streams_.end(), [&](const auto& other) {
    return other->index > index || (other->index == index && other->key < key);
  });
  streams_.insert(place, std::move(stream));
  return true;
}

int TcpReceiver::newest_shared(uint64_t* key) const {
  for (const auto& stream : streams_)
    if (stream->index == 0 && !stream->ended && !stream->half_dead) {
      *key = stream->key;
      return stream->fd;
    }
  return -1;
}

void TcpReceiver::note_half_dead(uint64_t key) {
  for (const auto& stream : streams_)
    if (stream->index == 0 && stream->key == key) stream->half_dead = true;
}

void TcpReceiver::end_stream(Stream* stream) {
  if (waits_ != nullptr) waits_->forget(stream->fd);
  close(stream->fd);
  stream->ended = ended_ = resumed_ = true;
  ++ends_;
  // At most one stream of a number is open that has brought anything: what is here in parts is its.
  if (stream->spoke) give_up_parts_of(stream->index);
}

void TcpReceiver::end_others(const Stream& stream) {
  spoken_[stream.index] = std::max(spoken_[stream.index], stream.key);
  for (const auto& other : streams_)
    if (other->index == stream.index && other->key < stream.key && !other->ended) end_stream(other.get());
}

void TcpReceiver::lose(Stream* stream, ssize_t received, int error) {
  std::string why = "receiving: it was closed";
  if (received < 0)
    why = fmt::format("receiving: {} (errno {})", std::strerror(error), error);
  else if (stream->left > 0 || stream->end > 0)
    why = "receiving: it was closed in the middle of a message";
  losses_.push_back({stream->index, stream->key, std::move(why)});
  end_stream(stream);
}

void TcpReceiver::remove_ended() {
  std::erase_if(streams_, [](const auto& stream) { return stream->ended; });
  next_ = 0;
  ends_ = 0;
}

// The part of a fragment that has come, to where it belongs or nowhere.
void TcpReceiver::take(Stream* stream, size_t bytes) {
  stream->left -= bytes;
  if (stream->arrival == nullptr) return;
  stream->at += bytes;
  stream->arrival->received += static_cast<uint32_t>(bytes);
  if (stream->left == 0) end_fragment(stream);
}

size_t TcpReceiver::receive(Stream* stream, bool* drained) {
  if (stream->begin == stream->end) stream->begin = stream->end = 0;
  if (stream->begin > 0) {
    std::memmove(stream->buffer, stream->buffer + stream->begin, stream->end - stream->begin);
    stream->end -= stream->begin;
    stream->begin = 0;
  }
  std::byte* at = stream->at;
  size_t left = stream->left, room = kBufferBytes - stream->end;
  if (left > 0 && stream->arrival == nullptr) {
    thrown_away_.resize(kThrownAwayBytes);
    at = thrown_away_.data();
    if (left > kThrownAwayBytes) left = kThrownAwayBytes, room = 0;
  }
  iovec parts[2] = {{at, left}, {stream->buffer + stream->end, room}};
  msghdr header{};
  header.msg_iov = left > 0 ? parts : parts + 1;
  header.msg_iovlen = left > 0 && room > 0 ? 2 : 1;
  const ssize_t received = recvmsg(stream->fd, &header, MSG_DONTWAIT);
  *drained = received < static_cast<ssize_t>(left + room);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  if (received <= 0) {
    lose(stream, received, errno);
    return 0;
  }
  const auto got = static_cast<size_t>(received);
  received_ += got;
  const size_t direct = std::min(got, left);
  if (direct > 0) take(stream, direct);
  stream->end += got - direct;
  return got;
}

void TcpReceiver::take_payload(Stream* stream) {
  const size_t bytes = std::min(stream->left, stream->end - stream->begin);
  if (bytes == 0) return;
  if (stream->arrival != nullptr) std::memcpy(stream->at, stream->buffer + stream->begin, bytes);
  stream->begin += bytes;
  take(stream, bytes);
}

void TcpReceiver::begin_part(Stream* stream, const Arrival* arrival, uint32_t message) {
  Part* part = &stream->parts[stream->part];
  if (part->arrival == arrival && part->message == message) return;
  stream->part = (stream->part + 1) % stream->parts.size();
  stream->parts[stream->part] = {arrival, message, 0, Clock::now(), {}};
}

void TcpReceiver::end_fragment(Stream* stream) {
  if (stream->index == 0) return;
  Part& part = stream->parts[stream->part];
  part.ended = Clock::now();
  Arrival* arrival = stream->arrival;
  // Parts that came twice teach nothing.
  if (arrival->complete() && arrival->attempt == 0) arrival->skew = compare_parts(arrival, part.message);
}

ArrivalSkew TcpReceiver::compare_parts(const Arrival* arrival, uint32_t message) const {
  const Part *first = nullptr, *last = nullptr;
  const Stream *early = nullptr, *late = nullptr;
  for (const auto& stream : streams_)
    for (const Part& part : stream->parts) {
      if (part.arrival != arrival || part.message != message) continue;
      if (first == nullptr || part.ended < first->ended) first = &part, early = stream.get();
      if (last == nullptr || part.ended > last->ended) last = &part, late = stream.get();
    }
  // What lay in the kernel when the early part was through was not late: this rank was.
  // And two attempts at a stream say nothing about others.
  if (first == last || late->index == early->index || late->drained < first->ended) return {};
  const double took = std::chrono::duration<double>(last->ended - last->begun).count();
  const double after = std::chrono::duration<double>(last->ended - std::max(first->ended, last->begun)).count();
  return {static_cast<uint8_t>(late->index), static_cast<uint8_t>(early->index),
          static_cast<uint32_t>(took > 0 ? last->bytes * (after / took) : last->bytes), message};
}

const ArrivalSkew& TcpReceiver::skew(uint32_t channel) const {
  const Channel& from = channels_[channel];
  return from.arrivals[from.popped % kFifoDepth].skew;
}

const TcpFrame* TcpReceiver::next_header(Stream* stream, TcpFrame* copy) {
  if (stream->end - stream->begin < sizeof *copy) return nullptr;
  std::memcpy(copy, stream->buffer + stream->begin, sizeof *copy);
  stream->begin += sizeof *copy;
  return copy;
}

Status TcpReceiver::check(const TcpFrame& frame) const {
  const auto bad = [](const std::string& what) {
    return Status(trSystemError, what + "; do all ranks run the same version?");
  };
  if (frame.mark != kTcpMark)
    return bad(fmt::format("it sent {:#010x} where a frame begins, not {:#010x}", frame.mark, kTcpMark));
  if (frame.channel >= channels_.size())
    return bad(fmt::format("it sent a frame of channel {}; there are {}", frame.channel, channels_.size()));
  if (frame.type == TcpFrameType::kCredit)
    return frame.whole == 0 ? Status() : bad(fmt::format("it sent a credit of a transfer of {} bytes", frame.whole));
  if (frame.type == TcpFrameType::kGoodbye) return {};
  if (frame.type == TcpFrameType::kLost)
    return frame.kind > 0 ? Status() : bad("it sent that the shared stream broke, which both ranks see");
  const uint32_t most = frame.kind == static_cast<uint8_t>(PayloadKind::kInline) ? kInlineBytes : max_message_bytes_;
  if (frame.type != TcpFrameType::kFragment || frame.kind > static_cast<uint8_t>(PayloadKind::kDelivered))
    return bad(fmt::format("it sent a frame of type {} and kind {}", static_cast<int>(frame.type), frame.kind));
  const uint32_t payload = tcp_payload(static_cast<PayloadKind>(frame.kind), frame.bytes);
  if (payload > most) return bad(fmt::format("it sent a message of {} bytes; at most {} are allowed", payload, most));
  if (frame.offset > payload || frame.length > payload - frame.offset || (frame.length == 0) != (payload == 0))
    return bad(fmt::format("it sent bytes {} + {} of a message of {}", frame.offset, frame.length, payload));
  if (frame.message - channels_[frame.channel].popped >= kFifoDepth && !is_popped(frame))
    return bad(fmt::format("it sent message {} of channel {}, of which {} are read", frame.message, frame.channel,
                           channels_[frame.channel].popped));
  return {};
}

// Sent again, or late on a stream that still works, for a message that another attempt has brought.
bool TcpReceiver::is_popped(const TcpFrame& fragment) const {
  const uint32_t behind = channels_[fragment.channel].popped - fragment.message;
  return (resumed_ || attempt_of(fragment) > 0) && behind > 0 && behind <= uint32_t{1} << 31;
}

void TcpReceiver::throw_away(Stream* stream, uint32_t bytes) {
  stream->arrival = nullptr;
  stream->at = nullptr;
  stream->left = bytes;
}

void TcpReceiver::give_up(Arrival* arrival) {
  for (const auto& stream : streams_)
    if (stream->arrival == arrival) throw_away(stream.get(), static_cast<uint32_t>(stream->left));
  if (arrival->data != arrival->small) buffers_.give_back(TcpBuffers::size_class(arrival->payload), arrival->data);
  arrival->data = nullptr;
  arrival->begun = false;
}

// What a stream has brought a part of comes again, whole, when it ends. The part must not wait for that: attempts have
// few numbers, and one that is many attempts old could not be told from a later one.
void TcpReceiver::give_up_parts_of(uint32_t index) {
  for (Channel& channel : channels_)
    for (Arrival& arrival : channel.arrivals)
      if (arrival.begun && !arrival.complete() && (arrival.streams >> index & 1) != 0) give_up(&arrival);
}

void TcpReceiver::begin_arrival(Arrival* arrival, const TcpFrame& frame) {
  const auto kind = static_cast<PayloadKind>(frame.kind);
  arrival->begun = true;
  arrival->streams = 0;
  arrival->attempt = attempt_of(frame);
  arrival->message = {};
  arrival->message.signature = frame.signature;
  arrival->message.bytes = frame.bytes;
  arrival->message.kind = kind;
  arrival->message.wide = is_wide(frame);
  arrival->message.whole = frame.whole;
  arrival->payload = tcp_payload(kind, frame.bytes);
  arrival->announced = arrival->received = 0;
  arrival->data =
      arrival->payload <= kInlineBytes ? arrival->small : buffers_.take(TcpBuffers::size_class(arrival->payload));
  arrival->message.data = kind == PayloadKind::kDelivered ? nullptr : arrival->data;
  arrival->skew = {};
}

Status TcpReceiver::begin_fragment(Stream* stream, const TcpFrame& frame) {
  resumed_ |= attempt_of(frame) > 0;
  if (is_popped(frame)) {
    repeated_ = true;
    throw_away(stream, frame.length);
    return {};
  }
  Arrival& arrival = channels_[frame.channel].arrivals[frame.message % kFifoDepth];
  if (arrival.begun && attempt_of(frame) != arrival.attempt) {
    if (arrival.complete() || !is_later_attempt(attempt_of(frame), arrival.attempt)) {
      throw_away(stream, frame.length);
      return {};
    }
    give_up(&arrival);
  }
  if (!arrival.begun)
    begin_arrival(&arrival, frame);
  else if (arrival.message.signature != frame.signature || arrival.message.bytes != frame.bytes ||
           arrival.message.kind != static_cast<PayloadKind>(frame.kind) ||
           arrival.payload - arrival.announced < frame.length || frame.length == 0)
    return {trSystemError, fmt::format("it sent fragments of message {} that do not belong together", frame.message)};
  arrival.announced += frame.length;
  arrival.streams |= uint64_t{1} << stream->index;
  if (stream->index > 0) {
    begin_part(stream, &arrival, frame.message);
    stream->parts[stream->part].bytes += frame.length;
  }
  stream->arrival = &arrival;
  stream->at = arrival.data + frame.offset;
  stream->left = frame.length;
  return {};
}

const Message* TcpReceiver::front(uint32_t channel) const {
  const Channel& from = channels_[channel];
  const Arrival& arrival = from.arrivals[from.popped % kFifoDepth];
  return arrival.complete() ? &arrival.message : nullptr;
}

void TcpReceiver::pop(uint32_t channel) {
  Channel& from = channels_[channel];
  Arrival& arrival = from.arrivals[from.popped % kFifoDepth];
  if (arrival.data != arrival.small) buffers_.give_back(TcpBuffers::size_class(arrival.payload), arrival.data);
  arrival.data = nullptr;
  arrival.begun = false;
  ++from.popped;
}

}  // namespace treering
