// The way in. The token stands behind the #, which browsers keep to themselves.

import { ask, tell } from "../shell.js";

const form = document.getElementById("door");

async function enter(token) {
  try {
    await ask("/api/enter", { token });
    location.assign("/");
  } catch (problem) {
    tell(problem.message, 0);
  }
}

const given = location.hash.slice(1);
// Not left in the address bar for others to see.
history.replaceState(null, "", location.pathname);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  enter(form.elements.token.value);
});
if (given) enter(decodeURIComponent(given));
