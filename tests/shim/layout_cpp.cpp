#include "layout_checks.h"

int main() { return check_initialisers(); }
