// A list of pictures that grows as it is looked through: what was found by words or by a picture, or all pictures.
//
// Its parameters are those of the page's address, so an address says all of it. What was loaded of the last few lists is
// kept for this tab, so that going back shows them as they were, and the page of a picture knows its neighbours.

import { ask } from "../shell.js";
import { sentPicture } from "./sent.js";

export const FILTERS = ["folder", "name", "since", "until"];
const PARAMETERS = ["q", "like", "sent", ...FILTERS];
const PAGE = 48;
/** Lists that are kept, and pictures of each. */
const [KEPT, LONGEST] = [6, 3000];
const ORDER = "deixis-lists";

/** Those parameters of an address that make a list, always in the same order. */
export function listParameters(search) {
  const given = new URLSearchParams(search);
  return new URLSearchParams(PARAMETERS.filter((name) => given.get(name)?.trim()).map((name) => [name, given.get(name).trim()]));
}

export class List {
  constructor(parameters) {
    this.parameters = parameters;
    this.hits = [];
    this.more = true;
    this.scroll = 0;
  }

  get along() {
    return this.parameters.toString();
  }

  get address() {
    return this.along ? `/?${this.along}` : "/";
  }

  /** Whether something is looked for; otherwise all pictures are listed. */
  get asks() {
    return ["q", "like", "sent"].some((name) => this.parameters.has(name));
  }

  /** Load the next pictures; those that are new. */
  async load(signal) {
    const query = new URLSearchParams({ count: PAGE, offset: this.hits.length });
    for (const name of ["q", ...FILTERS]) if (this.parameters.has(name)) query.set(name, this.parameters.get(name));
    let answer;
    if (this.parameters.has("sent")) {
      const picture = await sentPicture(this.parameters.get("sent"));
      if (!picture) throw new Error("This browser does not have the picture any more. Choose it again.");
      answer = await ask(`/api/similar?${query}`, picture, signal);
    } else if (this.parameters.has("like")) {
      query.set("picture", this.parameters.get("like"));
      answer = await ask(`/api/similar?${query}`, undefined, signal);
    } else {
      answer = await ask(`/api/${this.asks ? "search" : "pictures"}?${query}`, undefined, signal);
    }
    const { hits, pictures, more, ...rest } = answer;
    const known = new Set(this.hits.map((hit) => hit.picture));
    const fresh = (hits ?? pictures).filter((hit) => !known.has(hit.picture));
    this.answer = rest;
    this.more = more && (hits ?? pictures).length > 0;
    this.hits.push(...fresh);
    return fresh;
  }

  /** Keep what was loaded for this tab. */
  keep() {
    const order = kept().filter((address) => address !== this.address);
    order.push(this.address);
    while (order.length > KEPT) sessionStorage.removeItem(`list:${order.shift()}`);
    const { hits, answer, scroll } = this;
    const more = this.more || hits.length > LONGEST;
    for (;;) {
      try {
        sessionStorage.setItem(`list:${this.address}`, JSON.stringify({ hits: hits.slice(0, LONGEST), answer, more, scroll }));
        sessionStorage.setItem(ORDER, JSON.stringify(order));
        return;
      } catch {
        // No room: older lists go first.
        if (order.length < 2) return;
        sessionStorage.removeItem(`list:${order.shift()}`);
      }
    }
  }

  /** Take up what was kept; whether there was anything. */
  restore() {
    const text = sessionStorage.getItem(`list:${this.address}`);
    if (text) Object.assign(this, JSON.parse(text));
    return Boolean(text);
  }
}

function kept() {
  return JSON.parse(sessionStorage.getItem(ORDER) ?? "[]");
}

/** The name of what was found, for people. */
export function titleOf(parameters) {
  if (parameters.get("q")) return `“${parameters.get("q")}”`;
  return parameters.has("like") || parameters.has("sent") ? "pictures like it" : "all pictures";
}
