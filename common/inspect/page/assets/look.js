// look.js - the page of --profile and --check: a list of cases and kernels, and the chosen one in full.
"use strict";

const page = document.getElementById("page");
const views = []; // {button, show}
const main = h("div", { class: "view" });

function statusOf(one) {
  if (!one.status) return null;
  return h("span", { class: `status ${one.status === "pass" ? "pass" : one.status === "skipped" ? "" : "bad"}` }, one.status);
}

function choose(number) {
  views.forEach(({ button }, n) => button.setAttribute("aria-current", String(n === number)));
  main.replaceChildren(...[views[number].show()].flat());
  for (const [, { wanted }] of listings) if (wanted) wanted();
  listings.clear();
  remember(`view=${number}`);
}
const listings = new Map(); // what waits until it is in the page: {wanted: scrolls to a line}

function add(list, words, show) {
  const number = views.length;
  const button = h("button", { type: "button", click: () => choose(number) }, words);
  views.push({ button, show });
  list.append(button);
}

// ---- findings

function findingsView() {
  const real = DATA.findings.filter((one) => !one.harmless).length;
  const cases = DATA.cases.filter((one) => one.status && one.status !== "skipped");
  const where = cases.length ? ` in ${counted(cases.length, "case")}` : "";
  const head = h("h2", {}, DATA.findings.length ? `${counted(DATA.findings.length, "finding")}${where}` : `No findings${where}`);
  const sentence = h("p", { class: "soft" }, DATA.findings.length
    ? `Each mistake is listed once, with the lines of both accesses.${real < DATA.findings.length ? " Those with a gray edge change no result by themselves." : ""}`
    : cases.length || !DATA.cases.length ? "No race, nothing out of bounds, nothing read before it was written." : "No case ran, so nothing was checked.");
  return [h("section", {}, head, sentence), ...DATA.findings.map(findingCard), casesTable()];
}

function findingCard(one, number) {
  const files = [...new Set(one.accesses.map((access) => access.place).filter((place) => place >= 0).map((place) => DATA.places[place].file))];
  const lines = one.accesses.filter((access) => access.place >= 0).map((access) => DATA.places[access.place].lines.at(-1));
  const shown = files.length === 1 ? sourceAround(DATA.files[files[0]], lines, one) : null;
  return h("section", { class: `card finding${one.harmless ? " harmless" : ""}`, "aria-label": `finding ${number + 1}` },
    h("h2", {}, `${number + 1}. ${one.title}`, one.count > 1 ? h("span", { class: "soft" }, `, ${one.count.toLocaleString("en")} times`) : null),
    h("ol", {}, one.accesses.map((access) => h("li", {}, `${access.who}, ${access.where}`, access.place >= 0 ? h("pre", {}, textOf(DATA.places[access.place])) : null))),
    h("p", {}, one.explained),
    one.cases.length ? h("p", { class: "soft small" }, `in ${counted(one.cases.length, "case")}: ${one.cases.slice(0, 6).join("; ")}${one.cases.length > 6 ? "; ..." : ""}`) : null,
    shown);
}

// The lines of both accesses with those around them.
function sourceAround(file, lines, one) {
  const around = 4, first = Math.max(1, Math.min(...lines) - around), last = Math.min(file.lines.length, Math.max(...lines) + around);
  const list = listing(file, first, last);
  for (const line of lines) list.rows.get(line).className = "race";
  for (const [place] of one.others) {
    const row = list.rows.get(DATA.places[place].lines.at(-1));
    if (row && !row.className) row.className = "cursor";
  }
  list.box.style.maxHeight = "24rem";
  return list.box;
}

function casesTable() {
  if (!DATA.cases.some((one) => one.status)) return "";
  return h("section", { class: "card wide" }, h("h2", {}, "Cases"), h("table", { class: "cases" },
    h("thead", {}, h("tr", {}, ["case", "inputs", "verdict", "findings", "what the test says"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, DATA.cases.map((one) => h("tr", {}, h("td", {}, one.name), h("td", { class: "mono soft" }, one.shapes), h("td", {}, statusOf(one)),
      h("td", { class: "number" }, one.findings ? String(one.findings) : ""), h("td", { class: "small" }, one.says))))));
}

// ---- a kernel

function kernelView(one, kernel) {
  const times = kernel.launches > 1 ? `, ${kernel.launches} launches` : "";
  const head = h("section", {}, h("h2", { class: "mono" }, kernel.name),
    h("p", { class: "soft" }, `${one.name}: grid ${kernel.grid}, block ${kernel.block}${times}${kernel.launched ? `, launched at ${kernel.launched}` : ""}`),
    one.says ? h("p", { class: "status bad" }, one.says) : null, h("p", {}, summary(kernel)));
  const facts = h("section", { class: "card wide" }, h("h2", {}, "Totals"),
    h("table", { class: "facts" }, h("tbody", {}, kernel.facts.map(([label, words]) => h("tr", {}, h("td", {}, label), h("td", {}, words))))));
  const drawn = kernel.point ? h("section", { class: "card" }, h("h2", {}, `Roofline, ${DATA.gpu.name}`),
    rooflinePicture(DATA.gpu, DATA.cases.flatMap((each) => each.kernels), kernel),
    h("p", { class: "small soft" }, kernel.point[2] ? "The grid leaves most of the GPU idle: the kernel is somewhere below the mark."
      : DATA.gpu.measured ? "Measured. The other marks are the other kernels." : "The most that these counts and the data sheet allow. The other marks are the other kernels.")) : null;
  return [head, counters(kernel), h("div", { class: "pair" }, h("div", { class: "view" }, facts, legend()), h("div", { class: "view" }, drawn, boundsCard(kernel), occupancyCard(kernel)))];
}

function summary(kernel) {
  const worst = kernel.lines.find((line) => line.advice);
  if (worst) return `Line ${worst.number} loses the most (${worst.what}, ${worst.note}): ${worst.transactions.toLocaleString("en")} transactions where ${worst.ideal.toLocaleString("en")} would do.`;
  return kernel.lines.length ? "No line loses transactions that it could avoid." : "It touches no memory.";
}

function boundsCard(kernel) {
  if (!kernel.bounds.length) return null;
  const most = kernel.bounds[0][2];
  return h("section", { class: "card" }, h("h2", {}, "Minimum time per resource"), h("table", {}, h("tbody", {}, kernel.bounds.map(([name, amount, seconds, time]) =>
    h("tr", {}, h("td", { style: "white-space:nowrap" }, name, h("div", { class: "small soft" }, amount)), h("td", { class: "number" }, time),
      h("td", { style: "width:35%" }, h("div", { class: "bar" }, h("i", { style: `width:${(100 * seconds) / most}%` }))))))));
}

function occupancyCard(kernel) {
  const { blocks, warps, most, fraction, limiter } = kernel.occupancy;
  const cells = Array.from({ length: most }, (_, n) => s("rect", { x: (n % 16) * 17, y: Math.floor(n / 16) * 17, width: 15, height: 15, rx: 2,
    fill: n < warps ? whichBlock(Math.floor(n / Math.max(1, warps / Math.max(1, blocks)))) : "var(--cell)" }));
  const words = blocks ? `${counted(warps, "warp")} of ${most} (${Math.round(100 * fraction)}%): ${counted(blocks, "block")} at a time, limited by ${limiter}` : `A block does not fit: not enough ${limiter}`;
  const svg = frame(16 * 17, Math.ceil(most / 16) * 17, `Occupancy of an SM: ${words}`);
  svg.append(...cells);
  return h("section", { class: "card" }, h("h2", {}, "Warps on an SM"), svg, h("p", { class: "small soft" }, words));
}
function whichBlock(number) {
  return number % 2 ? "color-mix(in srgb, var(--read) 60%, var(--cell))" : "var(--read)";
}

// ---- counters next to the source

function counters(kernel) {
  const placed = kernel.lines.filter((line) => line.place >= 0), files = new Map();
  for (const line of placed) {
    const { file, lines } = DATA.places[line.place];
    if (!files.has(file)) files.set(file, new Map());
    const row = lines.at(-1);
    if (!files.get(file).has(row)) files.get(file).set(row, []);
    files.get(file).get(row).push(line);
  }
  if (!files.size) return h("section", { class: "card" }, h("p", {}, "The source lines are unknown."));
  return h("section", { class: "card", "aria-label": "counters next to the source" }, h("h2", {}, "Where the traffic is"),
    h("p", { class: "soft small" }, "The bar is a line's share of the time that memory traffic takes; the red part is avoidable. Click a line to see its picture."),
    [...files].map(([file, rows]) => countersOf(DATA.files[file], rows)));
}

function countersOf(file, hot) {
  const numbers = [...hot.keys()], first = Math.max(1, Math.min(...numbers) - 6), last = Math.min(file.lines.length, Math.max(...numbers) + 6);
  const most = Math.max(...[...hot.values()].map((lines) => lines.reduce((sum, line) => sum + line.share, 0)));
  const beside = (number) => {
    const lines = hot.get(number);
    if (!lines) return [h("span", { class: "ideal" }), h("span", { class: "heat" }), h("span", { class: "ideal" })];
    const sum = (name) => lines.reduce((total, line) => total + line[name], 0);
    return [h("span", { class: "ideal" }, short(sum("requests"))), h("span", { class: "heat" }, h("i", { style: `width:${(100 * sum("share")) / most}%`, "aria-hidden": "true" }),
      h("i", { class: "avoidable", style: `width:${(100 * sum("avoidable")) / most}%`, "aria-hidden": "true" }), h("b", {}, short(sum("transactions")))),
      h("span", { class: "ideal" }, short(sum("ideal")))];
  };
  const list = listing(file, first, last, beside);
  list.box.classList.add("counters");
  list.box.prepend(h("div", { class: "heading", "aria-hidden": "true" }, h("span", { class: "no" }, "line"), h("span", { class: "ideal" }, "requests"),
    h("span", { class: "heat" }, "transactions"), h("span", { class: "ideal" }, "ideal"), h("span", { class: "text" }, "")));
  for (const [number, lines] of hot) {
    const row = list.rows.get(number);
    row.classList.add("hot");
    if (lines.some((line) => line.advice)) row.classList.add("wasteful");
    const words = row.querySelector(".text");
    const open = h("button", { type: "button", class: "row text", "aria-expanded": "false", "aria-label": `line ${number}: ${lines.map((line) => `${line.what}, ${line.transactions} transactions, ideal ${line.ideal}, ${line.note}`).join("; ")}` }, h("span", {}, ...words.childNodes));
    words.replaceWith(open);
    row.append(h("span", { class: "note" }, [...new Set(lines.filter((line) => line.advice || lines.every((other) => !other.advice)).map((line) => line.note))].join("; ")));
    row.addEventListener("click", () => toggle(row, open, lines));
  }
  const hottest = [...hot].sort((a, b) => b[1].reduce((t, l) => t + l.share, 0) - a[1].reduce((t, l) => t + l.share, 0))[0];
  listings.set(list, { wanted: () => showRow(list, hottest[0]) });
  return [h("h3", { class: "mono" }, file.name), list.box];
}

function toggle(row, button, lines) {
  const old = row.nextElementSibling;
  if (old && old.classList.contains("opened")) {
    old.remove();
    row.classList.remove("open");
    return button.setAttribute("aria-expanded", "false");
  }
  button.setAttribute("aria-expanded", "true");
  row.classList.add("open");
  row.parentElement.classList.add("roomy");
  requestAnimationFrame(() => row.scrollIntoView());
  row.after(h("div", { class: "opened" }, lines.map((line) => {
    const picture = line.passes.length ? banksPicture(line.passes) : line.sectors.length ? sectorsPicture(line.sectors) : null;
    return h("div", { class: "each" },
      h("div", {}, h("p", {}, h("b", {}, line.what), `, ${line.bytes} bytes per lane: ${line.note}`),
        h("p", { class: "small" }, `line ${line.number}: ${counted(line.requests, "request")} of a warp, ${line.transactions.toLocaleString("en")} transactions; at best ${line.ideal.toLocaleString("en")}`),
        line.advice ? h("p", {}, line.advice) : null),
      picture ? h("div", {}, picture) : null);
  })));
}

function short(value) {
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"]]) if (value >= size) return `${+(value / size).toPrecision(3)}${unit}`;
  return value.toLocaleString("en");
}

function legend() {
  return h("details", { class: "card legend" }, h("summary", {}, "What the words and numbers mean"), DATA.legend.map((words) => h("p", {}, words)));
}

// ---- the page

function build() {
  const list = h("nav", { "aria-label": "cases and kernels" });
  if (!DATA.gpu) add(list, "Findings", findingsView);
  for (const one of DATA.gpu ? DATA.cases : []) {
    list.append(h("h2", {}, one.name, " ", statusOf(one)));
    for (const kernel of one.kernels) add(list, `${kernel.name} ${kernel.grid}`, () => kernelView(one, kernel));
    if (!one.kernels.length) list.append(h("p", { class: "small soft" }, one.says || "no kernel ran"));
  }
  const single = views.length < 2;
  page.replaceChildren(h("header", {}, h("h1", {}, DATA.title), h("p", { class: "soft mono" }, DATA.command)),
    single ? main : h("div", { class: "frame" }, list, main));
  const wanted = +(new URLSearchParams(location.hash.slice(1)).get("view") || 0);
  if (views.length) choose(views[wanted] ? wanted : 0);
  else main.replaceChildren(h("p", {}, "No kernel ran."));
  document.body.dataset.ready = String(Math.round(performance.now()));
}

build();
