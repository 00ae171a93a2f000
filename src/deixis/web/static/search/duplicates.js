// Groups of files that show the same picture.

import { ask, make } from "../shell.js";
import { tile, walk } from "./results.js";
import { choose, refresh, selectable } from "./selection.js";

const PAGE = 50;
const main = document.querySelector("main");
const groups = document.getElementById("groups");
const statusLine = document.getElementById("status-line");
const end = document.getElementById("end");
const others = document.getElementById("others");
let loading = false;
let total = Infinity;

const size = (bytes) => (bytes < 1e6 ? `${Math.max(1, Math.round(bytes / 1e3))} KB` : `${(bytes / 1e6).toFixed(1)} MB`);
const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const allButLargest = () => groups.querySelectorAll(".copy:not(:first-child) .tile");

function card(group) {
  return make("section", { class: "group", "aria-label": plural(group.length, "file") }, ...group.map((copy) => make(
    "figure", { class: "copy" }, tile(copy, `like=${copy.picture}`),
    make("figcaption", {}, make("b", {}, copy.width ? `${copy.width} × ${copy.height}, ` : "", size(copy.bytes)), make("br"), copy.path),
  )));
}

async function load() {
  const answer = await ask(`/api/duplicates?${new URLSearchParams({ count: PAGE, offset: groups.children.length })}`);
  total = answer.total;
  groups.append(...answer.groups.map(card));
  statusLine.textContent = total ? `${plural(total, "group")} of files` : "No two files show the same picture.";
  end.hidden = groups.children.length >= total;
  others.hidden = !total;
  refresh();
}

async function grow() {
  while (!loading && groups.children.length < total && end.getBoundingClientRect().top < innerHeight + 1200) {
    loading = true;
    try {
      await load();
    } catch (problem) {
      statusLine.textContent = problem.message;
      total = 0;
    } finally {
      loading = false;
      main.setAttribute("aria-busy", "false");
    }
  }
}

others.addEventListener("click", () => choose(allButLargest()));
addEventListener("scroll", grow, { passive: true });
addEventListener("resize", grow);
walk(main);
selectable(allButLargest);
main.setAttribute("aria-busy", "true");
grow();
