// The map of an embedding space: points on a canvas, with what they are beside it.

const data = JSON.parse(document.getElementById("data").textContent);
const canvas = document.getElementById("map");
const card = document.getElementById("card");
const context = canvas.getContext("2d");
const colours = [
  "#e20035", "#0086ff", "#1b905a", "#d99a00", "#8600bc", "#ff5d2f",
  "#ff7686", "#00a2d8", "#9e0668", "#00b98d", "#840023", "#d36aa6",
];
const layer = { image: "whole", caption: "whole", region: "fine", phrase: "fine" };
const thumbnails = data.pictures.map((address) => {
  const image = new Image();
  image.onload = () => draw();
  image.src = address;
  return image;
});
const shown = { whole: true, fine: false, lines: true };
const view = { x: 0.5, y: 0.5, zoom: 0.9 };
let chosen = null;
let wanted = [];

for (const box of document.querySelectorAll("[data-layer]")) {
  box.checked = shown[box.dataset.layer];
  box.addEventListener("change", () => {
    shown[box.dataset.layer] = box.checked;
    draw();
  });
}

const side = () => Math.min(canvas.clientWidth, canvas.clientHeight);
const place = (point) => [
  (point.x - view.x) * side() * view.zoom + canvas.clientWidth / 2,
  (point.y - view.y) * side() * view.zoom + canvas.clientHeight / 2,
];
const visible = (point) => shown[layer[point.kind]];
const colour = (point) => colours[point.picture % colours.length];

function draw() {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((length) => Math.round(length * scale));
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  const style = getComputedStyle(document.documentElement);
  const paper = style.getPropertyValue("--paper");
  const picture = chosen === null ? null : data.points[chosen].picture;
  if (shown.lines) {
    for (const point of data.points) {
      if (point.to === null || !visible(point)) continue;
      context.strokeStyle = colour(point);
      context.globalAlpha = picture === null ? 0.3 : point.picture === picture ? 0.9 : 0.08;
      context.lineWidth = point.picture === picture ? 1.6 : 1;
      context.beginPath();
      context.moveTo(...place(point));
      context.lineTo(...place(data.points[point.to]));
      context.stroke();
    }
  }
  for (const kind of ["phrase", "region", "caption", "image"]) {
    data.points.forEach((point, number) => {
      if (point.kind !== kind || !visible(point)) return;
      const [x, y] = place(point);
      context.globalAlpha = picture === null || point.picture === picture ? 1 : 0.25;
      if (wanted.length) context.globalAlpha = wanted.includes(number) ? 1 : 0.12;
      if (kind === "image") {
        const image = thumbnails[point.picture];
        const size = Math.min(110, 26 * Math.max(1, Math.sqrt(view.zoom)));
        const ratio = image.naturalWidth / image.naturalHeight || 1;
        const [wide, high] = ratio > 1 ? [size, size / ratio] : [size * ratio, size];
        context.fillStyle = colour(point);
        context.fillRect(x - wide / 2 - 2, y - high / 2 - 2, wide + 4, high + 4);
        if (image.complete && image.naturalWidth) context.drawImage(image, x - wide / 2, y - high / 2, wide, high);
      } else {
        context.fillStyle = colour(point);
        context.strokeStyle = paper;
        context.lineWidth = 1;
        context.beginPath();
        if (kind === "region") context.rect(x - 4, y - 4, 8, 8);
        else context.arc(x, y, kind === "caption" ? 4 : 3, 0, 2 * Math.PI);
        context.fill();
        context.stroke();
      }
      if (number === chosen) {
        context.globalAlpha = 1;
        context.strokeStyle = style.getPropertyValue("--ink");
        context.lineWidth = 2;
        context.beginPath();
        context.arc(x, y, kind === "image" ? 24 : 9, 0, 2 * Math.PI);
        context.stroke();
      }
    });
  }
  context.globalAlpha = 1;
}

function add(parent, name, text, style) {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  if (style) element.className = style;
  parent.append(element);
  return element;
}

function describe(number) {
  chosen = number;
  card.replaceChildren();
  const point = data.points[number];
  const figure = add(card, "figure");
  const image = add(figure, "img");
  image.src = data.pictures[point.picture];
  image.alt = data.images[point.picture];
  const region = point.kind === "region" ? point : point.kind === "phrase" ? data.points[point.to] : null;
  if (region) {
    const [width, height] = data.sizes[point.picture];
    const box = add(figure, "div", "", "box");
    const [x1, y1, x2, y2] = region.box;
    box.style.left = `${(100 * x1) / width}%`;
    box.style.top = `${(100 * y1) / height}%`;
    box.style.width = `${(100 * (x2 - x1)) / width}%`;
    box.style.height = `${(100 * (y2 - y1)) / height}%`;
  }
  add(card, "p", `${point.kind} of ${data.images[point.picture]}`, "kind");
  const fine = layer[point.kind] === "fine";
  data.points.forEach((other, place) => {
    if (other.picture !== point.picture || !other.text || other.kind === "image") return;
    const here = place === number || (fine && other.to === number);
    if ((layer[other.kind] === "fine") === fine) add(card, "p", other.text, here ? "here" : "");
  });
  draw();
}

function nearest(x, y) {
  let best = null;
  let distance = 18;
  data.points.forEach((point, number) => {
    if (!visible(point)) return;
    const [left, top] = place(point);
    const here = Math.hypot(left - x, top - y) - (point.kind === "image" ? 8 : 0);
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
  const next = Math.min(60, Math.max(0.5, view.zoom * factor));
  const [across, down] = [x - canvas.clientWidth / 2, y - canvas.clientHeight / 2];
  view.x += across / side() * (1 / view.zoom - 1 / next);
  view.y += down / side() * (1 / view.zoom - 1 / next);
  view.zoom = next;
  draw();
}

let held = null;
canvas.addEventListener("pointerdown", (event) => {
  held = [event.offsetX, event.offsetY];
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointerup", () => (held = null));
canvas.addEventListener("pointermove", (event) => {
  if (held) {
    move(event.offsetX - held[0], event.offsetY - held[1]);
    held = [event.offsetX, event.offsetY];
    return;
  }
  const found = nearest(event.offsetX, event.offsetY);
  if (found !== null && found !== chosen) describe(found);
});
canvas.addEventListener(
  "wheel",
  (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
  },
  { passive: false },
);
canvas.addEventListener("keydown", (event) => {
  const step = 60;
  const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
  if (event.key in moves) move(...moves[event.key]);
  else if (event.key === "+" || event.key === "=") zoom(1.3);
  else if (event.key === "-") zoom(1 / 1.3);
  else if (event.key === "n" || event.key === "p") {
    const count = data.images.length;
    const now = chosen === null ? (event.key === "n" ? -1 : 0) : data.points[chosen].picture;
    const next = (now + (event.key === "n" ? 1 : count - 1)) % count;
    const number = data.points.findIndex((point) => point.kind === "image" && point.picture === next);
    describe(number);
  } else return;
  event.preventDefault();
});
document.getElementById("find").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  wanted = [];
  if (words.length) {
    data.points.forEach((point, number) => {
      if (words.every((word) => point.text.toLowerCase().includes(word))) wanted.push(number);
    });
  }
  draw();
});
document.getElementById("whole").addEventListener("click", () => {
  Object.assign(view, { x: 0.5, y: 0.5, zoom: 0.9 });
  draw();
});
new ResizeObserver(draw).observe(canvas);
draw();
