// What pages share: talking to the server, telling people, and leaving.

const token = document.querySelector('meta[name="csrf"]')?.content ?? "";
const notice = document.getElementById("notice");
let hush = 0;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Say something in a few words; it goes away by itself after a while. */
export function notify(text, seconds = 6) {
  notice.textContent = text.charAt(0).toUpperCase() + text.slice(1);
  clearTimeout(hush);
  if (text && seconds) hush = setTimeout(() => { notice.textContent = ""; }, 1000 * seconds);
}

const pause = (milliseconds) => new Promise((done) => { setTimeout(done, milliseconds); });

/**
 * Ask the server; with `sent`, send it: a file as it is, anything else as JSON. A lost connection, a server that
 * restarts or is too busy is asked again until it answers: whatever we send may be sent twice and counts once. Through
 * `signal` the question is taken back.
 */
export async function ask(path, sent, signal) {
  const file = sent instanceof Blob;
  const request = sent === undefined
    ? { headers: { Accept: "application/json" }, signal }
    : {
      method: "POST",
      headers: {
        Accept: "application/json",
        "Content-Type": file ? sent.type || "application/octet-stream" : "application/json",
        "X-CSRF-Token": token,
      },
      body: file ? sent : JSON.stringify(sent),
      signal,
    };
  for (let wait = 300; ; wait = Math.min(2 * wait, 5000)) {
    let reply;
    try {
      reply = await fetch(path, request);
    } catch (problem) {
      if (signal?.aborted) throw problem;
      notify("The server does not answer. Trying again …", 0);
      await pause(wait);
      continue;
    }
    if (reply.status === 429 || reply.status >= 502) {
      notify("The server is busy. Trying again …", 0);
      await pause(Math.max(wait, 1000 * Number(reply.headers.get("Retry-After") ?? 0)));
      continue;
    }
    if (notice.textContent.endsWith("Trying again …")) notify("");
    const content = await reply.json();
    if (reply.ok) return content;
    if (reply.status === 401) location.assign("/");
    throw new Refused(reply.status, content.error);
  }
}

/** An element with attributes, and children that are elements or text. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== false && value !== undefined) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** Copy what a field holds, or select it where browsers do not lend the clipboard (without HTTPS). */
export async function copy(field) {
  field.select();
  const copied = await navigator.clipboard?.writeText(field.value).then(() => true, () => false);
  notify(copied ? "Copied." : "This browser does not let us copy: press Ctrl C, the link is selected.");
}

/** Whether a key press is meant for a field or a dialog rather than for the page. */
export function typing(event) {
  return event.target.closest?.("input, textarea, select, dialog") || document.querySelector("dialog[open]");
}

document.getElementById("leave")?.addEventListener("click", async () => {
  await ask("/api/leave", {});
  location.assign("/");
});
