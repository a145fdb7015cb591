// SPDX-License-Identifier: Apache-2.0
// What both the fuzzer and the replay of its corpus do with some bytes: the first chooses what they are given to.
// Whatever is read must be written the same way again.
#pragma once

#include <cstdlib>
#include <string>

#include "bootstrap/frames.h"
#include "bootstrap/handshake.h"
#include "bootstrap/unique_id.h"

namespace treering {

template <typename T>
void check_message(const std::string& bytes) {
  T message;
  if (!decode(bytes, &message)) return;
  T again;
  if (!decode(encode(message), &again) || encode(again) != encode(message)) std::abort();
}

inline void check_handshake(const std::string& bytes) {
  static const Secret secret{1, 2, 3};
  Handshake handshake([](const JobName& name, uint64_t) { return name[0] < 128 ? &secret : nullptr; });
  std::string reply;
  size_t at = 0;
  for (auto progress = Handshake::Progress::kMore; progress == Handshake::Progress::kMore && at < bytes.size();) {
    const std::string part = bytes.substr(at, handshake.wanted());
    at += part.size();
    progress = handshake.step(part, &reply);
    if (progress == Handshake::Progress::kDone) std::abort();  // a proof cannot be guessed
  }
}

inline void check_bytes(const std::string& input) {
  if (input.empty()) return;
  const std::string bytes = input.substr(1);
  if (input[0] == 'H') return check_handshake(bytes);
  if (input[0] == 'A') {
    const auto addresses = unpack_addresses(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    for (const Address& address : addresses) (void)to_text(address);
    return;
  }
  check_message<JoinMessage>(bytes);
  check_message<PlacedMessage>(bytes);
  check_message<AttachMessage>(bytes);
  check_message<AttachedMessage>(bytes);
  check_message<HelloMessage>(bytes);
  check_message<FailedMessage>(bytes);
  check_message<ProcessTableMessage>(bytes);
  check_message<BlobMessage>(bytes);
  check_message<BlobsMessage>(bytes);
  check_message<NoticeMessage>(bytes);
  check_message<MovingMessage>(bytes);
  check_message<SpreadMessage>(bytes);
  check_message<QuestionMessage>(bytes);
  check_message<AnswerMessage>(bytes);
  check_message<IntroductionMessage>(bytes);
}

}  // namespace treering
