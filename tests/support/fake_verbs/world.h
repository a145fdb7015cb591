// SPDX-License-Identifier: Apache-2.0
// All that the fake has: devices, objects, settings, the random numbers, and the one lock that every function takes.
//
// Invariants: everything in here is touched with a Lock held. A Lock is not seen by ThreadSanitizer: publish() and observe() say
// what orders the program's accesses.
#pragma once

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "support/fake_verbs/fake_verbs.h"
#include "support/fake_verbs/objects.h"

namespace treering::fake_verbs {

enum class Kind { kList, kContext, kPd, kMr, kChannel, kCq, kQp, kAh };
constexpr int kKinds = 8;

struct FailedCall {
  std::string function;
  int countdown;
  int error;
};

struct HeldCalls {
  std::string function;
  int countdown = 0;
  int waiting = 0;
};

struct FailedCompletion {
  uint32_t qp_num;
  fake_verbs_queue queue;
  int countdown;
  ibv_wc_status status;
};

struct Settings {
  int disorder = 2;
  fake_verbs_progress progress = FAKE_VERBS_ARMED;
  fake_verbs_limits limits = {512, 16384, 16, 1u << 20, 1u << 16, UINT64_MAX, 0};
  bool keep_completions = false;
  std::vector<FailedCall> calls;
  std::vector<FailedCompletion> completions;
};

class World {
 public:
  World();
  std::mutex mutex;
  std::condition_variable acknowledged;
  std::condition_variable released;  // calls that were held
  HeldCalls held_calls;
  std::condition_variable work;  // for the background thread
  Settings settings;
  fake_verbs_counters counters = {};
  const uint8_t* watched_begin = nullptr;
  size_t watched_bytes = 0;
  uint64_t clock = 0;  // virtual nanoseconds
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Context*> contexts;
  std::map<uint32_t, Qp*> qps;
  std::unordered_map<uint32_t, Mr*> lkeys, rkeys;
  std::vector<Qp*> active;  // those that have work
  int armed = 0;            // completion queues with a channel

  void set_devices(int count, int ports);
  Port* port(int device, int number);
  uint64_t below(uint64_t end);  // 0 <= number < end
  void seed(uint64_t value) { random_.emplace(value); }
  uint32_t new_key();
  uint32_t new_qp_number() { return last_qp_number_ += 1 + static_cast<uint32_t>(below(7)); }

  void add(const void* object, Kind kind) { alive_[object] = kind; }
  void remove(const void* object) { alive_.erase(object); }
  int count(Kind kind) const;
  // Ends the process where there is no such object.
  void check(const void* object, Kind kind, const char* function) const;
  // An errno that a test asked for, or 0.
  int injected(const char* function);
  ibv_wc_status injected(const Qp& qp, fake_verbs_queue queue);

 private:
  std::optional<std::mt19937_64> random_;
  std::unordered_map<const void*, Kind> alive_;
  std::unordered_map<uint32_t, bool> used_keys_;
  uint32_t last_qp_number_ = 0x100;
};

World& world();
// At the beginning of a function, without the lock: waits as long as a test holds its calls.
void wait_if_held(const char* function);

// The lock of the world, which ThreadSanitizer does not see.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  std::unique_lock<std::mutex>& held() { return *lock_; }

 private:
  std::optional<std::unique_lock<std::mutex>> lock_;
};

// What came before publish(mark) in this thread comes before what follows observe(mark) in another.
void publish(char& mark);
void observe(char& mark);
// A copy that ThreadSanitizer sees.
void copy_bytes(void* to, const void* from, size_t length);

inline Context& context_of(ibv_context* context) { return *static_cast<Context*>(verbs_get_ctx(context)); }
template <typename Result, typename Base>
Result* checked(Base* object, Kind kind, const char* function) {
  world().check(object, kind, function);
  return static_cast<Result*>(object);
}
inline bool is_none(const ibv_gid& gid) {
  for (const uint8_t byte : gid.raw) {
    if (byte != 0) return false;
  }
  return true;
}

// memory.cpp: where the range lies, or null.
uint8_t* resolve(const std::unordered_map<uint32_t, Mr*>& keys, uint32_t key, const ibv_pd* pd, uint64_t addr,
                 uint64_t length, unsigned access, Mr** region = nullptr);

// device.cpp
extern thread_local int owner_of_thread;  // of what it opens
void queue_event(Context& context, const ibv_async_event& event);
void queue_event(Qp& qp, ibv_event_type type);
Port* port_of(const Qp& qp);

// completion.cpp
void enter(Cq& cq, const Completion& completion);
void remove_completions(Cq& cq, const Qp& qp);

// error.cpp
void complete_send(Qp& qp, const Send& send, ibv_wc_status status);
void complete_receive(Qp& qp, const Receive& receive, const Message* message, ibv_wc_status status);
void fail_send(Send& send, ibv_wc_status status);                  // once it is its turn
void fail_send(Qp* sender, uint64_t index, ibv_wc_status status);  // if it is still there
// Into the error state; all that is outstanding is flushed, in order. A send may have failed, so that none after it succeeds.
void fail_now(Qp& qp, bool send_failed = false);
void leave_wire(Qp& qp);              // some of its messages arrive without it, the others do not
void take_back(Qp& qp, size_t from);  // incoming messages from that on; their senders have to send again

// engine.cpp
void activate(Qp& qp);
void changed();          // after a call that may let work move: at disorder 0 all of it moves
bool advance(bool all);  // as one poll; whether something moved
void settle();

// wire.cpp: one step each; whether something moved
bool transmit(Qp& qp);
bool deliver(Qp& qp);
bool acknowledge(Qp& qp);
// land.cpp
bool land(Qp& qp);
bool land_some(Qp& qp, size_t which, bool faults = true);  // without faults: a bad key changes nothing
void cut(Message& message);
// The queue pair has a receive for the message; or is in error for what is wrong with it, and the message is gone.
enum class Taken { kYes, kNone, kFailed };
Taken take_receive(Qp& qp, size_t which);

// datagram.cpp
bool transmit_datagram(Qp& qp, Send& send);
// The queue pair there, if both ports are up.
Qp* find_peer(const Qp& qp, const ibv_ah_attr& to, uint32_t qp_num);
int check_address(ibv_context* context, const ibv_ah_attr& attr);

// pump.cpp: the background thread
void wake_pump();

// post.cpp
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_receive(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
int poll(ibv_cq* cq, int room, ibv_wc* wc);
int arm(ibv_cq* cq, int solicited_only);

}  // namespace treering::fake_verbs
