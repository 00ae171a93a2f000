// A reviewer's page: an image with its phrases, chains and boxes, each of which can be corrected, and what was done so far.

import { BoxEditor } from "./box_editor.js";
import { ask, make, notify, typing } from "./shell.js";
import { Stage, zoomControls } from "./stage.js";

const find = (id) => document.getElementById(id);
const palette = document.querySelector('script[src$="review.js"]').dataset.palette.split(" ");
// Titles of the tasks, and labels of their answers as `task answer`.
const labels = Object.fromEntries([...document.querySelectorAll("#labels option")].map(({ value, text }) => [value, text]));
const stage = new Stage(find("stage"));
const editor = new BoxEditor(stage, 99, () => {});
const zoomKey = zoomControls(stage, () => editor.focus());
let view = null;
let chosen = -1;
// Phrases while they are corrected: mentions as the server has them, or null.
let phrases = null;
let begun = null;

const colour = (index) => palette[index % palette.length];
const idOf = ([caption, start, end]) => `${caption}:${start}-${end}`;

const address = new URLSearchParams(location.search);
const part = address.get("part") ?? "all";

async function load() {
  const path = encodeURIComponent(address.get("image") ?? "");
  showNeighbours(path).catch((problem) => notify(problem.message));
  const found = await ask(`/api/review/image?id=${path}`);
  await stage.show(`/api/review/picture?id=${path}`, found.width, found.height, found.id);
  show(found);
}

/** Links to the images before and after this one in the list that it was opened from. */
async function showNeighbours(path) {
  const around = await ask(`/api/review/neighbours?id=${path}&part=${encodeURIComponent(part)}`);
  for (const side of ["previous", "next"]) {
    const link = find(side);
    if (around[side] === null) link.removeAttribute("href");
    else link.href = `/review?image=${encodeURIComponent(around[side])}&part=${encodeURIComponent(part)}`;
  }
  find("list").href = `/images?part=${encodeURIComponent(part)}`;
  find("list").textContent = around.place ? `${around.place} of ${around.total}` : `${around.total} left`;
}

function show(found) {
  view = found;
  // Mentions whose links are still asked about stand alone, so that they can be put somewhere by hand too.
  const settled = new Set(view.chains.flatMap((chain) => chain.mentions));
  view.groups = [
    ...view.chains,
    ...view.mentions.filter(({ id }) => !settled.has(id)).map(({ id }) => ({ mentions: [id], boxes: [], verdict: "", loose: true })),
  ];
  phrases = begun = null;
  find("image-id").textContent = view.id;
  find("image-state").textContent = view.finished ? "finished" : "has open questions";
  find("reviews").replaceChildren(...view.reviews.map(reviewCard), ...view.equal_boxes.map(equalCard));
  showStarved(view).catch((problem) => notify(problem.message));
  find("history").replaceChildren(...view.history.map(eventLine).reverse());
  choose(-1);
}

function reviewCard(review) {
  const accept = make("button", { type: "button", onclick: () => fix({ type: "accept", key: review.key }) }, "Right as it stands");
  return make("div", { class: "waiting" }, make("p", {}, review.summary), accept);
}

/** A warning that two chains have the same boxes. */
function equalCard({ first, second, merged }) {
  const [one, other] = [first, second].map((index) => view.chains[index].mentions);
  const ending = merged ? "The export will make one chain of them." : "The export keeps them apart because of their types.";
  const join = make("button", { type: "button", onclick: () => fix({ type: "chains", chains: [[...one, ...other]] }) }, "Make one chain");
  return make("div", { class: "waiting equal" },
    make("p", {}, `“${textOf(one[0])}” and “${textOf(other[0])}” have the same boxes. ${ending}`), join);
}

/** Questions that no worker is left for: they are answered by correcting what they are about. */
async function showStarved(shown) {
  const queue = await ask("/api/review/queue");
  if (view !== shown) return;
  const own = queue.filter(({ image, task }) => image === shown.id && task !== "review");
  find("reviews").append(...own.map((review) => make("div", { class: "waiting" },
    make("p", {}, `${review.summary}. Correct the chain or its boxes to settle it.`))));
}

function eventLine(event) {
  const [task] = event.what.split(" ");
  const content = event.what === "fix" ? correction(event.content)
    : typeof event.content === "string" ? labels[`${task} ${event.content}`] ?? event.content : event.content.map((side) => Math.round(side)).join(", ");
  const words = [event.worker, inWords(event.what), content, event.comment].filter(Boolean).join(" · ");
  return make("li", { class: event.void ? "void" : false }, `${new Date(1000 * event.created).toLocaleString()} · ${words}`);
}

/** A correction by hand in a few words. */
function correction({ type, mention, boxes, verdict, chains, mentions, key }) {
  const named = (id) => `“${textOf(id) || id}”`;
  if (type === "boxes") return `${named(mention)}: ${boxes.length ? numbered(boxes.length) : verdictName(verdict)}`;
  if (type === "chains") return chains.map((chain) => chain.map(named).join(" = ")).join("; ");
  if (type === "mentions") return `${mentions.length} phrases`;
  return `right as it stands: ${inWords(key)}`;
}

const verdictName = (verdict) => labels[`requirement ${verdict}`] ?? verdict;
const numbered = (boxes) => `${boxes} box${boxes > 1 ? "es" : ""}`;

/** What was asked, as title and phrases. Of `coverage 0:4-7 12`, the number refers to a box in the log and is left out. */
function inWords(what) {
  const words = what.split(" ").filter((part) => !/^\d+$/.test(part)).map((part) => {
    const phrase = textOf(part);
    return phrase ? `“${phrase}”` : labels[part] ?? (part === "fix" ? "correction" : part);
  });
  return words.join(" ");
}

function textOf(id) {
  return view.mentions.find((entry) => entry.id === id)?.mention[3] ?? "";
}

/** Whether the boxes of the open chain are others than the server has. */
function unsaved() {
  return chosen >= 0 && JSON.stringify(editor.boxes) !== JSON.stringify(view.groups[chosen].boxes);
}

/** Open another chain, unless boxes would be lost that were meant to be kept. */
function turnTo(index) {
  if (!unsaved() || confirm("The boxes you changed are not saved. Leave them as they were?")) choose(index);
}

/** Open a chain, or with -1 none: its boxes can be changed, the others are only shown. */
function choose(index) {
  chosen = index;
  const own = view.groups[index];
  editor.reset(own ? own.boxes : [], Boolean(own) && !own.loose);
  stage.mark(view.groups.flatMap((group, number) => (
    number === index ? [] : group.boxes.map((box) => [box, "other", "", colour(number)]))));
  const editable = own && !own.loose;
  find("drawing-tools").hidden = !editable;
  find("editing").textContent = editable ? "Drag to draw a box; touch a box to change it." : "Choose a chain to change its boxes.";
  showCaptions();
  find("chains").replaceChildren(...view.groups.map(chainCard));
}

function chainCard(group, index) {
  const verdict = group.boxes.length ? numbered(group.boxes.length) : verdictName(group.verdict) || (group.loose ? "not linked yet" : "open");
  const head = make("button", { type: "button", class: "head", "aria-expanded": index === chosen, onclick: () => turnTo(index === chosen ? -1 : index) },
    `${textOf(group.mentions[0])} `, make("span", { class: "soft" }, verdict));
  const card = make("div", { class: index === chosen ? "chain open" : "chain" }, head);
  card.style.setProperty("--colour", colour(index));
  if (index !== chosen) return card;
  card.append(make("ul", {}, ...group.mentions.map((id) => make("li", {}, textOf(id), moveChoice(id, index)))));
  if (!group.loose) {
    card.append(make("div", { class: "actions" },
      make("button", { type: "button", class: "primary", onclick: () => saveBoxes("box") }, "Save boxes"),
      make("button", { type: "button", onclick: () => saveBoxes("scene") }, "Scene or place"),
      make("button", { type: "button", onclick: () => saveBoxes("no box") }, "No box")));
  }
  return card;
}

function moveChoice(id, from) {
  const others = view.groups.map((group, index) => [index, group.mentions[0]]).filter(([index]) => index !== from);
  // Captions are counted from one for people.
  const options = others.map(([index, first]) => (
    make("option", { value: index }, `with ${textOf(first)} (caption ${Number(first.split(":")[0]) + 1})`)));
  const alone = view.groups[from].mentions.length > 1 || view.groups[from].loose ? [make("option", { value: "alone" }, "alone")] : [];
  return make("select", { "aria-label": `Move ${textOf(id)}`, onchange: (event) => move(id, from, event.target.value) },
    make("option", { value: "" }, "move …"), ...alone, ...options);
}

function move(id, from, target) {
  if (target === "") return;
  const rest = view.groups[from].mentions.filter((other) => other !== id);
  const grown = target === "alone" ? [id] : [...view.groups[Number(target)].mentions, id];
  fix({ type: "chains", chains: [rest, grown].filter((chain) => chain.length) });
}

function saveBoxes(verdict) {
  const boxes = verdict === "box" ? editor.boxes : [];
  if (verdict === "box" && !boxes.length) notify("Draw a box first, or say why there is none.");
  else fix({ type: "boxes", mention: view.groups[chosen].mentions[0], boxes, verdict });
}

async function fix(made) {
  try {
    show(await ask("/api/review/fix", { image: view.id, version: view.version, fix: made, comment: find("comment").value }));
    find("comment").value = "";
    notify("Saved.", 2);
  } catch (problem) {
    notify(problem.message);
    if (problem.message.includes("changed since")) await load();
  }
}

// Phrases

function showCaptions() {
  const groupOf = {};
  view.groups.forEach((group, index) => group.mentions.forEach((id) => { groupOf[id] = index; }));
  const mentions = phrases ?? view.mentions.map((entry) => entry.mention);
  find("captions").replaceChildren(...view.captions.map((tokens, caption) => {
    const line = make("p");
    tokens.forEach(([token, space], place) => {
      const mention = mentions.find(([own, start, end]) => own === caption && start <= place && place < end);
      const word = make("button", { type: "button", onclick: () => touch(caption, place, mention) }, token);
      if (mention) {
        const index = groupOf[idOf(mention)];
        word.classList.add("mention");
        word.title = mention[4].join(", ");
        if (index !== undefined) word.style.setProperty("--colour", colour(index));
        if (index === chosen && !phrases) word.classList.add("chosen");
      }
      if (begun && begun[0] === caption && begun[1] === place) word.classList.add("begun");
      // A word joiner keeps a full stop on the line of its word.
      line.append(space ? " " : "\u2060", word);
    });
    return line;
  }));
  find("phrase-tools").hidden = !phrases;
  find("edit-phrases").textContent = phrases ? "Leave phrases as they were" : "Correct phrases";
}

/** A word was touched: choose its chain; while phrases are corrected, take its phrase away or begin and end a new one. */
function touch(caption, place, mention) {
  if (!phrases) {
    if (mention) turnTo(view.groups.findIndex((group) => group.mentions.includes(idOf(mention))));
    return;
  }
  if (mention) {
    phrases = phrases.filter((other) => other !== mention);
  } else if (begun?.[0] !== caption) {
    begun = [caption, place];
  } else {
    const [start, end] = [Math.min(begun[1], place), Math.max(begun[1], place) + 1];
    const text = view.captions[caption].slice(start, end).map(([token]) => token).join(" ");
    const free = phrases.filter(([own, first, last]) => own !== caption || last <= start || first >= end);
    phrases = [...free, [caption, start, end, text, [find("type").value]]];
    begun = null;
  }
  showCaptions();
}

find("edit-phrases").addEventListener("click", () => {
  phrases = phrases ? null : view.mentions.map((entry) => entry.mention);
  begun = null;
  if (phrases) notify("Touch a phrase to take it away; touch the first and the last word of a new one.");
  showCaptions();
});
find("save-phrases").addEventListener("click", () => {
  const ordered = [...phrases].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  fix({ type: "mentions", mentions: ordered });
});

for (const id of ["remove", "undo", "redo"]) {
  find(id).addEventListener("click", () => {
    editor[id]();
    stage.root.focus();
  });
}
document.addEventListener("keydown", (event) => {
  if (typing(event) || !view || event.altKey) return;
  if (["Enter", " "].includes(event.key) && event.target.closest("button")) return;
  if (editor.key(event) || zoomKey(event)) event.preventDefault();
  else if (event.key === "j" && !event.ctrlKey && !event.metaKey) find("next").click();
  else if (event.key === "k" && !event.ctrlKey && !event.metaKey) find("previous").click();
});
window.addEventListener("beforeunload", (event) => { if (unsaved()) event.preventDefault(); });
load().catch((problem) => notify(problem.message, 0));
