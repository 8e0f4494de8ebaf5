/** The pictures that go with the next message: chosen, pasted or dropped, and shown until it is sent. */

import { byId, el, iconButton, notify, replace } from "../dom";

/** What the server decodes. */
const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
/** The server's limit on one file. */
const LARGEST = 20 * 1024 * 1024;

export class Pictures {
  private readonly list = byId("pictures");
  private urls: string[] = [];

  constructor() {
    const input = byId<HTMLInputElement>("picture-file");
    byId("attach").addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      void this.add([...(input.files ?? [])]);
      // The same file can be chosen again.
      input.value = "";
    });
    byId("prompt").addEventListener("paste", event => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      void this.add(files);
    });
    this.takeDrops(byId("view-chat"));
    this.draw();
  }

  isEmpty(): boolean {
    return this.urls.length === 0;
  }

  /** The pictures, which then are another message's. */
  take(): string[] {
    const { urls } = this;
    this.urls = [];
    this.draw();
    return urls;
  }

  private takeDrops(target: HTMLElement): void {
    const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
    target.addEventListener("dragover", event => {
      if (!hasFiles(event)) return;
      // Else the browser opens the file.
      event.preventDefault();
      target.classList.add("dropping");
    });
    target.addEventListener("dragleave", event => {
      if (!target.contains(event.relatedTarget as Node | null)) target.classList.remove("dropping");
    });
    target.addEventListener("drop", event => {
      target.classList.remove("dropping");
      if (!hasFiles(event)) return;
      event.preventDefault();
      void this.add([...(event.dataTransfer?.files ?? [])]);
      byId("prompt").focus();
    });
  }

  private async add(files: File[]): Promise<void> {
    for (const file of files) {
      const name = file.name || "The picture";
      if (!TYPES.includes(file.type)) {
        notify(`${name} is no PNG, JPEG, WebP or GIF picture.`, "error");
      } else if (file.size > LARGEST) {
        notify(`${name} has more than 20 MiB; choose a smaller picture.`, "error");
      } else {
        try {
          this.urls.push(await dataUri(file));
        } catch {
          notify(`${name} cannot be read.`, "error");
        }
      }
    }
    this.draw();
  }

  private draw(): void {
    const pictures = this.urls.map((url, i) => {
      const remove = iconButton("close", `Remove picture ${i + 1}`, () => {
        this.urls.splice(i, 1);
        this.draw();
        byId("prompt").focus();
      });
      return el("li", {}, el("img", { src: url, alt: `Picture ${i + 1}` }), remove);
    });
    this.list.hidden = pictures.length === 0;
    replace(this.list, ...pictures);
  }
}

function dataUri(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(String(reader.result)));
    reader.addEventListener("error", () => reject(reader.error ?? new Error("unreadable")));
    reader.readAsDataURL(file);
  });
}

/** Only data URIs of pictures: an imported conversation must not make the page fetch anything. */
export function picturesNode(images: string[] | undefined): HTMLElement | null {
  const safe = (images ?? []).filter(url => TYPES.some(type => url.startsWith(`data:${type};base64,`)));
  if (!safe.length) return null;
  const pictures = safe.map((url, i) => el("img", { src: url, alt: `Picture ${i + 1}` }));
  return el("div", { class: "pictures" }, ...pictures);
}
