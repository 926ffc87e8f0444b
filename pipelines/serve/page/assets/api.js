// Requests to the server with the user's key, which is kept in this tab's session storage, or in memory.

const NAME = "toolrewrite-key";
let current = "";
try {
  current = sessionStorage.getItem(NAME) ?? "";
} catch {
  // no storage: the key is lost when the page is closed
}

export const key = {
  get: () => current,
  set(value) {
    current = value;
    try {
      if (value) sessionStorage.setItem(NAME, value);
      else sessionStorage.removeItem(NAME);
    } catch {
      // as above
    }
  },
  isValid: (value) => /^[\x21-\x7e]+$/.test(value),
};

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function fetched(path, options = {}) {
  const headers = { ...options.headers };
  if (current) headers.Authorization = `Bearer ${current}`;
  const rest = { cache: "no-store", credentials: "omit", redirect: "error", ...options, headers };
  let response;
  try {
    response = await fetch(path, rest);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "The server does not answer. It may be stopped, or the network is down.");
  }
  if (!response.ok) throw await refused(response);
  return response;
}

async function refused(response) {
  if (response.status === 401 && !current) return new Failure(401, "This server needs an API key.");
  let text = `The server answered ${response.status}`;
  try {
    text = (await response.json()).error.message;
  } catch {
    // the answer is not the server's, but a proxy's
  }
  const wait = response.status === 429 ? response.headers.get("Retry-After") : null;
  const sentence = text.charAt(0).toUpperCase() + text.slice(1);
  return new Failure(response.status, wait ? `${sentence} (in ${wait} s).` : /[.!?]$/.test(sentence) ? sentence : `${sentence}.`);
}

export async function call(method, path, body, signal) {
  const options = { method, signal };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  const response = await fetched(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(response.status, "The server's answer cannot be read.");
  }
}
