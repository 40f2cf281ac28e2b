// reports.cpp - the checked build's data collection and reports, as one translation unit.
#define SIMULATOR_RUNTIME
#include "findings.cpp"
#include "sample.cpp"
#include "profile.cpp"
#include "replay.cpp"
