// runtime.cpp - the whole runtime as one translation unit: its parts share headers that take longer to compile than
// the code (2 s together, 4 s one by one).
#include "fiber.cpp"
#include "host_api.cpp"
#include "launch.cpp"
#include "report.cpp"
#include "scheduler.cpp"
