// A plain script, not a module: browsers load no modules from disk.
"use strict";

const stage = document.querySelector(".stage");
if (stage) {
  const rects = [...stage.querySelectorAll("rect")];
  const caption = stage.querySelector("figcaption");
  const show = (line, snippet) => {
    for (const other of stage.querySelectorAll("li.open")) other.classList.toggle("open", other === line);
    line.classList.add("open");
    const own = new Set([...line.querySelectorAll(".snippet")].map((each) => each.dataset.region));
    const chosen = snippet && snippet.dataset.region;
    for (const each of stage.querySelectorAll(".snippet")) {
      each.classList.toggle("on", each.parentElement.parentElement === line && each.dataset.region === chosen);
    }
    for (const rect of rects) {
      const region = rect.dataset.region;
      rect.classList.toggle("on", chosen ? region === chosen : own.has(region));
      rect.classList.toggle("dim", Boolean(chosen) && own.has(region) && region !== chosen);
    }
    caption.textContent = snippet ? snippet.title : "";
  };
  const react = (event) => {
    const line = event.target.closest(".sentences li");
    if (line) show(line, event.target.closest(".snippet"));
  };
  stage.addEventListener("mouseover", react);
  stage.addEventListener("focusin", react);
  stage.addEventListener("click", react);
  const first = stage.querySelector(".sentences li");
  if (first) show(first, null);
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const way = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
    const link = way && document.querySelector(`a[rel="${way}"]`);
    if (link) link.click();
  });
}

const search = document.querySelector("input[type=search]");
if (search) {
  const found = document.querySelector("#found");
  const MOST = 50;
  const look = () => {
    found.replaceChildren();
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length || !window.CAPTIONS) return;
    let count = 0;
    for (const [page, text] of window.CAPTIONS) {
      const own = text.toLowerCase().split(" ");
      if (!words.every((word) => own.some((each) => each.startsWith(word)))) continue;
      if (++count > MOST) break;
      const link = document.createElement("a");
      link.href = `pictures/${page}.html`;
      link.textContent = text;
      const line = document.createElement("li");
      line.append(link);
      found.append(line);
    }
    if (!count) found.append(Object.assign(document.createElement("li"), { textContent: "Nothing is said in these words." }));
  };
  search.addEventListener("input", look);
  search.addEventListener("focus", () => {
    // All captions at once are large: they are loaded when somebody looks for something.
    const script = document.createElement("script");
    script.src = "captions.js";
    script.addEventListener("load", look);
    document.head.append(script);
  }, { once: true });
}
