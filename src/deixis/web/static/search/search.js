// The search page: results come while one types; a picture that is dropped, pasted or chosen finds others like it.

import { ask, make, notify, typing } from "../shell.js";
import { FILTERS, List, listParameters } from "./list.js";
import { show, tile, unhurried, walk } from "./results.js";
import { choose, refresh, selectable } from "./selection.js";
import { keepSent, sentPicture } from "./sent.js";

const main = document.querySelector("main");
const words = document.getElementById("words");
const found = document.getElementById("found");
const rest = document.getElementById("rest");
const statusLine = document.getElementById("status-line");
const restTitle = document.getElementById("rest-title");
const end = document.getElementById("end");
const example = document.getElementById("example");
const PLACEHOLDER = words.placeholder;
const preview = document.getElementById("example-picture");
const filters = document.getElementById("filters");
const fields = Object.fromEntries(FILTERS.map((name) => [name, document.getElementById(`filter-${name}`)]));
/** The picture that others are found by: `like` (an indexed one) or `sent`, and its name. */
let by = null;
let list = new List(listParameters(location.search));
let loading = false;

const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const them = (texts) => (texts.length === 1 ? "it" : "them");
const quoted = (texts) => texts.map((text) => `“${text}”`).join(", ");
const filtered = () => FILTERS.filter((name) => list.parameters.has(name)).length;

/** The list that the fields of the page ask for. */
function asked() {
  const given = new URLSearchParams(FILTERS.map((name) => [name, fields[name].value]));
  given.set("q", words.value);
  if (by) given.set(...by);
  return new List(listParameters(given));
}

function busy(on) {
  main.setAttribute("aria-busy", on);
}

/** What came back, in words: how many match, or that nothing here does. */
function report() {
  const { answer, parameters } = list;
  const within = filtered() ? " with these filters" : "";
  statusLine.classList.toggle("absent", Boolean(list.asks && answer.absent));
  if (!list.asks) {
    statusLine.textContent = answer.total ? `${plural(answer.total, "picture")}${within}, newest first`
      : filtered() ? "No picture passes these filters." : "";
    return;
  }
  const query = parameters.get("q");
  const [one, many] = query ? [`matches “${query}”`, `match “${query}”`] : ["is like this one", "are like this one"];
  statusLine.replaceChildren(answer.absent
    ? `${answer.unknown_words.length ? `Not sure what matches “${query}”` : `Nothing here ${one}`}${within}.${list.hits.length ? " The nearest pictures are below." : ""}`
    : `${plural(answer.matches, "picture")} ${answer.matches === 1 ? one : many}${within}.`);
  const [unknown, absent] = ["unknown", "absent"].map((reason) =>
    answer.ignored_exclusions.filter((ignored) => ignored.reason === reason).map(({ phrase }) => phrase));
  if (answer.unknown_words.length) {
    statusLine.append(` The model does not know ${quoted(answer.unknown_words)}.`);
  }
  if (unknown.length) statusLine.append(` Excluding ${quoted(unknown)} has no effect.`);
  if (absent.length) {
    statusLine.append(` Excluding ${quoted(absent)} leaves no picture out: none matches.`);
  }
  if (answer.rare_words.length) {
    const rare = answer.rare_words;
    statusLine.append(` The model hardly knows ${quoted(rare)} and is often wrong about ${them(rare)}; look for yourself.`);
  }
  const foreign = answer.unknown_words.length > 1 || /[^\x00-\x7f]/.test(answer.unknown_words);
  if (foreign && !answer.suggestion) statusLine.append(" Queries are in English.");
  if (answer.suggestion) {
    const meant = make("button", { type: "button", class: "meant" }, answer.suggestion);
    meant.addEventListener("click", () => {
      words.value = answer.suggestion;
      search();
    });
    statusLine.append(" Did you mean ", meant, "?");
  }
}

/** Where the matches end: what follows is less likely, also a match that is found later. */
function ends(hits) {
  const first = hits.findIndex((hit) => hit.relevant === false);
  return first < 0 ? hits.length : first;
}

function showAll() {
  const place = ends(list.hits);
  show(found, list.hits.slice(0, place), list.along);
  show(rest, list.hits.slice(place), list.along);
  ended();
}

function append(hits) {
  const place = rest.children.length ? 0 : ends(hits);
  found.append(...hits.slice(0, place).map((hit) => tile(hit, list.along)));
  rest.append(...hits.slice(place).map((hit) => tile(hit, list.along)));
  ended();
}

function ended() {
  restTitle.hidden = !rest.children.length || list.answer.absent;
  end.hidden = !list.more;
  document.getElementById("none").hidden = list.asks || filtered() > 0 || list.hits.length > 0;
  refresh();
}

function problemOf(problem) {
  statusLine.classList.remove("absent");
  statusLine.textContent = problem.message.charAt(0).toUpperCase() + problem.message.slice(1);
}

const search = unhurried(async (signal) => {
  const next = asked();
  history.replaceState(null, "", next.address);
  showFilters(next);
  busy(true);
  try {
    await next.load(signal);
  } catch (problem) {
    if (signal.aborted) throw problem;
    busy(false);
    problemOf(problem);
    return;
  }
  list = next;
  busy(false);
  report();
  showAll();
  list.keep();
  grow();
});

/** Load more pictures where the end of the list is near the screen. */
async function grow() {
  const near = () => end.getBoundingClientRect().top < innerHeight + 1200;
  while (!loading && list.more && !end.hidden && near()) {
    const own = list;
    loading = true;
    try {
      const hits = await own.load();
      if (own === list) append(hits);
      own.keep();
    } catch (problem) {
      own.more = false;
      problemOf(problem);
    } finally {
      loading = false;
    }
  }
}

/** Show the picture that others are found by. */
async function showExample() {
  example.hidden = !by;
  words.placeholder = by ? "words it should show" : PLACEHOLDER;
  const brush = preview.getContext("2d");
  brush.clearRect(0, 0, preview.width, preview.height);
  if (!by) return;
  let picture;
  if (by[0] === "like") {
    picture = new Image();
    picture.src = `/api/pictures/${by[1]}/thumbnail`;
    await picture.decode().catch(() => { picture = null; });
  } else {
    const kept = await sentPicture(by[1]);
    picture = kept && await createImageBitmap(kept).catch(() => null);
  }
  if (!picture) return;
  const [width, height] = [picture.naturalWidth ?? picture.width, picture.naturalHeight ?? picture.height];
  const side = Math.min(width, height);
  brush.drawImage(picture, (width - side) / 2, (height - side) / 2, side, side, 0, 0, preview.width, preview.height);
}

/** Search by a picture file. It is made small here, where the browser can read it, so that little is sent. */
async function take(file) {
  if (!file) return;
  if (file.type && !file.type.startsWith("image/")) {
    notify("That is not a picture.");
    return;
  }
  let picture = file;
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, 768 / Math.max(bitmap.width, bitmap.height));
    const small = make("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
    const drawing = small.getContext("2d");
    drawing.fillStyle = "#fff";
    drawing.fillRect(0, 0, small.width, small.height);
    drawing.drawImage(bitmap, 0, 0, small.width, small.height);
    picture = await new Promise((done) => { small.toBlob((made) => done(made ?? file), "image/jpeg", 0.92); });
  } catch {
    // The server may be able to read what the browser cannot.
  }
  by = ["sent", await keepSent(picture)];
  await showExample();
  search();
}

function showFilters(from) {
  const count = FILTERS.filter((name) => from.parameters.has(name)).length;
  document.getElementById("filters-count").textContent = count ? ` (${count})` : "";
  document.getElementById("filters-clear").hidden = !count;
}

/** Offer the folders of the index, by their paths from the indexed folder on. */
async function offerFolders() {
  const [{ folders }, status] = await Promise.all([ask("/api/folders"), ask("/api/status")]);
  document.getElementById("folders").replaceChildren(...folders.map(({ folder, files }) => {
    const root = status.folders.filter((each) => folder.startsWith(each)).sort((a, b) => b.length - a.length)[0] ?? "";
    const above = root.replace(/[/\\]?[^/\\]*$/, "");
    return make("option", { value: folder.slice(above.length) }, plural(files, "picture"));
  }));
}

words.addEventListener("input", search);
for (const field of Object.values(fields)) field.addEventListener("input", search);
document.getElementById("filters-clear").addEventListener("click", () => {
  for (const field of Object.values(fields)) field.value = "";
  search();
});
filters.addEventListener("toggle", () => { if (filters.open) offerFolders(); });
document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  document.querySelector(".grid .open")?.focus();
});
document.getElementById("file").addEventListener("change", (event) => {
  take(event.target.files[0]);
  event.target.value = "";
});
document.getElementById("example-away").addEventListener("click", () => {
  by = null;
  showExample();
  words.focus();
  search();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !typing(event)) {
    event.preventDefault();
    words.focus();
    words.select();
  } else if (event.key === "Escape" && document.activeElement?.closest(".grid")) {
    words.focus();
  } else if (event.key === "ArrowDown" && document.activeElement === words) {
    event.preventDefault();
    document.querySelector(".grid .open")?.focus();
  }
});
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files].find((each) => each.type.startsWith("image/"));
  if (file) take(file);
});

const drop = document.getElementById("drop");
const carries = (event) => event.dataTransfer?.types.includes("Files");
document.addEventListener("dragenter", (event) => { if (carries(event)) drop.hidden = false; });
document.addEventListener("dragover", (event) => { if (carries(event)) event.preventDefault(); });
drop.addEventListener("dragleave", () => { drop.hidden = true; });
document.addEventListener("drop", (event) => {
  drop.hidden = true;
  if (!carries(event)) return;
  event.preventDefault();
  take(event.dataTransfer.files[0]);
});

/** Show the list of the address: as it was left where one comes back to it, else anew. */
async function arrive() {
  words.value = list.parameters.get("q") ?? "";
  for (const name of FILTERS) fields[name].value = list.parameters.get(name) ?? "";
  const given = ["sent", "like"].find((name) => list.parameters.has(name));
  by = given ? [given, list.parameters.get(given)] : null;
  filters.open = filtered() > 0;
  showFilters(list);
  showExample();
  const [navigation] = performance.getEntriesByType("navigation");
  const back = navigation?.type === "back_forward" || sessionStorage.getItem("deixis-back") === list.address;
  sessionStorage.removeItem("deixis-back");
  if (!back || !list.restore()) {
    search();
    return;
  }
  report();
  showAll();
  scrollTo(0, list.scroll);
  const seen = sessionStorage.getItem("deixis-seen");
  const last = seen && document.querySelector(`.tile[data-picture="${CSS.escape(seen)}"] .open`);
  if (last) {
    last.focus({ preventScroll: true });
    last.scrollIntoView({ block: "nearest" });
  }
  grow();
}

history.scrollRestoration = "manual";
// The page of a picture that is opened here goes back by one step.
main.addEventListener("click", (event) => {
  const opens = event.target.closest?.(".open") && !event.defaultPrevented;
  if (opens && !event.ctrlKey && !event.metaKey && !event.shiftKey) sessionStorage.setItem("deixis-from", list.address);
});
addEventListener("pagehide", () => {
  list.scroll = scrollY;
  if (list.answer) list.keep();
});
addEventListener("scroll", grow, { passive: true });
addEventListener("resize", grow);
walk(main);
selectable(() => document.querySelectorAll("#found .tile"));
arrive();
