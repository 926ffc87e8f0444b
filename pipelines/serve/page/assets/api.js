// The server, asked with the key that the user typed. It is kept in this tab, or in memory where that is refused.

const NAME = "toolrewrite-key";
let held = "";
try {
  held = sessionStorage.getItem(NAME) ?? "";
} catch {
  // no storage: the key lives as long as the page
}

export const key = {
  get: () => held,
  set(value) {
    held = value;
    try {
      if (value) sessionStorage.setItem(NAME, value);
      else sessionStorage.removeItem(NAME);
    } catch {
      // as above
    }
  },
  fit: (value) => /^[\x21-\x7e]+$/.test(value),
};

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function fetched(path, options = {}) {
  const headers = { ...options.headers };
  if (held) headers.Authorization = `Bearer ${held}`;
  const rest = { cache: "no-store", credentials: "omit", redirect: "error", ...options, headers };
  let response;
  try {
    response = await fetch(path, rest);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "The server does not answer. It may have been stopped, or the network is gone.");
  }
  if (!response.ok) throw await refused(response);
  return response;
}

async function refused(response) {
  if (response.status === 401 && !held) return new Failure(401, "This server wants an API key.");
  let said = `The server answered ${response.status}`;
  try {
    said = (await response.json()).error.message;
  } catch {
    // something between us and the server answered
  }
  const wait = response.status === 429 ? response.headers.get("Retry-After") : null;
  const whole = said.charAt(0).toUpperCase() + said.slice(1);
  return new Failure(response.status, wait ? `${whole} (in ${wait} s).` : /[.!?]$/.test(whole) ? whole : `${whole}.`);
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
