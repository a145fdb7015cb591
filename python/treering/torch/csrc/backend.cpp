// SPDX-License-Identifier: Apache-2.0
#include "backend.h"

#include <Python.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "errors.h"
#include "neighbours.h"

namespace treering::pytorch {
namespace {

// Backends that are there, for the end of the process.
struct Registry {
  std::mutex mutex;
  std::set<Backend*> backends;
  int process = getpid();
};
Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

// Lets others have the interpreter, where this thread has it.
class WithoutInterpreter {
 public:
  WithoutInterpreter() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutInterpreter() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutInterpreter(const WithoutInterpreter&) = delete;
  WithoutInterpreter& operator=(const WithoutInterpreter&) = delete;

 private:
  PyThreadState* state_;
};

constexpr const char* kIdKey = "treering/id";

}  // namespace

Backend::Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout,
                 const std::string& name)
    : c10d::Backend(rank, size), store_(std::move(store)), options_(c10::make_intrusive<Options>("treering", timeout)) {
  init();
  options_->group_name = name;
  const std::string text = "process group " + name;
  publish_process(*store_, rank);  // before the link is there: then all have done it
  link_ = std::make_unique<Link>(Meeting{store_, kIdKey, text, rank, size, timeout});
  lanes_ = std::make_unique<Lanes>(store_, text, rank, timeout);
  std::lock_guard lock(registry().mutex);
  registry().backends.insert(this);
}

Backend::~Backend() {
  WithoutInterpreter without;
  {
    std::lock_guard lock(registry().mutex);
    registry().backends.erase(this);
  }
  if (lanes_ != nullptr) close("the group was destroyed");
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(timeout.count() > 0, "set_timeout: ", timeout.count(), " ms; give more than 0");
  TORCH_CHECK_VALUE(timeout <= options_->timeout, "set_timeout: ", timeout.count(), " ms is longer than ",
                    options_->timeout.count(), " ms, with which the group was made; make it with the longest");
  link_->set_timeout(timeout < options_->timeout ? timeout : c10d::kUnsetTimeout);
}

void Backend::close(const char* why) {
  WithoutInterpreter without;
  lanes_->close(why);
  link_->close(why);
}

void Backend::abort() {
  WithoutInterpreter without;
  link_->revoke();
  close("the group was aborted");
}

void Backend::close_all() {
  std::lock_guard lock(registry().mutex);
  // A forked child has none of its parent's communicators.
  if (registry().process != getpid()) return;
  for (Backend* backend : registry().backends) backend->close("the process ends");
}

c10d::ErrorType Backend::getError() {
  return link_->failure_text().empty() ? c10d::ErrorType::SUCCESS : c10d::ErrorType::COMM_ERROR;
}

WorkPointer Backend::noted(WorkPointer work) {
  std::lock_guard lock(coalescing_mutex_);
  if (is_coalescing_) coalesced_.push_back(work);
  return work;
}

WorkPointer Backend::run(Call call, const Link::Issue& issue) {
  ++sequence_;
  return noted(link_->run(std::move(call), issue));
}

void Backend::check_root(const char* call, const char* argument, int64_t root) const {
  TORCH_CHECK_VALUE(root >= 0 && root < size_, call, ": ", argument, " is rank ", root, " of the group; one from 0 to ",
                    size_ - 1, " is wanted");
}

void Backend::startCoalescing() {
  std::lock_guard lock(coalescing_mutex_);
  is_coalescing_ = true;
}

WorkPointer Backend::endCoalescing() {
  std::lock_guard lock(coalescing_mutex_);
  is_coalescing_ = false;
  return c10::make_intrusive<JoinedWork>(std::exchange(coalesced_, {}));
}

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<Options>& options) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank_);
  if (found == ranks.end()) return nullptr;
  const auto timeout = options == nullptr ? options_->timeout : options->timeout;
  const std::string name = options == nullptr || options->group_name.empty() ? "split" : options->group_name;
  return c10::make_intrusive<Backend>(store, static_cast<int>(found - ranks.begin()), static_cast<int>(ranks.size()),
                                      timeout, name);
}

}  // namespace treering::pytorch
