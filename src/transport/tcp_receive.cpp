#include "transport/tcp_receive.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace treering {
namespace {
constexpr std::align_val_t kAlignment{64};
// A stream may be behind another by all messages that are under way; more channels than these are seldom busy at once.
constexpr size_t kChannelsRemembered = 8;
}  // namespace

TcpBuffers::~TcpBuffers() {
  for (auto& free : free_)
    for (std::byte* memory : free) operator delete[](memory, kAlignment);
}

std::byte* TcpBuffers::take(uint32_t size_class) {
  auto& free = free_[size_class];
  if (free.empty()) {
    allocated_ += size_t{1} << size_class;
    return static_cast<std::byte*>(operator new[](size_t{1} << size_class, kAlignment));
  }
  std::byte* memory = free.back();
  free.pop_back();
  return memory;
}

TcpReceiver::TcpReceiver(uint32_t channels, uint32_t max_message_bytes, TcpWaitSet* waits)
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

void TcpReceiver::add_stream(uint32_t index, int fd) {
  if (waits_ != nullptr) waits_->add(fd, TcpWaitSet::For::kInput);
  auto stream = std::make_unique<Stream>();
  stream->index = index;
  stream->fd = fd;
  stream->parts.resize(index > 0 ? std::min<size_t>(channels_.size(), kChannelsRemembered) * kFifoDepth : 0);
  patience_ = kPatience;
  // In the order of the numbers: small messages are looked for on the first.
  auto place = std::find_if(streams_.begin(), streams_.end(), [&](const auto& other) { return other->index > index; });
  streams_.insert(place, std::move(stream));
}

void TcpReceiver::drop_shared() {
  if (streams_.empty() || streams_.front()->index != 0) return;
  const bool any = ended_;
  end_stream(streams_.front().get());
  remove_ended();
  ended_ = any;  // this rank has ended it, not the peer
}

void TcpReceiver::end_stream(Stream* stream) {
  if (waits_ != nullptr) waits_->forget(stream->fd);
  close(stream->fd);
  stream->ended = ended_ = true;
  ++ends_;
}

void TcpReceiver::remove_ended() {
  std::erase_if(streams_, [](const auto& stream) { return stream->ended; });
  next_ = 0;
  ends_ = 0;
}

Status TcpReceiver::receive(Stream* stream, size_t* got, bool* drained) {
  if (stream->begin == stream->end) stream->begin = stream->end = 0;
  if (stream->begin > 0) {
    std::memmove(stream->buffer, stream->buffer + stream->begin, stream->end - stream->begin);
    stream->end -= stream->begin;
    stream->begin = 0;
  }
  const size_t room = kBufferBytes - stream->end;
  const size_t wanted = stream->left + room;
  iovec parts[2] = {{stream->at, stream->left}, {stream->buffer + stream->end, room}};
  msghdr header{};
  header.msg_iov = stream->left > 0 ? parts : parts + 1;
  header.msg_iovlen = stream->left > 0 ? 2 : 1;
  const ssize_t received = recvmsg(stream->fd, &header, MSG_DONTWAIT);
  *drained = received < static_cast<ssize_t>(wanted);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return {};
  if (received > 0) received_ += static_cast<uint64_t>(received);
  const bool in_frame = stream->left > 0 || stream->end > 0;
  // Whoever leaves closes the shared stream, on which this rank's credits may still be under way: a reset is its end.
  if (received < 0 && errno == ECONNRESET && stream->index == 0 && !in_frame) {
    end_stream(stream);
    return {};
  }
  if (received < 0 || (received == 0 && in_frame)) {
    const int error = errno;
    const std::string why = received < 0 ? std::strerror(error) : "the stream ends in the middle of a message";
    const uint32_t index = stream->index;
    end_stream(stream);
    return {trRemoteError, fmt::format("receiving on stream {}: {} (errno {})", index, why, received < 0 ? error : 0)};
  }
  if (received == 0) {
    end_stream(stream);
    return {};
  }
  *got = static_cast<size_t>(received);
  const size_t direct = std::min(*got, stream->left);
  if (direct > 0) {
    stream->at += direct;
    stream->left -= direct;
    stream->arrival->received += static_cast<uint32_t>(direct);
    if (stream->left == 0) end_piece(stream);
  }
  stream->end += *got - direct;
  return {};
}

void TcpReceiver::take_payload(Stream* stream) {
  const size_t bytes = std::min(stream->left, stream->end - stream->begin);
  if (bytes == 0) return;
  std::memcpy(stream->at, stream->buffer + stream->begin, bytes);
  stream->begin += bytes;
  stream->at += bytes;
  stream->left -= bytes;
  stream->arrival->received += static_cast<uint32_t>(bytes);
  if (stream->left == 0) end_piece(stream);
}

void TcpReceiver::begin_part(Stream* stream, const Arrival* arrival, uint32_t message) {
  Part* part = &stream->parts[stream->part];
  if (part->arrival == arrival && part->message == message) return;
  stream->part = (stream->part + 1) % stream->parts.size();
  stream->parts[stream->part] = {arrival, message, 0, Clock::now(), {}};
}

void TcpReceiver::end_piece(Stream* stream) {
  if (stream->index == 0) return;
  Part& part = stream->parts[stream->part];
  part.ended = Clock::now();
  Arrival* arrival = stream->arrival;
  if (arrival->received == arrival->payload) arrival->lateness = compare_parts(arrival, part.message);
}

TcpLateness TcpReceiver::compare_parts(const Arrival* arrival, uint32_t message) const {
  const Part *first = nullptr, *last = nullptr;
  const Stream *early = nullptr, *late = nullptr;
  for (const auto& stream : streams_)
    for (const Part& part : stream->parts) {
      if (part.arrival != arrival || part.message != message) continue;
      if (first == nullptr || part.ended < first->ended) first = &part, early = stream.get();
      if (last == nullptr || part.ended > last->ended) last = &part, late = stream.get();
    }
  // What lay in the kernel when the early part was through was not late: this rank was.
  if (first == last || late->drained < first->ended) return {};
  const double took = std::chrono::duration<double>(last->ended - last->begun).count();
  const double after = std::chrono::duration<double>(last->ended - std::max(first->ended, last->begun)).count();
  return {static_cast<uint8_t>(late->index), static_cast<uint8_t>(early->index),
          static_cast<uint32_t>(took > 0 ? last->bytes * (after / took) : last->bytes), message};
}

const TcpLateness& TcpReceiver::lateness(uint32_t channel) const {
  const Channel& from = channels_[channel];
  return from.arrivals[from.popped % kFifoDepth].lateness;
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
  const uint32_t most = frame.kind == static_cast<uint8_t>(PayloadKind::kInline) ? kInlineBytes : max_message_bytes_;
  if (frame.type != TcpFrameType::kPiece || frame.kind > static_cast<uint8_t>(PayloadKind::kDelivered) ||
      frame.wide > 1)
    return bad(fmt::format("it sent a frame of type {} and kind {}", static_cast<int>(frame.type), frame.kind));
  const uint32_t payload = tcp_payload(static_cast<PayloadKind>(frame.kind), frame.bytes);
  if (payload > most) return bad(fmt::format("it sent a message of {} bytes; at most {} are allowed", payload, most));
  if (frame.offset > payload || frame.length > payload - frame.offset || (frame.length == 0) != (payload == 0))
    return bad(fmt::format("it sent bytes {} + {} of a message of {}", frame.offset, frame.length, payload));
  if (frame.message - channels_[frame.channel].popped >= kFifoDepth)
    return bad(fmt::format("it sent message {} of channel {}, of which {} are read", frame.message, frame.channel,
                           channels_[frame.channel].popped));
  return {};
}

Status TcpReceiver::begin_piece(Stream* stream, const TcpFrame& frame) {
  Arrival& arrival = channels_[frame.channel].arrivals[frame.message % kFifoDepth];
  const auto kind = static_cast<PayloadKind>(frame.kind);
  if (!arrival.begun) {
    arrival.begun = true;
    arrival.message = {};
    arrival.message.signature = frame.signature;
    arrival.message.bytes = frame.bytes;
    arrival.message.kind = kind;
    arrival.message.wide = frame.wide != 0;
    arrival.message.due_us = frame.due_us;
    arrival.message.whole = frame.whole;
    arrival.payload = tcp_payload(kind, frame.bytes);
    arrival.announced = arrival.received = 0;
    arrival.data =
        arrival.payload <= kInlineBytes ? arrival.small : buffers_.take(TcpBuffers::size_class(arrival.payload));
    arrival.message.data = kind == PayloadKind::kDelivered ? nullptr : arrival.data;
    arrival.lateness = {};
  } else if (arrival.message.signature != frame.signature || arrival.message.bytes != frame.bytes ||
             arrival.message.kind != kind || arrival.payload - arrival.announced < frame.length || frame.length == 0) {
    return {trSystemError, fmt::format("it sent pieces of message {} that do not belong together", frame.message)};
  }
  arrival.announced += frame.length;
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
  return arrival.begun && arrival.received == arrival.payload ? &arrival.message : nullptr;
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
