// A picture: the phrases of a sentence on it as one types, what is said of it, its neighbours, and others like it.

import { ask, make, notify, typing } from "../shell.js";
import { List, listParameters, titleOf } from "./list.js";
import { show, unhurried, walk } from "./results.js";

const page = document.getElementById("picture");
const { picture, palette } = page.dataset;
const colours = palette.split(" ").map((pair) => pair.split("/"));
const marks = document.getElementById("marks");
const sentence = document.getElementById("sentence");
const said = document.getElementById("said");
const better = document.getElementById("better");
/** The list that the picture was opened from. */
const list = new List(listParameters(location.search));
const words = list.parameters.get("q") ?? "";

function paint(element, number) {
  const [colour, on] = colours[number % colours.length];
  element.style.setProperty("--colour", colour);
  element.style.setProperty("--on-colour", on);
  return element;
}

/** Draw boxes over the picture: [box, name, number of the colour], in pixels of a picture of this size. */
function draw(boxes, width, height) {
  marks.replaceChildren(...boxes.map(([[x1, y1, x2, y2], name, number]) => {
    const mark = paint(make("div", {}, make("span", {}, name)), number);
    mark.dataset.number = number;
    mark.style.left = `${(100 * x1) / width}%`;
    mark.style.top = `${(100 * y1) / height}%`;
    mark.style.width = `${(100 * (x2 - x1)) / width}%`;
    mark.style.height = `${(100 * (y2 - y1)) / height}%`;
    return mark;
  }));
  marks.classList.remove("one");
  spread();
}

/** Give every name a place at its box where it covers no other name and ends within the picture, if there is one. */
function spread() {
  const frame = marks.getBoundingClientRect();
  const taken = [];
  for (const name of marks.querySelectorAll("span")) {
    for (const place of ["", "above", "foot", "below", "right", ""]) {
      name.className = place;
      const own = name.getBoundingClientRect();
      const inside = own.top >= frame.top - 4 && own.bottom <= frame.bottom + 4 && own.left >= frame.left - 4
        && own.right <= frame.right + 4;
      const free = taken.every((other) => own.right < other.left || own.left > other.right || own.bottom < other.top
        || own.top > other.bottom);
      if (inside && free) break;
    }
    taken.push(name.getBoundingClientRect());
  }
}

/** While an element is pointed at or has the focus, only the boxes of its number are bright. */
function light(element, number) {
  const shine = (on) => {
    marks.classList.toggle("one", on);
    for (const mark of marks.querySelectorAll(`[data-number="${number}"]`)) mark.classList.toggle("lit", on);
  };
  for (const name of ["pointerenter", "focus"]) element.addEventListener(name, () => shine(true));
  for (const name of ["pointerleave", "blur"]) element.addEventListener(name, () => shine(false));
  return element;
}

/** Whether a phrase is probably in the picture; true if the model has no estimate. */
const isThere = (phrase) => phrase.presence === null || phrase.presence >= 0.5;

/** The sentence with its phrases in the colours of their boxes. Places count characters, not UTF-16 units. */
function tellPhrases(text, phrases) {
  const characters = [...text];
  const parts = [];
  let place = 0;
  phrases.forEach((each, number) => {
    parts.push(characters.slice(place, each.start).join(""));
    // Rounded down: what is not found is not shown with 50 %.
    const sure = each.presence === null ? "" : `${Math.floor(100 * each.presence)} %`;
    if (isThere(each)) {
      const label = sure ? `${each.phrase}, there with ${sure}` : each.phrase;
      const button = make("button", { type: "button", "aria-label": label }, each.phrase, make("small", {}, sure));
      parts.push(light(paint(button, number), number));
    } else {
      parts.push(make("span", { class: "not-there", title: "Probably not in the picture" }, each.phrase, " ",
        make("small", {}, `not found, ${sure}`)));
    }
    place = each.end;
  });
  parts.push(characters.slice(place).join(""));
  said.replaceChildren(...parts);
}

/** Sentences with one thing changed that fit the picture better, such as another colour. */
function tellBetter(sentences) {
  const buttons = sentences.flatMap((each) => [" ", make("button", { type: "button", onclick: () => say(each) }, each)]);
  better.replaceChildren(...(buttons.length ? ["Fits better:", ...buttons] : []));
}

const point = unhurried(async (signal) => {
  const text = sentence.value.trim();
  if (!text) {
    draw([], 1, 1);
    said.textContent = "";
    tellBetter([]);
    return;
  }
  if (!said.textContent) said.textContent = "Looking …";
  try {
    const found = await ask(`/api/ground?${new URLSearchParams({ picture, text })}`, undefined, signal);
    const boxes = found.phrases.flatMap((each, number) => (isThere(each) ? each.boxes.map((box) => [box, each.phrase, number]) : []));
    draw(boxes, found.width, found.height);
    tellPhrases(text, found.phrases);
    tellBetter(found.fits_better);
  } catch (problem) {
    if (signal.aborted) throw problem;
    draw([], 1, 1);
    said.textContent = problem.message;
    tellBetter([]);
  }
}, 200);

/** What a query asks for, as a sentence: what must not be there cannot be pointed at. */
function asSentence(query) {
  return query
    .replace(/\s+and\s+not\s+.*$/i, "")
    .replace(/(^|\s)-("[^"]*"|\S+)/g, " ")
    .replace(/"([^"]*)"/g, "$1,")
    .replace(/\sAND\s/g, ", ")
    .replace(/[,\s]+$/, "")
    .replace(/\s+/g, " ")
    .trim();
}

async function describe() {
  const captions = document.getElementById("captions");
  const regions = document.getElementById("regions");
  try {
    const description = await ask(`/api/describe?${new URLSearchParams({ picture })}`);
    captions.replaceChildren(...description.captions.map((each) => make("li", {}, sentence
      ? make("button", { type: "button", title: "Point at its phrases", onclick: () => say(each.text) }, each.text)
      : each.text)));
    if (!description.captions.length) captions.replaceChildren(make("li", { class: "soft" }, "No caption."));
    document.getElementById("regions-title").hidden = !description.regions.length;
    regions.replaceChildren(...description.regions.map((each, number) => make("li", {}, paint(make("button", {
      type: "button",
      onclick: () => draw([[each.box, each.text, number]], description.width, description.height),
    }, each.text), number))));
  } catch (problem) {
    captions.replaceChildren(make("li", { class: "soft" }, problem.message));
  }
  captions.setAttribute("aria-busy", "false");
}

function say(text) {
  sentence.value = text;
  point();
}

async function near() {
  const grid = document.getElementById("near");
  const found = await ask(`/api/similar?${new URLSearchParams({ picture, count: 12 })}`);
  show(grid, found.hits, new URLSearchParams({ like: picture }).toString());
  if (!found.hits.length) document.getElementById("near-status").textContent = "There is no other picture.";
}

async function details() {
  const record = await ask(`/api/pictures/${picture}`);
  document.getElementById("size").textContent = `${record.width} × ${record.height} pixels`;
  const date = new Date(record.date);
  const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric" });
  const time = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  document.getElementById("date").textContent = record.dated_by_camera ? `Taken on ${day}, ${time}` : `File of ${day}, ${time}`;
}

/** Go back to the list as it was left; Back itself where the list is one step behind. */
function goBack() {
  sessionStorage.setItem("deixis-back", list.address);
  if (sessionStorage.getItem("deixis-from") === list.address && history.length > 1) history.back();
  else location.assign(list.address);
}

/** Go to a neighbour in this page's place, so that Back leads to the list. */
function turn(link) {
  if (link && !link.hidden) location.replace(link.href);
}

/** Load the list until it holds this picture and the one after it, as far as that is reasonable. */
async function place() {
  const at = () => list.hits.findIndex((hit) => hit.picture === picture);
  if (!list.restore() && !list.along) return -1;
  while (list.more && (at() < 0 ? list.hits.length < 200 : at() === list.hits.length - 1)) await list.load();
  list.keep();
  return at();
}

async function neighbours() {
  const at = await place();
  if (at < 0) return;
  const { total, matches } = list.answer;
  const of = total ?? (at < matches ? matches : 0);
  const noun = total ? "" : matches === 1 ? " match" : " matches";
  const where = of ? `${at + 1} of ${of.toLocaleString("en")}${noun}` : `No. ${at + 1}`;
  document.getElementById("position").textContent = where;
  for (const [id, hit] of [["previous", list.hits[at - 1]], ["next", list.hits[at + 1]]]) {
    const link = document.getElementById(id);
    link.hidden = !hit;
    if (!hit) continue;
    link.href = `/pictures/${hit.picture}${list.along ? `?${list.along}` : ""}`;
    // So that it is there when one goes to it.
    new Image().src = `/api/pictures/${hit.picture}/screen`;
  }
}

async function reveal() {
  try {
    await ask(`/api/pictures/${picture}/reveal`, {});
  } catch (problem) {
    notify(problem.message);
  }
}

async function copyPath() {
  const path = document.querySelector(".path code").textContent;
  const copied = await navigator.clipboard?.writeText(path).then(() => true, () => false);
  notify(copied ? "The path is on the clipboard." : "This browser does not let us copy: select the path and press Ctrl C.");
}

const back = document.getElementById("back");
back.href = list.address;
back.textContent = `← Back to ${titleOf(list.parameters)}`;
back.addEventListener("click", (event) => {
  event.preventDefault();
  goBack();
});
for (const id of ["previous", "next"]) {
  document.getElementById(id).addEventListener("click", (event) => {
    event.preventDefault();
    turn(event.currentTarget);
  });
}
document.getElementById("reveal")?.addEventListener("click", reveal);
document.getElementById("copy").addEventListener("click", copyPath);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.key === "Escape" && typing(event)) event.target.blur();
  else if (event.key === "Escape") goBack();
  else if (typing(event) || event.target.closest?.(".tile")) return;
  else if (event.key === "ArrowLeft") turn(document.getElementById("previous"));
  else if (event.key === "ArrowRight") turn(document.getElementById("next"));
});
sessionStorage.setItem("deixis-seen", picture);
const image = document.getElementById("image");
image.decode().then(() => {
  image.parentElement.style.setProperty("--ratio", image.naturalWidth / image.naturalHeight);
  spread();
}).catch(() => {
  document.getElementById("shown").replaceChildren(
    make("p", { class: "none" }, "This picture is gone or has changed since it was indexed."),
  );
});
sentence?.addEventListener("input", () => point());
if (sentence && words) say(asSentence(words));
if (page.dataset.describes === "true") describe();
walk(page);
await Promise.allSettled([neighbours(), near(), details()]);
