// SPDX-License-Identifier: Apache-2.0
#include "layout_checks.h"

int main() { return check_initialisers(); }
