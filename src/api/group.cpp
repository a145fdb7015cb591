// SPDX-License-Identifier: Apache-2.0
#include "api/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "api/common.h"
#include "core/change_chains.h"

namespace treering {

Group& Group::current() {
  thread_local Group group;
  return group;
}

Status Group::end() {
  if (depth_ == 0) return {trInvalidUsage, "trGroupEnd without trGroupStart"};
  if (depth_ == 1 && keeping_) return {trInvalidUsage, "trGroupEnd without trGroupStart: end with trPersistentEnd"};
  if (--depth_ > 0) return {};
  auto batch = std::move(batch_);
  auto changes = std::exchange(changes_, {});
  Status failure = std::exchange(failure_, Status());
  if (!failure.ok()) return failure;
  TR_RETURN_IF_ERROR(run_changes(std::move(changes)));
  TR_RETURN_IF_ERROR(batch->prepare(/*kept=*/false));
  return batch->run();
}

Status Group::end_kept(std::unique_ptr<Batch>* batch) {
  if (!keeping_ || depth_ != 1) return {trInvalidUsage, "trPersistentEnd without trPersistentBegin, or inside a group"};
  depth_ = 0;
  keeping_ = false;
  auto made = std::move(batch_);
  const bool changes = !std::exchange(changes_, {}).empty();
  TR_RETURN_IF_ERROR(std::exchange(failure_, Status()));
  if (changes) return {trInvalidUsage, "communicators cannot be made by a persistent operation"};
  TR_RETURN_IF_ERROR(made->prepare(/*kept=*/true));
  *batch = std::move(made);
  return {};
}

Status Group::refuse(const char* call, const char* what, const void* handle) const {
  return {trInvalidUsage,
          fmt::format("{}: {} {} has calls in the open {}; call {} first", call, what, handle, kind(), closing_call())};
}

Status Group::refuse_held(const char* call, trComm_t comm) const {
  const bool makes =
      std::any_of(changes_.begin(), changes_.end(), [comm](const Change& change) { return change.parent == comm; });
  return open() && comm != nullptr && (makes || batch_->has(comm)) ? refuse(call, "comm", comm) : Status();
}

Status Group::refuse_held(const char* call, trStream_t stream) const {
  return open() && batch_->has(stream_id(stream)) ? refuse(call, "stream", stream) : Status();
}

Status Group::run_changes(std::vector<Change> changes) {
  std::vector<ChangeChain> chains;
  std::map<trComm_t, size_t> chain_of;
  for (Change& change : changes) {
    const size_t at =
        change.parent == nullptr ? chains.size() : chain_of.try_emplace(change.parent, chains.size()).first->second;
    if (at == chains.size()) chains.emplace_back();
    chains[at].push_back(std::move(change.work));
  }
  return run_chains(chains);
}

}  // namespace treering
