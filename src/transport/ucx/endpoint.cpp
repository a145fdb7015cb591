// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/endpoint.h"

#include <utility>

#include "transport/ucx/worker.h"

namespace treering::ucx {

Status Endpoint::open(ucp_worker_h worker, const std::string& address) {
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
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

void Endpoint::close() {
  if (handle_ == nullptr) return;
  const ucp_ep_h handle = std::exchange(handle_, nullptr);
  if (may_close())
    close_now(handle);
  else
    stuck_ = handle;
}

void Endpoint::close_stuck() {
  if (is_stuck() && may_close()) close_now(std::exchange(stuck_, nullptr));
}

void Endpoint::close_now(ucp_ep_h handle) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t begun = ucp_ep_close_nbx(handle, &params);
  if (UCS_PTR_IS_PTR(begun)) closing_ = begun;
}

bool Endpoint::ended() {
  if (closing_ != nullptr && ucp_request_check_status(closing_) != UCS_INPROGRESS) release();
  return handle_ == nullptr && closing_ == nullptr;
}

void Endpoint::release() {
  if (closing_ != nullptr) ucp_request_free(std::exchange(closing_, nullptr));
}

}  // namespace treering::ucx
