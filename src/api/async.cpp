// SPDX-License-Identifier: Apache-2.0
// The C entry points of streams, events, callbacks and persistent operations.
#include "api/common.h"
#include "gpu/devices.h"

using namespace treering;

struct trPersistent {
  std::unique_ptr<Batch> batch;
};

namespace {

// What acts at once would not be part of the persistent operation, and would come before what a group holds.
Status refuse_to_order(const char* call, trStream_t stream) {
  const Group& group = Group::current();
  if (!group.keeping()) return fail_group(group.refuse_held(call, stream));
  return fail_group(
      {trInvalidUsage, fmt::format("{} between trPersistentBegin and trPersistentEnd; call it outside", call)});
}

}  // namespace

extern "C" {

trResult_t trStreamCreate(trStream_t* stream) {
  return guarded(nullptr, [&]() -> Status {
    if (stream == nullptr) return null_argument("trStreamCreate", "stream");
    *stream = reinterpret_cast<trStream_t>(Engine::instance().create_stream());
    return {};
  });
}

trResult_t trStreamSynchronize(trStream_t stream) {
  return guarded(nullptr, [&]() -> Status {
    TR_RETURN_IF_ERROR(Group::current().refuse_to_overlook("trStreamSynchronize", stream));
    if (!is_device_stream(stream_id(stream))) return Engine::instance().synchronize(stream_id(stream));
    int ordinal = 0;
    DeviceStream cuda = nullptr;
    TR_RETURN_IF_ERROR(find_device_stream(stream_id(stream), &ordinal, &cuda));
    Device* device = nullptr;
    TR_RETURN_IF_ERROR(open_device(ordinal, &device));
    return device->synchronize(cuda);
  });
}

trResult_t trStreamQuery(trStream_t stream) {
  return guarded(nullptr, [&]() -> Status {
    TR_RETURN_IF_ERROR(Group::current().refuse_to_overlook("trStreamQuery", stream));
    return Engine::instance().query(stream_id(stream));
  });
}

trResult_t trStreamDestroy(trStream_t stream) {
  return guarded(nullptr, [&]() -> Status {
    if (stream != nullptr) TR_RETURN_IF_ERROR(Group::current().refuse_held("trStreamDestroy", stream));
    return is_device_stream(stream_id(stream)) ? drop_device_stream(stream_id(stream))
                                               : Engine::instance().destroy_stream(stream_id(stream));
  });
}

trResult_t trStreamAddCallback(trStream_t stream, trCallback callback, void* context) {
  return guarded(nullptr, [&]() -> Status {
    if (callback == nullptr) return null_argument("trStreamAddCallback", "callback");
    TR_RETURN_IF_ERROR(refuse_to_order("trStreamAddCallback", stream));
    return Engine::instance().add_callback(stream_id(stream), callback, context);
  });
}

trResult_t trEventCreate(trEvent_t* event) {
  return guarded(nullptr, [&]() -> Status {
    if (event == nullptr) return null_argument("trEventCreate", "event");
    *event = reinterpret_cast<trEvent_t>(Engine::instance().create_event());
    return {};
  });
}

trResult_t trEventRecord(trEvent_t event, trStream_t stream) {
  return guarded(nullptr, [&]() -> Status {
    TR_RETURN_IF_ERROR(refuse_to_order("trEventRecord", stream));
    return Engine::instance().record(event_id(event), stream_id(stream));
  });
}

trResult_t trStreamWaitEvent(trStream_t stream, trEvent_t event) {
  return guarded(nullptr, [&]() -> Status {
    TR_RETURN_IF_ERROR(refuse_to_order("trStreamWaitEvent", stream));
    return Engine::instance().wait_event(stream_id(stream), event_id(event));
  });
}

trResult_t trEventQuery(trEvent_t event) {
  return guarded(nullptr, [&] { return Engine::instance().query_event(event_id(event)); });
}

trResult_t trEventSynchronize(trEvent_t event) {
  return guarded(nullptr, [&] { return Engine::instance().synchronize_event(event_id(event)); });
}

trResult_t trEventGetFd(trEvent_t event, int* fd) {
  return guarded(nullptr, [&]() -> Status {
    if (fd == nullptr) return null_argument("trEventGetFd", "fd");
    return Engine::instance().event_descriptor(event_id(event), fd);
  });
}

trResult_t trEventDestroy(trEvent_t event) {
  return guarded(nullptr, [&] { return Engine::instance().destroy_event(event_id(event)); });
}

trResult_t trPersistentBegin(void) {
  return guarded(nullptr, []() -> Status {
    if (Group::current().open())
      return {trInvalidUsage, fmt::format("trPersistentBegin inside a group or a persistent operation; call {} first",
                                          Group::current().closing_call())};
    Group::current().start_kept();
    return {};
  });
}

trResult_t trPersistentEnd(trPersistent_t* persistent) {
  return guarded(nullptr, [&]() -> Status {
    std::unique_ptr<Batch> batch;
    TR_RETURN_IF_ERROR(Group::current().end_kept(&batch));
    if (persistent == nullptr) return null_argument("trPersistentEnd", "persistent");
    *persistent = new trPersistent{std::move(batch)};
    return {};
  });
}

trResult_t trPersistentStart(trPersistent_t persistent) {
  return guarded(nullptr, [&]() -> Status {
    if (persistent == nullptr) return null_argument("trPersistentStart", "persistent");
    TR_RETURN_IF_ERROR(refuse_in_group("trPersistentStart"));  // it would overtake what the group holds
    if (persistent->batch->is_queued())
      return {trInvalidUsage, "trPersistentStart: the last start has not ended; synchronize its streams first"};
    return persistent->batch->run();
  });
}

trResult_t trPersistentDestroy(trPersistent_t persistent) {
  if (persistent == nullptr) return trSuccess;
  return guarded(nullptr, [&]() -> Status {
    persistent->batch->wait();
    delete persistent;
    return {};
  });
}

}  // extern "C"
