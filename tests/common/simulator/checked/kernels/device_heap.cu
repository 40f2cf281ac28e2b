// malloc, free, new and delete in kernels.
#include "case.h"

struct Node {
    float value;
    Node* next;
    __device__ Node(float value_, Node* next_) : value(value_), next(next_) {}
};

// Each thread builds a list of its own and takes it apart.
__global__ void lists(float* out) {
    Node* head = nullptr;
    for (int i = 0; i < 10; ++i) head = new Node(i, head);
    float sum = 0;
    while (head) {
        Node* next = head->next;
        sum += head->value;
        delete head;
        head = next;
    }
    out[threadIdx.x] = sum;
}
RUN(heap_lists, 1, 64, { lists<<<1, 64>>>(out.data); })

// An object with virtual functions: its constructor writes where they are.
struct Shape {
    __device__ virtual ~Shape() {}
    __device__ virtual float area() const = 0;
};
struct Square : Shape {
    float side;
    __device__ Square(float side_) : side(side_) {}
    __device__ float area() const override { return side * side; }
};
__global__ void virtual_calls(float* out) {
    const Shape* shape = new Square(threadIdx.x);
    out[threadIdx.x] = shape->area();
    delete shape;
}
RUN(heap_virtual_calls, 1, 64, { virtual_calls<<<1, 64>>>(out.data); })

// One thread allocates, all fill and read.
__global__ void shared_buffer(float* out) {
    __shared__ float* buffer;
    if (threadIdx.x == 0) buffer = static_cast<float*>(malloc(blockDim.x * sizeof(float)));
    __syncthreads();
    buffer[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = buffer[blockDim.x - 1 - threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) free(buffer);
}
RUN(heap_shared_buffer, 1, 64, { shared_buffer<<<1, 64>>>(out.data); })

// Until there is no room, then everything is given back, and there is room again.
__global__ void exhausted(float* out) {
    void* blocks[16];
    int count = 0;
    while (count < 16 && (blocks[count] = malloc(1 << 20))) ++count;
    for (int i = 0; i < count; ++i) free(blocks[i]);
    void* again = malloc(7 << 20);
    out[0] = count, out[1] = again != nullptr, out[2] = new double[1 << 20] == nullptr;
    free(again);
}
RUN(heap_exhausted, 1, 3, { exhausted<<<1, 1>>>(out.data); })

__global__ void past_end(float* out) {
    float* p = static_cast<float*>(malloc(64));
    p[15] = 1;
    p[16 + threadIdx.x] = 2;  // line: past the block
    out[0] = p[15];
    free(p);
}
RUN(heap_past_end, 1, 1, { past_end<<<1, 1>>>(out.data); })

__global__ void after_free(float* out) {
    __shared__ int* p;
    if (threadIdx.x == 0) {
        p = new int[4];
        p[0] = 5;
        delete[] p;
    }
    __syncthreads();
    if (threadIdx.x == 1) out[0] = p[0];  // line: after delete
}
RUN(heap_after_free, 1, 1, { after_free<<<1, 2>>>(out.data); })

__global__ void unwritten(float* out) {
    float* p = static_cast<float*>(malloc(8));
    p[0] = 1;
    out[0] = p[1];  // line: unwritten block
    free(p);
}
RUN(heap_unwritten, 1, 1, { unwritten<<<1, 1>>>(out.data); })

__global__ void twice(float* out) {
    __shared__ void* p;
    if (threadIdx.x == 0) p = malloc(16);
    __syncthreads();
    out[threadIdx.x] = p != nullptr;
    free(p);  // line: freed by all
}
RUN(heap_freed_twice, 1, 2, { twice<<<1, 2>>>(out.data); })

__global__ void leaked(float* out) {
    float* p = new float(3);  // line: never deleted
    out[threadIdx.x] = *p;
}
RUN(heap_leaked, 1, 64, { leaked<<<1, 64>>>(out.data); })

__global__ void unordered(float* out) {
    __shared__ float* p;
    if (threadIdx.x == 0) p = new float(0);
    __syncthreads();
    if (threadIdx.x == 0) *p = 4;           // line: unordered write
    if (threadIdx.x == 32) out[0] = *p;     // line: unordered read
    __syncthreads();
    if (threadIdx.x == 0) delete p;
}
RUN(heap_race, 1, 1, { unordered<<<1, 64>>>(out.data); })
