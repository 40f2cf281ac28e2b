#error "the CPU simulator does not model wmma (mma.h)"
