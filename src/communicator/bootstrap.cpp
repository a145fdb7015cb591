#include "communicator/bootstrap.h"

#include <fmt/format.h>
#include <sodium.h>
#include <unistd.h>

#include "communicator/wire.h"

namespace treering {
namespace {

// The root's own deadline is the earlier one, because its message names who is missing.
constexpr auto kGrace = std::chrono::seconds(1);

Status protocol_error() { return {trInternalError, "the meeting point of the communicator sent something unexpected"}; }

}  // namespace

Bootstrap::~Bootstrap() {
  if (socket_ >= 0) close(socket_);
}

Status Bootstrap::receive_frame(uint32_t* kind, std::string* body, int* descriptor) {
  FrameHeader header;
  TR_RETURN_IF_ERROR(receive_all(socket_, &header, sizeof header, deadline_, descriptor));
  if (header.bytes > kMaxFrameBytes) return protocol_error();
  body->resize(header.bytes);
  TR_RETURN_IF_ERROR(receive_all(socket_, body->data(), header.bytes, deadline_, descriptor));
  *kind = static_cast<uint32_t>(header.kind);
  if (header.kind != FrameKind::kError) return {};
  uint32_t code = trInternalError;
  if (body->size() < sizeof code) return protocol_error();
  std::memcpy(&code, body->data(), sizeof code);
  return {static_cast<trResult_t>(code), body->substr(sizeof code)};
}

Status Bootstrap::meet(const UniqueId& id, uint32_t rank, uint32_t ranks, int timeout_ms, uint64_t segment_bytes,
                       const std::string& settings, int* segment) {
  if (sodium_init() < 0) return {trSystemError, "libsodium could not be initialised"};
  ranks_ = ranks;
  deadline_ = timeout_ms == 0 ? Clock::time_point::max() - kGrace
                              : Clock::now() + std::chrono::milliseconds(timeout_ms) + kGrace;
  *segment = -1;
  TR_RETURN_IF_ERROR(connect_local(socket_name(id), deadline_, &socket_));
  uint32_t kind = 0;
  std::string body;
  TR_RETURN_IF_ERROR(receive_frame(&kind, &body, nullptr));
  if (kind != static_cast<uint32_t>(FrameKind::kChallenge) || body.size() != kNonceBytes) return protocol_error();

  Hello hello{rank, ranks, static_cast<uint32_t>(getpid()), timeout_ms, segment_bytes, {}};
  randombytes_buf(hello.nonce.data(), hello.nonce.size());
  std::string signed_part = body + std::string(reinterpret_cast<const char*>(&hello), sizeof hello) + settings;
  unsigned char mac[kMacBytes];
  crypto_auth(mac, reinterpret_cast<const unsigned char*>(signed_part.data()), signed_part.size(), id.secret.data());
  std::string frame = make_frame(
      FrameKind::kHello, std::string(reinterpret_cast<char*>(mac), sizeof mac) + signed_part.substr(body.size()));
  TR_RETURN_IF_ERROR(send_all(socket_, frame.data(), frame.size(), deadline_));

  TR_RETURN_IF_ERROR(receive_frame(&kind, &body, segment));
  if (kind != static_cast<uint32_t>(FrameKind::kHello) || body.size() != kMacBytes ||
      crypto_auth_verify(reinterpret_cast<const unsigned char*>(body.data()), hello.nonce.data(), hello.nonce.size(),
                         id.secret.data()) != 0)
    return {trRemoteError, "the meeting point does not know the communicator's secret: somebody else listens there"};
  return {};
}

Status Bootstrap::allgather(const std::string& blob, std::vector<std::string>* all) {
  std::string frame = make_frame(FrameKind::kData, blob);
  TR_RETURN_IF_ERROR(send_all(socket_, frame.data(), frame.size(), deadline_));
  uint32_t kind = 0;
  std::string body;
  TR_RETURN_IF_ERROR(receive_frame(&kind, &body, nullptr));
  if (kind != static_cast<uint32_t>(FrameKind::kData)) return protocol_error();
  all->clear();
  size_t at = 0;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    uint32_t bytes = 0;
    if (body.size() - at < sizeof bytes) return protocol_error();
    std::memcpy(&bytes, body.data() + at, sizeof bytes);
    at += sizeof bytes;
    if (body.size() - at < bytes) return protocol_error();
    all->push_back(body.substr(at, bytes));
    at += bytes;
  }
  return {};
}

}  // namespace treering
