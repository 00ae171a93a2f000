// The way in. The token stands behind the #, which browsers keep to themselves.

import { ask, notify } from "../shell.js";

const form = document.getElementById("door");

async function enter(token) {
  try {
    await ask("/api/enter", { token });
    location.assign("/");
  } catch (problem) {
    notify(problem.message, 0);
  }
}

/** Use the token of the address, and do not leave it there for others to see. */
function arrive() {
  const given = location.hash.slice(1);
  if (!given) return;
  history.replaceState(null, "", location.pathname);
  enter(decodeURIComponent(given));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  enter(form.elements.token.value);
});
addEventListener("hashchange", arrive);
arrive();
