// The map of a collection on a canvas. Far away pictures are dots, and a few of them stamps that do not overlap; the
// nearer one comes, the more pictures there is room for.

import { ask, make } from "../shell.js";
import { unhurried } from "./results.js";

const canvas = document.getElementById("map");
const context = canvas.getContext("2d");
const card = document.getElementById("card");
const statusLine = document.getElementById("status-line");
const stamps = new Map();
const view = { x: 0.5, y: 0.5, zoom: 1 };
let points = [];
let lit = null;
let chosen = -1;
let waiting = false;

const stampSize = () => Math.min(64, Math.max(40, canvas.clientWidth / 15));
const side = () => Math.min(canvas.clientWidth, canvas.clientHeight);
const place = (point) => [
  (point.x - view.x) * side() * view.zoom + canvas.clientWidth / 2,
  (point.y - view.y) * side() * view.zoom + canvas.clientHeight / 2,
];

function stamp(point) {
  if (!stamps.has(point.picture)) {
    const image = new Image();
    image.onload = draw;
    image.src = `/api/pictures/${point.picture}/thumbnail`;
    stamps.set(point.picture, image);
  }
  return stamps.get(point.picture);
}

/** Which of the visible points get a stamp: those that cover no other; what is chosen or lit goes first. */
function stamped(seen) {
  const rank = ([number]) => (number === chosen ? 0 : lit?.has(points[number].picture) ? 1 : 2);
  const room = stampSize() + 4;
  const kept = [];
  for (const one of [...seen].sort((first, second) => rank(first) - rank(second) || first[0] - second[0])) {
    if (kept.every(([, x, y]) => Math.abs(x - one[1]) > room || Math.abs(y - one[2]) > room)) kept.push(one);
  }
  return new Set(kept.map(([number]) => number));
}

function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    paint();
  });
}

function paint() {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  }
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  const style = getComputedStyle(document.documentElement);
  const [accent, soft, ink] = ["--accent", "--soft", "--ink"].map((name) => style.getPropertyValue(name));
  const edge = stampSize();
  const seen = [];
  points.forEach((point, number) => {
    const [x, y] = place(point);
    if (x > -edge && y > -edge && x < width + edge && y < height + edge) seen.push([number, x, y]);
  });
  const large = stamped(seen);
  for (const [number, x, y] of seen) {
    const shines = !lit || lit.has(points[number].picture);
    context.globalAlpha = shines ? 0.9 : 0.25;
    context.fillStyle = shines && lit ? accent : soft;
    context.beginPath();
    context.arc(x, y, shines && lit ? 5 : 3, 0, 2 * Math.PI);
    context.fill();
  }
  for (const [number, x, y] of seen) {
    if (!large.has(number)) continue;
    const image = stamp(points[number]);
    if (!image.complete || !image.naturalWidth) continue;
    const shines = !lit || lit.has(points[number].picture);
    const ratio = image.naturalWidth / image.naturalHeight;
    const size = edge * (number === chosen ? 1.35 : 1);
    const [wide, high] = ratio > 1 ? [size, size / ratio] : [size * ratio, size];
    context.globalAlpha = shines ? 1 : 0.3;
    context.drawImage(image, x - wide / 2, y - high / 2, wide, high);
    if (number === chosen || (lit && shines)) {
      context.strokeStyle = number === chosen ? ink : accent;
      context.lineWidth = 3;
      context.strokeRect(x - wide / 2 - 1.5, y - high / 2 - 1.5, wide + 3, high + 3);
    }
  }
  context.globalAlpha = 1;
}

/** Tell of a picture beside the map. */
function choose(number) {
  if (number === chosen || number < 0) return;
  chosen = number;
  const { picture } = points[number];
  card.replaceChildren(
    make("a", { href: `/pictures/${picture}` },
      make("img", { src: `/api/pictures/${picture}/thumbnail`, alt: `Picture ${number + 1} of ${points.length}` })),
    make("p", {}, make("a", { href: `/pictures/${picture}` }, "Open this picture")),
  );
  draw();
}

function nearest(x, y) {
  let best = -1;
  let distance = stampSize() / 2;
  points.forEach((point, number) => {
    const [left, top] = place(point);
    const here = Math.hypot(left - x, top - y);
    if (here < distance) [best, distance] = [number, here];
  });
  return best;
}

function move(across, down) {
  view.x -= across / (side() * view.zoom);
  view.y -= down / (side() * view.zoom);
  draw();
}

function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const next = Math.min(80, Math.max(0.5, view.zoom * factor));
  const [across, down] = [x - canvas.clientWidth / 2, y - canvas.clientHeight / 2];
  view.x += (across / side()) * (1 / view.zoom - 1 / next);
  view.y += (down / side()) * (1 / view.zoom - 1 / next);
  view.zoom = next;
  draw();
}

/** All points within the canvas. */
function fit() {
  const spans = ["x", "y"].map((axis) => {
    const values = points.map((point) => point[axis]);
    return [Math.min(...values), Math.max(...values)];
  });
  const [[left, right], [top, bottom]] = points.length ? spans : [[0, 1], [0, 1]];
  const [wide, high] = [canvas.clientWidth - 1.6 * stampSize(), canvas.clientHeight - 1.6 * stampSize()];
  view.x = (left + right) / 2;
  view.y = (top + bottom) / 2;
  view.zoom = Math.min(wide / Math.max(right - left, 1e-6), high / Math.max(bottom - top, 1e-6)) / side();
  draw();
}

const held = new Map();
let moved = 0;
canvas.addEventListener("pointerdown", (event) => {
  held.set(event.pointerId, [event.offsetX, event.offsetY]);
  moved = 0;
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  const before = held.get(event.pointerId);
  if (!before) {
    choose(nearest(event.offsetX, event.offsetY));
    return;
  }
  const now = [event.offsetX, event.offsetY];
  if (held.size === 1) {
    moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
    move(now[0] - before[0], now[1] - before[1]);
  } else {
    const [other] = [...held].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    const apart = (at) => Math.hypot(at[0] - other[0], at[1] - other[1]) || 1;
    moved = Infinity;
    zoom(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
  }
  held.set(event.pointerId, now);
});
for (const end of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(end, (event) => {
    held.delete(event.pointerId);
    if (end === "pointercancel" || moved > 6) return;
    const number = nearest(event.offsetX, event.offsetY);
    // A finger first shows a picture's details; the link beside the map opens it.
    if (number >= 0 && event.pointerType === "mouse") location.assign(`/pictures/${points[number].picture}`);
    choose(number);
  });
}
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
}, { passive: false });
canvas.addEventListener("keydown", (event) => {
  const step = 60;
  const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
  if (event.key in moves) move(...moves[event.key]);
  else if (event.key === "+" || event.key === "=") zoom(1.3);
  else if (event.key === "-") zoom(1 / 1.3);
  else if (event.key === "Enter" && chosen >= 0) location.assign(`/pictures/${points[chosen].picture}`);
  else if ((event.key === "n" || event.key === "p") && points.length) {
    choose((chosen + (event.key === "n" ? 1 : points.length - 1) + points.length) % points.length);
    [view.x, view.y] = [points[chosen].x, points[chosen].y];
    draw();
  } else return;
  event.preventDefault();
});
document.getElementById("nearer").addEventListener("click", () => zoom(1.4));
document.getElementById("farther").addEventListener("click", () => zoom(1 / 1.4));
document.getElementById("all").addEventListener("click", fit);

const shine = unhurried(async (signal, words) => {
  if (!words) {
    lit = null;
    statusLine.textContent = "";
  } else {
    try {
      const found = [];
      let answer;
      do {
        const page = new URLSearchParams({ q: words, count: 200, offset: found.length });
        answer = await ask(`/api/search?${page}`, undefined, signal);
        found.push(...answer.hits);
      } while (answer.more && found.length < answer.matches);
      lit = new Set(found.filter((hit) => hit.relevant).map((hit) => hit.picture));
      statusLine.textContent = answer.absent ? `${answer.unknown_words.length ? "Not sure what" : "Nothing here"} matches “${words}”.` : `${answer.matches} found`;
    } catch (problem) {
      if (signal.aborted) throw problem;
      statusLine.textContent = problem.message;
    }
  }
  draw();
});
document.getElementById("words").addEventListener("input", (event) => shine(event.target.value.trim()));

new ResizeObserver(draw).observe(canvas);
try {
  const map = await ask("/api/map");
  points = map.points;
  statusLine.textContent = map.points.length < map.pictures ? `${map.points.length} of ${map.pictures} pictures, chosen at random` : "";
} catch (problem) {
  statusLine.textContent = problem.message;
}
fit();
