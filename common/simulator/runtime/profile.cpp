// profile.cpp - what a warp's loads and stores cost: sectors of global memory, passes over the banks of shared memory.
//
// Fibers run one lane after the other, a warp's instruction is 32 of their accesses. The n-th time that each lane comes
// to the same place in the program, counted from where all lanes of the warp were last together (a barrier, a warp
// operation of all lanes), makes one request. Lanes that take another branch, or leave a loop earlier, are missing in it.
#include <stdio.h>

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <unordered_map>

#include "checker.h"

namespace simulator {

constexpr size_t SECTOR = 32, BANKS = 32, BANK_BYTES = 4;

struct Request {
    uint32_t mask;
    uint16_t bytes;
    Action action;
    bool shared;
    uintptr_t address[32];
};

// One place in the program, in one warp: what came in since its lanes were last together.
struct Trace {
    uint32_t next[32] = {};  // how many accesses each lane has made
    uint32_t counted = 0;    // requests[0] is number `counted`
    std::deque<Request> requests;
};

struct Site {
    bool shared;
    Action action;
    size_t bytes;
    uint64_t requests = 0, lanes = 0, transactions = 0, ideal = 0;
    uint64_t worst = 0;
    int64_t worst_offsets[32] = {};
};

struct Profile {
    std::string kernel, launch;
    dim3 grid, block;
    uint64_t launches = 0, barriers = 0, sectors_read = 0, sectors_written = 0, tensor_flops = 0;
    size_t static_shared = 0, dynamic_shared = 0;
    std::map<uint32_t, Site> sites;  // by 2 pc + (1 in shared memory): an asynchronous copy reads one and writes the other
    std::map<uint32_t, uint64_t> blocks;
};
using ProfileKey = std::tuple<std::string, std::string, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned>;

static std::map<ProfileKey, Profile>& profiles() {
    static auto* all = new std::map<ProfileKey, Profile>;
    return *all;
}
static Profile* current = nullptr;
static std::unordered_map<uint32_t, Trace> traces[32];        // of every warp
static std::unordered_map<uint32_t, uint64_t> block_counts;  // of this launch

// ---- what one request costs

struct Cost {
    uint64_t transactions, ideal;
};

static std::vector<uintptr_t> units(const Request& r, uint32_t lanes, size_t unit) {
    std::vector<uintptr_t> result;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (lanes >> lane & 1)
            for (uintptr_t u = r.address[lane] / unit; u <= (r.address[lane] + r.bytes - 1) / unit; ++u)
                result.push_back(u);
    std::sort(result.begin(), result.end());
    result.erase(std::unique(result.begin(), result.end()), result.end());
    return result;
}
static uint64_t divided(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Sectors of 32 bytes; at best, the different bytes would fill them.
static Cost global_cost(const Request& r) {
    const size_t piece = r.bytes < BANK_BYTES ? r.bytes : BANK_BYTES;
    return {units(r, r.mask, SECTOR).size(), divided(units(r, r.mask, piece).size() * piece, SECTOR)};
}

// A bank serves one word of 4 bytes per pass; lanes that want the same word share it.
static uint64_t passes(const Request& r, uint32_t lanes) {
    unsigned words_in_bank[BANKS] = {}, most = 0;
    for (const uintptr_t word : units(r, lanes, BANK_BYTES)) most = std::max(most, ++words_in_bank[word % BANKS]);
    return most;
}
// Whether each of the lanes wants the same address as its neighbour `distance` away.
static bool alike(const Request& r, uint32_t lanes, unsigned distance) {
    for (unsigned lane = 0; lane < 32; ++lane) {
        const unsigned other = lane ^ distance;
        if (lanes >> lane & 1 && lanes >> other & 1 && r.address[lane] != r.address[other]) return false;
    }
    return true;
}
// Accesses of 8 and 16 bytes go in groups of 16 and 8 lanes. Two neighbouring groups go together when their lanes want
// the same addresses by pairs, as ncu's counters on an H200 showed.
static Cost shared_cost(const Request& r) {
    const unsigned group = r.bytes <= 8 ? 32 : 16;  // of lanes that may go together
    uint64_t transactions = 0;
    for (unsigned first = 0; first < 32; first += group) {
        const uint32_t lanes = r.mask & (group == 32 ? ~0u : 0xffffu << first);
        const uint32_t low = group == 32 ? 0x0000ffffu : 0x00ffu << first;
        const bool together = r.bytes <= 4 || alike(r, lanes, 1) || alike(r, lanes, 2);
        transactions += together ? passes(r, lanes) : passes(r, lanes & low) + passes(r, lanes & ~low);
    }
    return {transactions, divided(units(r, r.mask, BANK_BYTES).size(), BANKS)};
}

static void count(uint32_t key, const Request& r) {
    const Cost cost = r.shared ? shared_cost(r) : global_cost(r);
    Site& total = current->sites.try_emplace(key, Site{r.shared, r.action, r.bytes}).first->second;
    ++total.requests;
    total.lanes += static_cast<unsigned>(__builtin_popcount(r.mask));
    total.transactions += cost.transactions;
    total.ideal += cost.ideal;
    if (cost.transactions <= total.worst) return;
    total.worst = cost.transactions;
    const uintptr_t lowest = [&] {
        uintptr_t least = UINTPTR_MAX;
        for (unsigned lane = 0; lane < 32; ++lane)
            if (r.mask >> lane & 1) least = std::min(least, r.address[lane]);
        return least;
    }();
    const uintptr_t origin = r.shared ? reinterpret_cast<uintptr_t>(checker.worker->arena) : lowest;
    for (unsigned lane = 0; lane < 32; ++lane)
        total.worst_offsets[lane] = r.mask >> lane & 1 ? static_cast<int64_t>(r.address[lane] - origin) : -1;
}

// ---- gathering the lanes

void trace_access(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site) {
    if (range.kind != Range::shared) {
        const uintptr_t first = range.start / SECTOR;
        for (uintptr_t sector = address / SECTOR; sector <= (address + bytes - 1) / SECTOR; ++sector)
            range.sectors[sector - first] |= action == Action::read ? 1 : action == Action::write ? 2 : 3;
    }
    const Thread& thread = *checker.worker->running;
    const uint32_t key = 2 * site + (range.kind == Range::shared);
    Trace& trace = traces[thread.warp][key];
    const uint32_t number = trace.next[thread.lane]++;
    while (trace.counted + trace.requests.size() <= number)
        trace.requests.push_back({0, static_cast<uint16_t>(bytes), action, range.kind == Range::shared, {}});
    Request& request = trace.requests[number - trace.counted];
    request.mask |= 1u << thread.lane;
    request.address[thread.lane] = address;
    const uint32_t all = checker.worker->warps[thread.warp].alive;
    while (!trace.requests.empty() && (trace.requests.front().mask & all) == all) {
        count(key, trace.requests.front());
        trace.requests.pop_front();
        ++trace.counted;
    }
}

void profile_warps_aligned(uint32_t warps) {
    for (unsigned warp = 0; warp < 32; ++warp) {
        if (!(warps >> warp & 1)) continue;
        for (const auto& [key, trace] : traces[warp])
            for (const Request& request : trace.requests) count(key, request);
        traces[warp].clear();
    }
}

void profile_barrier() {
    profile_warps_aligned(~0u);
    ++current->barriers;
}

void check_tensor_work(unsigned flops) {
    if (current) current->tensor_flops += flops;
}

void trace_basic_block(uint32_t site) { ++block_counts[site]; }

// ---- one launch

void profile_launch_begins() {
    const Grid& grid = *checker.worker->grid_run;
    const std::string launch = std::string(grid.kernel->position.file) + ":" + std::to_string(grid.kernel->position.line);
    const ProfileKey key = {grid.kernel->name, launch,       grid.size.x,  grid.size.y,
                            grid.size.z,       grid.block.x, grid.block.y, grid.block.z};
    current = &profiles()[key];
    current->kernel = grid.kernel->name;
    current->launch = launch;
    current->grid = grid.size;
    current->block = grid.block;
    block_counts.clear();
    for (Range* range : all_ranges()) std::fill_n(range->sectors, range->bytes / SECTOR + 2, uint8_t(0));
}

void profile_launch_ends() {
    if (!current) return;
    const Grid& grid = *checker.worker->grid_run;
    ++current->launches;
    current->static_shared = std::max<size_t>(current->static_shared, grid.static_bytes);
    current->dynamic_shared = grid.dynamic_bytes;
    for (const auto& [site, times] : block_counts) current->blocks[site] += times;
    for (const Range* range : all_ranges())
        for (size_t i = 0; i < range->bytes / SECTOR + 2; ++i) {
            current->sectors_read += range->sectors[i] & 1;
            current->sectors_written += range->sectors[i] >> 1 & 1;
        }
    for (auto& trace : traces) trace.clear();
    current = nullptr;
}

void clear_profile() { profiles().clear(); }

// ---- JSON

static std::string triple(dim3 v) {
    return "[" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + "]";
}
static std::string field(const char* name, uint64_t value) {
    return std::string("\"") + name + "\": " + std::to_string(value) + ", ";
}

static std::string json_of(uint32_t pc, const Site& site) {
    static const char* const names[] = {"read", "write", "atomic", "async copy"};
    std::string offsets;
    for (const int64_t offset : site.worst_offsets) offsets += (offsets.empty() ? "" : ", ") + std::to_string(offset);
    return "{" + field("pc", pc) + "\"space\": \"" + (site.shared ? "shared" : "global") + "\", \"action\": \"" +
           names[static_cast<int>(site.action)] + "\", " + field("bytes", site.bytes) +
           field("requests", site.requests) + field("lanes", site.lanes) + field("transactions", site.transactions) +
           field("ideal", site.ideal) + "\"worst\": {" + field("transactions", site.worst) + "\"offsets\": [" +
           offsets + "]}}";
}

std::string profile_json() {
    std::string text;
    for (const auto& [key, p] : profiles()) {
        std::string sites, blocks;
        for (const auto& [key, site] : p.sites) sites += (sites.empty() ? "" : ",\n  ") + json_of(key / 2, site);
        for (const auto& [pc, times] : p.blocks)
            blocks += (blocks.empty() ? "[" : ", [") + std::to_string(pc) + ", " + std::to_string(times) + "]";
        text += (text.empty() ? "" : ",\n ") + std::string("{\"kernel\": ") + quoted(p.kernel) +
                ", \"launch\": " + quoted(p.launch) + ", \"grid\": " + triple(p.grid) +
                ", \"block\": " + triple(p.block) + ", " + field("launches", p.launches) +
                field("barriers", p.barriers) + field("static_shared", p.static_shared) +
                field("dynamic_shared", p.dynamic_shared) + field("sectors_read", p.sectors_read) +
                field("sectors_written", p.sectors_written) + field("tensor_flops", p.tensor_flops) + "\"sites\": [" + sites + "],\n \"blocks\": [" + blocks +
                "]}";
    }
    return "[" + text + "]";
}

}  // namespace simulator
