// SPDX-License-Identifier: Apache-2.0
// The files of metrics and traces.
#pragma once

#include <string>

#include "core/open_file.h"
#include "core/status.h"

namespace treering {

// A reader finds the old text or the new one, never a part.
Status replace_file(const std::string& path, const std::string& text);
// An empty file in a directory, which is made unless it is there; the one above it must be.
Status make_trace_file(const std::string& directory, const std::string& name, OpenFile* file);
Status write_text(int fd, const std::string& text);

}  // namespace treering
