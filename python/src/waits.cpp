// SPDX-License-Identifier: Apache-2.0
#include "waits.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace treering::python {
namespace {

namespace nb = nanobind;
using Clock = std::chrono::steady_clock;

// How long a wait goes on without a look at Python's signals. A signal that another thread of the process took does
// not interrupt the poll.
constexpr int kLookMilliseconds = 100;
// The program may set handlers of its own, which takes ours away: looked at before a call. It takes as long as a small
// call, so that of many short ones not each is looked at: less than a call, a change of handlers and a call take.
constexpr auto kHandlerCheck = std::chrono::microseconds(10);

// What the main thread, the handlers and the watcher share. The main thread alone begins calls.
struct Watch {
  std::atomic<uint64_t> call{0};            // the number of the call under way, 0: none
  std::atomic<uint64_t> signalled_call{0};  // the one that was under way when a signal came
  std::atomic<bool> revoking{false};
  const trComm_t* comms = nullptr;
  size_t count = 0;
  std::atomic<int> descriptor{-1};  // wakes the watcher
  uint64_t calls = 0;
  Clock::time_point looked{};
};
Watch watch;

struct Handler {
  int signal;
  struct sigaction previous;
};
Handler handlers[] = {{SIGINT, {}}, {SIGTERM, {}}};

void on_signal(int number, siginfo_t* info, void* context) {
  const int saved = errno;
  for (const Handler& handler : handlers) {
    if (handler.signal != number) continue;
    if ((handler.previous.sa_flags & SA_SIGINFO) != 0)
      handler.previous.sa_sigaction(number, info, context);
    else if (handler.previous.sa_handler != SIG_DFL && handler.previous.sa_handler != SIG_IGN)
      handler.previous.sa_handler(number);
  }
  const uint64_t call = watch.call.load();
  const int descriptor = watch.descriptor.load();
  if (call != 0 && descriptor >= 0) {
    watch.signalled_call.store(call);
    const uint64_t one = 1;
    // A full counter wakes it, too.
    (void)!write(descriptor, &one, sizeof one);
  }
  errno = saved;
}

// A signal that ends the process, or that is ignored, stays as it is.
void put_handlers_in_front() {
  for (Handler& handler : handlers) {
    struct sigaction current;
    if (sigaction(handler.signal, nullptr, &current) != 0) continue;
    const bool by_info = (current.sa_flags & SA_SIGINFO) != 0;
    if (by_info && current.sa_sigaction == &on_signal) continue;
    if (!by_info && (current.sa_handler == SIG_DFL || current.sa_handler == SIG_IGN)) continue;
    handler.previous = current;
    struct sigaction ours = current;
    ours.sa_flags |= SA_SIGINFO;
    ours.sa_sigaction = &on_signal;
    sigaction(handler.signal, &ours, nullptr);
  }
}

// Sleeps until a signal comes during a call.
void run_watcher(int descriptor) {
  uint64_t count = 0;
  while (read(descriptor, &count, sizeof count) == sizeof count || errno == EINTR) {
    const uint64_t call = watch.signalled_call.load();
    // Either the call that ends sees `revoking`, and waits, or this thread sees that it has ended.
    watch.revoking.store(true);
    if (call != 0 && watch.call.load() == call)
      for (size_t i = 0; i < watch.count; ++i) trCommRevoke(watch.comms[i]);
    watch.revoking.store(false);
  }
}

// A forked child has neither the watcher nor a call under way.
void forget_watcher() {
  watch.call.store(0);
  watch.revoking.store(false);
  const int descriptor = watch.descriptor.exchange(-1);
  if (descriptor >= 0) close(descriptor);
}

void start_watcher() {
  const int descriptor = eventfd(0, EFD_CLOEXEC);
  if (descriptor < 0) return;  // without it a signal takes effect when the call ends
  static const int at_fork = pthread_atfork(nullptr, nullptr, forget_watcher);
  (void)at_fork;
  // Its signals would be taken there, which is no harm: the handler does not look at the thread.
  std::thread(run_watcher, descriptor).detach();
  watch.descriptor.store(descriptor);
}

// The thread that runs Python's handlers: the process's first, or in a forked child the one that forked.
bool is_main_thread() {
  static std::atomic<int> forks{0};
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  (void)at_fork;
  thread_local int looked_at = -1;
  thread_local bool is_main = false;
  const int now = forks.load(std::memory_order_relaxed);
  if (looked_at != now) {
    is_main = gettid() == getpid();
    looked_at = now;
  }
  return is_main;
}

}  // namespace

// The watcher may be about to revoke: the communicators must stay until it has.
void BlockingCall::end() {
  watch.call.store(0);
  while (watch.revoking.load()) std::this_thread::yield();
}

BlockingCall::BlockingCall(const trComm_t* comms, size_t count) : watched_(is_main_thread()) {
  if (watched_) {
    const auto now = Clock::now();
    if (now - watch.looked > kHandlerCheck) {
      if (watch.descriptor.load() < 0) start_watcher();
      put_handlers_in_front();
      watch.looked = now;
    }
    watch.comms = comms;
    watch.count = count;
    watch.call.store(++watch.calls);
    // A signal from here on revokes; what came before raises here.
    if (PyErr_CheckSignals() != 0) {
      nb::python_error error;
      end();
      throw error;
    }
  }
  thread_ = PyEval_SaveThread();
}

BlockingCall::~BlockingCall() {
  if (watched_) end();
  PyEval_RestoreThread(thread_);
}

namespace {

// Shared by the caller and the thread, which may outlive it.
struct LongCallState {
  std::mutex mutex;
  std::condition_variable ended;
  bool has_ended = false, is_abandoned = false;
  Outcome outcome;
};

// Calls that were given up and have not ended: the communicator that each began from, and whether its owner has left it.
std::mutex abandoned_mutex;
std::map<trComm_t, bool>& abandoned_calls() {
  static auto* calls = new std::map<trComm_t, bool>;
  return *calls;
}

void forget_abandoned_call(trComm_t from) {
  std::unique_lock lock(abandoned_mutex);
  const auto found = abandoned_calls().find(from);
  if (found == abandoned_calls().end()) return;
  const bool is_left = found->second;
  abandoned_calls().erase(found);
  lock.unlock();
  if (is_left) trCommDestroy(from);
}

Outcome outcome_of(trResult_t code) { return {code, code == trSuccess ? "" : trGetLastError(nullptr)}; }

void run_in_thread(const LongCall& call, LongCallState* state) {
  Outcome outcome = outcome_of(call.run());
  std::unique_lock lock(state->mutex);
  state->outcome = std::move(outcome);
  state->has_ended = true;
  const bool drops = state->is_abandoned;
  state->ended.notify_all();
  lock.unlock();
  if (!drops) return;
  call.drop();
  forget_abandoned_call(call.from);
}

bool has_ended_soon(LongCallState* state) {
  nb::gil_scoped_release release;
  std::unique_lock lock(state->mutex);
  return state->ended.wait_for(lock, std::chrono::milliseconds(kLookMilliseconds), [&] { return state->has_ended; });
}

void abandon(const LongCall& call, LongCallState* state) {
  std::unique_lock lock(state->mutex);
  state->is_abandoned = true;
  const bool drops = state->has_ended;
  if (!drops && call.from != nullptr) {
    std::lock_guard listed(abandoned_mutex);
    abandoned_calls().emplace(call.from, false);
  }
  lock.unlock();
  nb::gil_scoped_release release;
  if (drops) call.drop();
  if (call.from != nullptr) trCommRevoke(call.from);
}

}  // namespace

Outcome run_long_call(LongCall call) {
  if (!is_main_thread()) {
    nb::gil_scoped_release release;
    return outcome_of(call.run());
  }
  raise_signals();
  auto state = std::make_shared<LongCallState>();
  std::thread([state, call] { run_in_thread(call, state.get()); }).detach();
  while (!has_ended_soon(state.get())) {
    if (PyErr_CheckSignals() == 0) continue;
    nb::python_error error;
    abandon(call, state.get());
    throw error;
  }
  return state->outcome;
}

bool leave_to_abandoned_call(trComm_t comm) {
  std::lock_guard lock(abandoned_mutex);
  const auto found = abandoned_calls().find(comm);
  if (found == abandoned_calls().end()) return false;
  found->second = true;
  return true;
}

bool wait_readable(int descriptor, double seconds) {
  const auto begin = Clock::now();
  for (;;) {
    int left = kLookMilliseconds;
    if (seconds >= 0) {
      const double passed = std::chrono::duration<double>(Clock::now() - begin).count();
      // In floating point, for it may be more than an int holds.
      const double milliseconds = std::min((seconds - passed) * 1000 + 1, static_cast<double>(kLookMilliseconds));
      left = passed >= seconds ? 0 : static_cast<int>(milliseconds);
    }
    pollfd asked{descriptor, POLLIN, 0};
    {
      nb::gil_scoped_release release;
      if (poll(&asked, 1, left) > 0) return true;
    }
    raise_signals();
    if (left == 0) return false;
  }
}

}  // namespace treering::python
