/** Builds DOM nodes. All text is set as text, so no model output is ever parsed as HTML. */

export type Child = Node | string | null | undefined | false;
type Listener = (event: never) => unknown;
export type Attributes = Record<string, string | number | boolean | null | undefined | Listener>;

const SVG = "http://www.w3.org/2000/svg";

/**
 * `onclick` and the like take functions; true is an empty attribute; false and null are left out.
 */
export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag: string, attributes: Attributes = {}, ...children: Child[]): SVGElement {
  return fill(document.createElementNS(SVG, tag) as SVGElement, attributes, children);
}

function fill<E extends Element>(node: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      node.addEventListener(name.slice(2), value as EventListener);
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...present(children));
  return node;
}

export function replace(node: Element, ...children: Child[]): void {
  node.replaceChildren(...present(children));
}

/** Makes `wanted` the children; nodes that stay in place keep their focus and selection. */
export function arrange(node: Element, wanted: Node[]): void {
  const isSame =
    wanted.length === node.childNodes.length &&
    wanted.every((one, i) => one === node.childNodes[i]);
  if (isSame) return;
  let at = 0;
  while (at < wanted.length && wanted[at] === node.childNodes[at]) at += 1;
  while (node.childNodes.length > at) node.lastChild!.remove();
  node.append(...wanted.slice(at));
}

function present(children: Child[]): (Node | string)[] {
  return children.filter(
    (child): child is Node | string => child !== null && child !== undefined && child !== false,
  );
}

/** A node of the page that index.html has. */
export function byId<E extends HTMLElement>(id: string): E {
  const node = document.getElementById(id);
  if (!node) throw new Error(`the page has no #${id}`);
  return node as E;
}

/** Tells screen readers, without moving the focus. */
export function announce(text: string): void {
  byId("announcer").textContent = text;
}

/** Shows a message for some seconds; an error stays until it is closed. */
export function notify(text: string, kind: "info" | "error" = "info"): void {
  const note = el(
    "div",
    { class: `note ${kind}`, role: kind === "error" ? "alert" : "status" },
    el("span", {}, text),
  );
  note.append(iconButton("close", "Close this message", () => note.remove()));
  byId("notes").append(note);
  if (kind === "info") setTimeout(() => note.remove(), 4000);
}

/** Strokes of 24 by 24 icons. */
const ICONS = {
  attach: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  done: "M5 13l4 4L19 7",
  down: "M6 9l6 6 6-6",
  download: "M12 4v11m0 0l-4-4m4 4l4-4M5 20h14",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  left: "M15 6l-6 6 6 6",
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  right: "M9 6l6 6-6 6",
  send: "M12 19V5m0 0l-6 6m6-6l6 6",
  sliders: "M4 7h9m5 0h2M4 17h3m5 0h8M13 4v6M7 14v6",
  stop: "M7 7h10v10H7z",
  theme: "M12 4a8 8 0 100 16zM12 4a8 8 0 010 16",
  tokens: "M5 8h4v8H5zM11 5h3v11h-3zM16 11h3v5h-3z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  again: "M5 12a7 7 0 0112-5l2 2M19 4v5h-5M19 12a7 7 0 01-12 5l-2-2M5 20v-5h5",
  upload: "M12 15V4m0 0L8 8m4-4l4 4M5 20h14",
};
export type IconName = keyof typeof ICONS;

export function icon(name: IconName): SVGElement {
  return svg(
    "svg",
    { viewBox: "0 0 24 24", class: "icon-svg", "aria-hidden": "true" },
    svg("path", { d: ICONS[name] }),
  );
}

/** A button with an icon and a name for screen readers, which is its tooltip too. */
export function iconButton(
  name: IconName,
  label: string,
  onclick: (event: MouseEvent) => unknown,
): HTMLButtonElement {
  return el(
    "button",
    { type: "button", class: "icon", "aria-label": label, title: label, onclick },
    icon(name),
  );
}

/** Asks a yes-or-no question; Escape means no. */
export function confirmed(question: string, action: string): Promise<boolean> {
  return new Promise(resolve => {
    const dialog = el("dialog", { "aria-label": question });
    const answer = (yes: boolean) => () => {
      dialog.close(yes ? "yes" : "");
    };
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    dialog.append(
      el("p", {}, question),
      el(
        "div",
        { class: "buttons" },
        el("button", { type: "button", onclick: answer(false) }, "Cancel"),
        el("button", { type: "button", class: "danger", onclick: answer(true) }, action),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

export async function copyText(text: string, button: HTMLElement): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text);
  }
  announce("Copied");
  button.classList.add("copied");
  setTimeout(() => button.classList.remove("copied"), 1200);
}

/** The clipboard API needs a secure origin, which a server on the local network is not. */
function copyBySelection(text: string): void {
  const area = el("textarea", { class: "offscreen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** Offers a text as a file. */
export function download(name: string, type: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
