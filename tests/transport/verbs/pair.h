// SPDX-License-Identifier: Apache-2.0
// Two verbs links in one process, joined by the devices of the stand-in (support/fake_verbs). Introductions go by a
// thread, as they do in a process with a control thread.
//
//   side 0: link on fake0 --- introduction ---> control thread ---> side 1: link on fake1      and back
//
// With several rails side 0 has fake0, fake2, ... and side 1 fake1, fake3, ...
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/fake_verbs/fake_verbs.h"
#include "transport/verbs/link.h"

namespace treering::verbs {

class VerbsPair {
 public:
  // places: of side 1; rails: of each side
  VerbsPair(uint32_t channels, size_t place_bytes, uint32_t places = kFifoDepth, int rails_of_0 = 1, int rails_of_1 = 1)
      : channels_(channels), place_bytes_(place_bytes), places_(places), rails_{rails_of_0, rails_of_1} {
    const int rails = std::max(rails_of_0, rails_of_1);
    if (rails > 1 && fake_verbs_set_devices(2 * rails, 1) != 0) throw std::runtime_error("devices are in use");
    control_ = std::thread([this] { deliver(); });
  }
  ~VerbsPair() {
    for (Side& side : sides_)
      if (side.link) side.link->finish();
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    control_.join();
  }
  VerbsPair(const VerbsPair&) = delete;
  VerbsPair& operator=(const VerbsPair&) = delete;

  // The link of a side, made at the first call, whose messages come from that memory.
  const std::shared_ptr<VerbsLink>& link(int own, std::byte* staging, size_t staging_bytes) {
    std::lock_guard lock(making_);
    Side& side = sides_[own];
    if (side.link) return side.link;
    auto card = std::make_shared<Card>();
    Config config;
    for (int rail = 0; rail < rails_[own]; ++rail)
      config.verbs_devices += "=fake" + std::to_string(2 * rail + own) + ",";
    std::vector<std::string> rejected;
    check(open_devices(config, nullptr, &card->devices, &rejected));
    card->log = log_line;
    card->staging =
        std::make_unique<RegisteredStaging>(card->devices, staging, 1, staging_bytes, staging_bytes / staging_parts_);
    check(card->staging->open());
    card->regions = std::make_unique<RegisteredRegions>(card->devices);
    side.regions = card->regions.get();
    LinkOptions options;
    options.peer = static_cast<uint32_t>(1 - own);
    options.peer_name = "rank " + std::to_string(1 - own);
    options.channels = channels_;
    options.place_bytes = place_bytes_;
    if (own == 1) options.places = places_;
    options.least_divided = least_divided_;
    auto made = VerbsLink::make(std::move(card), std::move(options),
                                [this, own](const EndPoint& end) { introduce(1 - own, end); });
    {
      std::lock_guard mail(mutex_);
      side.link = made;
    }
    changed_.notify_all();
    made->start();
    return side.link;
  }
  // What the messages of a side may refer to, once its link is made.
  RegisteredRegions& regions(int own) { return *sides_[own].regions; }
  // Staging memory of links that are made after it is registered in so many parts.
  void set_staging_parts(size_t parts) { staging_parts_ = parts; }
  // Payloads of links that are made after it are divided from so many bytes on.
  void set_least_divided(uint32_t bytes) { least_divided_ = bytes; }
  // So many of the introductions to come are lost.
  void lose(int introductions) {
    std::lock_guard lock(mutex_);
    lost_ = introductions;
  }
  // Waits until every introduction has been heard, so that both sides may send. Before that a side keeps its credits, and
  // then tells several in one.
  void wait_until_heard() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !delivers_ && sides_[0].mail.empty() && sides_[1].mail.empty(); });
  }

 private:
  struct Side {
    std::shared_ptr<VerbsLink> link;
    RegisteredRegions* regions = nullptr;
    std::deque<EndPoint> mail;
  };
  static void check(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
  }
  void introduce(int side, const EndPoint& end) {
    Writer writer;  // as it travels
    writer(end);
    EndPoint read;
    const std::string bytes = writer.take();
    Reader reader(bytes);
    reader(read);
    if (!reader.complete()) throw std::runtime_error("an introduction that cannot be read");
    std::lock_guard lock(mutex_);
    if (lost_ > 0) return --lost_, void();
    sides_[side].mail.push_back(read);
    changed_.notify_all();
  }
  void deliver() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Side* ready = nullptr;
      changed_.wait(lock, [&] {
        for (Side& side : sides_)
          if (side.link && !side.mail.empty()) ready = &side;
        return ended_ || ready != nullptr;
      });
      if (ended_) return;
      const EndPoint end = ready->mail.front();
      ready->mail.pop_front();
      const std::shared_ptr<VerbsLink> link = ready->link;
      delivers_ = true;
      lock.unlock();
      link->hear(end);
      lock.lock();
      delivers_ = false;
      changed_.notify_all();
    }
  }

  const uint32_t channels_;
  const size_t place_bytes_;
  const uint32_t places_;
  const int rails_[2];
  size_t staging_parts_ = 1;
  uint32_t least_divided_ = kMinDivided;
  std::mutex making_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  Side sides_[2];
  int lost_ = 0;
  bool ended_ = false, delivers_ = false;
  std::thread control_;
};

}  // namespace treering::verbs
