// arrays.js - arrays as grids of cells: a cell's color says who wrote it, its mark who reads it.
//
// Of a tensor of more than two dimensions those matrices are drawn that the block touches, and of a large matrix the
// part that it touches.
"use strict";

const MOST_SIDE = 256; // rows and columns of a drawing
const MOST_MATRICES = 4;
const LARGEST_CELL = 16; // pixels
const TALLEST = 240, TALLEST_OF_MANY = 150; // pixels of a drawing; of each where a column holds three or more
const LEAST_SQUARE = 4; // at most so much longer than wide
const LEAST_DOT = 6; // pixels of a cell that has room for a mark in its middle
const STRONG_INK = "#0b0f14"; // on the full color of a warp, on light pages and dark ones
const VALUE_CELL = [20, 40, 17]; // the least and the most width of a cell with its value in it, and its height
const FOLDED = 32; // columns of an array of one dimension

// One hue for each warp (or lane), equally light.
function whoColor(number, of, alpha = 1) {
  const hue = (250 + (360 * number) / Math.max(of, 1)) % 360;
  const [light, chroma] = DARK.matches ? [0.74, 0.12] : [0.62, 0.135];
  return `oklch(${light} ${chroma} ${hue.toFixed(1)} / ${alpha})`;
}

// Which elements of each array the block ever touches.
function touchedBy(launch, block) {
  const touched = launch.arrays.map((array) => new Uint8Array(array.elements));
  for (const segment of launch.segments) {
    if (segment.block !== block) continue;
    for (let i = segment.first; i < segment.last; ++i) {
      const { array, bytes } = launch.entries[launch.entry[i]];
      if (array < 0) continue;
      const size = launch.arrays[array].size, from = Math.floor(launch.offset[i] / size);
      for (let k = from; k * size < launch.offset[i] + bytes; ++k) touched[array][k] = 1;
    }
  }
  return touched;
}

// The drawings of an array: [{name, first element, rows, cols, stride, row, col}]; `row` and `col` count from there.
function drawingsOf(array, touched) {
  const shape = array.shape, folded = shape.length < 2;
  const cols = folded ? Math.min(FOLDED, array.elements) : shape[shape.length - 1];
  const rows = folded ? Math.ceil(array.elements / cols) : shape[shape.length - 2];
  const leading = folded ? [] : shape.slice(0, -2);
  const matrices = leading.reduce((a, b) => a * b, 1), drawings = [];
  let more = 0;
  for (let m = 0; m < matrices; ++m) {
    const first = m * rows * cols;
    const box = bounds(touched, first, Math.min(rows * cols, array.elements - first), cols);
    if (!box) continue;
    if (drawings.length === MOST_MATRICES) {
      ++more;
      continue;
    }
    const index = [];
    for (let d = leading.length - 1, rest = m; d >= 0; rest = Math.floor(rest / leading[d--])) index.unshift(rest % leading[d]);
    const row = rows > MOST_SIDE ? box.top : 0, col = cols > MOST_SIDE ? box.left : 0;
    drawings.push({
      name: index.length ? `[${index.join(", ")}]` : "", first, stride: cols, row, col,
      rows: Math.min(rows - row, MOST_SIDE), cols: Math.min(cols - col, MOST_SIDE), allRows: rows, allCols: cols,
    });
  }
  drawings.more = more;
  return drawings;
}

function bounds(touched, first, count, cols) {
  let top = -1, left = cols;
  for (let k = 0; k < count; ++k) {
    if (!touched[first + k]) continue;
    if (top < 0) top = Math.floor(k / cols);
    left = Math.min(left, k % cols);
  }
  return top < 0 ? null : { top, left };
}

// The width and height of an element in pixels, in a column of the page that is so wide; with `values` room for them.
function cellOf(drawing, width, tallest, values) {
  const wide = Math.min(VALUE_CELL[1], Math.floor(width / drawing.cols));
  if (values && drawing.cols <= FOLDED && wide >= VALUE_CELL[0]) return [wide, VALUE_CELL[2]];
  const w = Math.max(2, Math.min(LARGEST_CELL, Math.floor(width / drawing.cols)));
  const h = Math.max(2, Math.min(LARGEST_CELL, Math.floor(tallest / drawing.rows)));
  return [Math.min(w, h * LEAST_SQUARE), Math.min(h, w * LEAST_SQUARE)];
}

function elementAt(array, drawing, row, col) {
  if (row < 0 || col < 0 || row >= drawing.rows || col >= drawing.cols) return -1;
  const element = drawing.first + (row + drawing.row) * drawing.stride + col + drawing.col;
  return element < array.elements ? element : -1;
}

// "tile[3][17]", "value[0, 1, 37, 5]".
function elementName(array, element) {
  const index = [];
  for (let d = array.shape.length - 1, rest = element; d >= 0; --d) {
    index.unshift(d ? rest % array.shape[d] : rest);
    rest = Math.floor(rest / array.shape[d]);
  }
  return array.name + (array.space === "shared" ? index.map((i) => `[${i}]`).join("") : `[${index.join(", ")}]`);
}

function prepareCanvas(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}

// Draws one drawing of an array.
//   cell: [width, height] in pixels of an element
//   state: {launch, block, view, picked, byLane, cursor, raced}; cursor and raced are sets of elements of this array
function drawArray(canvas, array, drawing, cell, state) {
  const { launch, view, picked } = state, seen = view.arrays[array.number], memory = view.memory;
  const [width, height] = cell, context = prepareCanvas(canvas, drawing.cols * width, drawing.rows * height);
  const gap = Math.min(width, height) >= 5 ? 1 : 0, innerWidth = width - gap, innerHeight = height - gap, blockOf = state.blockOfEvent;
  const plain = color("cell"), several = color("several"), readColor = color("read"), writeColor = color("write");
  const dim = picked >= 0, inkColor = color("ink"), paper = color("paper");
  Object.assign(context, { font: "8.6px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace", textAlign: "center", textBaseline: "middle" });
  const who = (thread, alpha) =>
    state.byLane ? whoColor(thread & 31, Math.min(WARP, launch.threads), alpha) : whoColor(thread >> 5, launch.warps, alpha);
  const colors = new Map();
  const cached = (thread, alpha) => {
    const key = (state.byLane ? thread & 31 : thread >> 5) * 10 + alpha * 9;
    if (!colors.has(key)) colors.set(key, who(thread, alpha));
    return colors.get(key);
  };
  const mine = new Map(); // of the thread that is followed: element -> 1 reads, 2 writes
  if (dim)
    for (const { entry, element, i } of view.followed) {
      if (entry.array !== array.number) continue;
      const last = Math.ceil((launch.offset[i] + entry.bytes) / array.size);
      for (let k = element; k < last; ++k) mine.set(k, (mine.get(k) || 0) | (entry.kind === READ ? 1 : 2));
    }
  for (let row = 0; row < drawing.rows; ++row) {
    for (let col = 0; col < drawing.cols; ++col) {
      const element = elementAt(array, drawing, row, col);
      if (element < 0) continue;
      const x = col * width, y = row * height;
      const written = seen.writer ? seen.writer[element] : -1, read = seen.reader ? seen.reader[element] : -1;
      const last = memory.writer[array.number][element];
      context.globalAlpha = dim ? 0.4 : 1;
      context.fillStyle = plain;
      context.fillRect(x, y, innerWidth, innerHeight);
      if (written >= 0) context.fillStyle = cached(written, 1);
      else if (last >= 0 && blockOf(last) === state.block) context.fillStyle = cached(launch.thread[last], 0.36);
      else if (last >= 0 || seen.readBefore[element]) {
        context.globalAlpha *= 0.28;
        context.fillStyle = several;
      }
      context.fillRect(x, y, innerWidth, innerHeight);
      context.globalAlpha = dim ? 0.4 : 1;
      let ink = written >= 0 || read !== -1 ? STRONG_INK : inkColor;
      if (read !== -1) {
        const lane = state.byLane && read < 0 ? -1 : read;
        context.fillStyle = lane === SEVERAL || warpOf(read) < 0 || (state.byLane && read < 0) ? several : cached(Math.max(read, warpOf(read) * 32), 1);
        const dot = Math.min(width, height) >= LEAST_DOT && (last >= 0 || written >= 0); // who wrote it is to be seen around the mark
        const edge = dot ? Math.max(1, Math.floor(Math.min(width, height) * 0.24)) : 0;
        if (context.fillStyle === several) ink = paper;
        context.fillRect(x + edge, y + edge, innerWidth - 2 * edge, innerHeight - 2 * edge);
      }
      const own = mine.get(element);
      if (own) {
        context.globalAlpha = 1;
        context.fillStyle = own & 2 ? writeColor : readColor;
        context.fillRect(x, y, innerWidth, innerHeight);
        ink = STRONG_INK;
      }
      if (height === VALUE_CELL[2]) {
        const words = brief(memory.value(array.number, element), Math.floor((width - 1) / 5.2));
        context.fillStyle = context.globalAlpha === 1 ? ink : inkColor;
        context.fillText(words, x + innerWidth / 2, y + innerHeight / 2 + 0.5);
      }
    }
  }
  context.globalAlpha = 1;
  outline(context, array, drawing, cell, state.cursor, color("ink"));
  outline(context, array, drawing, cell, state.raced, color("bad"));
}

function outline(context, array, drawing, cell, elements, stroke) {
  if (!elements || !elements.size) return;
  context.strokeStyle = stroke;
  context.lineWidth = 2;
  for (const element of elements) {
    const k = element - drawing.first, row = Math.floor(k / drawing.stride) - drawing.row, col = (k % drawing.stride) - drawing.col;
    if (k < 0 || elementAt(array, drawing, row, col) < 0) continue;
    const [width, height] = cell, w = Math.max(width + 2, 7), h = Math.max(height + 2, 7);
    context.strokeRect(col * width + width / 2 - w / 2, row * height + height / 2 - h / 2, w, h);
  }
}

// The threads of the block, a warp in each row; those that do something are filled.
function drawThreads(canvas, cell, state) {
  const { launch, view, picked } = state, cols = Math.min(WARP, launch.threads);
  const context = prepareCanvas(canvas, cols * cell, launch.warps * cell);
  for (let thread = 0; thread < launch.threads; ++thread) {
    const x = (thread % WARP) * cell, y = (thread >> 5) * cell, inner = cell - 1;
    const fill = state.byLane ? whoColor(thread & 31, cols) : whoColor(thread >> 5, launch.warps);
    context.globalAlpha = view.active[thread] ? (picked >= 0 && thread !== picked ? 0.35 : 1) : 0.16;
    context.fillStyle = fill;
    context.fillRect(x, y, inner, inner);
  }
  context.globalAlpha = 1;
  const mark = (thread, stroke) => {
    context.strokeStyle = stroke;
    context.lineWidth = 2;
    context.strokeRect((thread % WARP) * cell, (thread >> 5) * cell, cell - 1, cell - 1);
  };
  for (const thread of state.racing) mark(thread, color("bad"));
  if (picked >= 0) mark(picked, color("ink"));
}

function drawBlocks(canvas, cell, state) {
  const { launch, block } = state, cols = Math.min(launch.grid[0], MOST_SIDE);
  const rows = Math.min(Math.ceil(launch.blocks / launch.grid[0]), MOST_SIDE);
  const context = prepareCanvas(canvas, cols * cell, rows * cell);
  for (let number = 0; number < launch.blocks; ++number) {
    const col = number % launch.grid[0], row = Math.floor(number / launch.grid[0]);
    if (col >= cols || row >= rows) continue;
    context.fillStyle = number === block ? color("read") : color("cell");
    context.fillRect(col * cell, row * cell, cell - 1, cell - 1);
  }
}
