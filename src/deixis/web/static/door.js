// The way in. The secret stands behind the #, which browsers keep to themselves; it is sent once, when asked for.

import { ask, tell } from "./shell.js";

const form = document.getElementById("door");
const secret = location.hash.slice(1);
// Not left in the address bar for others to see.
history.replaceState(null, "", location.pathname);

if (form && !secret) tell("This link is not whole: open it as it was sent to you.", 0);
form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await ask("/api/join", form.dataset.way === "join" ? { secret, name: form.elements.name.value } : { secret });
    location.assign("/");
  } catch (problem) {
    tell(problem.message, 0);
  }
});
