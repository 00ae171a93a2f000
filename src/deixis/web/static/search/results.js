// Pictures in a grid, and moving among them with the arrow keys.

import { make } from "../shell.js";

const name = (path) => path.split(/[/\\]/).pop();

/** The tile of a picture that was found; `words` go along to its page. */
export function tile(hit, words = "") {
  const address = `/pictures/${hit.picture}${words ? `?q=${encodeURIComponent(words)}` : ""}`;
  // Rounded down: what is no match is not shown as 0.50.
  const score = (Math.floor(100 * hit.score) / 100).toFixed(2);
  return make(
    "a",
    { class: "tile", href: address, title: hit.path, "aria-label": `${name(hit.path)}, score ${score}` },
    make("img", { src: `/api/pictures/${hit.picture}/thumbnail`, alt: "", loading: "lazy" }),
    make("span", { class: hit.relevant ? "score yes" : "score", "aria-hidden": "true" }, score),
  );
}

/** Show hits in a grid; tiles that stay are kept, so that they do not flicker. */
export function show(grid, hits, words) {
  const before = new Map([...grid.children].map((each) => [each.dataset.picture, each]));
  grid.replaceChildren(...hits.map((hit) => {
    const made = tile(hit, words);
    const old = before.get(hit.picture)?.querySelector("img");
    if (old) made.querySelector("img").replaceWith(old);
    made.dataset.picture = hit.picture;
    return made;
  }));
}

/** Arrow keys go from tile to tile, as they lie on the screen. */
export function walk(root) {
  root.addEventListener("keydown", (event) => {
    const from = event.target.closest?.(".tile");
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!from || !way || event.ctrlKey || event.metaKey || event.altKey) return;
    const tiles = [...root.querySelectorAll(".tile")];
    const next = way[0] ? tiles[tiles.indexOf(from) + way[0]] : above(tiles, from, way[1]);
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}

function above(tiles, from, way) {
  const here = from.getBoundingClientRect();
  let best = null;
  let distance = Infinity;
  for (const other of tiles) {
    const there = other.getBoundingClientRect();
    const down = way * (there.top - here.top);
    const apart = down + Math.abs(there.left - here.left);
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
