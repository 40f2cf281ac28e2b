// doors.h - filters of system calls for code that is graded. Linux on x86-64; elsewhere they throw.
#pragma once

namespace runner {

void close_first_doors();   // before the library is loaded: no program, no network, no other process's memory
void close_host_doors();    // what a launcher needs and no more; anything else ends the process
void close_device_doors();  // what the simulator's threads need; anything else fails

}  // namespace runner
