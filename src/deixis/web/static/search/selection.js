// Selecting pictures: to copy their paths, or to download them in one file.

import { ask, make, notify, typing } from "../shell.js";
import { nameOf } from "./results.js";

const MOST = 5000;
const KEY = "deixis-selected";
const bar = document.getElementById("selected");
/** Path → key of a picture: copies of one picture are files of their own. */
const chosen = new Map(JSON.parse(sessionStorage.getItem(KEY) ?? "[]"));
let selecting = chosen.size > 0;
let last = null;

export function isSelected(path) {
  return chosen.has(path);
}

/** Show which tiles are selected, and what can be done with them. */
export function refresh() {
  document.body.classList.toggle("selecting", selecting);
  for (const tile of document.querySelectorAll(".tile")) {
    const on = chosen.has(tile.dataset.path);
    tile.classList.toggle("chosen", on);
    tile.querySelector(".pick input").checked = on;
  }
  bar.hidden = !selecting;
  bar.querySelector("[data-count]").textContent = `${chosen.size.toLocaleString("en")} selected`;
  for (const button of bar.querySelectorAll("[data-needs]")) button.disabled = !chosen.size;
  try {
    sessionStorage.setItem(KEY, JSON.stringify([...chosen]));
  } catch {
    // They are forgotten with the page.
  }
}

export function choose(tiles, on = true) {
  for (const { dataset } of tiles) {
    if (on) chosen.set(dataset.path, dataset.picture);
    else chosen.delete(dataset.path);
  }
  selecting = selecting || chosen.size > 0;
  refresh();
}

function toggle(tile, range) {
  const on = !chosen.has(tile.dataset.path);
  const tiles = [...document.querySelectorAll(".tile")];
  const [from, to] = [tiles.indexOf(last), tiles.indexOf(tile)].sort((a, b) => a - b);
  choose(range && from >= 0 ? tiles.slice(from, to + 1) : [tile], on);
  last = tile;
}

async function copyPaths() {
  const text = [...chosen.keys()].join("\n");
  if (await navigator.clipboard?.writeText(text).then(() => true, () => false)) {
    notify(`${chosen.size === 1 ? "The path is" : `${chosen.size} paths are`} on the clipboard.`);
    return;
  }
  // Browsers lend the clipboard only to pages of this machine or over HTTPS.
  const field = make("textarea", { rows: 10, readonly: true, "aria-label": "Paths" });
  field.value = text;
  const close = make("button", { type: "button" }, "Close");
  const dialog = make("dialog", {}, make("h2", {}, "Copy these paths"), field, make("p", {}, close));
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  field.select();
}

async function download() {
  const pictures = [...new Set(chosen.values())];
  if (pictures.length > MOST) {
    notify(`At most ${MOST.toLocaleString("en")} pictures can be downloaded at once.`);
    return;
  }
  try {
    const { address } = await ask("/api/downloads", { pictures });
    location.assign(address);
    notify(`Packing ${pictures.length === 1 ? nameOf([...chosen.keys()][0]) : `${pictures.length} pictures`} …`);
  } catch (problem) {
    notify(problem.message);
  }
}

function end() {
  chosen.clear();
  selecting = false;
  last = null;
  refresh();
}

/** Let the tiles of a page be selected; `all` gives those that "Select all" means. */
export function selectable(all) {
  document.addEventListener("click", (event) => {
    const tile = event.target.closest?.(".tile");
    if (!tile) return;
    // A click on the label comes a second time, on its box.
    if (event.target.matches(".pick input")) toggle(tile, event.shiftKey);
    else if (selecting && event.target.closest(".open") && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      toggle(tile, event.shiftKey);
    }
  });
  document.addEventListener("keydown", (event) => {
    const tile = event.target.closest?.(".tile");
    if (event.key === "x" && tile && !event.ctrlKey && !event.metaKey) toggle(tile, false);
    else if (event.key === "Escape" && selecting && (tile || !typing(event))) {
      event.stopImmediatePropagation();
      end();
    }
  }, true);
  document.getElementById("select")?.addEventListener("click", () => {
    if (selecting) end();
    else {
      selecting = true;
      refresh();
    }
  });
  const actions = { all: () => choose(all()), copy: copyPaths, zip: download, done: end };
  for (const [name, act] of Object.entries(actions)) bar.querySelector(`[data-do=${name}]`)?.addEventListener("click", act);
  refresh();
}
