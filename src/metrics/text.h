// SPDX-License-Identifier: Apache-2.0
// Names of users in OpenMetrics text and in JSON.
#pragma once

#include <string>
#include <string_view>

namespace treering {

// The text with '?' in the place of each byte that is no UTF-8.
std::string as_utf8(std::string_view text);
// What stands between the quotation marks.
std::string as_label_value(std::string_view text);
std::string as_json_text(std::string_view text);

}  // namespace treering
