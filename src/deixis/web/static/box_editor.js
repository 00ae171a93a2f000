// Drawing boxes on a stage: by mouse or pen, with a finger, or by keyboard. Every change can be undone.
//
// Dragging draws; dragging inside the active box moves it, at a handle changes its size. A click chooses the smallest box
// under it. Two fingers, the middle button, or the space bar held down move and zoom the picture instead.

import { boxShape, shape } from "./stage.js";

const SMALLEST = 2;
// How near to a handle counts, in screen pixels: fingers are less exact.
const REACH = matchMedia("(pointer: coarse)").matches ? 20 : 13;
// Handles: name, and how far along the box's width and height they are.
const HANDLES = [
  ["nw", 0, 0], ["n", 0.5, 0], ["ne", 1, 0], ["e", 1, 0.5], ["se", 1, 1], ["s", 0.5, 1], ["sw", 0, 1], ["w", 0, 0.5],
];
// What the arrow keys move: the whole box, then its corners.
const BY_KEY = ["", "nw", "ne", "se", "sw"];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const ordered = ([x1, y1, x2, y2]) => [Math.min(x1, x2), Math.min(y1, y2), Math.max(x1, x2), Math.max(y1, y2)];
const drawable = ([x1, y1, x2, y2]) => x2 - x1 >= SMALLEST && y2 - y1 >= SMALLEST;

export class BoxEditor {
  /** `most` is how many boxes there may be; one more takes the place of the active one. */
  constructor(stage, most, onchange) {
    this.stage = stage;
    this.most = most;
    this.onchange = onchange;
    this.enabled = false;
    this.pointers = new Map();
    this.reset([]);
    stage.onview = () => this.#draw();
    const svg = stage.svg;
    svg.addEventListener("pointerdown", (event) => this.#down(event));
    svg.addEventListener("pointermove", (event) => this.#move(event));
    svg.addEventListener("pointerup", (event) => this.#up(event));
    svg.addEventListener("pointercancel", (event) => this.#cancel(event));
    svg.addEventListener("pointerleave", () => this.#guide(null));
    document.addEventListener("keyup", (event) => { if (event.key === " ") this.#holdSpace(false); });
  }

  /** Begin anew with these boxes. */
  reset(boxes, enabled = this.enabled) {
    this.enabled = enabled;
    this.boxes = boxes.map((box) => [...box]);
    this.active = boxes.length === 1 ? 0 : -1;
    this.past = [];
    this.future = [];
    this.chosen = 0;
    this.cross = this.anchor = this.drag = null;
    if (!enabled) this.guides = null;
    this.#holdSpace(false);
    this.stage.root.classList.toggle("draws", enabled);
    this.#draw();
  }

  get box() {
    return this.boxes[this.active] ?? null;
  }

  /** Put a box in as if it had been drawn. */
  put(box) {
    this.#remember();
    this.#add(box);
    this.#changed();
  }

  /** Begin to draw by keyboard: a cross in the middle of what is seen. */
  beginByKeys() {
    const { x, y, zoom } = this.stage.view;
    this.cross = [Math.round(x + this.stage.width / zoom / 2), Math.round(y + this.stage.height / zoom / 2)];
    this.anchor = null;
    this.#draw();
  }

  nextHandle() {
    if (!this.box) return;
    this.chosen = (this.chosen + 1) % BY_KEY.length;
    this.#draw();
  }

  undo() {
    this.#step(this.past, this.future);
  }

  redo() {
    this.#step(this.future, this.past);
  }

  remove() {
    if (!this.box) return;
    this.#remember();
    this.boxes.splice(this.active, 1);
    this.active = -1;
    this.#changed();
  }

  /** Where the eye is: the cross, or the middle of the active box. */
  focus() {
    if (this.cross) return this.cross;
    return this.box ? [(this.box[0] + this.box[2]) / 2, (this.box[1] + this.box[3]) / 2] : undefined;
  }

  /** Take a key press; says whether it meant something. */
  key(event) {
    if (!this.enabled) return false;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (event.ctrlKey || event.metaKey) {
      if (key === "z") event.shiftKey ? this.redo() : this.undo();
      else if (key === "y") this.redo();
      else return false;
      return true;
    }
    if (key in ARROWS) return this.#arrow(ARROWS[key], event.shiftKey ? 10 : 1);
    if (this.cross && (key === "Enter" || key === " ")) {
      if (!event.repeat) this.#corner();
      return true;
    }
    const act = {
      d: () => this.beginByKeys(),
      h: () => this.nextHandle(),
      u: () => this.undo(),
      o: () => this.redo(),
      Delete: () => this.remove(),
      Backspace: () => this.remove(),
      Escape: () => this.#leave(),
      " ": () => this.#holdSpace(true),
    }[key];
    act?.();
    return act !== undefined;
  }

  #arrow([across, down], step) {
    if (this.cross) {
      this.cross = this.stage.clamp([this.cross[0] + step * across, this.cross[1] + step * down]);
      this.stage.reveal(this.cross);
      this.#draw();
      return true;
    }
    if (!this.box) return false;
    // Presses in a row are one change.
    if (!this.nudging) this.#remember();
    clearTimeout(this.nudging);
    this.nudging = setTimeout(() => { this.nudging = 0; }, 700);
    this.boxes[this.active] = this.#dragged(this.box, BY_KEY[this.chosen], step * across, step * down);
    this.#changed();
    return true;
  }

  #corner() {
    if (!this.anchor) {
      this.anchor = [...this.cross];
      this.#draw();
      return;
    }
    const box = ordered([...this.anchor, ...this.cross]);
    if (!drawable(box)) return;
    this.cross = this.anchor = null;
    this.put(box);
  }

  #leave() {
    if (this.cross) this.cross = this.anchor = null;
    else if (this.most > 1) this.active = -1;
    this.chosen = 0;
    this.#draw();
    this.onchange(this.boxes);
  }

  #holdSpace(held) {
    this.space = held;
    this.stage.root.classList.toggle("pans", Boolean(held));
  }

  /** A box moved whole (no handle), or by one of its handles. */
  #dragged([x1, y1, x2, y2], handle, across, down) {
    const { width, height } = this.stage;
    if (!handle) {
      const right = Math.min(Math.max(across, -x1), width - x2);
      const below = Math.min(Math.max(down, -y1), height - y2);
      return [x1 + right, y1 + below, x2 + right, y2 + below];
    }
    const within = (value, low, high) => Math.min(Math.max(value, low), high);
    if (handle.includes("w")) x1 = within(x1 + across, 0, x2 - SMALLEST);
    if (handle.includes("e")) x2 = within(x2 + across, x1 + SMALLEST, width);
    if (handle.includes("n")) y1 = within(y1 + down, 0, y2 - SMALLEST);
    if (handle.includes("s")) y2 = within(y2 + down, y1 + SMALLEST, height);
    return [x1, y1, x2, y2];
  }

  #down(event) {
    this.stage.root.focus({ preventScroll: true });
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    this.stage.svg.setPointerCapture(event.pointerId);
    event.preventDefault();
    if (this.pointers.size === 2) {
      // A second finger: what the first began was no drawing.
      this.#giveUp();
      this.drag = { kind: "pinch" };
      return;
    }
    if (this.pointers.size > 2) return;
    const pans = event.button === 1 || this.space || !this.enabled;
    if (pans) {
      this.drag = { kind: "pan" };
      return;
    }
    if (event.button !== 0) return;
    this.cross = this.anchor = null;
    const from = this.stage.clamp(this.stage.at(event));
    const handle = event.target.dataset.handle;
    const inside = this.box && from[0] > this.box[0] && from[0] < this.box[2] && from[1] > this.box[1] && from[1] < this.box[3];
    const kind = handle !== undefined ? "resize" : inside ? "move" : "draw";
    this.drag = { kind, handle: handle ?? "", from, before: this.box, moved: false, screen: [event.clientX, event.clientY] };
  }

  #move(event) {
    const drag = this.drag;
    const last = this.pointers.get(event.pointerId);
    if (!last) {
      if (event.pointerType !== "touch") this.#guide(this.stage.at(event));
      return;
    }
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (!drag) return;
    const { unit } = this.stage;
    if (drag.kind === "pan") {
      this.stage.pan((event.clientX - last[0]) * unit, (event.clientY - last[1]) * unit);
      return;
    }
    if (drag.kind === "pinch") {
      if (!others.length) return;
      const [other] = others;
      const spread = (place) => Math.hypot(place[0] - other[0], place[1] - other[1]) || 1;
      const middle = { clientX: (event.clientX + other[0]) / 2, clientY: (event.clientY + other[1]) / 2 };
      this.stage.pan(((event.clientX - last[0]) / 2) * unit, ((event.clientY - last[1]) / 2) * unit);
      this.stage.zoom(spread([event.clientX, event.clientY]) / spread(last), this.stage.clamp(this.stage.at(middle)));
      return;
    }
    const far = Math.hypot(event.clientX - drag.screen[0], event.clientY - drag.screen[1]);
    if (!drag.moved && far < 4) return;
    const to = this.stage.clamp(this.stage.at(event));
    if (!drag.moved) {
      drag.moved = true;
      this.#remember();
      if (drag.kind === "draw") this.#add([...drag.from, ...drag.from]);
    }
    this.boxes[this.active] = drag.kind === "draw"
      ? ordered([...drag.from, ...to])
      : this.#dragged(drag.before, drag.handle, to[0] - drag.from[0], to[1] - drag.from[1]);
    this.#guide(drag.kind === "move" ? null : to);
    this.#changed();
  }

  #up(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    const drag = this.drag;
    if (this.pointers.size) return;
    this.drag = null;
    if (!drag || drag.kind === "pan" || drag.kind === "pinch") return;
    if (!drag.moved) {
      this.#choose(drag.from);
      return;
    }
    if (!drawable(this.box)) this.#back();
    else this.boxes[this.active] = this.box.map((side) => Math.round(10 * side) / 10);
    this.#changed();
  }

  #cancel(event) {
    this.pointers.delete(event.pointerId);
    this.#giveUp();
    this.drag = null;
  }

  #giveUp() {
    if (this.drag?.moved) {
      this.#back();
      this.#changed();
    }
  }

  #choose([x, y]) {
    if (this.most === 1) return;
    const size = (box) => (box[2] - box[0]) * (box[3] - box[1]);
    const under = this.boxes.filter((box) => x >= box[0] && x <= box[2] && y >= box[1] && y <= box[3]);
    under.sort((first, second) => size(first) - size(second));
    this.active = under.length ? this.boxes.indexOf(under[0]) : -1;
    this.chosen = 0;
    this.#draw();
    this.onchange(this.boxes);
  }

  #add(box) {
    if (this.boxes.length >= this.most) this.boxes.splice(Math.max(this.active, 0), 1, box);
    else this.boxes.push(box);
    this.active = this.boxes.indexOf(box);
    this.chosen = 0;
  }

  // Undo keeps whole states: they are small.

  #state() {
    return { boxes: this.boxes.map((box) => [...box]), active: this.active };
  }

  #remember() {
    this.past.push(this.#state());
    this.future = [];
  }

  #back() {
    Object.assign(this, this.past.pop());
  }

  #step(from, to) {
    if (this.cross) {
      this.#leave();
      return;
    }
    if (!from.length) return;
    to.push(this.#state());
    Object.assign(this, from.pop());
    this.chosen = 0;
    this.#changed();
  }

  #changed() {
    this.#draw();
    this.onchange(this.boxes);
  }

  /** Lines through the pointer, over the whole picture, to see what a box would touch. */
  #guide(place) {
    this.guides = place && this.enabled && !this.space ? this.stage.clamp(place) : null;
    this.#draw();
  }

  #draw() {
    const { stage } = this;
    const parts = [];
    this.boxes.forEach((box, index) => {
      if (index !== this.active) parts.push(boxShape(box, "own"));
    });
    if (this.box) parts.push(this.#activeShape(this.box));
    if (this.cross && this.anchor) parts.push(boxShape(ordered([...this.anchor, ...this.cross]), "active"));
    const guided = this.cross ?? this.guides;
    if (guided) {
      for (const kind of ["guide dark", "guide"]) {
        parts.push(shape("line", { class: kind, x1: guided[0], x2: guided[0], y1: 0, y2: stage.height }));
        parts.push(shape("line", { class: kind, y1: guided[1], y2: guided[1], x1: 0, x2: stage.width }));
      }
    }
    if (this.cross) parts.push(shape("circle", { class: "cursor", cx: this.cross[0], cy: this.cross[1], r: 8 * stage.unit }));
    stage.layer.replaceChildren(...parts);
  }

  #activeShape(box) {
    const group = boxShape(box, "active");
    const [x1, y1, x2, y2] = box;
    group.append(shape("rect", { class: "inside", x: x1, y: y1, width: x2 - x1, height: y2 - y1 }));
    if (!this.enabled) return group;
    const { unit } = this.stage;
    for (const [name, across, down] of HANDLES) {
      const place = { cx: x1 + across * (x2 - x1), cy: y1 + down * (y2 - y1) };
      const chosen = BY_KEY[this.chosen] === name ? " chosen" : "";
      group.append(shape("circle", { class: `grip${chosen}`, ...place, r: 5.5 * unit }));
    }
    // Corners last, so that they win where a small box's handles lie on each other.
    for (const [name, across, down] of [...HANDLES].sort((a, b) => a[0].length - b[0].length)) {
      const place = { cx: x1 + across * (x2 - x1), cy: y1 + down * (y2 - y1) };
      const hit = shape("circle", { class: `hit ${name}`, ...place, r: REACH * unit });
      hit.dataset.handle = name;
      group.append(hit);
    }
    return group;
  }
}
