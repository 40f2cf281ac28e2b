#error "the CPU simulator does not model cooperative groups"
