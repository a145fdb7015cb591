// SPDX-License-Identifier: Apache-2.0
// Introductions: which transport an introduction is of. What a transport of this rank gives is told to the transport of
// the same name at the peer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/membership.h"
#include "transport/introduction.h"

namespace treering {

class Introductions {
 public:
  // `give` takes what goes to a peer; any thread.
  using Give = std::function<void(uint32_t peer, Introduction introduction)>;
  using Interfaces = std::function<uint32_t(uint32_t peer)>;
  Introductions(Give give, Interfaces interfaces) : give_(std::move(give)), interfaces_(std::move(interfaces)) {}

  // For the transport of that name.
  Introducer* introducer(const std::string& transport);
  // Who takes what comes for it; nullptr: it takes none. Before the events are set.
  void set_taker(const std::string& transport, IntroductionTaker* taker);
  // Sets those of introductions.
  void listen(MemberEvents* events);
  void departed(uint32_t peer) const;
  void ended(const std::vector<uint32_t>& peers) const;

 private:
  class OfTransport;
  IntroductionTaker* find(const std::string& named, std::string* bytes) const;

  Give give_;
  Interfaces interfaces_;
  std::map<std::string, std::unique_ptr<Introducer>> introducers_;
  std::map<std::string, IntroductionTaker*> takers_;
};

}  // namespace treering
