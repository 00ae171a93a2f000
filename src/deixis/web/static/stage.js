// A picture that can be zoomed and moved, with boxes over it. All coordinates are pixels of the original picture.

const SVG = "http://www.w3.org/2000/svg";
const LARGEST_ZOOM = 24;

export function shape(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** A box as a group: a dark halo under a bright line, so that it is seen on any picture. */
export function boxShape([x1, y1, x2, y2], kind) {
  const place = { x: x1, y: y1, width: Math.max(0, x2 - x1), height: Math.max(0, y2 - y1) };
  return shape("g", { class: kind }, shape("rect", { class: "halo", ...place }), shape("rect", { class: "line", ...place }));
}

export class Stage {
  constructor(root) {
    this.root = root;
    this.width = this.height = 1;
    this.view = { x: 0, y: 0, zoom: 1 };
    this.picture = shape("image");
    this.marks = shape("g");
    this.layer = shape("g");
    this.svg = shape("svg", { role: "img" }, this.picture, this.marks, this.layer);
    this.root.replaceChildren(this.svg);
    this.onview = () => {};
    this.pointers = new Map();
    this.svg.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    new ResizeObserver(() => this.#apply()).observe(this.root);
  }

  /** Show a picture; resolves to whether it could be shown. */
  async show(url, width, height, description) {
    this.root.querySelector(".broken")?.remove();
    this.marks.replaceChildren();
    const loaded = new Image();
    loaded.src = url;
    let shown = true;
    try {
      await loaded.decode();
    } catch {
      shown = false;
    }
    this.width = width || loaded.naturalWidth || 1;
    this.height = height || loaded.naturalHeight || 1;
    this.picture.setAttribute("width", this.width);
    this.picture.setAttribute("height", this.height);
    this.picture.setAttribute("preserveAspectRatio", "none");
    if (shown) {
      this.picture.setAttribute("href", url);
    } else {
      this.picture.removeAttribute("href");
      const message = document.createElement("p");
      message.className = "broken";
      message.textContent = "This picture cannot be shown. Please report it.";
      this.root.append(message);
    }
    this.svg.setAttribute("aria-label", description);
    this.fit();
    return shown;
  }

  /** Boxes that are only looked at: [box, kind, name, colour]; without a name those of kind "done" are numbered. */
  mark(boxes) {
    this.marked = boxes;
    const parts = [];
    let number = 0;
    for (const [box, kind, name, colour] of boxes) {
      const drawn = boxShape(box, kind);
      if (colour) drawn.style.setProperty("--colour", colour);
      parts.push(drawn);
      const label = name ?? (kind === "done" ? String(++number) : "");
      if (label) {
        const text = shape("text", { class: "number", x: box[0] + 4 * this.unit, y: box[1] + 15 * this.unit });
        text.style.fontSize = `${13 * this.unit}px`;
        text.style.strokeWidth = `${3 * this.unit}px`;
        text.textContent = label;
        parts.push(text);
      }
    }
    this.marks.replaceChildren(...parts);
  }

  /** How many picture pixels a screen pixel is. */
  get unit() {
    const frame = this.root.getBoundingClientRect();
    const scale = Math.min(frame.width / this.width, frame.height / this.height) * this.view.zoom;
    return scale > 0 ? 1 / scale : 1;
  }

  /** Where on the picture an event is. */
  at(event) {
    const matrix = this.svg.getScreenCTM().inverse();
    return [matrix.a * event.clientX + matrix.e, matrix.d * event.clientY + matrix.f];
  }

  clamp([x, y]) {
    return [Math.min(Math.max(x, 0), this.width), Math.min(Math.max(y, 0), this.height)];
  }

  fit() {
    this.view = { x: 0, y: 0, zoom: 1 };
    this.#apply();
  }

  /** Zoom so that the place stays where it is on the screen. */
  zoom(factor, place) {
    const zoom = Math.min(Math.max(this.view.zoom * factor, 1), LARGEST_ZOOM);
    const [x, y] = place ?? [
      this.view.x + this.width / this.view.zoom / 2,
      this.view.y + this.height / this.view.zoom / 2,
    ];
    const ratio = this.view.zoom / zoom;
    this.view = { x: x - (x - this.view.x) * ratio, y: y - (y - this.view.y) * ratio, zoom };
    this.#apply();
  }

  pan(across, down) {
    this.view = { ...this.view, x: this.view.x - across, y: this.view.y - down };
    this.#apply();
  }

  /** Move the picture so that a place is within what is seen. */
  reveal([x, y]) {
    const [wide, high] = [this.width / this.view.zoom, this.height / this.view.zoom];
    const left = Math.min(Math.max(this.view.x, x - wide), x);
    const top = Math.min(Math.max(this.view.y, y - high), y);
    if (left !== this.view.x || top !== this.view.y) {
      this.view = { ...this.view, x: left, y: top };
      this.#apply();
    }
  }

  #wheel(event) {
    event.preventDefault();
    const step = event.deltaY * (event.deltaMode === 1 ? 20 : 1);
    this.zoom(Math.exp(-step / 400), this.clamp(this.at(event)));
  }

  #apply() {
    const [wide, high] = [this.width / this.view.zoom, this.height / this.view.zoom];
    this.view.x = Math.min(Math.max(this.view.x, 0), this.width - wide);
    this.view.y = Math.min(Math.max(this.view.y, 0), this.height - high);
    this.svg.setAttribute("viewBox", `${this.view.x} ${this.view.y} ${wide} ${high}`);
    if (this.marked?.length) this.mark(this.marked);
    this.onview();
  }
}

/** Zoom and fit by buttons and keys; returns the function that takes a key press and says whether it was one of these. */
export function zoomControls(stage, place = () => undefined) {
  const act = {
    "zoom-in": () => stage.zoom(1.4, place()),
    "zoom-out": () => stage.zoom(1 / 1.4, place()),
    "zoom-fit": () => stage.fit(),
  };
  for (const [name, run] of Object.entries(act)) {
    document.getElementById(name).addEventListener("click", () => {
      run();
      stage.root.focus();
    });
  }
  const keys = { "+": "zoom-in", "=": "zoom-in", "-": "zoom-out", "0": "zoom-fit" };
  return (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey) return false;
    act[keys[event.key]]();
    return true;
  };
}
