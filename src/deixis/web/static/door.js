// The way in. The secret stands behind the #, which browsers keep to themselves; it is sent once, when asked for.

import { ask, copy, make, notify } from "./shell.js";

const form = document.getElementById("door");
const secret = location.hash.slice(1);
// Not left in the address bar for others to see.
history.replaceState(null, "", location.pathname);

if (form && !secret) notify("This link is not whole: open it as it was sent to you.", 0);
form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const { link } = await ask("/api/join", form.dataset.way === "join" ? { secret, name: form.elements.name.value } : { secret });
    if (link) showLink(location.origin + link);
    else location.assign("/");
  } catch (problem) {
    notify(problem.message, 0);
  }
});

/** The link by which somebody signs in again, to be kept before the work begins. */
function showLink(link) {
  const field = make("input", { readonly: true, value: link, "aria-label": "Your sign-in link", id: "link" });
  document.getElementById("invitation").remove();
  form.replaceWith(
    make("p", {}, "You are in. Keep this link: it signs you in again, on any device. It is yours alone."),
    make("p", { class: "row" }, field, make("button", { type: "button", onclick: () => copy(field) }, "Copy")),
    make("p", {}, make("button", { type: "button", class: "primary", id: "go", onclick: () => location.assign("/") }, "Go on")));
  document.getElementById("go").focus();
}
