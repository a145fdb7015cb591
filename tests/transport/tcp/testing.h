// SPDX-License-Identifier: Apache-2.0
// What the tests of TCP links share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "transport/tcp/wire.h"
#include "transport/two_sides.h"

namespace treering {

inline constexpr uint32_t kManyChannels = 4;

inline TcpOptions options_to(uint32_t peer) {
  TcpOptions options;
  options.peer = peer;
  options.peer_name = "rank " + std::to_string(peer);
  options.channels = kManyChannels;
  return options;
}

inline Message user_message(uint32_t signature, const std::vector<std::byte>& data) {
  Message message;
  message.signature = signature;
  message.kind = PayloadKind::kUser;
  message.bytes = static_cast<uint32_t>(data.size());
  message.user = {0, reinterpret_cast<uint64_t>(data.data())};
  return message;
}

// A message written to a link's socket by the test itself.
inline bool write_message(int fd, uint32_t number, const std::string& payload) {
  TcpFrame frame;
  frame.kind = static_cast<uint8_t>(PayloadKind::kStaging);
  frame.message = number;
  frame.bytes = frame.length = static_cast<uint32_t>(payload.size());
  const std::string bytes = std::string(reinterpret_cast<const char*>(&frame), sizeof frame) + payload;
  return write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
}

struct NoStreams final : StreamSource {
  std::vector<std::pair<uint32_t, PeerStreamId>> asked;
  void open_stream(uint32_t peer, PeerStreamId stream) override { asked.emplace_back(peer, stream); }
};

}  // namespace treering
