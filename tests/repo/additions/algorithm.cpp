// SPDX-License-Identifier: Apache-2.0
// The algorithm that additions_test.py has added is in the table and right.
#include "verified.h"

int main() { return treering::is_verified(treering::Collective::kAllReduce, "there-and-back") ? 0 : 1; }
