// checker.cpp - what the checked build does at every access, as one translation unit.
#define SIMULATOR_RUNTIME
#include "races.cpp"  // before its callers: what is quick there is inlined
#include "checked.cpp"
#include "async_order.cpp"
#include "ranges.cpp"
