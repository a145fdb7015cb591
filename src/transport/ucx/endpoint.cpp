// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/endpoint.h"

#include <utility>

#include "transport/ucx/worker.h"

namespace treering::ucx {
namespace {

constexpr unsigned kActiveMessage = 0;

bool is_over(void* request) { return ucp_request_check_status(request) != UCS_INPROGRESS; }

}  // namespace

Status Endpoint::open(ucp_worker_h worker, const std::string& address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&Endpoint::on_failure, this};
  const ucs_status_t created = ucp_ep_create(worker, &params, &handle_);
  if (created == UCS_OK) return {};
  handle_ = nullptr;
  return ucx_error("ucp_ep_create", created);
}

// From within progress(): the endpoint is closed by its user.
void Endpoint::on_failure(void* endpoint, ucp_ep_h, ucs_status_t status) {
  static_cast<Endpoint*>(endpoint)->failure_ = status;
}

void Endpoint::on_sent(void* request, ucs_status_t status, void* note) {
  static_cast<Note*>(note)->end(status);
  ucp_request_free(request);
}

void Endpoint::send(Note* note, const void* payload, size_t bytes) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &Endpoint::on_sent;
  params.user_data = note;
  note->begin(&under_way_);
  const ucs_status_ptr_t begun =
      ucp_am_send_nbx(handle_, kActiveMessage, &note->header, sizeof note->header, payload, bytes, &params);
  if (!UCS_PTR_IS_PTR(begun)) note->end(UCS_PTR_STATUS(begun));
}

// A request that ended at once leaves none.
void Endpoint::take(ucs_status_ptr_t begun, void** request) {
  if (UCS_PTR_IS_PTR(begun)) *request = begun;
  if (UCS_PTR_IS_ERR(begun) && failure_ == UCS_OK) failure_ = UCS_PTR_STATUS(begun);
}

bool Endpoint::flushed() {
  if (handle_ == nullptr || failure() != UCS_OK) return true;
  if (flushing_ == nullptr) {
    const ucp_request_param_t params{};
    take(ucp_ep_flush_nbx(handle_, &params), &flushing_);
  }
  if (flushing_ == nullptr) return true;
  if (!is_over(flushing_)) return false;
  ucp_request_free(std::exchange(flushing_, nullptr));
  return true;
}

void Endpoint::close(Way way) {
  if (flushing_ != nullptr) ucp_request_free(std::exchange(flushing_, nullptr));
  if (handle_ == nullptr) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = way == Way::kAtOnce ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  take(ucp_ep_close_nbx(std::exchange(handle_, nullptr), &params), &closing_);
}

bool Endpoint::ended() {
  if (closing_ != nullptr && is_over(closing_)) ucp_request_free(std::exchange(closing_, nullptr));
  return handle_ == nullptr && closing_ == nullptr;
}

}  // namespace treering::ucx
