// source.js - a source file as a listing, of both pages.
"use strict";

// A listing of a file from line `first` to `last`; `beside(line)` may give a row's cell before the text.
function listing(file, first, last, beside) {
  const rows = new Map();
  const box = h("div", { class: "source", tabindex: "0", role: "region", "aria-label": `source of ${file.name}` });
  for (let line = first; line <= last; ++line) {
    const row = h(
      "div",
      {},
      h("span", { class: "no" }, String(line)),
      beside ? beside(line) : null,
      h("span", { class: "text" }, colored(file, line)),
    );
    rows.set(line, row);
    box.append(row);
  }
  return { box, rows };
}

// The words of a line, each with the class of its kind: k1 is a preprocessor's, k2 a comment, k3 a keyword, ...
function colored(file, line) {
  const text = file.lines[line - 1] || " ", kinds = file.kinds[line - 1] || [], words = [];
  let at = 0;
  for (let i = 0; i < kinds.length; i += 2) {
    const word = text.slice(at, (at += kinds[i + 1]));
    words.push(kinds[i] ? h("span", { class: `k${kinds[i]}` }, word) : word);
  }
  return [...words, text.slice(at)];
}

// Scrolls a listing, and nothing else, until the row is in its middle; not if it can be seen already.
function showRow({ box, rows }, line) {
  const row = rows.get(line);
  if (!row) return;
  const top = row.offsetTop - box.offsetTop;
  if (top < box.scrollTop || top > box.scrollTop + box.clientHeight - 40) box.scrollTop = top - box.clientHeight / 3;
}

function textOf(place) {
  const line = place.lines[place.lines.length - 1];
  return (DATA.files[place.file].lines[line - 1] || "").trim();
}
