// async_order.cpp - the checked build: mistakes with asynchronous copies and wgmmas.
#include "async_order.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tensor_map.h"

namespace simulator {

constexpr uint32_t POISON = 0x7fc0dead;  // a NaN that no computation produces

Order::Order(const Worker& worker)
    : threads(worker.thread_count),
      columns(worker.thread_count + WARPS + MAX_WATCHED_BARRIERS),
      known(size_t{threads} * columns),
      fenced_to(threads),
      fenced_in(threads),
      fenced_since(threads),
      boxes(SHARED_ARENA / PIECE),
      reads(SHARED_ARENA / PIECE),
      accumulators(threads),
      finished(threads),
      registers_fenced(threads) {}

static auto& orders() { return lasting<std::map<const Worker*, std::unique_ptr<Order>>>(); }
static Order& order_of(Worker& worker) {
    auto& mine = orders()[&worker];
    if (!mine || mine->threads != worker.thread_count) mine = std::make_unique<Order>(worker);
    if (checker.worker == &worker) order = mine.get();
    return *mine;
}
Order& order_here() { return order_of(*checker.worker); }

void forget_order(const Worker& worker) {
    orders().erase(&worker);
    if (checker.worker == &worker) order = nullptr;
    checker.accumulators = 0;
}
void use_order_of(const Worker& worker) {
    const auto known = orders().find(&worker);
    order = known == orders().end() ? nullptr : known->second.get();
}
static bool checks() { return checker.mode == Mode::check && checker.region; }

// ---- release and acquire

void order_release(Knowledge& into) {
    if (!checks()) return;
    Order& o = order_here();
    const unsigned me = thread_number(), warp = me / 32, lane = me % 32;
    any_sync = true;
    const uint32_t now = ++syncs[warp];
    into.resize(o.columns);
    const uint32_t* mine = o.row(me);
    for (unsigned c = 0; c < o.columns; ++c) into[c] = std::max(into[c], mine[c]);
    for (unsigned other = 0; other < 32 && warp * 32 + other < o.threads; ++other)
        into[warp * 32 + other] = std::max(into[warp * 32 + other], heard[warp][lane][other]);
    into[me] = now;
}
void order_acquire(const Knowledge& from, Thread* thread) {
    if (!checks() || from.empty()) return;
    Order& o = order_here();
    const unsigned me = static_cast<unsigned>((thread ? thread : checker.worker->running) - checker.worker->threads);
    if (from.size() != o.columns) return;  // another block's
    uint32_t* mine = o.row(me);
    for (unsigned c = 0; c < o.columns; ++c) mine[c] = std::max(mine[c], from[c]);
    for (unsigned other = 0; other < 32 && me / 32 * 32 + other < o.threads; ++other) {
        uint32_t& of = heard[me / 32][me % 32][other];
        of = std::max(of, from[me / 32 * 32 + other]);
    }
    o.fenced_since[me] = false;
}
static unsigned column_of(const Order& o, const Mbarrier& barrier) {
    return o.threads + WARPS + std::min(barrier.number, MAX_WATCHED_BARRIERS - 1);
}
// A completed phase releases what the arrivals released, and the phase's copies.
void order_phase_complete(Mbarrier& barrier) {
    if (!checks()) return;
    const Order& o = order_of(*owner_of_shared(barrier.address));
    Knowledge& complete = barrier.complete;
    complete.resize(o.columns);
    if (barrier.arriving.size() == o.columns)
        for (unsigned c = 0; c < o.columns; ++c) complete[c] = std::max(complete[c], barrier.arriving[c]);
    complete[column_of(o, barrier)] = static_cast<uint32_t>(barrier.phase);  // already the next phase's number
}
// __syncthreads(): what any thread knows about asynchronous operations, all know.
void order_at_barrier() {
    if (!order) return;
    for (unsigned c = order->threads; c < order->columns; ++c) {
        uint32_t most = 0;
        for (unsigned t = 0; t < order->threads; ++t) most = std::max(most, order->row(t)[c]);
        if (most)
            for (unsigned t = 0; t < order->threads; ++t) order->row(t)[c] = most;
    }
}
// __syncwarp(): the lanes share what they know about other warps and asynchronous operations.
void order_at_syncwarp(unsigned warp, uint32_t lanes) {
    if (!order) return;
    uint32_t* joint = nullptr;
    for (int pass = 0; pass < 2; ++pass)
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (!(lanes >> lane & 1)) continue;
            uint32_t* row = order->row(warp * 32 + lane);
            if (!joint)
                joint = row;
            else if (row != joint)
                for (unsigned c = 0; c < order->columns; ++c) {
                    if (pass == 0)
                        joint[c] = std::max(joint[c], row[c]);
                    else
                        row[c] = joint[c];
                }
        }
}

void order_proxy_fence() {
    if (!checks()) return;
    Order& o = order_here();
    const unsigned me = thread_number();
    any_sync = true;
    o.fenced_to[me] = ++syncs[me / 32];
    o.fenced_in[me] = checker.interval;
    o.fenced_since[me] = true;
}

// Whether a write is visible to the async proxy: the writer fenced after it, or the reader fenced after acquiring it.
static bool is_fenced(Order& o, const Access& write, unsigned reader) {
    if (write.interval < checker.block_first || write.thread >= o.threads) return true;
    const unsigned by = write.thread;
    if (o.fenced_in[by] > write.interval || (o.fenced_in[by] == write.interval && o.fenced_to[by] > write.sync)) return true;
    return o.fenced_in[reader] && o.fenced_since[reader] &&
           (o.fenced_in[reader] > write.interval || o.row(reader)[by] > write.sync);
}

// ---- asynchronous reads

static Touch touch_at(Action action, size_t bytes, uint32_t site, unsigned thread) {
    return {action, bytes, site, checker.worker->Block::index, thread_at(thread)};
}
static Access& write_of(Range& range, uintptr_t p) {
    Cell& cell = range.cell_of(p);
    return cell.split ? range.halves_of(p)[0].write : cell.write;
}

// Checks shared memory that a wgmma or bulk store, issued by the running thread, will read.
static void check_async_read(uintptr_t address, size_t bytes, Action action, uint32_t site, const char* what) {
    Order& o = order_here();
    Range& range = arena_range();
    const unsigned me = thread_number();
    for (uintptr_t p = address; p < address + bytes; p += WORD) {
        const Access& write = write_of(range, p);
        if (write.interval < checker.block_first) continue;
        const Now now = now_at(Action::read, WORD, site, false);
        const char* kind = nullptr;
        if (write.thread >= o.threads) {
            if (!is_ordered(write, now)) kind = "copy_not_awaited";
        } else if (!is_ordered(write, now))
            kind = write.pending ? "async_race" : "race";
        else if (!is_fenced(o, write, me))
            kind = "proxy_fence";
        if (!kind) continue;
        add_finding(kind, describe_place(range, p), {touch_now(action, bytes, site), touch_of(write)}, what);
        return;
    }
}

void check_operand_pieces(const OperandPieces& pieces, const void* return_address) {
    if (!checks()) return;
    Order& o = order_here();
    Worker& worker = *checker.worker;
    const uint32_t site = site_of(return_address);
    const unsigned warp = worker.running->warp;
    const uint32_t group = static_cast<uint32_t>(worker.hopper->threads[thread_number()].product_groups) + 1;
    static const char* const modes[] = {"no swizzle", "32-byte swizzle", "64-byte swizzle", "128-byte swizzle"};
    struct First {
        uint32_t box;
        int line, piece;
    };
    std::vector<First> firsts;
    bool told = false;
    o.watches_writes = true;
    for (const OperandPiece& one : pieces.pieces) {
        const uintptr_t address = reinterpret_cast<uintptr_t>(one.address);
        if (!inside_shared_variable(address, PIECE)) {
            if (!told)
                add_finding("wrong_layout", describe_place(arena_range(), address), {touch_now(Action::product, PIECE, site)},
                            std::string("the descriptor of ") + pieces.name + " leads out of the array");
            told = true;
            continue;
        }
        check_async_read(address, PIECE, Action::product, site, pieces.name);
        const size_t number = (address - arena_range().start) / PIECE;
        auto& reads = o.reads[number];
        if (!reads) reads = std::make_unique<ReadByProducts>();
        reads->group[warp] = group;
        reads->site = site;
        const PieceOfBox& box = o.boxes[number];
        if (!box.box || told) continue;
        const Touch copy = touch_of(write_of(arena_range(), address));
        if (box.mode != pieces.mode) {
            add_finding("wrong_layout", describe_place(arena_range(), address), {touch_now(Action::product, PIECE, site), copy},
                        std::string("the tensor map writes with ") + modes[box.mode] + ", the descriptor of " + pieces.name + " says " +
                            modes[pieces.mode]);
            told = true;
            continue;
        }
        const auto first = std::find_if(firsts.begin(), firsts.end(), [&](const First& f) { return f.box == box.box; });
        const int line = box.line - one.line, piece = box.piece - one.piece;
        if (first == firsts.end())
            firsts.push_back({box.box, line, piece});
        else if (first->line != line || first->piece % 8 != piece % 8) {
            add_finding("wrong_layout", describe_place(arena_range(), address), {touch_now(Action::product, PIECE, site), copy},
                        std::string("line ") + std::to_string(one.line) + " of " + pieces.name + " should be line " +
                            std::to_string(first->line + one.line) + " of the box, and is its line " + std::to_string(box.line) +
                            ": the descriptor's offsets, or which of its dimensions is k");
            told = true;
        }
    }
}

// ---- writes to shared memory that is still being read

void check_overwrite(uintptr_t address, size_t bytes, Action action, uint32_t site) {
    Order& o = *order;
    Worker& worker = *checker.worker;
    const unsigned me = thread_number();
    const uintptr_t start = arena_range().start;
    for (size_t piece = (address - start) / PIECE; piece * PIECE + start < address + bytes; ++piece) {
        if (action != Action::bulk_copy) o.boxes[piece].box = 0;
        ReadByProducts* reads = o.reads[piece].get();
        if (!reads) continue;
        bool is_read = false;
        for (unsigned warp = 0; warp < WARPS; ++warp) is_read |= reads->group[warp] > o.row(me)[o.threads + warp];
        if (is_read) {
            unsigned warp = 0;
            while (reads->group[warp] <= o.row(me)[o.threads + warp]) ++warp;
            add_finding("overwritten_operand", describe_place(arena_range(), std::max(address, start + piece * PIECE)),
                        {touch_now(action, bytes, site), touch_at(Action::product, PIECE, reads->site, warp * 32)}, "");
            return;
        }
        o.reads[piece] = nullptr;
    }
    if (worker.hopper)
        for (const Transfer& t : worker.hopper->transfers) {
            const uintptr_t source = reinterpret_cast<uintptr_t>(t.shared);
            if (t.loads || source + t.bytes <= address || address + bytes <= source) continue;
            add_finding("overwritten_operand", describe_place(arena_range(), std::max(address, source)),
                        {touch_now(action, bytes, site), touch_at(Action::bulk_copy, t.bytes, t.site, t.thread)}, "");
            return;
        }
}

// ---- copies

static void note_copy(Worker& owner, const Transfer& t, uint32_t phase, uint32_t site, const Mbarrier& barrier) {
    Order& o = order_of(owner);
    Range& range = arena_range_of(owner);
    Access write = {};
    write.interval = checker.interval;
    write.site = site;
    write.sync = phase;
    write.thread = static_cast<uint16_t>(column_of(o, barrier));
    write.bytes = 15;
    write.size = static_cast<uint8_t>(std::min<uint32_t>(t.bytes, 255));
    write.action = Action::bulk_copy;
    write.pending = true;
    const auto note = [&](Cell& cell) {
        if (phase != NOT_YET && (cell.write.thread != write.thread || cell.write.sync != NOT_YET)) return;  // another copy's by now
        if (phase != NOT_YET) write.site = cell.write.site, write.interval = cell.write.interval;
        if (cell.newest < checker.block_first) cell.begun = checker.interval;
        cell.write = write;
        cell.newest = std::max(cell.newest, write.interval);
        cell.owner = NOBODY;
        cell.in_order = 0;
    };
    const uintptr_t start = reinterpret_cast<uintptr_t>(t.shared);
    for (uintptr_t p = start; p < start + t.bytes; p += WORD) {
        Cell& cell = range.cell_of(p);
        note(cell);
        if (cell.split) note(range.halves_of(p)[0]), note(range.halves_of(p)[1]);
    }
}

void check_copy_starts(Transfer& t, Mbarrier& barrier, const void* return_address) {
    if (!checks()) return;
    const uint32_t site = t.site = barrier.copy_site = site_of(return_address);
    Worker& owner = *owner_of_shared(t.shared);
    Order& here = order_here();
    here.watches_writes = true;
    const uintptr_t start = reinterpret_cast<uintptr_t>(t.shared);
    if (!barrier.announced && &owner == checker.worker)
        add_finding("mbarrier_fence", {nullptr, "", 1, {}, 0}, {touch_now(Action::bulk_copy, t.bytes, site)},
                    "initialized at " + text_of(barrier.made));
    if (t.map) {
        Transfer& copy = t;
        each_piece(copy, t.shared, [&](char*, char* from, unsigned bytes) {
            if (from) access(reinterpret_cast<uintptr_t>(from), bytes, Action::read, site, false);
        });
    } else if (t.words.empty() && !t.source_is_shared)
        access(reinterpret_cast<uintptr_t>(t.global), t.bytes, Action::read, site, false);
    else if (t.source_is_shared && owner_of_shared(t.global) == checker.worker)
        check_async_read(reinterpret_cast<uintptr_t>(t.global), t.bytes, Action::bulk_copy, site, "the source");
    if (&owner == checker.worker) {
        if (!inside_shared_variable(start, t.bytes)) out_of_bounds(start, t.bytes, Action::bulk_copy, site);
        check_overwrite(start, t.bytes, Action::bulk_copy, site);
        Range& range = arena_range();
        const Now now = now_at(Action::bulk_copy, t.bytes, site, false);
        for (uintptr_t p = start; p < start + t.bytes; p += WORD) {
            const Cell& word = range.cell_of(p);
            const Cell& cell = word.split ? range.halves_of(p)[0] : word;
            const Access* other = nullptr;
            Access rebuilt;
            if (const char* wrong = examine(range, cell, now, other, rebuilt)) {
                const bool of_engine = other && other->thread >= here.threads;
                add_finding(of_engine ? "copy_not_awaited" : wrong, describe_place(range, p),
                            {touch_now(Action::bulk_copy, t.bytes, site), touch_of(*other)}, "");
                break;
            }
        }
        if (t.map) {
            const uint32_t row = static_cast<uint32_t>(t.map->extent(0)) * t.map->element_bytes(), box = ++here.box_count;
            for (uint32_t at = 0; at < t.bytes; at += PIECE) {
                const uintptr_t plain = start + at, place = (plain & ~uintptr_t{1023}) + swizzled(plain & 1023, t.map->swizzle);
                here.boxes[(place - range.start) / PIECE] = {box, static_cast<uint16_t>(at / row),
                                                            static_cast<uint8_t>(at % row / PIECE), t.map->swizzle};
            }
        }
    }
    note_copy(owner, t, NOT_YET, site, barrier);
}
void check_copy_landed(const Transfer& t, const Mbarrier& barrier) {
    if (!checks()) return;
    note_copy(*owner_of_shared(t.shared), t, static_cast<uint32_t>(barrier.phase), t.site, barrier);
}

void check_store_starts(Transfer& t, const void* return_address) {
    if (!checks()) return;
    const uint32_t site = t.site = site_of(return_address);
    const uintptr_t start = reinterpret_cast<uintptr_t>(t.shared);
    order_here().watches_writes = true;
    if (!inside_shared_variable(start, t.bytes)) out_of_bounds(start, t.bytes, Action::bulk_copy, site);
    check_async_read(start, t.bytes, Action::bulk_copy, site, "the source");
    const Action action = t.how == Combination::copy ? Action::write : Action::atomic;
    if (t.map)
        each_piece(t, t.shared, [&](char*, char* to, unsigned bytes) {
            if (to) access(reinterpret_cast<uintptr_t>(to), bytes, action, site, false);
        });
    else
        access(reinterpret_cast<uintptr_t>(t.global), t.bytes, action, site, false);
}
// After the wait, the store's read counts as this thread's.
void check_store_done(const Transfer& t) {
    if (!checks()) return;
    const uintptr_t start = reinterpret_cast<uintptr_t>(t.shared);
    const Now now = now_at(Action::read, t.bytes, t.site, false);
    for (uintptr_t p = start; p < start + t.bytes; p += WORD) {
        Cell& cell = arena_range().cell_of(p);
        remember(cell, now, checker.block_first);
        if (cell.split)
            for (int i = 0; i < 2; ++i) remember(arena_range().halves_of(p)[i], now, checker.block_first);
    }
}

void check_mbarrier_memory(const void* address, const void* return_address) {
    if (!checks()) return;
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    if (arena_range().contains(at, 8)) access(at, 8, Action::write, site_of(return_address), true);
}

void check_block_leaves(Worker& worker) {
    if (!checks() || !worker.hopper) return;
    Quiet quiet;
    for (const Transfer& t : worker.hopper->transfers)
        add_finding("copy_at_end", describe_place(arena_range(), reinterpret_cast<uintptr_t>(t.shared)),
                    {touch_at(Action::bulk_copy, t.bytes, t.site, t.thread)}, t.loads ? "load" : "store");
    for (const auto& barrier : worker.hopper->barriers)
        if (barrier->bytes && barrier->copy.file) {
            const Touch touch = touch_at(Action::bulk_copy, 0, barrier->copy_site, barrier->maker);
            add_finding("transaction_count", {nullptr, "", 1, {}, 0}, {touch},
                        barrier->bytes > 0 ? std::to_string(barrier->bytes) + " bytes are expected and never came"
                                           : std::to_string(-barrier->bytes) + " bytes came and were never expected");
        }
}

// ---- accumulators

void check_product(void** places, unsigned count, bool accumulate, const void* return_address) {
    if (!checks()) return;
    Order& o = order_here();
    const unsigned me = thread_number();
    auto& mine = o.accumulators[me];
    const uint64_t group = checker.worker->hopper->threads[me].product_groups;
    auto known = std::find_if(mine.begin(), mine.end(), [&](const Accumulators& one) { return one.places[0] == places[0]; });
    if (known == mine.end()) {
        const uint32_t site = site_of(return_address);
        Accumulators fresh;
        for (unsigned i = 0; i < count; ++i) {
            auto* place = static_cast<uint32_t*>(places[i]);
            fresh.places.push_back(place);
            fresh.values.push_back(*place);
        }
        auto& finished = o.finished[me];
        const auto before = std::find_if(finished.begin(), finished.end(), [&](const Accumulators& one) { return one.places == fresh.places; });
        if (accumulate && !o.registers_fenced[me] && before != finished.end() && before->values != fresh.values)
            add_finding("registers_fence", {nullptr, "", 1, {}, 0}, {touch_now(Action::product, 4, site)}, "");
        for (uint32_t* place : fresh.places) *place = POISON;
        ++checker.accumulators;
        mine.push_back(std::move(fresh));
        known = mine.end() - 1;
    }
    known->group = group;
    known->site = site_of(return_address);
    for (unsigned i = 0; i < count; ++i) places[i] = &known->values[i];
}

void check_product_fence() {
    if (checks()) order_here().registers_fenced[thread_number()] = true;
}

void check_product_wait(uint32_t left) {
    if (!checks()) return;
    Order& o = order_here();
    const unsigned me = thread_number();
    const uint64_t committed = checker.worker->hopper->threads[me].product_groups;
    const uint64_t done = committed - std::min<uint64_t>(left, committed);
    uint32_t& known = o.row(me)[o.threads + me / 32];
    known = std::max(known, static_cast<uint32_t>(done));
    auto& mine = o.accumulators[me];
    auto& finished = o.finished[me];
    bool any = false;
    for (size_t i = 0; i < mine.size();) {
        Accumulators& one = mine[i];
        if (one.group >= done) {
            ++i;
            continue;
        }
        for (size_t k = 0; k < one.places.size(); ++k) {
            // A register with another value has been reused, or its overwrite has been reported.
            if (*one.places[k] == POISON) *one.places[k] = one.values[k];
            one.values[k] = *one.places[k];
        }
        --checker.accumulators;
        any = true;
        const auto same = std::find_if(finished.begin(), finished.end(), [&](const Accumulators& f) { return f.places == one.places; });
        if (same == finished.end()) {
            if (finished.size() == 4) finished.erase(finished.begin());
            finished.push_back(std::move(one));
        } else
            *same = std::move(one);
        mine.erase(mine.begin() + static_cast<ptrdiff_t>(i));
    }
    if (any) o.registers_fenced[me] = false;
}

void check_accumulator(uintptr_t address, size_t bytes, Action action, uint32_t site) {
    const unsigned thread = static_cast<unsigned>((address - checker.region) / STACK_BYTES) - 1;
    if (!order || thread >= order->threads) return;
    Quiet quiet;
    for (Accumulators& one : order->accumulators[thread]) {
        if (one.told) continue;
        for (const uint32_t* place : one.places) {
            const uintptr_t p = reinterpret_cast<uintptr_t>(place);
            if (p < address || p >= address + bytes) continue;
            add_finding("accumulator", {nullptr, "", 1, {}, 0}, {touch_now(action, bytes, site), touch_at(Action::product, 4, one.site, thread)}, "");
            one.told = true;
            break;
        }
    }
}

}  // namespace simulator
