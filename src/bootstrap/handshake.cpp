// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/handshake.h"

#include <sodium.h>

#include <cstring>

namespace treering {
namespace {

constexpr char kMagic[] = "treerin3";
constexpr size_t kMagicBytes = sizeof kMagic - 1;
constexpr size_t kHelloBytes = kMagicBytes + sizeof(JobName) + sizeof(uint64_t) + kNonceBytes;
static_assert(kMacBytes == crypto_auth_BYTES && kSecretBytes == crypto_auth_KEYBYTES);

// So many zeros instead of a nonce and its proof: the initiator need not try again. No object of static lifetime, as a
// process may exit while the control thread answers.
constexpr size_t kRefusalBytes = kNonceBytes + kMacBytes;

const unsigned char* bytes_of(const std::string& text) { return reinterpret_cast<const unsigned char*>(text.data()); }

template <size_t N>
std::string text_of(const std::array<unsigned char, N>& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), N);
}

}  // namespace

Handshake::Handshake(const JobName& job, const Secret& secret, uint64_t process)
    : initiator_(true), job_(job), process_(process), secret_(secret) {}
Handshake::Handshake(FindSecret find) : initiator_(false), find_(std::move(find)) {}

std::string Handshake::opening() {
  if (!initiator_) return {};
  randombytes_buf(first_.data(), first_.size());
  return kMagic + what();
}

size_t Handshake::wanted() const {
  if (initiator_) return kNonceBytes + kMacBytes;
  return stage_ == 0 ? kHelloBytes : kMacBytes;
}

Handshake::Progress Handshake::refuse(const char* reason) {
  reason_ = reason;
  return Progress::kRefused;
}

std::string Handshake::what() const {
  return text_of(job_) + std::string(reinterpret_cast<const char*>(&process_), sizeof process_) + text_of(first_);
}

std::string Handshake::proof(const char* label) const {
  const std::string text = label + what() + text_of(second_);
  std::array<unsigned char, kMacBytes> mac;
  crypto_auth(mac.data(), bytes_of(text), text.size(), secret_.data());
  return text_of(mac);
}

bool Handshake::proves(const std::string& mac, const char* label) const {
  return sodium_memcmp(mac.data(), proof(label).data(), kMacBytes) == 0;
}

Handshake::Progress Handshake::step(const std::string& message, std::string* reply) {
  if (message.size() != wanted()) return refuse("a message of the wrong length");
  if (initiator_) {
    std::memcpy(second_.data(), message.data(), kNonceBytes);
    if (message == std::string(kRefusalBytes, '\0')) return refuse(kNoSuchJob);
    if (!proves(message.substr(kNonceBytes), "acceptor"))
      return refuse(
          "it does not know the communicator's secret: another program listens there, or the unique id is damaged");
    *reply += proof("initiator");
    derive_keys();
    return Progress::kDone;
  }
  if (stage_++ == 0) {
    if (message.compare(0, kMagicBytes, kMagic) != 0) return refuse("it does not speak this protocol");
    const char* at = message.data() + kMagicBytes;
    std::memcpy(job_.data(), at, job_.size());
    std::memcpy(&process_, at += job_.size(), sizeof process_);
    std::memcpy(first_.data(), at + sizeof process_, kNonceBytes);
    const Secret* secret = find_(job_, process_);
    if (secret == nullptr) reply->append(kRefusalBytes, '\0');
    if (secret == nullptr)
      return refuse("it asks for a communicator that is not known here, or for another process of it");
    secret_ = *secret;
    randombytes_buf(second_.data(), second_.size());
    *reply += text_of(second_) + proof("acceptor");
    return Progress::kMore;
  }
  if (!proves(message, "initiator")) return refuse("it does not know the communicator's secret");
  derive_keys();
  return Progress::kDone;
}

void Handshake::derive_keys() {
  const std::string text = "keys" + what() + text_of(second_);
  std::array<unsigned char, 64> both;
  crypto_generichash(both.data(), both.size(), bytes_of(text), text.size(), secret_.data(), secret_.size());
  std::memcpy((initiator_ ? sending_ : receiving_).data(), both.data(), 32);
  std::memcpy((initiator_ ? receiving_ : sending_).data(), both.data() + 32, 32);
}

}  // namespace treering
