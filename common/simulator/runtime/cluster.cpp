// cluster.cpp - thread block clusters: distributed shared memory and the cluster barrier.
#include <string>

#include "hopper.h"
#include "checker.h"

namespace simulator {

static ClusterDims* declared = nullptr;
ClusterDims::ClusterDims(const char* kernel_, dim3 shape_) : kernel(kernel_), shape(shape_), next(declared) { declared = this; }

dim3 cluster_shape_of(const char* kernel) {
    const std::string name(kernel, strcspn(kernel, "< "));
    for (const ClusterDims* one = declared; one; one = one->next) {
        const size_t length = strlen(one->kernel);
        if (name.size() >= length && name.compare(name.size() - length, length, one->kernel) == 0 &&
            (name.size() == length || name[name.size() - length - 1] == ':'))
            return one->shape;
    }
    return {1, 1, 1};
}

Worker* owner_of_shared(const void* address) {
    Worker* worker = this_worker;
    const auto holds = [&](const Worker* one) { return address >= one->arena && address < one->arena + SHARED_ARENA; };
    if (!worker) return nullptr;
    if (holds(worker)) return worker;
    if (worker->cluster)
        for (Worker* other : worker->cluster->blocks)
            if (holds(other)) return other;
    return nullptr;
}

static unsigned rank_of(const Worker& worker) {
    if (worker.cluster)
        for (unsigned rank = 0; rank < worker.cluster->blocks.size(); ++rank)
            if (worker.cluster->blocks[rank] == &worker) return rank;
    return 0;
}

ClusterPlace cluster_place() {
    const Worker& worker = current_worker();
    const uint3 block = worker.Block::index;
    const dim3 shape = worker.cluster ? worker.cluster->shape : dim3(1, 1, 1), grid = worker.grid;
    ClusterPlace place = {};
    place.rank = rank_of(worker);
    place.size = shape.x * shape.y * shape.z;
    place.index = {block.x % shape.x, block.y % shape.y, block.z % shape.z};
    place.cluster = {block.x / shape.x, block.y / shape.y, block.z / shape.z};
    place.shape = shape;
    place.clusters = dim3(grid.x / shape.x, grid.y / shape.y, grid.z / shape.z);
    place.is_explicit = worker.cluster != nullptr;
    return place;
}

static Worker& block_of_rank(unsigned rank, Position at) {
    Worker& worker = current_worker();
    const unsigned size = worker.cluster ? static_cast<unsigned>(worker.cluster->blocks.size()) : 1;
    if (rank >= size) fail("%s:%d: block %u of a cluster of %u", at.file, at.line, rank, size);
    Worker& other = worker.cluster ? *worker.cluster->blocks[rank] : worker;
    if (!other.live && &other != &worker)
        fail("%s:%d: block %u of the cluster has ended, and its shared memory with it; a cluster barrier at the end keeps it", at.file,
             at.line, rank);
    return other;
}

void* cluster_address(const void* address, unsigned rank, Position at) {
    Quiet quiet;
    const Worker* owner = owner_of_shared(address);
    if (!owner) fail("%s:%d: the address %p is not in shared memory", at.file, at.line, address);
    return block_of_rank(rank, at).arena + (static_cast<const char*>(address) - owner->arena);
}
uint32_t cluster_offset(uint32_t offset, unsigned rank, Position at) {
    block_of_rank(rank, at);
    return (offset & ((1u << CLUSTER_WINDOW_BITS) - 1)) | (rank + 1) << CLUSTER_WINDOW_BITS;
}
unsigned cluster_rank_of(const void* address) {
    const Worker* owner = owner_of_shared(address);
    return owner ? rank_of(*owner) : 0;
}

// ---- the barrier

static uint64_t& arrival_of(Worker& worker) { return hopper_of(worker).cluster_arrivals[worker.running - worker.threads]; }

static unsigned live_threads(const Cluster& cluster) {
    unsigned count = 0;
    for (const Worker* block : cluster.blocks) count += block->live;
    return count;
}

static void pass_cluster_barrier(Cluster& cluster) {
    if (!cluster.arrived || cluster.arrived < live_threads(cluster)) return;
    cluster.arrived = 0;
    ++cluster.phase;
    for (Worker* block : cluster.blocks) {
        count_progress(*block);
        if (block->hopper) block->hopper->fruitless = 0;
        for (unsigned i = 0; i < block->thread_count; ++i)
            if (block->threads[i].state == State::at_cluster_barrier) {
                block->threads[i].state = State::running;
                make_ready_again(*block, block->threads[i]);
            }
        block->cluster_passed = true;
    }
    if constexpr (CHECKED) check_cluster_barrier_passed();  // for the running block; the others do this when they run
}

void leave_cluster_barrier(Worker& worker) {
    if (!worker.cluster || !worker.hopper) return;
    Cluster& cluster = *worker.cluster;
    if (worker.hopper->cluster_arrivals[worker.running - worker.threads] == cluster.phase + 1 && cluster.arrived) --cluster.arrived;
    pass_cluster_barrier(cluster);
}

void cluster_arrive(Position at) {
    Quiet quiet;
    Worker& worker = current_worker();
    if (!worker.cluster) return;  // a cluster of one block: the wait is a barrier
    Cluster& cluster = *worker.cluster;
    uint64_t& mine = arrival_of(worker);
    if (mine == cluster.phase + 1)
        fail("barrier.cluster.arrive at %s:%d: this thread has arrived already; a barrier.cluster.wait comes between", at.file, at.line);
    mine = cluster.phase + 1;
    ++cluster.arrived;
    pass_cluster_barrier(cluster);
}

void cluster_wait(Position at) {
    Quiet quiet;
    Worker& worker = current_worker();
    if (!worker.cluster) {
        barrier(false, "barrier.cluster", at);
        return;
    }
    Cluster& cluster = *worker.cluster;
    const uint64_t mine = arrival_of(worker);
    if (!mine) fail("barrier.cluster.wait at %s:%d: this thread has not arrived", at.file, at.line);
    if (cluster.phase >= mine) return;
    wait_for_wakeup(State::at_cluster_barrier, "barrier.cluster.wait", at);
}

}  // namespace simulator
