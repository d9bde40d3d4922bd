"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const TINY = 96; // pixels: smaller pictures are enlarged

// Every text of a store reaches the page here, as text.
function element(name, properties = {}, children = []) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

function drawing(name, attributes, children = []) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// --- Pictures ---

function overlay(panel, kind, shapes) {
  const [width, height] = panel.size;
  return drawing("svg", { class: `over ${kind}`, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" }, shapes);
}

function boxOf([left, top, right, bottom, label, stroke]) {
  return drawing("rect", { x: left, y: top, width: right - left, height: bottom - top, stroke }, [drawing("title", {}, [label])]);
}

function pictureOf(panel) {
  if (!panel.src) return element("span", { className: "missing", textContent: `${panel.name}: ${panel.note}` });
  const [width, height] = panel.shown;
  const scale = Math.max(1, Math.floor(TINY / Math.max(width, height)));
  const picture = element("span", { className: scale > 1 ? "picture tiny" : "picture" });
  picture.style.width = `${width * scale}px`;
  picture.style.aspectRatio = `${width} / ${height}`;
  picture.append(element("img", { src: panel.src, alt: panel.name }));
  for (const mask of panel.masks) picture.append(element("img", { src: mask.src, alt: mask.name, className: "over mask" }));
  if (panel.boxes.length) picture.append(overlay(panel, "boxes", panel.boxes.map(boxOf)));
  const points = panel.points.map(([x, y]) => drawing("path", { d: `M${x},${y}h0` }));
  if (points.length) picture.append(overlay(panel, "keypoints", points));
  return picture;
}

function panelsOf(record, describe) {
  const panels = record.panels.map((panel) => {
    const parts = [pictureOf(panel)];
    if (describe) parts.push(element("span", { className: "text", textContent: `${panel.name}: ${panel.note}` }));
    return element("span", { className: "panel" }, parts);
  });
  return element("span", { className: "panels" }, panels);
}

// --- The grid ---

const nameOf = (record) => record.key || `record ${record.position}`;
const grid = at("grid");
const cards = data.records.map((record) => {
  const tags = record.tags.map((tag) => element("span", { className: "tag", textContent: tag }));
  const about = [nameOf(record), record.label, record.split].filter(Boolean).join(" · ");
  const open = element("button", { className: "open", type: "button" }, [
    panelsOf(record, false),
    element("span", { className: "name", textContent: about }),
    ...record.texts.map((text) => element("span", { className: "text", textContent: text })),
    ...tags,
  ]);
  const mark = element("input", { type: "checkbox", tabIndex: -1 });
  const card = element("li", {}, [open, element("label", {}, [mark, " marked"])]);
  mark.addEventListener("change", () => card.classList.toggle("marked", mark.checked));
  open.addEventListener("click", () => show(record));
  grid.append(card);
  return { record, card, open, mark };
});

const visible = () => cards.filter((each) => !each.card.hidden);

function filter() {
  const wanted = at("search").value.toLowerCase();
  for (const { record, card } of cards) {
    const isOther = (name) => at(name).value && ![record[name]].flat().includes(at(name).value.slice(1));
    card.hidden = ["label", "split", "tags"].some(isOther) || !record.key.toLowerCase().includes(wanted);
  }
  at("count").textContent = `${visible().length} of ${cards.length}`;
}

for (const name of ["label", "split", "tags"]) {
  const values = [...new Set(data.records.flatMap((record) => record[name]))].filter(Boolean).sort();
  // A value begins with "=", so that none equals the value of "all".
  const options = values.map((value) => element("option", { value: `=${value}`, textContent: value.slice(0, 80) }));
  at(name).append(element("option", { value: "", textContent: "all" }), ...options);
  at(name).parentElement.hidden = !values.length;
  at(name).addEventListener("change", filter);
}
at("search").addEventListener("input", filter);
at("filters").addEventListener("submit", (event) => event.preventDefault());

for (const kind of ["masks", "boxes", "keypoints"]) {
  const field = kind === "keypoints" ? "points" : kind;
  if (!data.records.some((record) => record.panels.some((panel) => (panel[field] || []).length))) continue;
  const box = element("input", { type: "checkbox", checked: true });
  box.addEventListener("change", () => document.body.classList.toggle(`no-${kind}`, !box.checked));
  at("overlays").append(element("label", {}, [box, ` ${kind}`]));
}
at("overlays").hidden = at("overlays").children.length === 1; // its legend alone

// --- One record ---

let shown = null;

function show(record) {
  shown = record;
  const rows = { position: record.position, class: record.label, split: record.split, checksum: record.checksum };
  const pairs = [...Object.entries(rows), ...Object.entries(record.fields)].filter(([, value]) => value !== "");
  const fields = pairs.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: value })]);
  at("details").replaceChildren(
    element("h2", { textContent: nameOf(record) }),
    panelsOf(record, true),
    ...record.notes.map((note) => element("p", { className: "tag", textContent: note })),
    element("dl", {}, fields),
  );
  if (!at("record").open) at("record").showModal();
}

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
}
at("record").addEventListener("close", () => cards.find((each) => each.record === shown).open.focus());

// --- Keys ---

function neighbour(from, key) {
  const all = visible();
  const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
  return step && all[all.indexOf(from) + step];
}

document.addEventListener("keydown", (event) => {
  if (at("record").open) {
    const next = event.key.match(/Arrow(Left|Right)/) && neighbour(cards.find((each) => each.record === shown), event.key);
    if (next) show(next.record);
    return;
  }
  const current = cards.find((each) => each.open === document.activeElement);
  if (!current) return;
  if (event.key === "m") current.mark.click();
  const next = neighbour(current, event.key);
  if (next) next.open.focus();
  if (event.key.startsWith("Arrow")) event.preventDefault();
});

// --- Copying ---

function copy(text, note) {
  at("copied-text").value = text;
  at("copied").showModal();
  at("copied-text").select();
  const done = document.execCommand("copy"); // works in a file and in a notebook, where the clipboard API does not
  at("copied-note").textContent = `${note}${done ? ", copied" : ": press Ctrl+C"}`;
}

function marked() {
  // Keys that are cut, and escaped ones, are not those of the store.
  const keys = cards.filter((each) => each.mark.checked && each.record.exact).map((each) => each.record.key);
  const others = cards.filter((each) => each.mark.checked).length - keys.length;
  return [keys, `${keys.length} keys` + (others ? `; ${others} records have none that can be copied` : "")];
}

at("copy-keys").addEventListener("click", () => {
  const [keys, note] = marked();
  copy(keys.join("\n"), note);
});
at("copy-where").addEventListener("click", () => {
  const [keys, note] = marked();
  copy(JSON.stringify({ key: keys }), note);
});

// --- The summary ---

function bars([name, low, high, counts]) {
  const most = Math.max(...counts);
  const shapes = counts.map((count, x) => drawing("rect", { x, y: 1 - count / most, width: 0.9, height: count / most }));
  const text = `${name}: ${+low.toPrecision(4)} to ${+high.toPrecision(4)}`;
  const svg = drawing("svg", { viewBox: `0 0 ${counts.length} 1`, preserveAspectRatio: "none", "aria-hidden": "true" }, shapes);
  return element("figure", {}, [element("figcaption", { textContent: text }), svg]);
}

function table([name, counts]) {
  const most = Math.max(...counts.map(([, count]) => count));
  const rows = counts.map(([value, count]) => {
    const row = element("li", { textContent: `${value}: ${count.toLocaleString("en")}` });
    row.style.setProperty("--share", `${(100 * count) / most}%`);
    return row;
  });
  const list = element("ul", { tabIndex: 0 }, rows);
  list.setAttribute("aria-label", name);
  return element("figure", {}, [element("figcaption", { textContent: name }), list]);
}

document.title = data.title.slice(0, 200);
at("title").textContent = data.title;
at("charts").append(...Object.entries(data.counts).filter(([, counts]) => counts.length).map(table), ...data.histograms.map(bars));
filter();
