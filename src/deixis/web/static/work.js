// A worker's page: one task at a time. An answer is saved before the next task appears, which is loaded by then.

import { BoxEditor } from "./box_editor.js";
import { ask, copy, make, Refused, notify, typing } from "./shell.js";
import { boxShape, shape, Stage, zoomControls } from "./stage.js";

const find = (id) => document.getElementById(id);
const script = document.querySelector('script[src$="work.js"]');
const rules = {};
const titles = {};
for (const section of find("rules").content.querySelectorAll("section")) {
  rules[section.dataset.task] = section;
  titles[section.dataset.task] = section.dataset.title;
}

const stage = new Stage(find("stage"));
const editor = new BoxEditor(stage, 1, showBox);
const zoomKey = zoomControls(stage, () => editor.focus());
let current = null;
let standings = {};
let busy = false;
const introduced = new Set();
// Pictures that are loaded ahead, kept alive until they are shown.
const ahead = new Map();

// Tokens of the latest answers, which can be taken back one after the other, also after the page is loaded again.
const answered = {
  all: () => JSON.parse(sessionStorage.getItem("answered") ?? "[]"),
  keep: (tokens) => sessionStorage.setItem("answered", JSON.stringify(tokens.slice(-20))),
  last: () => answered.all().at(-1),
  push: (token) => answered.keep([...answered.all(), token]),
  pop: () => answered.keep(answered.all().slice(0, -1)),
  clear: () => answered.keep([]),
};

const pictureOf = (task) => `/api/work/pictures/${task.token}`;
const only = () => find("only").value || null;

/** Take over what the server says is next. */
async function follow(state) {
  const before = standings;
  standings = state.standings;
  const [task, next] = state.tasks;
  preload(next);
  showStanding(task);
  const settled = Object.keys(standings).find(
    (name) => before[name]?.standing === "test" && standings[name].standing !== "test",
  );
  const again = Object.keys(standings).find((name) => (
    standings[name].standing === "test" && before[name]?.test_answered > 0 && standings[name].test_answered === 0));
  showTakeBack();
  if (settled || again) await showResult(settled ?? again, Boolean(again), () => begin(task));
  else begin(task);
}

function begin(task) {
  if (!task) showNothing();
  else if (!introduced.has(task.task) && isNew(task)) introduce(task);
  else show(task);
}

function isNew({ task, test }) {
  return (test ? standings[task].test_answered : standings[task].answered) === 0;
}

function preload(task) {
  if (!task || ahead.has(task.token)) return;
  const picture = new Image();
  picture.src = pictureOf(task);
  ahead.clear();
  ahead.set(task.token, picture);
}

async function show(task) {
  current = task;
  introduced.add(task.task);
  find("card").hidden = true;
  find("work").hidden = false;
  find("task-name").textContent = titles[task.task];
  find("test-place").textContent = task.test
    ? `Test: ${standings[task.task].test_answered + 1} of ${standings[task.task].test_questions}`
    : "";
  find("prompt").textContent = task.prompt;
  find("captions").replaceChildren(
    ...task.captions.map((pieces) => make("p", {}, ...marked(pieces))),
  );
  find("comment").value = "";
  find("comment-row").hidden = true;
  find("skip").disabled = find("report").disabled = task.test;
  find("drawing-tools").hidden = task.task !== "drawing";
  showAnswers(task);
  const caption = task.captions.map((pieces) => pieces.map(([text]) => text).join("")).join(" / ");
  editor.reset([], task.task === "drawing");
  showBox();
  await stage.show(pictureOf(task), task.width, task.height, caption);
  if (current !== task) return;
  stage.mark([
    ...task.boxes.map((box) => [box, "done"]),
    ...(task.box ? [[task.box, "judged"]] : []),
    ...(Array.isArray(task.proposal) ? [[task.proposal, "proposed", "proposal"]] : []),
  ]);
  find("work").dataset.token = task.token;
  setBusy(false);
  stage.root.focus({ preventScroll: true });
}

/** A caption whose highlighted pieces are marked. */
function marked(pieces) {
  return pieces.map(([text, highlighted]) => (highlighted ? make("mark", {}, text) : text));
}

function showTakeBack() {
  find("take-back").disabled = !answered.last();
}

function showAnswers(task) {
  const buttons = task.answers.map(([word, label, key]) => make("button", {
    type: "button",
    "data-answer": word,
    "aria-keyshortcuts": key,
    class: task.proposal === word ? "proposed" : false,
    onclick: () => send(word),
  }, label, make("kbd", {}, key.toUpperCase())));
  if (task.task === "drawing") {
    buttons.unshift(make("button", {
      type: "button", id: "save-box", class: "primary", disabled: true, "aria-keyshortcuts": "Enter", onclick: () => sendBox(),
    }, "Save the box", make("kbd", {}, "Enter")));
  }
  find("answers").replaceChildren(...buttons);
  const words = typeof task.proposal === "string" ? task.answers.find(([word]) => word === task.proposal)?.[1] : "a box";
  find("proposal").hidden = task.proposal === null;
  find("proposal").replaceChildren(
    "A model proposes ", make("strong", {}, words ?? ""), ". ",
    make("button", { type: "button", class: "quiet", "aria-keyshortcuts": "p", onclick: takeProposal }, "Take it ", make("kbd", {}, "P")),
  );
}

function showBox() {
  const { box } = editor;
  const save = find("save-box");
  if (save) save.disabled = !box;
  find("place").textContent = box ? `${box.map((side) => Math.round(side)).join(", ")} · ${Math.round(box[2] - box[0])} × ${Math.round(box[3] - box[1])}` : "";
}

function showStanding(task) {
  const standing = task && standings[task.task];
  find("standing").textContent = standing && standing.standing !== "test" ? `${standing.answered} answered` : "";
}

/** A page of words in place of a task. */
function showCard(title, content, button, act) {
  current = null;
  busy = false;
  find("work").hidden = true;
  find("card").hidden = false;
  find("card-title").textContent = title;
  find("card-text").replaceChildren(...content);
  const go = find("card-go");
  go.hidden = !button;
  go.textContent = button ?? "";
  go.onclick = act;
  if (button) go.focus();
}

/** The rules of a task, and of its test if there is one. */
function introduce(task) {
  const own = rules[task.task].cloneNode(true);
  if (!task.test) {
    showCard(titles[task.task], [own], "Begin", () => show(task));
    return;
  }
  const count = standings[task.task].test_questions;
  const needed = Math.ceil(Number(script.dataset.share) * count);
  const text = `There is a short test first. Questions: ${count}. Right answers needed: ${needed}. `
    + `Attempts: ${script.dataset.attempts}. Take your time.`;
  showCard(titles[task.task], [own, make("p", {}, text)], "Begin the test", () => show(task));
}

/** The end of an attempt at a test: whether it was passed, and which answers were wrong. */
async function showResult(name, again, act) {
  const passed = !again && !["failed the test", "suspended"].includes(standings[name].standing);
  const [heading, text, button] = passed
    ? ["test passed", "Well done. From now on your answers count.", "Go on"]
    : again
      ? ["test not passed yet", "Too many answers were wrong. There is another attempt, with other questions.", "Try again"]
      : ["test not passed", "Too many answers were wrong. The other tasks are still open to you.", "Go on"];
  const wrong = await ask(`/api/work/mistakes?task=${name}`).catch(() => []);
  const content = [make("p", {}, text)];
  if (wrong.length) content.push(make("h2", {}, "What was wrong"), make("div", { class: "examples" }, ...wrong.map(mistake)));
  if (!passed) content.push(make("h2", {}, "The rules"), rules[name].cloneNode(true));
  showCard(`${titles[name]} · ${heading}`, content, button, act);
}

/** A wrong answer of a test: the picture with what was asked and what would have been right. */
function mistake({ token, width, height, captions, boxes, box, answer, drawn, right, reason, evidence }) {
  const marks = [
    ...boxes.map((own) => boxShape(own, "done")),
    ...[box, drawn].filter(Boolean).map((own) => boxShape(own, "judged")),
    ...evidence.map((own) => boxShape(own, "evidence")),
  ];
  const picture = shape("image", { href: `/api/work/pictures/${token}`, width, height, preserveAspectRatio: "none" });
  return make("figure", { class: "wrong" },
    shape("svg", { viewBox: `0 0 ${width || 1} ${height || 1}`, role: "img", "aria-label": reason }, picture, ...marks),
    make("figcaption", {},
      ...captions.map((pieces) => make("p", { class: "caption" }, ...marked(pieces))),
      make("p", {}, drawn ? "You drew the yellow box." : `Your answer: ${answer}.`, right ? ` Right: ${right}.` : ""),
      make("p", {}, reason)));
}

function showNothing() {
  const lost = Object.entries(standings).filter(([, own]) => ["failed the test", "suspended"].includes(own.standing));
  const content = [make("p", {}, only()
    ? `There is no “${titles[only()]}” for you at the moment. Choose another task above, or look again later.`
    : "There is no task for you at the moment. Others may have to answer first, or a reviewer what was skipped or reported; look again later.")];
  if (lost.length) {
    content.push(make("p", {}, `You do not work on these any more: ${lost.map(([name]) => titles[name]).join(", ")}.`));
  }
  if (answered.last()) {
    content.push(make("p", {}, make("button", { type: "button", onclick: takeBack }, "Take back my last answer")));
  }
  showCard("Nothing to do", content, "Look again", load);
}

/** Whether an answer is on its way: until then nothing else is sent. */
function setBusy(waiting) {
  busy = waiting;
  find("work").setAttribute("aria-busy", String(waiting));
}

/** Send something about the current task and go on to the next; on a refusal stay. */
async function pass(path, sent, done = () => {}) {
  if (busy || !current) return;
  setBusy(true);
  try {
    const state = await ask(path, { token: current.token, only: only(), ...sent });
    done();
    await follow(state);
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    setBusy(false);
    notify(problem.message);
    // Gone to somebody else in the meantime: there is a next one.
    if (problem.status === 409) await load();
  }
}

function send(answer) {
  const { token } = current ?? {};
  return pass("/api/work/answer", { answer, comment: find("comment").value }, () => answered.push(token));
}

async function takeBack() {
  const token = answered.last();
  if (busy || !token) return;
  setBusy(true);
  try {
    const state = await ask("/api/work/take-back", { token, only: only() });
    answered.pop();
    notify("Your last answer is taken back.", 3);
    ({ standings } = state);
    await follow(state);
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    setBusy(false);
    answered.clear();
    showTakeBack();
    notify(problem.message);
  }
}

function sendBox() {
  if (editor.box) send(editor.box);
}

async function load() {
  try {
    await follow(await ask(`/api/work/tasks${only() ? `?only=${only()}` : ""}`));
  } catch (problem) {
    notify(problem.message, 0);
  }
}

function takeProposal() {
  if (!current || current.proposal === null) return;
  if (Array.isArray(current.proposal)) {
    editor.put([...current.proposal]);
    stage.root.focus();
  } else {
    send(current.proposal);
  }
}

function showHelp() {
  find("help-rules").replaceChildren(...(current ? [rules[current.task].cloneNode(true)] : []));
  find("help-dialog").showModal();
}

function addComment() {
  find("comment-row").hidden = false;
  find("comment").focus();
}

const onKey = {
  b: takeBack,
  c: addComment,
  x: () => find("skip").click(),
  r: () => find("report").click(),
  p: takeProposal,
  "?": showHelp,
};

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target === find("comment")) stage.root.focus();
  if (typing(event) || event.altKey || !current) return;
  const pressed = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  // A focused button has Enter and Space for itself.
  if ((pressed === "Enter" || pressed === " ") && event.target.closest("button")) return;
  const meant = editor.key(event) || zoomKey(event) || answerByKey(event, pressed);
  if (meant) event.preventDefault();
});

function answerByKey(event, pressed) {
  if (event.ctrlKey || event.metaKey || event.repeat) return false;
  if (pressed === "Enter" && current.task === "drawing") {
    sendBox();
    return true;
  }
  const answer = current.answers.find(([, , key]) => key === pressed);
  if (answer) send(answer[0]);
  else onKey[pressed]?.();
  return Boolean(answer) || pressed in onKey;
}

const onClick = {
  draw: () => editor.beginByKeys(),
  handle: () => editor.nextHandle(),
  undo: () => editor.undo(),
  redo: () => editor.redo(),
};
for (const [id, act] of Object.entries(onClick)) {
  find(id).addEventListener("click", () => {
    act();
    stage.root.focus();
  });
}
find("take-back").addEventListener("click", takeBack);
find("skip").addEventListener("click", () => pass("/api/work/skip", {}));
find("add-comment").addEventListener("click", addComment);
find("help").addEventListener("click", showHelp);
find("report").addEventListener("click", () => {
  find("report-text").value = "";
  find("report-dialog").showModal();
});
find("my-link").addEventListener("click", async () => {
  const { path } = await ask("/api/link", {});
  const field = make("input", { readonly: true, value: location.origin + path, "aria-label": "Your sign-in link" });
  find("link-row").replaceChildren(field, " ", make("button", { type: "button", onclick: () => copy(field) }, "Copy"),
    " The link you had before does not work any more.");
});
find("report-form").addEventListener("submit", (event) => {
  if (event.submitter.value === "send") pass("/api/work/report", { comment: find("report-text").value });
});
const chosen = new URLSearchParams(location.search).get("task");
if (chosen in titles) find("only").value = chosen;
find("only").addEventListener("change", () => {
  history.replaceState(null, "", only() ? `?task=${only()}` : location.pathname);
  load();
});
load();
