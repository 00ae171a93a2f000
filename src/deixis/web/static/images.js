// The list of images for reviewers: thumbnails with what is known of each, by part of the project, a page at a time.

import { ask, make, notify } from "./shell.js";

const find = (id) => document.getElementById(id);
const address = new URLSearchParams(location.search);
const choice = find("choice").elements.part;
if ([...choice.options].some(({ value }) => value === address.get("part"))) choice.value = address.get("part");
let start = Math.max(0, Number(address.get("start")) || 0);

const PER_PAGE = Number(find("images").dataset.perPage);
const several = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

function card(image) {
  const link = `/review?image=${encodeURIComponent(image.id)}&part=${choice.value}`;
  const state = image.waiting ? ["waiting", "waits for a reviewer"] : image.finished ? ["finished", "finished"] : ["open", "open"];
  return make("li", {},
    make("a", { href: link },
      make("img", { src: `/api/review/thumbnail?id=${encodeURIComponent(image.id)}`, alt: "", loading: "lazy" }),
      make("strong", {}, image.id)),
    make("span", { class: `state ${state[0]}` }, state[1]),
    image.disputed ? make("span", { class: "state disputed" }, several(image.disputed, "disagreement")) : "",
    make("p", { class: "soft" }, `${several(image.answers, "answer")}, ${several(image.chains, "chain")}`,
      image.workers.length ? ` · ${image.workers.join(", ")}` : ""));
}

async function load() {
  const { images, total, ...shown } = await ask(`/api/review/images?part=${choice.value}&start=${start}`);
  history.replaceState(null, "", `?part=${choice.value}&start=${start}`);
  find("images").replaceChildren(...images.map(card));
  const last = shown.start + images.length;
  find("count").textContent = images.length ? `${shown.start + 1} to ${last} of ${total.toLocaleString("en")}` : "none";
  find("back").disabled = start === 0;
  find("on").disabled = last >= total;
  find("back").onclick = () => turn(Math.max(0, start - PER_PAGE));
  find("on").onclick = () => turn(last);
}

function turn(to) {
  start = to;
  scrollTo(0, 0);
  load().catch((problem) => notify(problem.message));
}

choice.addEventListener("change", () => turn(0));
load().catch((problem) => notify(problem.message, 0));
