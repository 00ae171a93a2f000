// The administrator's page: tables of what the server reports, links for people, decisions, and the export.

import { ask, copy, make, notify } from "./shell.js";

const find = (id) => document.getElementById(id);
const count = (value) => value.toLocaleString("en");
const percent = (share) => `${(100 * share).toFixed(0)}\u00a0%`;
const titles = Object.fromEntries([...document.querySelectorAll("#titles option")].map(({ value, text }) => [value, text]));
const duration = (hours) => (hours < 1 ? `${Math.round(60 * hours)} min` : `${hours.toFixed(1)} h`);
const when = (seconds) => new Date(1000 * seconds).toLocaleString();

/** A table whose cells are text, elements, or numbers (set to the right). */
function fill(table, columns, rows, none) {
  const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)));
  // On a phone, each cell shows the name of its column (admin.css).
  const labels = columns.map((name) => (name.endsWith("?") ? name : `${name}:`));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell, index) => (typeof cell === "number"
    ? make("td", { class: "figure", "data-column": labels[index] }, count(cell))
    : make("td", { "data-column": labels[index] }, cell)))));
  if (rows.length) table.replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
  else table.replaceChildren(make("tbody", {}, make("tr", {}, make("td", { class: "soft" }, none))));
}

function showProgress({ progress, agreement, workers }) {
  const hours = workers.reduce((sum, worker) => sum + worker.hours, 0);
  const each = progress.finished ? `, ${(60 * hours / progress.finished).toFixed(1)} minutes per finished image` : "";
  find("finished").textContent = `${count(progress.finished)} of ${count(progress.images)} images are finished. `
    + `Workers spent ${duration(hours)}${each}.`;
  find("finished-bar").value = progress.images ? progress.finished / progress.images : 0;
  const rows = Object.entries(progress.tasks).map(([name, task]) => [
    titles[name], task.open, task.judgments, task.voided, task.verification,
    name in agreement ? `${agreement[name].toFixed(1)}\u00a0%` : "",
    task.proposed ? percent(task.accepted / task.proposed) : "",
  ]);
  fill(find("tasks"), ["task", "open", "answered", "discarded", "verification", "agreement", "proposals accepted"], rows, "");
  find("links").textContent = `“${titles.link}” was answered ${count(progress.links_asked)} times for ${count(progress.mentions)} phrases; `
    + `asking every pair would take ${count(progress.mentions_squared)} answers. Corrections by hand: ${count(progress.fixes)}.`;
}

function showQueue(queue) {
  const rows = queue.map((entry) => [
    make("a", { href: `/review?image=${encodeURIComponent(entry.image)}&part=review` }, entry.image),
    entry.summary,
  ]);
  fill(find("queue"), ["image", "why"], rows, "Nothing waits.");
}

function standing(worker, task) {
  const name = worker.standings[task];
  const kind = name === "trusted" ? "standing-trusted" : ["suspended", "failed the test"].includes(name) ? "standing-lost" : "";
  const known = task in worker.accuracy ? `, ${percent(worker.accuracy[task])} right` : "";
  const speed = task in worker.seconds ? `, ${worker.seconds[task]}\u00a0s each` : "";
  const answers = worker.judgments[task] ? make("small", {}, `${count(worker.judgments[task])} answers${known}${speed}`) : "";
  return make("span", { class: kind }, name, " ", answers);
}

function showWorkers(workers) {
  const tasks = workers.length ? Object.keys(workers[0].standings) : [];
  const rows = workers.map((worker) => [
    worker.name, worker.role, duration(worker.hours), worker.last_seen ? when(worker.last_seen) : "never",
    ...tasks.map((task) => standing(worker, task)),
  ]);
  fill(find("workers"), ["name", "role", "at work", "last answer", ...tasks.map((task) => titles[task])], rows, "Nobody has joined yet.");
  for (const choice of document.querySelectorAll('select[name="worker"]')) {
    const { value } = choice;
    choice.replaceChildren(...workers.map((worker) => make("option", { value: worker.id }, worker.name)));
    if (value) choice.value = value;
  }
}

function showDecisions(decisions, workers) {
  const names = Object.fromEntries(workers.map((worker) => [worker.id, worker.name]));
  const rows = decisions.map((made) => [when(made.created), names[made.worker], titles[made.task], made.standing, made.reason, made.answered]);
  fill(find("decisions"), ["when", "worker", "task", "standing", "why", "after answers"], rows, "None so far.");
}

async function load() {
  const [overview, queue] = await Promise.all([ask("/api/admin/overview"), ask("/api/review/queue")]);
  showProgress(overview);
  showQueue(queue);
  showWorkers(overview.workers);
  showDecisions(overview.decisions, overview.workers);
}

function onSubmit(id, act) {
  find(id)?.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await act(event.target.elements, event.submitter.value);
    } catch (problem) {
      notify(problem.message);
    }
  });
}

onSubmit("look-up", ({ image }) => location.assign(`/review?image=${encodeURIComponent(image.value)}`));
onSubmit("decide", async ({ worker, task, reason }, decision) => {
  const [name, from] = [worker, task].map((choice) => choice.selectedOptions[0].text);
  const asked = `Suspend ${name} from ${from === "all tasks" ? from : `“${from}”`}? Their answers are discarded and asked again.`;
  if (decision === "suspend" && !confirm(asked)) return;
  await ask("/api/admin/decide", {
    worker: Number(worker.value), task: task.value || null, reason: reason.value, suspend: decision === "suspend",
  });
  await load();
});
onSubmit("invite", async ({ role, worker, answers, accuracy }, kind) => {
  const record = answers?.value && accuracy?.value ? { answers: Number(answers.value), accuracy: Number(accuracy.value) / 100 } : {};
  const sent = kind === "new" ? { role: role.value, ...record } : { worker: Number(worker.value) };
  const { path } = await ask("/api/admin/invite", sent);
  find("link").value = (find("invite").dataset.address || location.origin) + path;
  find("link-row").hidden = false;
  find("link").select();
});
find("copy")?.addEventListener("click", () => copy(find("link")));
find("export")?.addEventListener("change", (event) => {
  const { format, finished_only: only } = event.currentTarget.elements;
  find("download").href = `/api/admin/export?format=${encodeURIComponent(format.value)}&finished_only=${only.checked}`;
});

// The page keeps itself up to date while it is looked at.
const REFRESH_SECONDS = 20;
async function refresh() {
  try {
    if (!document.hidden) await load();
  } catch (problem) {
    notify(problem.message);
  }
  setTimeout(refresh, 1000 * REFRESH_SECONDS);
}
refresh();
