// The search page: results come while one types; a picture that is dropped, pasted or chosen finds others like it.

import { ask, make, tell, typing } from "../shell.js";
import { show, unhurried, walk } from "./results.js";

const words = document.getElementById("words");
const found = document.getElementById("found");
const rest = document.getElementById("rest");
const told = document.getElementById("told");
const more = document.getElementById("more");
const restTitle = document.getElementById("rest-title");
const example = document.getElementById("example");
const PAGE = 24;
const MOST = 200;
const start = [...found.children];
let picture = null;
let count = PAGE;

function plural(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** What came back, in words: how many match, or that nothing here does. */
function report(answer) {
  const matching = answer.hits.filter((hit) => hit.relevant).length;
  const all = matching === answer.hits.length && matching >= count ? "More than " : "";
  const what = words.value.trim() ? `“${words.value.trim()}”` : "the picture";
  told.classList.toggle("absent", answer.absent);
  told.replaceChildren(answer.absent
    ? `Nothing here matches ${what}.${answer.hits.length ? " The nearest pictures are below." : ""}`
    : `${all}${plural(matching, "picture")} ${matching === 1 ? "matches" : "match"} ${what}.`);
  if (answer.unknown_words.length) {
    told.append(` The model does not know ${answer.unknown_words.map((word) => `“${word}”`).join(", ")}.`);
  }
  if (answer.suggestion) {
    const meant = make("button", { type: "button", class: "meant" }, answer.suggestion);
    meant.addEventListener("click", () => {
      words.value = answer.suggestion;
      search();
    });
    told.append(" Did you mean ", meant, "?");
  }
}

function clear() {
  told.textContent = "";
  told.classList.remove("absent");
  found.replaceChildren(...start);
  rest.replaceChildren();
  more.hidden = restTitle.hidden = true;
}

const search = unhurried(async (signal) => {
  const asked = words.value.trim();
  history.replaceState(null, "", asked ? `/?q=${encodeURIComponent(asked)}` : "/");
  if (!asked && !picture) {
    clear();
    return;
  }
  const query = new URLSearchParams({ count, ...(asked && { q: asked }) });
  let answer;
  try {
    answer = await ask(picture ? `/api/similar?${query}` : `/api/search?${query}`, picture ?? undefined, signal);
  } catch (problem) {
    if (signal.aborted) throw problem;
    told.classList.remove("absent");
    told.textContent = problem.message.charAt(0).toUpperCase() + problem.message.slice(1);
    return;
  }
  report(answer);
  show(found, answer.hits.filter((hit) => hit.relevant), asked);
  show(rest, answer.hits.filter((hit) => !hit.relevant), asked);
  restTitle.hidden = answer.absent || !rest.children.length;
  more.hidden = answer.hits.length < count || count >= MOST;
});

/** Search by a picture file. It is made small here, where the browser can read it, so that little is sent. */
async function take(file) {
  if (!file) return;
  if (file.type && !file.type.startsWith("image/")) {
    tell("That is not a picture.");
    return;
  }
  picture = file;
  const preview = document.getElementById("example-picture");
  const brush = preview.getContext("2d");
  brush.clearRect(0, 0, preview.width, preview.height);
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, 768 / Math.max(bitmap.width, bitmap.height));
    const small = make("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
    const drawing = small.getContext("2d");
    drawing.fillStyle = "#fff";
    drawing.fillRect(0, 0, small.width, small.height);
    drawing.drawImage(bitmap, 0, 0, small.width, small.height);
    const side = Math.min(bitmap.width, bitmap.height);
    brush.drawImage(bitmap, (bitmap.width - side) / 2, (bitmap.height - side) / 2, side, side, 0, 0, preview.width, preview.height);
    picture = await new Promise((done) => { small.toBlob((made) => done(made ?? file), "image/jpeg", 0.92); });
  } catch {
    // The server may be able to read what the browser cannot.
  }
  example.hidden = false;
  count = PAGE;
  search();
}

words.addEventListener("input", () => {
  count = PAGE;
  search();
});
document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  (found.querySelector(".tile") ?? rest.querySelector(".tile"))?.focus();
});
document.getElementById("file").addEventListener("change", (event) => {
  take(event.target.files[0]);
  event.target.value = "";
});
document.getElementById("example-away").addEventListener("click", () => {
  picture = null;
  example.hidden = true;
  words.focus();
  search();
});
more.addEventListener("click", () => {
  count = Math.min(MOST, count + 2 * PAGE);
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
    document.querySelector(".grid .tile")?.focus();
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

walk(document.querySelector("main"));
words.value = new URLSearchParams(location.search).get("q") ?? words.value;
if (words.value) search();
