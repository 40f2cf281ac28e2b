// replay.cpp - records launches access by access, for the page that replays them (common/inspect/replay).
//
// It records events in execution order, no snapshots: which thread read or wrote what, and the values of writes. The
// contents of memory at any time follow from the initial contents and the writes so far.
//
//   entries     (place in the program, array, action, bytes): the distinct kinds of events
//   columns     for each event its entry and its offset in the array; for each write the bytes written
//   runs        (thread, number of events): few, since a fiber runs uninterrupted
//   segments    (block, first event, what ended it): from one barrier to the next
//
// The callback precedes the write, so its value is fetched at the next event or at the end of the launch.
#include <stdio.h>

#include <map>
#include <tuple>

#include "checker.h"

namespace simulator {

enum class EventKind : int { read, write, atomic, async_copy, arrival, warp_operation };

struct ReplayArray {
    std::string name;
    const char* space;
    unsigned element_bytes;
    std::vector<int64_t> shape;
    size_t bytes;
    bool initialized;
    std::string initial;  // contents at the start; "" for shared memory
};

struct ReplayEntry {
    uint32_t site;
    int array;
    EventKind kind;
    uint32_t bytes;
    std::string label;  // for a warp operation: its name and position
};

struct ReplaySegment {
    uint64_t block, first;
    std::string end;  // "" while it lasts
};

struct ReplayRun {
    uint16_t thread, events;
};

struct Replay {
    std::string kernel, launch;
    dim3 grid, block;
    uint64_t accesses = 0;  // all of them, also those that are not recorded
    std::vector<ReplayArray> arrays;
    std::vector<ReplayEntry> entries;
    std::vector<ReplaySegment> segments;
    std::vector<ReplayRun> runs;
    std::vector<uint16_t> entry_of;
    std::vector<uint32_t> offset_of;
    std::string values;
};

struct SharedSpot {
    uintptr_t start;
    size_t bytes;
    int array;
};

static struct {
    uint64_t most = 0, kept = 0;  // events, over all launches
    bool full = false;
    std::vector<Replay> launches;
    std::map<const Range*, int> arrays;
    std::map<std::pair<std::string, uintptr_t>, int> shared_arrays;  // by name and address in shared memory
    std::vector<SharedSpot> spots;                                   // of this block
    std::map<std::tuple<uint32_t, int, int, uint32_t>, uint16_t> entries;
    std::map<std::string, uint16_t> operations;
    uintptr_t written = 0;  // the write whose value has not been fetched yet
    size_t written_bytes = 0;
} replay;

// ---- arrays

static void finish_write() {
    if (!replay.written) return;
    replay.launches.back().values.append(reinterpret_cast<const char*>(replay.written), replay.written_bytes);
    replay.written = 0;
}

static int add_array(const Place& place, const char* space, size_t bytes, bool initialized, const char* start) {
    Replay& now = replay.launches.back();
    now.arrays.push_back({place.variable, space, place.element_bytes, place.shape, bytes, initialized,
                          start ? std::string(start, bytes) : std::string()});
    return static_cast<int>(now.arrays.size() - 1);
}

// The array at the address, and its start; negative if it is not shown.
static int array_at(Range& range, uintptr_t address, uintptr_t& start) {
    if (range.kind == Range::library) return -1;
    if (&range != &arena_range()) {
        start = range.start;
        const auto [entry, is_new] = replay.arrays.try_emplace(&range, 0);
        if (is_new)  // the first access, so memory still holds the initial contents
            entry->second = add_array(describe_place(range, address), range.kind == Range::shared ? "shared" : "global",
                                      range.bytes, range.initialized,
                                      range.kind == Range::shared ? nullptr : reinterpret_cast<const char*>(range.start));
        return entry->second;
    }
    for (const SharedSpot& spot : replay.spots)
        if (address - spot.start < spot.bytes) return start = spot.start, spot.array;
    const Place place = describe_place(range, address);
    const size_t bytes = place.bytes();
    start = address - static_cast<uintptr_t>(place.byte_offset);
    if (place.variable.empty() || place.byte_offset < 0 || static_cast<size_t>(place.byte_offset) >= bytes) return -1;
    const auto [entry, is_new] = replay.shared_arrays.try_emplace({place.variable, start - range.start}, 0);
    if (is_new) entry->second = add_array(place, "shared", bytes, false, nullptr);
    replay.spots.push_back({start, bytes, entry->second});
    return entry->second;
}

// ---- events

// Whether there is room for one more event.
static bool counts(Replay& now) {
    ++now.accesses;
    if (replay.kept >= replay.most) replay.full = true;
    return !replay.full;
}

static void add_event(Replay& now, uint16_t entry, uint32_t offset) {
    const uint16_t thread = static_cast<uint16_t>(checker.worker->running - checker.worker->threads);
    if (now.runs.empty() || now.runs.back().thread != thread || now.runs.back().events == UINT16_MAX ||
        now.segments.back().first == now.entry_of.size())
        now.runs.push_back({thread, 0});
    ++now.runs.back().events;
    now.entry_of.push_back(entry);
    now.offset_of.push_back(offset);
    ++replay.kept;
}

// The number of a kind of event, new or known; negative if there is no room for it.
template <typename Map>
static int number_of(Replay& now, Map& known, const typename Map::key_type& key, const ReplayEntry& entry) {
    const auto [found, is_new] = known.try_emplace(key, static_cast<uint16_t>(now.entries.size()));
    if (!is_new) return found->second;
    replay.full = now.entries.size() == UINT16_MAX;
    if (replay.full) return -1;
    now.entries.push_back(entry);
    return found->second;
}

static void record(Range& range, uintptr_t address, size_t bytes, EventKind kind, uint32_t site) {
    finish_write();
    if (replay.launches.empty()) return;
    Replay& now = replay.launches.back();
    if (!counts(now)) return;
    uintptr_t start = 0;
    const int array = array_at(range, address, start);
    if (array < 0 || address - start + bytes > now.arrays[array].bytes) return;  // a __device__ or __constant__ variable
    const ReplayEntry entry = {site, array, kind, static_cast<uint32_t>(bytes), ""};
    const int number = number_of(now, replay.entries, {site, array, static_cast<int>(kind), entry.bytes}, entry);
    if (number < 0) return;
    add_event(now, static_cast<uint16_t>(number), static_cast<uint32_t>(address - start));
    if (kind == EventKind::read) return;
    replay.written = address;
    replay.written_bytes = bytes;
}

void replay_access(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site) {
    record(range, address, bytes, static_cast<EventKind>(action), site);
}

void replay_arrival(Range& range, uintptr_t address, size_t bytes, uint32_t site) {
    record(range, address, bytes, EventKind::arrival, site);
}

// Called by the last lane to arrive, for all `lanes`; the mask is stored in place of an offset.
void replay_warp_operation(uint32_t lanes) {
    finish_write();
    if (replay.launches.empty()) return;
    Replay& now = replay.launches.back();
    if (!counts(now)) return;
    const Thread& me = *checker.worker->running;
    const std::string label = me.operation + ("\n" + text_of(me.position));
    const int number = number_of(now, replay.operations, label, {0, -1, EventKind::warp_operation, 0, label});
    if (number >= 0) add_event(now, static_cast<uint16_t>(number), lanes);
}

// ---- launches, blocks, barriers

void replay_launch_begins() {
    const Grid& grid = *checker.worker->grid_run;
    replay.launches.emplace_back();
    Replay& now = replay.launches.back();
    now.kernel = grid.kernel->name;
    now.launch = text_of(grid.kernel->position);
    now.grid = grid.size;
    now.block = grid.block;
    replay.arrays.clear();
    replay.shared_arrays.clear();
    replay.spots.clear();
    replay.entries.clear();
    replay.operations.clear();
}

static void end_segment(const std::string& end) {
    finish_write();
    if (replay.launches.empty()) return;
    std::vector<ReplaySegment>& all = replay.launches.back().segments;
    if (!all.empty() && all.back().end.empty()) all.back().end = end;
}

void replay_launch_ends() { end_segment("end"); }

void replay_block(uint64_t number) {
    end_segment("grid barrier");
    replay.spots.clear();
    if (replay.launches.empty() || replay.full) return;
    Replay& now = replay.launches.back();
    now.segments.push_back({number, now.entry_of.size(), ""});
}
void replay_block_ends() { end_segment("end"); }

void replay_barrier() {
    end_segment("barrier\n" + text_of(checker.worker->barrier_position));
    if (replay.launches.empty() || replay.full) return;
    Replay& now = replay.launches.back();
    if (!now.segments.empty()) now.segments.push_back({now.segments.back().block, now.entry_of.size(), ""});
}

// ---- the report: the JSON's length in 8 bytes, the JSON, then a blob into which its "at" fields are byte offsets

static std::string list(const std::vector<std::string>& parts) {
    std::string text;
    for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
    return "[" + text + "]";
}
template <typename Column>
static std::string put(std::string& data, const Column& column) {
    const size_t at = data.size(), bytes = column.size() * sizeof(column[0]);
    if (bytes) data.append(reinterpret_cast<const char*>(column.data()), bytes);
    return list({std::to_string(at), std::to_string(bytes)});
}

static std::string json_of(const Replay& one, std::string& data) {
    std::vector<std::string> arrays, entries, segments;
    for (const ReplayArray& a : one.arrays) {
        std::vector<std::string> shape;
        for (const int64_t size : a.shape) shape.push_back(std::to_string(size));
        arrays.push_back("{\"name\": " + quoted(a.name) + ", \"space\": \"" + a.space +
                         "\", \"element_bytes\": " + std::to_string(a.element_bytes) + ", \"shape\": " + list(shape) +
                         ", \"bytes\": " + std::to_string(a.bytes) +
                         ", \"initialized\": " + (a.initialized ? "true" : "false") +
                         ", \"initial\": " + put(data, a.initial) + "}");
    }
    for (const ReplayEntry& e : one.entries)
        entries.push_back(list({std::to_string(e.site), std::to_string(e.array), std::to_string(static_cast<int>(e.kind)),
                                std::to_string(e.bytes), quoted(e.label)}));
    for (const ReplaySegment& s : one.segments)
        segments.push_back(list({std::to_string(s.block), std::to_string(s.first), quoted(s.end)}));
    return "{\"kernel\": " + quoted(one.kernel) + ", \"launch\": " + quoted(one.launch) +
           ", \"grid\": " + triple(one.grid) + ", \"block\": " + triple(one.block) +
           ", \"accesses\": " + std::to_string(one.accesses) +
           ", \"events\": " + std::to_string(one.entry_of.size()) + ", \"arrays\": " + list(arrays) +
           ", \"entries\": " + list(entries) + ", \"segments\": " + list(segments) +
           ", \"runs\": " + put(data, one.runs) + ", \"entry_of\": " + put(data, one.entry_of) +
           ", \"offset_of\": " + put(data, one.offset_of) + ", \"values\": " + put(data, one.values) + "}";
}

static std::string replay_bytes() {
    std::vector<std::string> launches;
    std::string data;
    for (const Replay& one : replay.launches) launches.push_back(json_of(one, data));
    const std::string head =
        "{\"full\": " + std::string(replay.full ? "true" : "false") + ", \"launches\": " + list(launches) + "}";
    const uint64_t length = head.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + head + data;
}

}  // namespace simulator

// For Python (common/inspect/checked_library.py). `most` > 0 starts a recording, 0 ends it. Call it after
// simulator_check_begin(1): only checked runs are recorded.
extern "C" __attribute__((visibility("default"), used)) void simulator_replay_begin(uint64_t most) {
    using namespace simulator;
    checker.recording = most > 0;
    replay = {};
    replay.most = most;
}
extern "C" __attribute__((visibility("default"), used)) const char* simulator_replay_report(uint64_t* bytes) {
    static std::string report;
    report = simulator::replay_bytes();
    *bytes = report.size();
    return report.data();
}
