// Pictures in a grid, and moving among them with the arrow keys.

import { make } from "../shell.js";

/** The widest and the narrowest tile; what is beyond is cut off at its ends. */
const [NARROWEST, WIDEST] = [0.56, 2];
/** So many pictures are loaded at once; others when they come near the screen. */
const AT_ONCE = 12;

export const nameOf = (path) => path.split(/[/\\]/).pop();

function shape(element, ratio) {
  element.style.setProperty("--ratio", Math.min(WIDEST, Math.max(NARROWEST, ratio)).toFixed(3));
}

/** A score for people. Rounded down: what is no match is not shown as 0.50. */
export const shownScore = (score) => (Math.floor(100 * score + 1e-9) / 100).toFixed(2);

/** The tile of a picture; `along` are the parameters of its list, which go along to its page. */
export function tile(hit, along = "", eager = false) {
  const name = nameOf(hit.path);
  const score = hit.score === undefined ? "" : shownScore(hit.score);
  const image = make("img", {
    src: `/api/pictures/${hit.picture}/thumbnail`, alt: "", loading: eager ? "eager" : "lazy", decoding: "async",
  });
  const made = make(
    "div",
    { class: "tile", title: hit.path },
    make("a", {
      class: "open", href: `/pictures/${hit.picture}${along ? `?${along}` : ""}`,
      "aria-label": score ? `${name}, score ${score}` : name,
    }, image),
    make("a", { class: "like", href: `/?like=${hit.picture}`, title: "More like this", "aria-label": `More like ${name}` }, "≈"),
    make("label", { class: "pick", title: "Select" }, make("input", { type: "checkbox", "aria-label": `Select ${name}` })),
  );
  if (score) made.append(make("span", { class: hit.relevant ? "score yes" : "score", "aria-hidden": "true" }, score));
  if (hit.width && hit.height) shape(made, hit.width / hit.height);
  else image.addEventListener("load", () => shape(made, image.naturalWidth / image.naturalHeight));
  image.addEventListener("error", () => {
    made.classList.add("gone");
    image.replaceWith(make("span", {}, "Gone or changed since it was indexed"));
  });
  made.dataset.picture = hit.picture;
  made.dataset.path = hit.path;
  return made;
}

/** Show hits in a grid; pictures that stay are kept, so that they do not flicker. */
export function show(grid, hits, along) {
  const before = new Map([...grid.children].map((each) => [each.dataset.picture, each.querySelector("img")]));
  grid.replaceChildren(...hits.map((hit, number) => {
    const made = tile(hit, along, number < AT_ONCE);
    const old = before.get(hit.picture);
    if (old?.complete && old.naturalWidth) made.querySelector("img").replaceWith(old);
    return made;
  }));
}

/** Move among the tiles of a page with the arrow keys. */
export function walk(root) {
  root.addEventListener("keydown", (event) => {
    const from = event.target.closest?.(".tile");
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!from || !way || event.ctrlKey || event.metaKey || event.altKey) return;
    const tiles = [...root.querySelectorAll(".tile")];
    const next = way[0] ? tiles[tiles.indexOf(from) + way[0]] : above(tiles, from, way[1]);
    if (!next) return;
    event.preventDefault();
    next.querySelector(".open").focus();
  });
}

function above(tiles, from, way) {
  const here = from.getBoundingClientRect();
  const middle = here.left + here.width / 2;
  let best = null;
  let distance = Infinity;
  for (const other of tiles) {
    const there = other.getBoundingClientRect();
    const down = way * (there.top - here.top);
    const apart = 3 * down + Math.abs(there.left + there.width / 2 - middle);
    if (down > here.height / 2 && apart < distance) [best, distance] = [other, apart];
  }
  return best;
}

/** A function that calls another once nothing has been asked for a while; what is under way is taken back. */
export function unhurried(act, milliseconds = 160) {
  let timer = 0;
  let running = null;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      running?.abort();
      const own = new AbortController();
      running = own;
      try {
        await act(own.signal, ...values);
      } catch (problem) {
        if (!own.signal.aborted) throw problem;
      }
    }, milliseconds);
  };
}
