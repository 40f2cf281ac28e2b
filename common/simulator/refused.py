"""The parts of CUDA that the simulator lacks, with a message better than "No such file".

refused_header("thrust/sort.h")     why it is missing; None for any other header
refused_names(code)                 [(position, why), ...] for textures and the like
"""

from __future__ import annotations

import re

_NEEDS_A_GPU = "the simulator has no {}: it runs the kernels that you write, not NVIDIA's libraries"
_CURAND = "cuRAND (a few multiplications and shifts of a seed and the thread's index do for tests)"
_HEADERS = (
    (r"thrust/", "Thrust (a std::vector and a loop do for tests; cub's block and warp parts are there)"),
    (r"cublas|cublas_v2\.h|cublasLt\.h", "cuBLAS (a matrix product in three loops does for tests)"),
    (r"cudnn", "cuDNN"),
    (r"cufft", "cuFFT"),
    (r"cusparse", "cuSPARSE"),
    (r"cusolver", "cuSOLVER"),
    (r"curand", _CURAND),
    (r"nccl", "NCCL"),
    (r"npp|nppi", "NPP"),
    (r"nvrtc|nvJitLink", "run-time compilation"),
    (r"optix", "OptiX"),
    (r"cutlass/|cute/", "CUTLASS"),
    (r"cuda_gl_interop\.h|cudaGL\.h|GL/|helper_gl\.h", "OpenGL"),
)
_TEXTURES = "the simulator has no textures and surfaces: read the array itself, with the index clamped by hand"
_HEADERS_IN_WORDS = (
    (r"cuda_fp[46]\.h", "the simulator has no fp4 and fp6: cuda_fp8.h is there, or a table of the 16 or 64 values"),
    (r"helper_\w+\.h",
     "this header belongs to NVIDIA's samples, not to CUDA: put a copy next to your file, or check the cudaError_t "
     "of each call yourself"),
    (r"cutil\w*\.h|shrUtils\.h|sdkHelper\.h",
     "CUDA has no cutil since version 5: check the cudaError_t of each call yourself"),
    (r"(?:texture|surface)_(?:types|fetch_functions|indirect_functions|functions)\.h", _TEXTURES),
    (r"cub/",
     "of cub the simulator has BlockReduce, BlockScan, BlockLoad, BlockStore, BlockRadixSort, WarpReduce, WarpScan, "
     "DeviceReduce, DeviceScan and DeviceRadixSort: write what else you need as a kernel"),
)  # fmt: skip
# Headers that cuda_runtime.h covers but old programs include directly.
BUILT_IN = re.compile(
    r"(?:sm_\d\d_(?:intrinsics|atomic_functions)|device_(?:atomic_|double_)?functions|device_(?:types|launch_parameters)|"
    r"(?:math|common|vector)_functions|(?:builtin|driver|vector|library)_types|cudaTypedefs|cuda_device_runtime_api|"
    r"host_defines|host_config|channel_descriptor|cuda_occupancy|cuda_profiler_api|crt/\w+)\.h(?:pp)?"
)
_GPU_ONLY = "the simulator has one device and no other process's: cudaMalloc and cudaMemcpy do what it needs"
_NAMES = (
    (r"tex[123]D\w*|tex1Dfetch|texCubemap\w*|surf[123]D\w+|cudaTextureObject_t|cudaSurfaceObject_t|cuda(?:Mipmapped)?Array_t|"
     r"cuda(?:Create|Destroy|Get)(?:Texture|Surface)Object\w*|cuda(?:Malloc|Malloc3D|Free)(?:Mipmapped)?Array|"
     r"cuda(?:Mipmapped)?ArrayGet\w+|cudaGetMipmappedArrayLevel|cudaMemcpy(?:2D)?(?:To|From)Array\w*|"
     r"cudaMemcpy(?:2D)?ArrayToArray|cuda(?:Get|Create)ChannelDesc|cudaDeviceGetTexture1DLinearMaxWidth|"
     r"cuda(?:Bind|Unbind)Texture\w*|texture(?=\s*<)",
     _TEXTURES),
    (r"curand_init|curandState\w*", _NEEDS_A_GPU.format(_CURAND)),
    (r"cudaThread(?:Synchronize|Exit|[GS]etLimit|[GS]etCacheConfig)",
     "CUDA 13 has removed cudaThreadSynchronize and its kin: they are called cudaDeviceSynchronize, "
     "cudaDeviceReset, cudaDeviceSetLimit and cudaDeviceSetCacheConfig"),
    (r"cuda(?:ConfigureCall|SetupArgument|Launch(?=\s*\())|cudaSetDoubleFor(?:Device|Host)",
     "CUDA has removed this function: launch with kernel<<<grid, block>>>(arguments) or cudaLaunchKernel"),
    (r"__(?:shfl|shfl_up|shfl_down|shfl_xor|any|all|ballot)(?=\s*\()",
     "CUDA has removed warp functions without a mask: write __shfl_sync, __ballot_sync, ... with the mask of the "
     "lanes that take part, 0xffffffff for all"),
    (r"__pm[0-3](?=\s*\()", "the simulator has no performance counters: --profile counts for you"),
    (r"__uni_sync(?=\s*\()", "the simulator has no __uni_sync: __ballot_sync and __syncwarp() say the same"),
    (r"__cluster_map_shared_multicast",
     "the simulator has no multicast address: __cluster_map_shared_rank gives one block's"),
    (r"__nv_fp128_\w+", "the simulator has no __float128 in kernels: compute in double, or in two of them"),
    (r"__nv_cvt_\w+_(?:to_)?fp[46](?:x2)?|__nv_cvt_fp[46](?:x2)?_to_\w+|__nv_fp[46]\w*",
     "the simulator has no fp4 and fp6: cuda_fp8.h is there, or a table of the 16 or 64 values"),
    (r"cu(?:Init|DriverGet|Device(?:Get|Primary|Can|Compute)|Ctx|Module|Link|Mem(?:Alloc|Free|cpy|set|Get|Host|Map|Create|"
     r"Address|Pool|Advise|Prefetch|Export|Import|Release|Unmap|Set)|Launch|Func[GS]|Stream|Event|Library|Kernel|Graph|"
     r"Occupancy|GetError|GetProcAddress|Profiler|Array|Tex|Surf|Pointer|Ipc)\w*(?=\s*\()",
     "the simulator has no driver API but for cuTensorMapEncodeTiled: the runtime API does the same (cudaMalloc for "
     "cuMemAlloc, kernel<<<>>> for cuLaunchKernel), and kernels are compiled with the program, not loaded"),
    (r"cuda(?:Library\w+(?=\s*\()|KernelSetAttributeForDevice|GetExportTable|GetFuncBySymbol|GetKernel|FuncGetParamInfo)",
     "the simulator loads no kernels at run time: they are compiled with the program, and launched by name or by "
     "cudaLaunchKernel"),
    (r"cudaIpc\w+|cuda(?:Import|Destroy)External\w+|cudaExternalMemory\w+|cuda(?:Signal|Wait)External\w+|"
     r"cudaGraph\w*ExternalSemaphores\w+|cudaMemPool(?:Export|Import)\w+|cudaDevice(?:FlushGPUDirect\w+|"
     r"(?:R|Unr)egisterAsyncNotification|GetNvSciSync\w+|GetHostAtomicCapabilities|GetP2PAtomicCapabilities)",
     _GPU_ONLY),
    (r"cudaGraphics\w+|cuda(?:GL|EGL|VDPAU|D3D\d+)\w+",
     "the simulator has no graphics: copy results with cudaMemcpy and draw them on the host"),
    (r"cudaLogs\w+", "the simulator keeps no log: what is wrong is an error code, or a line on stderr"),
    (r"cuda(?:Memcpy|Memcpy3D|MemPrefetch|MemDiscard|MemDiscardAndPrefetch)BatchAsync",
     "the simulator has no batches of copies: call cudaMemcpyAsync or cudaMemPrefetchAsync for each"),
    (r"cudaMemRangeGetAttributes?", "the simulator moves no managed memory, so there is nothing to ask of a range"),
    (r"cudaStream(?:BeginCaptureToGraph|UpdateCaptureDependencies)",
     "the simulator captures a stream as a whole: cudaStreamBeginCapture, and cudaStreamWaitEvent for forks"),
    (r"cudaGraph(?:AddNode|NodeSetParams|ExecNodeSetParams)(?=\s*\()",
     "the simulator has a function for each kind of node: cudaGraphAddKernelNode, cudaGraphAddMemcpyNode, ..."),
    (r"cudaGraph(?:Add)?Mem(?:Alloc|Free)Node\w*|cudaDevice(?:GraphMemTrim|[GS]etGraphMemAttribute)",
     "the simulator's graphs do not allocate: cudaMalloc before the graph is made"),
    (r"cudaGraphConditional\w+", "the simulator's graphs have no conditions: choose on the host which graph to launch"),
    (r"cudaUserObject\w+|cudaGraph(?:Retain|Release)UserObject",
     "the simulator's graphs own nothing: free what they use when they are destroyed"),
    (r"cudaGraphKernelNode(?:CopyAttributes|[GS]etAttribute)",
     "the simulator's graph nodes have no attributes: launch with cudaLaunchKernelEx in a captured stream"),
    (r"cudaGraph(?:(?:Kernel|Memcpy|Memset|Host)NodeGetParams|(?:Kernel|Memcpy|Memset|Host)NodeSetParams(?:1D)?|DestroyNode|"
     r"(?:ExecChildGraphNodeSetParams|ChildGraphNodeGetGraph)|RemoveDependencies|NodeFindInClone|Node[GS]etEnabled)",
     "the simulator's graph nodes stay as they were added: build another graph, or change what an instantiated one "
     "runs (cudaGraphExecKernelNodeSetParams and its like, cudaGraphExecUpdate)"),
    (r"cudaGraph(?:GetEdges|NodeGetDependen\w+)",
     "the simulator's graphs list no edges: cudaGraphDebugDotPrint writes them into a file"),
    (r"cudaGraph(?:Add|Exec)?Event(?:Record|Wait)Node\w*",
     "the simulator's graphs have no events: cudaEventRecord before and after cudaGraphLaunch"),
    (r"cudaGraph(?:Add|Exec)?MemcpyNode(?:SetParams)?(?:To|From)Symbol",
     "the simulator's graphs know no symbols: cudaGetSymbolAddress, and a cudaGraphAddMemcpyNode1D with that address"),
    (r"cudaGraph(?:InstantiateWithParams|ExecGetFlags)", "the simulator's graphs have no flags: cudaGraphInstantiate"),
    (r"cudaMem(?:(?:GetDefault|Get|Set)MemPool|PoolGetAccess)",
     "the simulator has one device: cudaDeviceGetDefaultMemPool, cudaDeviceGetMemPool and cudaDeviceSetMemPool"),
    (r"cudaMemcpy3DPeer\w*", "the simulator has one device: cudaMemcpy3D, or cudaMemcpyPeer for what is contiguous"),
    (r"cub::(?:Block(?:Adjacent\w+|Discontinuity|Exchange|Histogram|Merge\w+|Radix(?!Sort)\w+|Run\w+|Shuffle)|"
     r"Warp(?!Reduce|Scan)\w+|Device(?!Reduce\b|Scan\b|RadixSort\b)[A-Z]\w+)",
     _HEADERS_IN_WORDS[-1][1]),
)  # fmt: skip
# One regex for all. The lookahead is fast because each name begins with one of a few letters.
_ANY_NAME = re.compile(rf"(?<![\w.])(?=[cst_])(?:{'|'.join(f'({names})' for names, _ in _NAMES)})(?!\w)")


def refused_header(name: str) -> str | None:
    """Why the header is missing; None if it is not listed."""
    for pattern, what in _HEADERS:
        if re.match(pattern, name):
            return _NEEDS_A_GPU.format(what)
    return next((why for pattern, why in _HEADERS_IN_WORDS if re.match(pattern, name)), None)


def refused_names(code: str) -> list[tuple[int, str]]:
    """(position, reason) of each use of an unsupported name, in source order."""
    return [(match.start(), _NAMES[match.lastindex - 1][1]) for match in _ANY_NAME.finditer(code)]
