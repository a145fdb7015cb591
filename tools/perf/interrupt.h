// SPDX-License-Identifier: Apache-2.0
// SIGINT ends a run of endless cycles (-N 0) as its user wants it: the row at hand is finished, and the summary and the
// files are written.
#pragma once

namespace treering::perf {

// From now on SIGINT no longer ends this process; interrupted() tells that it came.
void note_interrupts();
bool interrupted();

}  // namespace treering::perf
