#error "the CPU simulator does not model cuda::pipeline (cuda_pipeline.h)"
