// Pictures of one's own that were searched by: kept in the browser, so that a reload and Back find them again.

const KEPT = 8;

function store(mode) {
  return new Promise((done, fail) => {
    const opening = indexedDB.open("deixis", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("sent", { autoIncrement: true });
    opening.onerror = () => fail(opening.error);
    opening.onsuccess = () => done(opening.result.transaction("sent", mode).objectStore("sent"));
  });
}

const result = (request) => new Promise((done, fail) => {
  request.onsuccess = () => done(request.result);
  request.onerror = () => fail(request.error);
});

/** Keep a picture; the name it goes by. */
export async function keepSent(picture) {
  const pictures = await store("readwrite");
  const key = await result(pictures.add(picture));
  const keys = await result(pictures.getAllKeys());
  for (const old of keys.slice(0, -KEPT)) pictures.delete(old);
  return String(key);
}

/** A picture that was kept, or nothing. */
export async function sentPicture(name) {
  if (!/^\d+$/.test(name)) return undefined;
  return result((await store("readonly")).get(Number(name)));
}
