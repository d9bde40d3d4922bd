"use strict";
const at = (id) => document.getElementById(id);
const cards = [...document.querySelectorAll("#grid > li")];
const facts = new Map(cards.map((card) => [card, JSON.parse(card.dataset.facts)]));
const opener = (card) => card.querySelector(".open");
const visible = () => cards.filter((card) => !card.hidden);

// --- Filters ---

function filter() {
  const wanted = at("search").value.toLowerCase();
  const selects = [...document.querySelectorAll("select")].filter((select) => select.value);
  for (const card of cards) {
    const known = facts.get(card);
    const fits = selects.every((select) => known[select.id].includes(select.value.slice(1)));
    card.hidden = !fits || !known.key.toLowerCase().includes(wanted);
  }
  at("count").textContent = `${visible().length} of ${cards.length}`;
}

at("filters").addEventListener("input", filter);
at("filters").addEventListener("submit", (event) => event.preventDefault());
filter();

// --- One record ---

let shown = null;

function show(card) {
  shown = card;
  const more = card.querySelector("template").content.cloneNode(true);
  const others = [...more.querySelector(".panels").children];
  const panels = card.querySelector(".panels").cloneNode(true);
  panels.append(...others);
  more.querySelector(".panels").remove();
  at("heading").textContent = card.querySelector(".key").firstChild.textContent;
  at("pictures").replaceChildren(panels);
  at("values").replaceChildren(more);
  if (!at("record").open) at("record").showModal();
}

function move(step) {
  const all = visible();
  const next = all[all.indexOf(shown) + step];
  if (next) show(next);
}

for (const card of cards) opener(card).addEventListener("click", () => show(card));
for (const button of document.querySelectorAll(".close")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}
at("previous").addEventListener("click", () => move(-1));
at("next").addEventListener("click", () => move(1));
at("record").addEventListener("click", (event) => event.target === at("record") && at("record").close());
at("record").addEventListener("close", () => opener(shown).focus());

// --- Keys ---

document.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -2, ArrowDown: 2 }[event.key];
  if (at("record").open) {
    if (Math.abs(step) === 1) move(step);
    return;
  }
  const current = cards.find((card) => opener(card) === document.activeElement);
  if (!current) return;
  if (event.key === "m") current.querySelector("input").click();
  if (!step) return;
  const columns = getComputedStyle(at("grid")).gridTemplateColumns.split(" ").length;
  const all = visible();
  const next = all[all.indexOf(current) + (Math.abs(step) === 1 ? step : (step / 2) * columns)];
  if (next) opener(next).focus();
  event.preventDefault();
});

// --- Copying ---

function copy(format) {
  const marked = cards.filter((card) => card.querySelector(".mark :checked")).map((card) => facts.get(card));
  // Keys that are cut, and escaped ones, are not those of the store.
  const keys = marked.filter((record) => record.exact).map((record) => record.key);
  const others = marked.length - keys.length;
  at("copied-text").value = format(keys);
  at("copied").showModal();
  at("copied-text").select();
  const done = document.execCommand("copy"); // works in a file and in a notebook, where the clipboard API does not
  const note = `${keys.length} keys` + (others ? `; ${others} records have none that can be copied` : "");
  at("copied-note").textContent = `${note}${done ? ", copied" : ": press Ctrl+C"}`;
}

at("copy-keys").addEventListener("click", () => copy((keys) => keys.join("\n")));
at("copy-where").addEventListener("click", () => copy((keys) => JSON.stringify({ key: keys })));
