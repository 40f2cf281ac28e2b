// replay.js - the page that plays a launch back: controls, keyboard, and what follows from where one is.
"use strict";

const PLAY_MS = 1100; // between two steps
const FEW_ROWS = 40; // of all arrays: so few show their values at once
const MOST_FOLLOWED = 400; // rows of the table of a thread
const page = document.getElementById("page");
let launches = [];
const at = { launch: 0, block: 0, step: 0, thread: -1, event: -1, whole: false, byLane: false, values: -1, race: -1 };
let steps = [], view = null, touched = null, timer = 0, boxes = [];
const ui = {};

// ---- where one is

const launch = () => launches[at.launch];
function segmentOf(i) {
  const all = launch().segments;
  let low = 0, high = all.length - 1;
  while (low < high) {
    const mid = (low + high + 1) >> 1;
    if (all[mid].first <= i) low = mid;
    else high = mid - 1;
  }
  return all[low];
}

function go(change) {
  const before = { ...at };
  Object.assign(at, change);
  if (change.race === undefined) at.race = -1;
  if (["launch", "block", "whole", "values"].some((name) => at[name] !== before[name]) || !view) {
    const old = steps[before.step];
    touched = at.launch !== before.launch || at.block !== before.block || !touched ? touchedBy(launch(), at.block) : touched;
    steps = stepsOfBlock(launch(), at.block, at.whole);
    if (change.step === undefined) {
      const same = old && at.launch === before.launch && at.block === before.block
        ? steps.findIndex((step) => step.segment === old.segment) : Math.min(at.step, steps.length - 1);
      at.step = Math.max(0, same);
    }
    buildStage();
  }
  at.step = Math.max(0, Math.min(at.step, steps.length - 1));
  if (change.event === undefined) at.event = -1;
  view = viewOf(launch(), at.block, steps, at.step, at.thread);
  render();
  remember(Object.entries(at).map(([name, value]) => `${name}=${+value}`).join("&"));
}

function toStep(step) { go({ step: Math.max(0, Math.min(step, steps.length - 1)) }); }
function toBarrier(direction) { // the first step of the next interval, or of this one or the one before
  const here = steps[at.step].segment;
  if (direction > 0) {
    const next = steps.findIndex((step, n) => n > at.step && step.segment !== here);
    return toStep(next < 0 ? steps.length - 1 : next);
  }
  const first = steps.findIndex((step) => step.segment === here);
  if (first < at.step) return toStep(first);
  return toStep(first === 0 ? 0 : steps.findIndex((step) => step.segment === steps[first - 1].segment));
}
function toBlock(block) {
  if (launch().segments.some((segment) => segment.block === block)) go({ block });
}
function follow(thread) { go({ thread: thread >= 0 && thread < launch().threads ? thread : -1 }); }

// The next event of the thread that is followed, in the steps behind this one, too.
function toEvent(direction) {
  if (at.thread < 0) return follow(0);
  const next = at.event < 0 && direction < 0 ? -1 : at.event + direction;
  if (next >= 0 && next < view.followed.length) return go({ event: next });
  for (let step = at.step + direction; step >= 0 && step < steps.length; step += direction) {
    const found = viewOf(launch(), at.block, steps, step, at.thread).followed;
    if (found.length) return go({ step, event: direction > 0 ? 0 : found.length - 1 });
  }
}

function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => (at.step + 1 < steps.length ? toStep(at.step + 1) : play(false)), PLAY_MS) : 0;
  ui.play.textContent = timer ? "❚❚" : "▶";
  ui.play.setAttribute("aria-label", timer ? "pause" : "play");
}

// ---- races

const threadNumber = ([x, y, z], block) => x + block[0] * (y + block[1] * z);

// The launch, block and step in which an access of a finding happened, with its thread and elements.
function sideOf(finding, access) {
  for (const one of launches) {
    if (!access.block || !access.thread || one.kernel.split("<")[0] !== finding.kernel) continue;
    const block = access.block[0] + one.grid[0] * (access.block[1] + one.grid[1] * access.block[2]);
    const thread = threadNumber(access.thread, one.block);
    const names = (array) => array.space === finding.space && (finding.variable === array.name || one.arrays.every((a) => a.name !== finding.variable));
    for (const segment of one.segments) {
      if (segment.block !== block) continue;
      for (let i = segment.first; i < segment.last; ++i) {
        const entry = one.entries[one.entry[i]];
        if (one.thread[i] !== thread || entry.place !== access.place || entry.array < 0 || !names(one.arrays[entry.array])) continue;
        const array = one.arrays[entry.array], begin = one.offset[i];
        const exact = array.name === finding.variable;
        if (exact && finding.offset !== null && (finding.offset < begin || finding.offset >= begin + entry.bytes)) continue;
        const byte = exact && finding.offset !== null ? finding.offset : begin;
        return { launch: one.number, block, segment, thread, array, element: Math.floor(byte / array.size), entry };
      }
    }
  }
  return null;
}

function showRace(number) {
  const finding = DATA.findings[number];
  const sides = finding.accesses.map((access) => sideOf(finding, access)).filter(Boolean);
  const side = sides[0];
  if (!side) return;
  const same = sides.find((other) => other.block === side.block) || side;
  at.launch = side.launch; at.block = side.block; at.whole = true; view = null; touched = null;
  const all = stepsOfBlock(launches[side.launch], side.block, true);
  go({ race: number, thread: -1, step: Math.max(0, all.findIndex((step) => step.segment === same.segment)) });
  ui.strip.scrollIntoView();
}

function racedElements() {
  if (at.race < 0) return { elements: new Map(), threads: [] };
  const finding = DATA.findings[at.race], elements = new Map(), threads = [];
  for (const side of finding.accesses.map((access) => sideOf(finding, access))) {
    if (!side || side.launch !== at.launch || side.block !== at.block) continue;
    threads.push(side.thread);
    if (!elements.has(side.array.number)) elements.set(side.array.number, new Set());
    elements.get(side.array.number).add(side.element);
  }
  return { elements, threads };
}

function raceWords(raced) {
  if (at.race < 0 || raced.threads.length < 2) return "";
  return "Both accesses are in this interval, and nothing orders them: their threads and the element have a red frame.  ";
}

// ---- the parts of the page that stay

function button(words, label, act, pressed) {
  return h("button", { type: "button", "aria-label": label, title: label, click: act, "aria-pressed": pressed }, words);
}

function build() {
  ui.kernels = h("select", { "aria-label": "launch", change: (e) => go({ launch: +e.target.value, block: 0, step: 0, thread: -1 }) },
    launches.map((one, n) => h("option", { value: n }, `${n + 1}. ${one.kernel}`)));
  ui.blocks = h("select", { "aria-label": "block", change: (e) => toBlock(+e.target.value) });
  ui.range = h("input", { type: "range", min: 0, "aria-label": "step", input: (e) => toStep(+e.target.value) });
  ui.count = h("span", { class: "soft small" });
  ui.play = button("▶", "play", () => play(!timer));
  ui.whole = h("input", { type: "checkbox", change: (e) => go({ whole: e.target.checked }) });
  ui.values = h("input", { type: "checkbox", change: (e) => go({ values: +e.target.checked, race: at.race }) });
  ui.colors = h("select", { "aria-label": "colors", change: (e) => go({ byLane: e.target.value === "lane" }) },
    h("option", { value: "warp" }, "a color per warp"), h("option", { value: "lane" }, "a color per lane"));
  ui.strip = h("div", { class: "strip", "aria-hidden": "true" });
  ui.sentence = h("div", { class: "sentence", "aria-live": "polite", role: "status" });
  ui.stage = h("section", { class: "stage", "aria-label": "arrays and threads" });
  ui.legend = h("div", { class: "legend" });
  ui.thread = h("input", { type: "number", min: 0, "aria-label": "number of the thread to follow", placeholder: "none",
    change: (e) => follow(e.target.value === "" ? -1 : +e.target.value) });
  ui.who = h("span", { class: "small" });
  ui.events = h("div", { class: "events", tabindex: "0", role: "region", "aria-label": "what the followed thread does in this step" });
  ui.source = h("div", {});
  ui.tip = h("div", { class: "tip", hidden: true, role: "tooltip" });
  const controls = h("div", { class: "controls", role: "toolbar", "aria-label": "playback" },
    launches.length > 1 ? ui.kernels : null,
    h("label", {}, "block", ui.blocks),
    h("span", { class: "buttons" },
      button("⇤", "to the previous barrier (Page Up)", () => toBarrier(-1)),
      button("←", "one step back (left arrow)", () => toStep(at.step - 1)),
      ui.play,
      button("→", "one step forward (right arrow)", () => toStep(at.step + 1)),
      button("⇥", "past the next barrier (Page Down)", () => toBarrier(1))),
    ui.range, ui.count,
    h("label", { title: "show everything between two barriers in one picture instead of line by line" }, ui.whole, "whole intervals"),
    h("label", { title: `show the values in arrays of at most ${FOLDED} columns, one array below the other` }, ui.values, "values"),
    ui.colors);
  page.replaceChildren(
    h("header", {}, h("h1", {}, `Replay of ${DATA.title}`), h("p", { class: "soft" }, DATA.about), h("p", { class: "soft mono" }, DATA.command)),
    ...[findings()].filter(Boolean),
    controls, ui.strip, ui.sentence,
    h("div", { class: "layout" },
      h("div", { class: "card" }, ui.stage, ui.legend),
      h("div", { class: "side" },
        h("section", { class: "card", "aria-label": "one thread" },
          h("div", { class: "follow" }, h("h2", {}, "Follow a thread"), ui.thread,
            button("none", "follow no thread (Escape)", () => follow(-1)), ui.who),
          ui.events),
        h("section", { class: "card listing", "aria-label": "source" }, ui.source),
        h("section", { class: "small soft", "aria-label": "keys" },
          h("p", {}, h("kbd", {}, "←"), " ", h("kbd", {}, "→"), " step, ", h("kbd", {}, "PgUp"), " ", h("kbd", {}, "PgDn"), " barrier, ",
            h("kbd", {}, "["), " ", h("kbd", {}, "]"), " block, ", h("kbd", {}, "↑"), " ", h("kbd", {}, "↓"), " accesses of the followed thread, ",
            h("kbd", {}, "Space"), " play, ", h("kbd", {}, "W"), " whole intervals, ", h("kbd", {}, "Esc"), " follow no thread."),
          h("p", {}, "Between two barriers, threads run in any order; the page goes line by line. Memory is shown as it was recorded: ",
            "one block after the other, one thread after the other. Only accesses to memory are recorded, not registers.")))),
    ui.tip);
}

function findings() {
  if (!DATA.findings.length) return null;
  return h("section", { class: "card findings", "aria-label": "findings" }, DATA.findings.map((one, n) => [
    h("h2", {}, one.count > 1 ? `${one.title}, ${one.count.toLocaleString("en")} times` : one.title),
    h("ul", {}, one.accesses.map((access) => {
      const place = DATA.places[access.place];
      const where = place ? `line ${place.lines[place.lines.length - 1]}: ` : "";
      return h("li", {}, `${access.who}, ${where}`, place ? h("code", {}, textOf(place)) : null);
    })),
    h("p", { class: "small" }, one.explained),
    one.accesses.some((access) => sideOf(one, access))
      ? button(one.accesses.length > 1 ? "Show both accesses in their interval" : "Show where", `show finding ${n + 1}`, () => showRace(n)) : null,
  ]));
}

// ---- what depends on launch and block

function buildStage() {
  const one = launch(), written = new Set(one.entries.filter((entry) => entry.kind !== READ).map((entry) => entry.array));
  const sides = { left: [], middle: [], right: [] };
  boxes = [];
  for (const array of one.arrays) {
    const drawings = drawingsOf(array, touched[array.number]);
    if (!drawings.length) continue;
    const side = array.space === "shared" ? "middle" : written.has(array.number) ? "right" : "left";
    sides[side].push({ array, drawings });
  }
  const rows = Object.values(sides).flat().flatMap((each) => each.drawings).map((one) => (one.cols > FOLDED ? 99 : one.rows));
  if (at.values < 0) at.values = +(innerWidth > 640 && rows.reduce((a, b) => a + b, 0) <= FEW_ROWS);
  ui.flow = s("svg", { class: "flow", "aria-hidden": "true" });
  ui.threads = h("canvas", { role: "img", click: (e) => pickFromThreads(e), mousemove: (e) => tipOfThread(e), mouseleave: hideTip });
  ui.blockGrid = h("canvas", { role: "img", "aria-label": `${counted(one.blocks, "block")} of the grid`, click: (e) => pickBlock(e) });
  const middle = h("div", { class: "column" },
    h("h2", {}, `Threads ${sizes(one.block)}, a row per warp`), ui.threads,
    sides.middle.length ? h("h2", {}, "Shared memory of the block") : null, sides.middle.map((each) => arrayBox(each, "middle")));
  const left = h("div", { class: "column" }, h("h2", {}, "Global memory: read"), sides.left.map((each) => arrayBox(each, "left")));
  const right = h("div", { class: "column" }, h("h2", {}, "Global memory: written"), sides.right.map((each) => arrayBox(each, "right")),
    one.blocks > 1 ? [h("h2", {}, `Blocks of the grid ${sizes(one.grid)}`), ui.blockGrid] : null);
  ui.stage.replaceChildren(ui.flow, h("div", { class: at.values === 1 ? "columns stacked" : "columns" }, left, middle, right));
  ui.blocks.replaceChildren(...Array.from({ length: one.blocks }, (_, n) => n).filter((n) => one.segments.some((segment) => segment.block === n))
    .map((n) => h("option", { value: n }, triple(coordinates(n, one.grid)))));
  ui.strip.replaceChildren();
  let interval = null, segment = null;
  steps.forEach((step, n) => {
    if (step.segment !== segment) ui.strip.append(interval = h("div", { class: "interval" }));
    segment = step.segment;
    interval.append(h("span", { click: () => toStep(n), title: step.key === WHOLE ? `step ${n + 1}` : `line ${step.line}` }));
  });
  ui.strip.style.gap = steps.length > 80 ? "1px" : "5px";
  const files = new Map();
  for (const { place } of one.entries) if (DATA.places[place]) files.set(DATA.places[place].file, (files.get(DATA.places[place].file) || 0) + 1);
  const file = [...files].sort((a, b) => b[1] - a[1])[0];
  ui.file = file ? file[0] : -1;
  ui.listing = file ? listing(DATA.files[file[0]], 1, DATA.files[file[0]].lines.length) : null;
  ui.source.replaceChildren(...(ui.listing ? [h("h2", {}, DATA.files[ui.file].name), ui.listing.box] : []));
  ui.legend.replaceChildren(...legend());
}

function arrayBox({ array, drawings }, side) {
  const chips = h("div", { class: "chips" });
  const canvases = drawings.map((drawing) => ({
    drawing,
    canvas: h("canvas", { role: "img", mousemove: (e) => tipOfArray(e, array, drawing), mouseleave: hideTip, click: (e) => pickFromArray(e, array, drawing) }),
  }));
  const shape = array.shape.map((size) => `[${size}]`).join("");
  const cut = drawings.some((one) => one.rows < one.allRows || one.cols < one.allCols) ? " (the part that the block touches)" : "";
  const only = drawings.length === 1 ? drawings[0].name : "";
  const element = h("div", { class: "array" },
    h("div", { class: "head" }, h("h3", {}, array.name + only, h("span", { class: "soft" }, only ? ` of ${shape}` : ` ${shape}`)), chips),
    canvases.map(({ drawing, canvas }) => [drawing.name && !only ? h("p", { class: "where" }, array.name + drawing.name) : null, canvas]),
    drawings.more ? h("p", { class: "where" }, `and ${drawings.more} more`) : null, cut ? h("p", { class: "where" }, cut.trim()) : null);
  boxes.push({ array, side, element, chips, canvases });
  return element;
}

function legend() {
  const warp = whoColor(0, launch().warps), pale = whoColor(0, launch().warps, 0.36);
  const item = (style, words, dot) => h("span", {}, h("i", { style, class: dot ? "dot" : "", "aria-hidden": "true" }), words);
  const who = at.byLane ? "lane" : "warp";
  return [
    item(`background:${warp}`, `written in this step, or an input read in it: the color of the ${who}`),
    item(`background:${pale}`, "written in an earlier step"),
    item(`background:${pale};--dot:${warp}`, `read in this step by one ${who}`, true),
    item(`background:${pale};--dot:var(--several)`, `by several ${who}s`, true),
    item("background:color-mix(in srgb, var(--several) 28%, var(--cell))", "read before, or written by another block"),
    item("background:var(--cell)", "not touched yet"),
    h("span", {}, h("b", { style: "color:var(--read)" }, "→"), "read"), h("span", {}, h("b", { style: "color:var(--write)" }, "→"), "written"),
  ];
}

// ---- what depends on the step

function render() {
  const one = launch(), step = steps[at.step], raced = racedElements();
  const cursor = at.event >= 0 ? view.followed[at.event] : null;
  const state = { launch: one, block: at.block, view, picked: at.thread, byLane: at.byLane, racing: raced.threads, blockOfEvent: (i) => segmentOf(i).block };
  ui.kernels.value = at.launch;
  ui.blocks.value = at.block;
  ui.range.max = steps.length - 1;
  ui.range.value = at.step;
  ui.range.setAttribute("aria-valuetext", `step ${at.step + 1} of ${steps.length}`);
  ui.count.textContent = `step ${at.step + 1} of ${steps.length}`;
  ui.whole.checked = at.whole;
  ui.values.checked = at.values === 1;
  ui.colors.value = at.byLane ? "lane" : "warp";
  [...ui.strip.querySelectorAll("span")].forEach((span, n) => { span.className = n < at.step ? "past" : n === at.step ? "here" : ""; });
  const code = (line) => h("code", {}, (DATA.files[step.file].lines[line - 1] || "").trim().replace(/^(.{119}).{2,}$/, "$1…"));
  const line = step.key === WHOLE ? null : [code(step.line), ...running(step).flatMap((one) => [` → line ${one}: `, code(one)])];
  ui.sentence.replaceChildren(h("div", {}, `Block ${triple(coordinates(at.block, one.grid))}, ${step.key === WHOLE ? "one interval" : `line ${step.line}`}: `, ...(line || [])),
    h("div", {}, raceWords(raced), sentenceOf(one, view, steps, at.step)));
  const threadCell = Math.max(4, Math.min(11, Math.floor(columnWidth() / Math.min(WARP, one.threads))));
  drawThreads(ui.threads, threadCell, state);
  const active = view.active.reduce((n, each) => n + (each & 3 ? 1 : 0), 0);
  ui.threads.setAttribute("aria-label", `${counted(one.threads, "thread")}, a warp in each row; ${active} of them touch memory in this step`);
  ui.threads.dataset.cell = threadCell;
  if (one.blocks > 1) {
    const cell = Math.max(3, Math.min(14, Math.floor(columnWidth() / one.grid[0])));
    drawBlocks(ui.blockGrid, cell, state);
    ui.blockGrid.dataset.cell = cell;
  }
  for (const box of boxes) {
    const seen = view.arrays[box.array.number];
    box.element.classList.toggle("idle", !seen.reads && !seen.writes);
    box.chips.replaceChildren(
      ...(seen.reads ? [h("span", { class: "chip read" }, `${seen.readElements.toLocaleString("en")} read, ${often(seen)}`)] : []),
      ...(seen.writes ? [h("span", { class: "chip write" }, `${seen.writtenElements.toLocaleString("en")} written`)] : []));
    for (const { drawing, canvas } of box.canvases) {
      const many = boxes.filter((other) => other.side === box.side).length > 2;
      const cell = cellOf(drawing, columnWidth(), many ? TALLEST_OF_MANY : TALLEST, at.values === 1);
      const elements = new Set();
      if (cursor && cursor.values && cursor.entry.array === box.array.number) cursor.values.forEach((_, k) => elements.add(cursor.element + k));
      drawArray(canvas, box.array, drawing, cell, { ...state, cursor: elements, raced: raced.elements.get(box.array.number) });
      [canvas.dataset.cell, canvas.dataset.height] = cell;
      canvas.setAttribute("aria-label", `${box.array.name}${drawing.name}, ${drawing.allRows} by ${drawing.allCols}: ${seen.readElements} read, ${seen.writtenElements} written in this step`);
    }
  }
  renderThread(cursor);
  renderSource(step, cursor);
  requestAnimationFrame(() => drawFlow(ui.flow, ui.stage, ui.threads, boxes.map((box) => {
    const seen = view.arrays[box.array.number];
    return { element: box.canvases[0].canvas, side: box.side, reads: seen.reads, writes: seen.writes };
  })));
}

// The lines that touch memory in this step, if it is a call: those of the function that it calls; the busiest first.
function running(step) {
  const counts = new Map();
  for (const [number, count] of view.counts) {
    const place = DATA.places[number], line = place && place.lines.at(-1);
    if (place && place.file === step.file && line !== step.line) counts.set(line, (counts.get(line) || 0) + count);
  }
  return [...counts].sort((a, b) => b[1] - a[1]).slice(0, 1).map(([line]) => line);
}

function columnWidth() {
  const columns = ui.stage.querySelector(".column");
  return Math.max(120, columns ? columns.clientWidth - 4 : 280);
}

function renderThread(cursor) {
  const one = launch();
  ui.thread.max = one.threads - 1;
  ui.thread.value = at.thread < 0 ? "" : at.thread;
  if (at.thread < 0) {
    ui.who.textContent = "";
    ui.events.replaceChildren(h("p", { class: "soft small" }, "Click a thread or a cell that one wrote, or type a thread's number. What it reads turns blue, and what it writes, orange."));
    return;
  }
  ui.who.textContent = `thread ${triple(coordinates(at.thread, one.block))}, warp ${at.thread >> 5}, lane ${at.thread & 31}`;
  const rows = view.followed.slice(0, MOST_FOLLOWED).map((each, n) => {
    const place = DATA.places[each.entry.place], line = place ? place.lines[place.lines.length - 1] : "";
    const what = each.entry.kind === WARP_OPERATION ? each.entry.label
      : elementName(one.arrays[each.entry.array], each.element) + (each.values.length > 1 ? ` … ${each.values.length} of them` : "");
    return h("tr", { class: n === at.event ? "here" : "", click: () => go({ event: n }) },
      h("td", { class: "number soft" }, String(line)), h("td", {}, VERBS[each.entry.kind]), h("td", { class: "mono" }, what),
      h("td", { class: "mono number" }, each.values ? each.values.map(shown).join(", ") : ""));
  });
  const more = view.followed.length - rows.length;
  ui.events.replaceChildren(rows.length
    ? h("table", {}, h("thead", {}, h("tr", {}, ["line", "", "element", "value"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows))
    : h("p", { class: "soft small" }, "It touches no memory in this step."), more > 0 ? h("p", { class: "soft small" }, `and ${more.toLocaleString("en")} more`) : "");
  if (cursor) {
    const row = ui.events.querySelector("tr.here");
    if (row) ui.events.scrollTop = row.offsetTop - ui.events.offsetTop - 60;
  }
}

function renderSource(step, cursor) {
  if (!ui.listing) return;
  for (const row of ui.listing.rows.values()) row.className = "";
  const mark = (place, name) => { // the line that runs, and in a paler color the calls that led to it
    if (!place || place.file !== ui.file) return 0;
    for (const line of place.lines) {
      const row = ui.listing.rows.get(line), last = line === place.lines.at(-1);
      if (row && (last || !row.className)) row.className = last || name === "race" ? name : "call";
    }
    return place.lines.at(-1);
  };
  let first = 0;
  for (const number of view.counts.keys()) first = mark(DATA.places[number], "now") || first;
  if (step.key !== WHOLE && step.file === ui.file) first = running(step)[0] || step.line;
  if (at.race >= 0) {
    const lines = DATA.findings[at.race].accesses.map((access) => mark(DATA.places[access.place], "race")).filter(Boolean);
    if (lines.length) first = Math.min(...lines);
  }
  if (cursor) {
    const place = DATA.places[cursor.entry.place];
    if (place && place.file === ui.file) {
      first = place.lines[place.lines.length - 1];
      ui.listing.rows.get(first).className = "cursor";
    }
  }
  if (first) showRow(ui.listing, first);
}

// ---- mouse

function cellAt(event, canvas) {
  const rect = canvas.getBoundingClientRect(), { cell, height } = canvas.dataset;
  const across = (event.clientX - rect.left) * (parseFloat(canvas.style.width) / rect.width);
  const down = (event.clientY - rect.top) * (parseFloat(canvas.style.height) / rect.height);
  return { col: Math.floor(across / +cell), row: Math.floor(down / +(height || cell)) };
}
function pickFromThreads(event) {
  const { col, row } = cellAt(event, ui.threads), thread = row * WARP + col;
  follow(thread === at.thread ? -1 : thread);
}
function pickBlock(event) {
  const { col, row } = cellAt(event, ui.blockGrid);
  toBlock(row * launch().grid[0] + col);
}
function whoDid(array, element) {
  const seen = view.arrays[array.number], last = view.memory.writer[array.number][element];
  if (seen.reader && seen.reader[element] >= 0) return seen.reader[element];
  return last >= 0 && segmentOf(last).block === at.block ? launch().thread[last] : -1;
}
function pickFromArray(event, array, drawing) {
  const { col, row } = cellAt(event, event.target), element = elementAt(array, drawing, row, col);
  if (element >= 0 && whoDid(array, element) >= 0) follow(whoDid(array, element));
}
function tip(event, lines) {
  ui.tip.replaceChildren(...lines.map((line) => h("div", {}, line)));
  ui.tip.hidden = false;
  ui.tip.style.left = `${Math.min(event.clientX + 14, innerWidth - ui.tip.offsetWidth - 8)}px`;
  ui.tip.style.top = `${Math.min(event.clientY + 14, innerHeight - ui.tip.offsetHeight - 8)}px`;
}
function hideTip() { ui.tip.hidden = true; }
function tipOfThread(event) {
  const { col, row } = cellAt(event, ui.threads), thread = row * WARP + col;
  if (thread >= launch().threads) return hideTip();
  const does = ["touches no memory", "reads", "writes", "reads and writes"][view.active[thread] & 3];
  tip(event, [`thread ${triple(coordinates(thread, launch().block))}, warp ${thread >> 5}, lane ${thread & 31}: ${does}`]);
}
function tipOfArray(event, array, drawing) {
  const { col, row } = cellAt(event, event.target), element = elementAt(array, drawing, row, col);
  if (element < 0) return hideTip();
  const one = launch(), seen = view.arrays[array.number], last = view.memory.writer[array.number][element];
  const lines = [`${elementName(array, element)} = ${shown(view.memory.value(array.number, element))}`];
  const name = (thread) => `thread ${triple(coordinates(thread, one.block))}`;
  if (last >= 0) {
    const place = DATA.places[one.entries[one.entry[last]].place], block = segmentOf(last).block;
    const of = block === at.block ? "" : ` of block ${triple(coordinates(block, one.grid))}`;
    lines.push(`last written by ${name(one.thread[last])}${of}${place ? `, line ${place.lines[place.lines.length - 1]}` : ""}`);
  }
  if (seen.times && seen.times[element]) {
    const reader = seen.reader[element];
    const who = reader >= 0 ? name(reader) : warpOf(reader) >= 0 ? `threads of warp ${warpOf(reader)}` : "threads of several warps";
    lines.push(`read in this step ${seen.times[element] === 1 ? "once" : `${seen.times[element]} times`}, by ${who}`);
  }
  tip(event, lines);
}

// ---- keyboard

const KEYS = {
  ArrowRight: () => toStep(at.step + 1), ArrowLeft: () => toStep(at.step - 1),
  PageDown: () => toBarrier(1), PageUp: () => toBarrier(-1), Home: () => toStep(0), End: () => toStep(steps.length - 1),
  ArrowDown: () => toEvent(1), ArrowUp: () => toEvent(-1),
  "]": () => toBlock(at.block + 1), "[": () => toBlock(at.block - 1),
  " ": () => play(!timer), w: () => go({ whole: !at.whole }), Escape: () => follow(-1),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  const { tagName, type } = event.target;
  if (tagName === "SELECT" || (tagName === "INPUT" && type !== "checkbox" && event.key !== "Escape")) return;
  if (tagName === "BUTTON" && event.key === " ") return;
  event.preventDefault();
  KEYS[event.key]();
});

// ---- the start

function told() { // what the address says: #block=1&step=3
  const said = {};
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (name in at && /^-?\d+$/.test(value)) said[name] = +value;
  for (const name of ["whole", "byLane"]) if (name in said) said[name] = Boolean(said[name]);
  return said;
}

async function start() {
  const buffer = await inflate(document.getElementById("blob").textContent);
  launches = DATA.launches.map((one, number) => decodeLaunch(one, buffer, number));
  build();
  const said = told();
  if (!launches[said.launch || 0]) said.launch = 0;
  at.launch = said.launch || 0;
  const blocks = launch().segments.map((segment) => segment.block);
  at.block = blocks.includes(said.block) ? said.block : blocks[0] || 0;
  if (said.race >= 0 && said.race < DATA.findings.length) showRace(said.race);
  else go({ ...said, launch: at.launch, block: at.block, race: -1 });
  const redraw = () => { buildStage(); render(); };
  DARK.addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
  document.body.dataset.ready = String(Math.round(performance.now()));
}

start();
