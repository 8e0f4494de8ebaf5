/**
 * The models on this machine: their state, whether they fit, loading and unloading; and downloads.
 */

import { getJson, postJson } from "../api";
import { sentence } from "../chat/generate";
import { byId, el, icon, notify, replace } from "../dom";
import { bytes, count } from "../format";
import { PullForm } from "./pull";

export interface Model {
  id: string;
  state: "loaded" | "loading" | "on_disk";
  default: boolean;
  aliases?: string[];
  pinned?: boolean;
  expires_at?: number | null;
  context_length?: number;
  tool_dialect?: string | null;
  size_bytes?: number;
  family?: string;
  format?: string;
  memory?: { weight_bytes: number; bytes_per_token: number; most_tokens: number | null };
}

interface Stats {
  memory: { active_bytes: number; limit_bytes?: number | null; machine_bytes?: number | null };
}

/** Of the machine's memory, which the server fills with weights before models leave. */
const USABLE = 0.9;
/** A model needs this much more than its weights to compute. */
const OVERHEAD = 1.1;
const STATES = { loaded: "loaded", loading: "loading", on_disk: "on disk" };

export class ModelsView {
  models: Model[] = [];
  private stats: Stats | null = null;
  private readonly body = byId("model-list");
  private timer: ReturnType<typeof setInterval> | null = null;

  constructor(private readonly onChange: (models: Model[]) => void) {
    new PullForm(() => void this.refresh());
  }

  show(): void {
    void this.refresh();
    // Listing reads the disk, so only a load is watched.
    this.timer ??= setInterval(
      () => this.models.some(model => model.state === "loading") && void this.refresh(),
      2000,
    );
  }

  hide(): void {
    if (this.timer) clearInterval(this.timer);
    this.timer = null;
  }

  async refresh(): Promise<void> {
    try {
      const [list, stats] = await Promise.all([
        getJson<{ data: Model[] }>("v1/models"),
        getJson<Stats>("v1/stats"),
      ]);
      const isSame =
        JSON.stringify([this.models, this.stats?.memory.limit_bytes]) ===
        JSON.stringify([list.data, stats.memory.limit_bytes]);
      [this.models, this.stats] = [list.data, stats];
      // Redrawing would take the focus from a button.
      if (isSame && this.body.childNodes.length) return;
      this.draw();
      this.onChange(this.models);
    } catch (error) {
      replace(this.body, el("p", { class: "failure", role: "alert" }, sentence(error)));
    }
  }

  private draw(): void {
    const focused =
      document.activeElement instanceof HTMLElement
        ? document.activeElement.dataset.key
        : undefined;
    replace(
      this.body,
      this.machine(),
      el("ul", { class: "cards" }, ...this.models.map(model => this.card(model))),
    );
    if (focused)
      this.body.querySelector<HTMLElement>(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  private machine(): HTMLElement | null {
    const memory = this.stats?.memory;
    const whole = this.usable();
    if (!memory || whole === null) return null;
    const limit = memory.limit_bytes
      ? `--memory-limit is ${bytes(memory.limit_bytes)}`
      : `this machine has ${bytes(memory.machine_bytes ?? 0)}, of which models may use ${bytes(whole)}`;
    return el("p", { class: "hint" }, `Loaded models hold ${bytes(this.loadedBytes())}; ${limit}.`);
  }

  /** Bytes that models may take, or null if the server does not tell. */
  private usable(): number | null {
    const memory = this.stats?.memory;
    return memory?.limit_bytes ?? (memory?.machine_bytes ? memory.machine_bytes * USABLE : null);
  }

  private loadedBytes(): number {
    return this.models.reduce((sum, model) => sum + (model.memory?.weight_bytes ?? 0), 0);
  }

  private card(model: Model): HTMLElement {
    const facts: (string | false | null | undefined)[] = [
      model.family,
      model.format,
      model.size_bytes !== undefined && bytes(model.size_bytes),
      model.memory && `${bytes(model.memory.weight_bytes)} of weights`,
      model.context_length !== undefined && `${count(model.context_length)} tokens of context`,
      model.memory && `${bytes(model.memory.bytes_per_token)} a token`,
      model.tool_dialect && `tools: ${model.tool_dialect}`,
      model.aliases?.length ? `also ${model.aliases.join(", ")}` : null,
      model.expires_at
        ? `leaves at ${new Date(model.expires_at * 1000).toLocaleTimeString()}`
        : false,
    ];
    const badges = [
      STATES[model.state],
      model.default && "default",
      model.pinned && "pinned",
    ].filter((badge): badge is string => Boolean(badge));
    return el(
      "li",
      { class: `card ${model.state}`, "aria-busy": String(model.state === "loading") },
      el(
        "h3",
        {},
        model.id,
        ...badges.map((badge, i) =>
          el("span", { class: i === 0 ? `badge ${model.state}` : "badge" }, badge),
        ),
      ),
      el("p", { class: "facts" }, facts.filter(Boolean).join(" · ")),
      model.state === "on_disk" ? this.fit(model) : null,
      el("div", { class: "buttons" }, ...this.buttons(model)),
    );
  }

  private fit(model: Model): HTMLElement | null {
    const whole = this.usable();
    if (whole === null || model.size_bytes === undefined) return null;
    const needed = model.size_bytes * OVERHEAD;
    if (needed > whole)
      return el("p", { class: "fit no" }, `Too large: it needs about ${bytes(needed)}.`);
    if (needed > whole - this.loadedBytes())
      return el("p", { class: "fit alone" }, "Fits, once an idle model has left.");
    return el("p", { class: "fit yes" }, "Fits beside the loaded models.");
  }

  private buttons(model: Model): HTMLElement[] {
    const button = (label: string, path: string, body: object) =>
      el(
        "button",
        {
          type: "button",
          "data-key": `${label} ${model.id}`,
          "aria-label": `${label} ${model.id}`,
          onclick: (event: MouseEvent) =>
            void this.act(event.currentTarget as HTMLButtonElement, label, model, path, body),
        },
        label,
      );
    if (model.state === "loading") return [];
    if (model.state === "loaded") {
      return [
        model.default ? null : button("Make default", "v1/models/load", { model: model.id }),
        button("Unload", "v1/models/unload", { model: model.id }),
      ].filter((one): one is HTMLButtonElement => one !== null);
    }
    return [button("Load", "v1/models/load", { model: model.id, replace: false })];
  }

  private async act(
    button: HTMLButtonElement,
    label: string,
    model: Model,
    path: string,
    body: object,
  ): Promise<void> {
    button.disabled = true;
    replace(button, icon("again"), `${label}…`);
    try {
      await postJson(path, body);
      notify(label === "Unload" ? `${model.id} is unloaded.` : `${model.id} is loaded.`);
    } catch (error) {
      notify(sentence(error), "error");
    }
    button.disabled = false;
    replace(button, label);
    await this.refresh();
  }
}
