// Frames of the bootstrap: a length, a kind, and bytes. Every size is checked before anything is read.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace treering {

enum class FrameKind : uint32_t { kChallenge = 1, kHello = 2, kData = 3, kError = 4 };

struct FrameHeader {
  uint32_t bytes;  // of the body
  FrameKind kind;
};

inline constexpr uint32_t kMaxFrameBytes = 16 << 20;
inline constexpr uint32_t kMaxHelloBytes = 4096;
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kMacBytes = 32;  // crypto_auth_BYTES

using Nonce = std::array<unsigned char, kNonceBytes>;

// Fixed part of a hello; `settings_bytes` of text follow (one "name=value" a line).
struct Hello {
  uint32_t rank;
  uint32_t ranks;
  uint32_t pid;
  int32_t timeout_ms;
  uint64_t segment_bytes;
  Nonce nonce;  // the root proves that it knows the secret by authenticating it
};

inline std::string make_frame(FrameKind kind, const std::string& body) {
  FrameHeader header{static_cast<uint32_t>(body.size()), kind};
  std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
  return frame + body;
}

// An error frame's body: the code, then the text.
inline std::string make_error_frame(uint32_t code, const std::string& text) {
  return make_frame(FrameKind::kError, std::string(reinterpret_cast<const char*>(&code), sizeof code) + text);
}

}  // namespace treering
