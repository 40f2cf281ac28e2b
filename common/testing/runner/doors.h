// doors.h - system-call filters for graded code. Linux on x86-64; elsewhere they throw.
#pragma once

namespace runner {

void close_first_doors();   // before the library is loaded: no exec, no network, no access to other processes' memory
void close_host_doors();    // only what a launcher needs; opening a file to read fails, anything else kills the process
void close_device_doors();  // only what the simulator's threads need; anything else fails

}  // namespace runner
