// reports.cpp - what the checked build collects and tells, as one translation unit.
#define SIMULATOR_RUNTIME
#include "findings.cpp"
#include "profile.cpp"
#include "replay.cpp"
