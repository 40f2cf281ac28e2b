// sample.cpp - profiles of large grids: a few blocks run on behalf of the others, and the memory that each touches is
// recorded (simulator_sample_begin, SIMULATOR_SAMPLE). common/predict reads it.
//
// The launch's outputs are incomplete. Grids whose blocks depend on each other (clusters, cooperative grids) run as a
// whole, or not at all if they are larger than the sample.
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "checker.h"

namespace simulator {

constexpr uint64_t CACHE_KB[] = {8, 16, 32, 64, 128, 192, 256};  // L1 sizes for which hits are counted
constexpr size_t CACHES = std::size(CACHE_KB), MOST_LOGGED = 1u << 21;
constexpr uint8_t READ_HERE = 4, WRITTEN_HERE = 8;  // of Range::sectors

unsigned sample_size = 0;  // number of blocks; 0: all run
static bool none_runs = false;
uint64_t block_weight = 1;

// ---- which blocks

struct Chosen {  // a block of the grid, or a position along one axis
    uint64_t at, weight;
};
static std::vector<Chosen> chosen;
static size_t chosen_next = 0;

// The last position, which may be a partial tile, represents only itself; the others are divided into k - 1 equal
// strata, each represented by its middle.
static std::vector<Chosen> positions(uint64_t extent, uint64_t k) {
    std::vector<Chosen> found;
    const uint64_t strata = k - 1, rest = extent - 1;
    for (uint64_t i = 0, begin = 0; i < strata; ++i) {
        const uint64_t size = rest / strata + (i < rest % strata);
        found.push_back({begin + size / 2, size});
        begin += size;
    }
    found.push_back({rest, 1});
    return found;
}

void choose_blocks(dim3 grid) {
    chosen.clear();
    chosen_next = 0;
    if (none_runs) return;
    const unsigned extents[] = {grid.x, grid.y, grid.z};
    unsigned k[3];
    for (int axis = 0; axis < 3; ++axis) k[axis] = std::min(extents[axis], 2u);
    for (;;) {  // while there is room, adds one to the axis with the largest strata
        int widest = -1;
        for (int axis = 0; axis < 3; ++axis)
            if (k[axis] < extents[axis] && uint64_t{k[0]} * k[1] * k[2] / k[axis] * (k[axis] + 1) <= sample_size &&
                (widest < 0 || uint64_t{extents[axis]} * k[widest] > uint64_t{extents[widest]} * k[axis]))
                widest = axis;
        if (widest < 0) break;
        ++k[widest];
    }
    for (const Chosen z : positions(grid.z, k[2]))
        for (const Chosen y : positions(grid.y, k[1]))
            for (const Chosen x : positions(grid.x, k[0]))
                chosen.push_back({x.at + grid.x * (y.at + grid.y * z.at), x.weight * y.weight * z.weight});
}

uint64_t next_block(Grid& grid) {
    if (!sample_size || checker.mode != Mode::profile) return grid.next_block++;
    if (chosen_next == chosen.size()) return grid.block_count;
    block_weight = chosen[chosen_next].weight;
    return chosen[chosen_next++].at;
}

// ---- a block's accesses

struct Touched {
    uint64_t first = ~uint64_t{0}, last = 0, read = 0, written = 0;
};
struct BlockSample {
    uint64_t number, weight;
    std::map<const Range*, Touched> touched;
};
struct Logged {
    uint32_t barrier, order;
    uintptr_t sector;
};
struct WarpPath {
    uint32_t order = 0, global = 0, waits = 0;
    bool waits_for_global = false;
};
// One launch's sample; sums are weighted by block, as in profile.cpp.
struct Sampled {
    std::vector<BlockSample> blocks;
    std::map<const Range*, uint64_t> bytes;  // array sizes
    uint64_t logged = 0, hits[CACHES] = {};  // sectors read; those that hit in each cache size
    uint64_t global = 0, waits = 0, barriers = 0;  // the first two: maximum over warps between barriers, summed
    std::string not_modeled;
};
static Sampled launch_sample;
static std::vector<std::pair<Range*, uint64_t>> touched_here;
static std::vector<Logged> log_of_reads;
static WarpPath paths[32];
static uint32_t barriers_here = 0;

void sample_launch_begins() { launch_sample = {}; }
void sample_not_modeled(const char* what) {
    if (sample_size && checker.mode == Mode::profile) launch_sample.not_modeled = what;
}
// Ends the launch: a persistent kernel's few sampled blocks would do the work of all blocks.
void sample_ends_launch(const char* what) {
    if (!sample_size || checker.mode != Mode::profile) return;
    sample_not_modeled(what);
    this_worker->grid_run->cut_short = this_worker->failed = true;
    leave_threads(*this_worker);
}

void sample_block_begins(uint64_t number) {
    launch_sample.blocks.push_back({number, block_weight, {}});
    touched_here.clear();
    log_of_reads.clear();
    std::fill_n(paths, 32, WarpPath{});
    barriers_here = 0;
}

void sample_touch(Range& range, uint64_t sector, Action action) {
    uint8_t& bits = range.sectors[sector];
    if (!(bits & (READ_HERE | WRITTEN_HERE))) touched_here.push_back({&range, sector});
    if (action != Action::write) bits |= READ_HERE;
    if (action != Action::read) bits |= WRITTEN_HERE;
}

void sample_request(unsigned warp, bool shared, Action action, const std::vector<uintptr_t>& sectors) {
    WarpPath& path = paths[warp];
    ++path.order;
    if (shared || action != Action::read) return;  // a warp does not wait for stores
    ++path.global;
    path.waits_for_global = true;
    if (log_of_reads.size() < MOST_LOGGED)
        for (const uintptr_t sector : sectors) log_of_reads.push_back({barriers_here, path.order * 32 + warp, sector});
}

void sample_warp_aligned(unsigned warp) {
    paths[warp].waits += std::exchange(paths[warp].waits_for_global, false);
}

// All warps have arrived: the busiest one determined the block's speed.
void sample_barrier() {
    WarpPath most;
    for (WarpPath& path : paths) {
        path.waits += path.waits_for_global;
        most.global = std::max(most.global, path.global);
        most.waits = std::max(most.waits, path.waits);
        path = {};
    }
    launch_sample.global += block_weight * most.global;
    launch_sample.waits += block_weight * most.waits;
    launch_sample.barriers += block_weight;
    ++barriers_here;
}

// Counts cache hits by reuse distance: the number of distinct sectors read since this sector's last read. An LRU cache
// of more sectors than that hits (Mattson et al., Evaluation techniques for storage hierarchies, 1970). Warps are
// assumed to run in lockstep between barriers.
static void count_hits() {
    std::stable_sort(log_of_reads.begin(), log_of_reads.end(), [](const Logged& a, const Logged& b) {
        return a.barrier != b.barrier ? a.barrier < b.barrier : a.order < b.order;
    });
    const size_t n = log_of_reads.size();
    std::vector<uint32_t> sums(n + 1);  // Fenwick tree: 1 at each sector's last read
    const auto add = [&](size_t i, uint32_t by) { for (++i; i <= n; i += i & -i) sums[i] += by; };
    const auto before = [&](size_t i) { uint64_t sum = 0; for (; i; i -= i & -i) sum += sums[i]; return sum; };
    std::unordered_map<uintptr_t, uint32_t> last;
    for (size_t i = 0; i < n; ++i) {
        const auto [entry, is_new] = last.try_emplace(log_of_reads[i].sector, static_cast<uint32_t>(i));
        if (!is_new) {
            const uint64_t distance = last.size() - before(entry->second);
            for (size_t c = 0; c < CACHES; ++c)
                if (distance * 32 <= CACHE_KB[c] * 1024) launch_sample.hits[c] += block_weight;
            add(entry->second, ~0u);
            entry->second = static_cast<uint32_t>(i);
        }
        add(i, 1);
    }
    launch_sample.logged += block_weight * n;
}

void sample_block_ends() {
    sample_barrier();
    launch_sample.barriers -= block_weight;  // the block's end is not a barrier
    BlockSample& block = launch_sample.blocks.back();
    for (const auto& [range, sector] : touched_here) {
        uint8_t& bits = range->sectors[sector];
        Touched& touched = block.touched[range];
        touched.first = std::min(touched.first, sector);
        touched.last = std::max(touched.last, sector);
        touched.read += (bits & READ_HERE) != 0;
        touched.written += (bits & WRITTEN_HERE) != 0;
        bits &= static_cast<uint8_t>(~(READ_HERE | WRITTEN_HERE));
        launch_sample.bytes[range] = range->bytes;
    }
    count_hits();
    block_weight = 1;
}

// ---- JSON: the sample of the launch that has ended

static void add(std::string& list, const std::string& value) { list += (list.empty() ? "" : ", ") + value; }
template <class... Values>
static std::string list_of(Values... values) {
    std::string list;
    (add(list, std::to_string(values)), ...);
    return list;
}

std::string sample_json() {
    const Sampled& s = launch_sample;
    std::map<const Range*, size_t> numbers;
    std::string arrays, blocks, hits;
    for (const auto& [range, bytes] : s.bytes) {
        numbers.try_emplace(range, numbers.size());
        add(arrays, std::to_string(bytes));
    }
    for (const BlockSample& block : s.blocks) {
        std::string touched;
        for (const auto& [range, t] : block.touched)
            add(touched, "[" + list_of(numbers[range], t.first, t.last, t.read, t.written) + "]");
        add(blocks, "[" + list_of(block.number, block.weight) + ", [" + touched + "]]");
    }
    for (size_t c = 0; c < CACHES; ++c) add(hits, "[" + list_of(CACHE_KB[c] << 10, s.hits[c]) + "]");
    return "{\"arrays\": [" + arrays + "], \"blocks\": [" + blocks + "], \"logged\": " + std::to_string(s.logged) + ", \"hits\": [" + hits +
           "], \"path\": [" + list_of(s.global, s.waits, s.barriers) + "], \"not_modeled\": " + quoted(s.not_modeled) + "}";
}

}  // namespace simulator

extern "C" __attribute__((visibility("default"), used)) void simulator_sample_begin(int blocks) {  // < 0: none runs
    simulator::none_runs = blocks < 0;
    simulator::sample_size = blocks < 0 ? 1 : static_cast<unsigned>(blocks);
}
