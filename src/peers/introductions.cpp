// SPDX-License-Identifier: Apache-2.0
#include "peers/introductions.h"

#include <unistd.h>

#include "bootstrap/agent.h"
#include "core/bytes.h"

namespace treering {
namespace {

struct NamedMessage {
  std::string transport, bytes;
};
template <typename V>
void visit(V& v, NamedMessage& m) {
  v(m.transport);
  v(m.bytes);
}

}  // namespace

class Introductions::OfTransport final : public Introducer {
 public:
  OfTransport(const Introductions* all, std::string transport) : all_(all), transport_(std::move(transport)) {}

  void introduce(uint32_t peer, Introduction introduction) override {
    Writer writer;
    writer(NamedMessage{transport_, std::move(introduction.bytes)});
    introduction.bytes = writer.take();
    all_->give_(peer, std::move(introduction));
  }
  void drain(int fd, std::chrono::milliseconds deadline) override { Agent::instance().drain(fd, deadline); }
  uint32_t interfaces_to(uint32_t peer) const override { return all_->interfaces_(peer); }

 private:
  const Introductions* all_;
  const std::string transport_;
};

Introducer* Introductions::introducer(const std::string& transport) {
  auto& introducer = introducers_[transport];
  if (!introducer) introducer = std::make_unique<OfTransport>(this, transport);
  return introducer.get();
}

void Introductions::set_taker(const std::string& transport, IntroductionTaker* taker) {
  if (taker != nullptr) takers_[transport] = taker;
}

// nullptr: this rank has no such transport.
IntroductionTaker* Introductions::find(const std::string& named, std::string* bytes) const {
  NamedMessage message;
  Reader reader(named);
  reader(message);
  const auto found = reader.complete() ? takers_.find(message.transport) : takers_.end();
  if (found == takers_.end()) return nullptr;
  *bytes = std::move(message.bytes);
  return found->second;
}

void Introductions::listen(MemberEvents* events) {
  events->on_introduced = [this](uint32_t source, const std::string& named, int fd) {
    std::string bytes;
    if (IntroductionTaker* taker = find(named, &bytes); taker != nullptr)
      taker->introduced(source, bytes, fd);
    else if (fd >= 0)
      close(fd);
  };
  events->on_connected = [this](uint32_t peer, const std::string& named, const Status& status, int fd) {
    std::string bytes;
    if (IntroductionTaker* taker = find(named, &bytes); taker != nullptr)
      taker->connected(peer, bytes, status, fd);
    else if (fd >= 0)
      close(fd);
  };
}

void Introductions::ended(const std::vector<uint32_t>& peers) const {
  for (const auto& [transport, taker] : takers_)
    for (const uint32_t peer : peers) taker->ended(peer);
}

void Introductions::departed(uint32_t peer) const {
  for (const auto& [transport, taker] : takers_) taker->departed(peer);
}

}  // namespace treering
