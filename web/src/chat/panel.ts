/** The panel of a conversation's settings. */

import { byId, el, replace } from "../dom";
import { defaults, NUMBERS, type Settings } from "../settings";

interface NumberField {
  label: string;
  min: number;
  max: number;
  step: number | "any";
}

const NUMBER_FIELDS: Record<(typeof NUMBERS)[number], NumberField> = {
  temperature: { label: "Temperature", min: 0, max: 100, step: "any" },
  top_p: { label: "Top-p", min: 0.001, max: 1, step: "any" },
  top_k: { label: "Top-k", min: -1, max: 1_000_000, step: 1 },
  min_p: { label: "Min-p", min: 0, max: 1, step: "any" },
  repetition_penalty: { label: "Repetition penalty", min: 0.01, max: 100, step: "any" },
  presence_penalty: { label: "Presence penalty", min: -100, max: 100, step: "any" },
  frequency_penalty: { label: "Frequency penalty", min: -100, max: 100, step: "any" },
  max_tokens: { label: "Maximum of new tokens", min: 1, max: 10_000_000, step: 1 },
  seed: { label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
};

const SPECULATION: [string, string][] = [
  ["", "As the server is set"],
  ["auto", "Auto: drafts where it pays"],
  ["off", "Off"],
  ["ngram", "ngram: prompt lookup"],
  ["mtp", "mtp: prediction head"],
  ["draft_model", "draft_model: smaller model"],
  ["block", "block: block drafter"],
  ["self", "self: skipping layers"],
  ["self:lossy", "self, lossy: may change the answer"],
];
const THINKING: [string, string][] = [
  ["default", "As the template is set"],
  ["on", "On"],
  ["off", "Off"],
];
const FORMATS: [string, string][] = [
  ["text", "Text"],
  ["json_object", "JSON object"],
  ["json_schema", "JSON schema"],
  ["regex", "Regular expression"],
];
const TOOL_CHOICES: [string, string][] = [
  ["auto", "Auto"],
  ["required", "Required"],
  ["none", "None"],
];
const APPROVALS: [string, string][] = [
  ["always", "Ask before each call"],
  ["never", "Call without asking"],
];
const PRIORITIES: [string, string][] = [
  ["normal", "Normal"],
  ["interactive", "Interactive"],
  ["background", "Background"],
];

type Key = keyof Settings;

export class SettingsPanel {
  private readonly form = byId<HTMLFormElement>("settings-form");

  constructor(
    private readonly settings: () => Settings,
    private readonly onChange: () => void,
  ) {
    this.form.addEventListener("submit", event => event.preventDefault());
    byId("reset").addEventListener("click", () => {
      Object.assign(this.settings(), defaults(), { model: this.settings().model });
      this.onChange();
      this.draw();
    });
  }

  draw(): void {
    const { settings } = this;
    replace(
      this.form,
      this.group(
        "Prompt",
        true,
        this.area("system", "System prompt", 4),
        this.choice("thinking", "Reasoning", THINKING),
      ),
      this.group(
        "Sampling",
        true,
        el("div", { class: "grid" }, ...NUMBERS.map(name => this.number(name))),
        this.area("stop", "Stop strings, one a line", 2),
      ),
      this.group(
        "Output",
        true,
        this.choice("format", "Format", FORMATS),
        settings().format === "json_schema"
          ? this.area("schema", "JSON schema", 6, '{"type": "object", "properties": …}')
          : null,
        settings().format === "regex" ? this.area("regex", "Regular expression", 2) : null,
        this.check("logprobs", "Token probabilities"),
      ),
      this.group(
        "Speculative decoding",
        false,
        this.choice("speculation", "Drafter", SPECULATION),
        this.number("depth", { label: "Most tokens of a draft", min: 0, max: 32, step: 1 }),
      ),
      this.group(
        "Tools",
        false,
        this.area(
          "tools",
          "Functions, as a JSON array",
          6,
          '[{"name": "weather", "parameters": {"type": "object"}}]',
        ),
        this.choice("tool_choice", "Calls", TOOL_CHOICES),
      ),
      this.servers(),
      this.group("Queue", false, this.choice("priority", "Priority", PRIORITIES)),
    );
  }

  /** The labels of the server's MCP servers. */
  setServers(labels: string[]): void {
    this.labels = labels;
    this.draw();
  }

  private labels: string[] = [];

  /** Also servers that are gone, so that a conversation can do without them. */
  private servers(): HTMLElement | null {
    const labels = [...new Set([...this.labels, ...this.settings().mcp])];
    if (!labels.length) return null;
    const boxes = labels.map(label => {
      const { mcp } = this.settings();
      const input = el("input", {
        id: `setting-mcp-${label}`,
        type: "checkbox",
        checked: mcp.includes(label),
      });
      input.addEventListener("change", () => {
        const others = this.settings().mcp.filter(other => other !== label);
        this.set("mcp", input.checked ? [...others, label] : others);
      });
      const name = this.labels.includes(label) ? label : `${label} (not there any more)`;
      return el("div", { class: "check" }, input, el("label", { for: input.id }, name));
    });
    return this.group(
      "MCP servers",
      true,
      ...boxes,
      this.choice("mcp_approval", "Their calls", APPROVALS),
    );
  }

  private readonly openGroups = new Map<string, boolean>();

  private group(name: string, open: boolean, ...fields: (HTMLElement | null)[]): HTMLElement {
    const details = el(
      "details",
      { open: this.openGroups.get(name) ?? open },
      el("summary", {}, name),
      ...fields,
    );
    details.addEventListener("toggle", () => this.openGroups.set(name, details.open));
    return details;
  }

  private set<K extends Key>(name: K, value: Settings[K]): void {
    this.settings()[name] = value;
    this.onChange();
  }

  private field(name: string, label: string, input: HTMLElement, hint?: HTMLElement): HTMLElement {
    return el(
      "div",
      { class: "field" },
      el("label", { for: `setting-${name}` }, label),
      input,
      hint,
    );
  }

  private area(
    name: "system" | "stop" | "schema" | "regex" | "tools",
    label: string,
    rows: number,
    placeholder?: string,
  ): HTMLElement {
    const input = el("textarea", { id: `setting-${name}`, rows, placeholder, spellcheck: "false" });
    input.addEventListener("input", () => this.set(name, input.value));
    input.value = this.settings()[name];
    return this.field(name, label, input);
  }

  private number(
    name: (typeof NUMBERS)[number] | "depth",
    field = NUMBER_FIELDS[name as (typeof NUMBERS)[number]],
  ): HTMLElement {
    const { label, min, max, step } = field;
    const error = el("p", { class: "failure", id: `setting-${name}-error`, hidden: true });
    const input = el("input", {
      id: `setting-${name}`,
      type: "number",
      min,
      max,
      step,
      placeholder: "model’s",
      "aria-describedby": error.id,
    });
    input.value = String(this.settings()[name] ?? "");
    input.addEventListener("input", () => {
      error.hidden = input.validity.valid;
      input.setAttribute("aria-invalid", String(!input.validity.valid));
      error.textContent = input.validity.valid ? "" : `From ${min} to ${max}.`;
      if (input.validity.valid) this.set(name, input.value === "" ? null : Number(input.value));
    });
    return this.field(name, label, input, error);
  }

  private choice(
    name: "thinking" | "format" | "speculation" | "tool_choice" | "mcp_approval" | "priority",
    label: string,
    options: [string, string][],
  ): HTMLElement {
    const input = el(
      "select",
      { id: `setting-${name}` },
      ...options.map(([value, text]) => el("option", { value }, text)),
    );
    input.value = this.settings()[name];
    input.addEventListener("change", () => {
      this.set(name, input.value as never);
      if (name !== "format") return;
      this.draw();
      byId("setting-format").focus();
    });
    return this.field(name, label, input);
  }

  private check(name: "logprobs", label: string): HTMLElement {
    const input = el("input", {
      id: `setting-${name}`,
      type: "checkbox",
      checked: this.settings()[name],
    });
    input.addEventListener("change", () => this.set(name, input.checked));
    return el("div", { class: "check" }, input, el("label", { for: input.id }, label));
  }
}
