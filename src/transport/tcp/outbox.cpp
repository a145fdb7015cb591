// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/outbox.h"

#include <algorithm>
#include <cstring>

namespace treering {

TcpOutbox::TcpOutbox(uint32_t channels) : channels_(channels), buffers_(0) {
  for (Queue* queue : {&small_, &large_}) queue->channels.resize(size_t{channels} * kFifoDepth);
}

TcpOutbox::~TcpOutbox() {
  for (Channel& channel : channels_)
    for (TcpOutgoing& message : channel.messages)
      if (message.copy != nullptr) buffers_.give_back(TcpBuffers::size_class(message.bytes), message.copy);
}

const TcpOutgoing& TcpOutbox::post(uint32_t channel, const Message& message, const void* payload) {
  Channel& to = channels_[channel];
  TcpOutgoing& outgoing = to.at(to.posted);
  outgoing.frame = {};
  outgoing.frame.kind = static_cast<uint8_t>(message.kind);
  outgoing.frame.wide = message.wide;
  outgoing.frame.channel = static_cast<uint8_t>(channel);
  outgoing.frame.message = to.posted++;
  outgoing.frame.signature = message.signature;
  outgoing.frame.bytes = message.bytes;
  outgoing.frame.whole = message.whole;
  outgoing.bytes = tcp_payload(message.kind, message.bytes);
  outgoing.payload = static_cast<const std::byte*>(payload);
  outgoing.kept = message.kind == PayloadKind::kInline || outgoing.bytes == 0;
  if (message.kind == PayloadKind::kInline && outgoing.bytes > 0) {
    std::memcpy(outgoing.inline_copy, payload, outgoing.bytes);
    outgoing.payload = outgoing.inline_copy;
  }
  outgoing.given = outgoing.under_way = outgoing.held = 0;
  outgoing.streams = 0;
  outgoing.all_given = outgoing.was_written = outgoing.unnoticed = false;
  outgoing.asked_for = {};
  outgoing.small = outgoing.bytes <= kSharedStreamBytes;
  queue(outgoing.small).push(static_cast<uint8_t>(channel));
  ++unacknowledged_;
  return outgoing;
}

TcpOutgoing* TcpOutbox::first(bool small) {
  const Queue& waiting = queue(small);
  Channel& to = channels_[waiting.channels[waiting.begin % waiting.channels.size()]];
  // The first of the channel, among those of this queue, that streams have not got the whole of.
  uint32_t number = to.freed;
  while (to.at(number).all_given || to.at(number).small != small) ++number;
  return &to.at(number);
}

void TcpOutbox::give(TcpOutgoing* message, uint32_t length, uint32_t stream) {
  message->given += length;
  message->streams |= uint64_t{1} << stream;
  ++message->under_way;
  if (message->given < message->bytes) return;
  message->all_given = true;
  ++queue(message->small).begin;
}

void TcpOutbox::take(TcpOutgoing* message) {
  --message->under_way;
  message->was_written |= message->all_given && message->under_way == 0;
  advance(&channels_[message->frame.channel]);
}

void TcpOutbox::let_go(uint32_t place) {
  Channel& channel = channels_[place / kFifoDepth];
  --channel.messages[place % kFifoDepth].held;
  advance(&channel);
}

void TcpOutbox::lose_sight(uint32_t place) {
  TcpOutgoing& message = channels_[place / kFifoDepth].messages[place % kFifoDepth];
  // The kernel may still send from the memory. Only once the peer has acknowledged the message, it throws that away.
  if (!message.kept) message.unnoticed = true;
  let_go(place);
}

void TcpOutbox::advance(Channel* channel) {
  Channel& to = *channel;
  for (; to.written != to.posted; ++to.written)
    if (const TcpOutgoing& next = to.at(to.written); !next.was_written && (!next.all_given || next.under_way > 0))
      break;
  for (; to.released != to.written; ++to.released) {
    const TcpOutgoing& next = to.at(to.released);
    const bool popped = static_cast<int32_t>(to.acknowledged - to.released) > 0;
    if (next.under_way > 0 || next.held > 0 || !(popped || next.kept)) break;
  }
  for (; to.freed != to.acknowledged; ++to.freed) {
    TcpOutgoing& next = to.at(to.freed);
    if (!next.all_given || next.under_way > 0 || next.held > 0) break;
    if (next.copy == nullptr) continue;
    buffers_.give_back(TcpBuffers::size_class(next.bytes), next.copy);
    next.copy = nullptr;
  }
}

bool TcpOutbox::acknowledge(uint32_t channel, uint32_t popped) {
  Channel& to = channels_[channel];
  const uint32_t more = popped - to.acknowledged;
  if (more == 0 || more > UINT32_MAX / 2) return true;  // told before, or overtaken by a later one on another stream
  // The peer may have had all of a message that is sent again.
  if (more > (repeated_ ? to.posted : to.written) - to.acknowledged) return false;
  bool waits = false;
  for (uint32_t number = to.acknowledged; number != popped; ++number) {
    waits |= !to.at(number).all_given;
    to.at(number).all_given = true;
  }
  unacknowledged_ -= more;
  to.acknowledged = popped;
  if (waits) rebuild_queues();
  advance(&to);
  return true;
}

const TcpOutgoing* TcpOutbox::find(uint32_t channel, uint32_t number) const {
  const TcpOutgoing& message = channels_[channel].messages[number % kFifoDepth];
  return message.frame.message == number ? &message : nullptr;
}

void TcpOutbox::keep(TcpOutgoing* message) {
  message->copy = buffers_.take(TcpBuffers::size_class(message->bytes));
  std::memcpy(message->copy, message->payload, message->bytes);
  message->payload = message->copy;
  message->kept = true;
}

void TcpOutbox::release(uint32_t channel, Clock::time_point now) {
  Channel& to = channels_[channel];
  for (uint32_t number = to.released; number != to.written; ++number) {
    TcpOutgoing& message = to.at(number);
    if (message.kept || message.unnoticed || message.under_way > 0 || message.held > 0) continue;
    if (static_cast<int32_t>(to.acknowledged - number) > 0) continue;
    if (message.asked_for == Clock::time_point()) message.asked_for = now;
    if (message.bytes <= kCopiedAtOnce || now - message.asked_for >= kGraceOfKiB * (message.bytes >> 10))
      keep(&message);
  }
  advance(&to);
}

void TcpOutbox::lost(uint32_t stream) {
  bool any = false;
  for (Channel& channel : channels_)
    for (uint32_t number = channel.acknowledged; number != channel.posted; ++number) {
      TcpOutgoing& message = channel.at(number);
      if ((message.streams >> stream & 1) == 0) continue;
      message.given = 0;
      message.streams = 0;
      message.all_given = false;
      begin_again(&message.frame);
      any = true;
    }
  if (!any) return;
  repeated_ = true;
  rebuild_queues();
}

void TcpOutbox::forget_written() {
  for (Channel& channel : channels_) {
    // With one that was never written those after it are of no use, but not the link's to judge.
    for (; static_cast<int32_t>(channel.written - channel.acknowledged) > 0; ++channel.acknowledged, --unacknowledged_)
      channel.at(channel.acknowledged).all_given = true;
    advance(&channel);
  }
  rebuild_queues();
}

void TcpOutbox::rebuild_queues() {
  for (Queue* queue : {&small_, &large_}) queue->begin = queue->end = 0;
  for (uint32_t i = 0; i < kFifoDepth; ++i)
    for (uint32_t c = 0; c < channels_.size(); ++c) {
      const uint32_t number = channels_[c].freed + i;
      if (static_cast<int32_t>(channels_[c].posted - number) <= 0) continue;
      const TcpOutgoing& message = channels_[c].at(number);
      if (!message.all_given) queue(message.small).push(static_cast<uint8_t>(c));
    }
}

bool TcpOutbox::has_unwritten() const {
  return std::any_of(channels_.begin(), channels_.end(),
                     [](const Channel& channel) { return channel.written != channel.posted; });
}

}  // namespace treering
