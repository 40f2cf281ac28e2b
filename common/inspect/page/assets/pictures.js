// pictures.js - a request of a warp as a picture: which lane meets which bank, or touches which sector; the roofline.
"use strict";

const LANES = 32, BANKS = 32, SECTOR = 32;

// One hue, darker with every pass.
function passColor(pass, passes) {
  const share = passes > 1 ? pass / (passes - 1) : 0;
  return DARK.matches ? `oklch(${0.82 - 0.42 * share} 0.11 ${235 - 190 * share})` : `oklch(${0.72 - 0.34 * share} 0.13 ${235 - 190 * share})`;
}

// Lanes against banks: a cell is a word that a lane wants, its color the pass that serves it.
function banksPicture(passes) {
  const cell = 11, left = 44, top = 30, count = 1 + Math.max(...passes.map(([, , pass]) => pass));
  const title = `Lanes against banks of shared memory: the costliest request takes ${counted(count, "pass").replace(/passs$/, "passes")}`;
  const svg = frame(left + BANKS * cell + 8, top + LANES * cell + 30, title);
  svg.append(s("rect", { x: left, y: top, width: BANKS * cell, height: LANES * cell, fill: "var(--cell)" }));
  for (const [lane, bank, pass] of passes) {
    const square = s("rect", { x: left + bank * cell, y: top + lane * cell, width: cell - 1, height: cell - 1, fill: passColor(pass, count) });
    square.append(s("title", {}, `lane ${lane}, bank ${bank}: pass ${pass + 1} of ${count}`));
    svg.append(square);
  }
  axis(svg, left, top, cell, BANKS, LANES, "bank", "lane");
  svg.append(text(left, top + LANES * cell + 22, count === 1 ? "one pass: no two lanes need different words of the same bank" : `${count} passes, from light to dark: a bank serves one word at a time`));
  return svg;
}

// Lanes against sectors of 32 bytes, those that the request touches.
function sectorsPicture(sectors) {
  const used = [...new Set(sectors.map(([, sector]) => sector))].sort((a, b) => a - b);
  const cell = 11, left = 44, top = 30, width = Math.max(8, used.length);
  const svg = frame(left + Math.max(width * cell, 300) + 8, top + LANES * cell + 30, `Lanes against sectors of global memory: the costliest request touches ${used.length}`);
  svg.append(s("rect", { x: left, y: top, width: width * cell, height: LANES * cell, fill: "var(--cell)" }));
  for (const [lane, sector] of sectors) {
    const x = left + used.indexOf(sector) * cell;
    const square = s("rect", { x, y: top + lane * cell, width: cell - 1, height: cell - 1, fill: passColor(used.indexOf(sector), used.length) });
    square.append(s("title", {}, `lane ${lane}: sector ${sector}, byte ${sector * SECTOR} from the lowest`));
    svg.append(square);
  }
  axis(svg, left, top, cell, Math.min(width, used.length), LANES, "sector", "lane");
  svg.append(text(left, top + LANES * cell + 22, `${counted(used.length, "sector")} of 32 bytes, in the order of their addresses`));
  return svg;
}

function frame(width, height, title) {
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title });
  svg.append(s("title", {}, title));
  return svg;
}
function text(x, y, words, anchor = "start", strong = "") {
  return s("text", { x, y, "text-anchor": anchor, class: strong }, words);
}
function axis(svg, left, top, cell, columns, rows, across, down) {
  for (let i = 0; i < columns; i += i + 4 < columns || columns % 4 ? 4 : 3) svg.append(text(left + i * cell + 5, top - 5, String(i), "middle"));
  for (let i = 0; i < rows; i += 4) svg.append(text(left - 5, top + i * cell + 9, String(i), "end"));
  svg.append(text(left, 11, across, "start", "strong"), text(2, top + 9, down, "start", "strong"));
}

// Operations per second against operations per byte; each kernel below the roofs that limit it.
function rooflinePicture(gpu, kernels, chosen) {
  const width = 400, height = 280, left = 46, right = 18, top = 14, bottom = 40;
  const placed = kernels.filter((kernel) => kernel.point), peak = Math.max(...gpu.roofs.map(([, rate]) => rate));
  const xs = placed.map((kernel) => kernel.point[0]), ys = placed.map((kernel) => kernel.point[1]);
  const lowX = Math.log10(Math.min(0.1, ...xs.map((x) => x / 2))), highX = Math.log10(Math.max(30 * peak / gpu.bandwidth, ...xs.map((x) => 2 * x)));
  const lowY = Math.log10(0.4 * Math.min(...ys, gpu.bandwidth * 10 ** lowX)), highY = Math.log10(2.5 * peak);
  const x = (value) => left + ((Math.log10(value) - lowX) / (highX - lowX)) * (width - left - right);
  const y = (value) => height - bottom - ((Math.log10(value) - lowY) / (highY - lowY)) * (height - top - bottom);
  const svg = frame(width, height, `Roofline of ${gpu.name}: ${placed.map((kernel) => `${kernel.name} at ${kernel.point[0].toPrecision(3)} operations per byte`).join(", ")}`);
  for (let decade = Math.ceil(lowX); decade <= highX; ++decade) {
    svg.append(s("line", { x1: x(10 ** decade), x2: x(10 ** decade), y1: top, y2: height - bottom, stroke: "var(--line)" }));
    svg.append(text(x(10 ** decade), height - bottom + 14, String(+(10 ** decade).toPrecision(1)), "middle"));
  }
  for (let decade = Math.ceil(lowY); decade <= highY; ++decade) {
    svg.append(s("line", { x1: left, x2: width - right, y1: y(10 ** decade), y2: y(10 ** decade), stroke: "var(--line)" }));
    svg.append(text(left - 5, y(10 ** decade) + 4, String(+(10 ** decade).toPrecision(1)), "end"));
  }
  const slope = [x(10 ** lowX), y(gpu.bandwidth * 10 ** lowX), x(peak / gpu.bandwidth), y(peak)];
  svg.append(s("line", { x1: slope[0], y1: slope[1], x2: slope[2], y2: slope[3], stroke: "var(--soft)", "stroke-width": 1.5 }));
  const turn = (180 / Math.PI) * Math.atan2(slope[3] - slope[1], slope[2] - slope[0]);  // along the line, above it: kernels are below
  svg.append(s("text", { y: -9, "text-anchor": "middle", transform: `translate(${(slope[0] + slope[2]) / 2} ${(slope[1] + slope[3]) / 2}) rotate(${turn})` }, `DRAM ${(gpu.bandwidth * 1000).toLocaleString("en")} GB/s`));
  for (const [name, rate, style] of gpu.roofs) {
    const dash = { "-": "", "--": "6 4", ":": "2 3" }[style], under = gpu.roofs.some(([, other]) => other > rate && y(rate) - y(other) < 24);
    svg.append(s("line", { x1: x(rate / gpu.bandwidth), x2: width - right, y1: y(rate), y2: y(rate), stroke: "var(--soft)", "stroke-width": 1.5, "stroke-dasharray": dash }));
    svg.append(text(width - right - 2, y(rate) + (under ? 12 : -4), `${name} ${+rate.toPrecision(3)}`, "end"));
  }
  for (const kernel of placed) {
    const [intensity, rate, idle] = kernel.point, here = kernel === chosen;
    const mark = idle
      ? s("path", { d: `M${x(intensity) - 6} ${y(rate)}h12l-6 9z`, fill: here ? "var(--write)" : "none", stroke: here ? "var(--write)" : "var(--soft)", "stroke-width": 1.5 })
      : s("circle", { cx: x(intensity), cy: y(rate), r: here ? 6 : 4, fill: here ? "var(--write)" : "var(--soft)" });
    mark.append(s("title", {}, `${kernel.name} ${kernel.grid}: ${intensity.toPrecision(3)} operations per byte`));
    svg.append(mark);
  }
  svg.append(text((left + width) / 2, height - 8, "operations per byte of DRAM traffic", "middle"), text(4, 10, "TFLOP/s"));
  return svg;
}
