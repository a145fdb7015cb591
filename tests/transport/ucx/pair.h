// SPDX-License-Identifier: Apache-2.0
// Two hubs, joined by UCX over the loopback interface: both in this process, or each in its own after a fork().
//
//   side 0: hub ==== UCX, TCP over lo ==== side 1: hub
//     '-- info --> memory that both processes share <-- info --'
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "support/waiting.h"
#include "transport/ucx/hub.h"

namespace treering::ucx {

// What UCX finds on a machine differs: tests take what every machine has.
inline void use_loopback() {
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
}

inline size_t sockets() {
  size_t found = 0;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    found += std::filesystem::read_symlink(entry.path(), gone).string().rfind("socket:", 0) == 0;
  return found;
}

class UcxPair {
 public:
  UcxPair(uint32_t channels, size_t place_bytes) : channels_(channels), place_bytes_(place_bytes) {
    use_loopback();
    void* base = mmap(nullptr, sizeof(Mail), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::runtime_error("mmap failed");
    mail_ = new (base) Mail;
  }
  ~UcxPair() {
    for (auto& hub : hubs_) hub.reset();
    munmap(mail_, sizeof *mail_);
  }
  UcxPair(const UcxPair&) = delete;
  UcxPair& operator=(const UcxPair&) = delete;

  // Before the first connect().
  void set_staging(int side, const std::byte* staging) { staging_[side] = staging; }
  void set_look(int side, std::function<Status()> look) { looks_[side] = std::move(look); }
  void set_name(int side, std::string name) { names_[side] = std::move(name); }

  // The connections of a side to the other, which have reached each other. `alone`: the other side is in another
  // process, and does the same.
  PeerConnections connect(int own, bool alone) {
    if (!hubs_[own]) meet(own, alone);
    return hubs_[own]->connect(static_cast<uint32_t>(1 - own));
  }
  const std::shared_ptr<Hub>& hub(int side) const { return hubs_[side]; }
  // As a communicator that has failed, to its end.
  void stop(int side) {
    hubs_[side]->stop();
    EXPECT_TRUE(treering::testing::eventually([&] { return hubs_[side]->has_stopped(); }));
  }
  // As a process that ends; its connections have ended.
  void end(int side) { hubs_[side].reset(); }

  // Hubs that know each other, and have not tried yet.
  void open(int side) {
    HubOptions options;
    options.rank = static_cast<uint32_t>(side);
    options.ranks = 2;
    options.channels = channels_;
    options.place_bytes = place_bytes_;
    options.staging = staging_[side];
    options.peer_name = [name = names_[1 - side]](uint32_t) { return name; };
    if (looks_[side]) options.look = looks_[side];
    check(Hub::open(std::move(options), &hubs_[side]));
    const std::string info = hubs_[side]->info();
    Letter& letter = mail_->letters[side];
    if (info.size() > sizeof letter.text) throw std::runtime_error("a long info");
    std::memcpy(letter.text, info.data(), info.size());
    letter.bytes.store(info.size(), std::memory_order_release);
  }
  void introduce(int own) {
    Letter& letter = mail_->letters[1 - own];
    if (!testing::eventually([&] { return letter.bytes.load(std::memory_order_acquire) > 0; }))
      throw std::runtime_error("the other side gave no info");
    check(hubs_[own]->take_info(static_cast<uint32_t>(1 - own), std::string(letter.text, letter.bytes.load())));
  }
  Status reach(int own, std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    return hubs_[own]->reach(static_cast<uint32_t>(1 - own), Clock::now() + limit);
  }

 private:
  struct Letter {
    std::atomic<size_t> bytes{0};
    char text[8192];
  };
  struct Mail {
    Letter letters[2];
  };
  static void check(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
  }
  void meet(int own, bool alone) {
    open(own);
    if (!alone) open(1 - own);
    introduce(own);
    if (!alone) introduce(1 - own);
    Status other;
    std::thread thread;
    if (!alone) thread = std::thread([&] { other = reach(1 - own); });
    const Status reached = reach(own);
    if (!alone) thread.join();
    check(reached);
    check(other);
  }

  const uint32_t channels_;
  const size_t place_bytes_;
  Mail* mail_;
  const std::byte* staging_[2] = {nullptr, nullptr};
  std::string names_[2] = {"rank 0", "rank 1"};
  std::function<Status()> looks_[2];
  std::shared_ptr<Hub> hubs_[2];
};

}  // namespace treering::ucx
