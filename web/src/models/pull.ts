/** Downloads a model from the hub, with progress; cancelling keeps what has arrived. */

import { ApiError, jsonLines, request } from "../api";
import { sentence } from "../chat/generate";
import { announce, byId, el, notify } from "../dom";
import { bytes, seconds, share } from "../format";

type Line =
  | { status: "starting"; completed: number; total: number; files: number }
  | { status: "downloading"; file: string; completed: number; total: number }
  | { status: "waiting"; seconds: number; reason: string }
  | { status: "done"; model: string };

export class PullForm {
  private readonly input = byId<HTMLInputElement>("pull-name");
  private readonly list = byId("pulls");

  constructor(private readonly onDone: () => void) {
    byId("pull-form").addEventListener("submit", event => {
      event.preventDefault();
      const name = this.input.value.trim();
      if (name) void this.pull(name);
    });
  }

  private async pull(name: string): Promise<void> {
    const controller = new AbortController();
    const progress = new Progress(name, () => controller.abort());
    this.list.append(progress.node);
    this.input.value = "";
    try {
      const response = await request(
        "POST",
        "v1/models/pull",
        { model: name, stream: true },
        controller.signal,
      );
      for await (const line of jsonLines<Line>(response)) progress.update(line);
      notify(`${name} is on this machine.`);
      this.onDone();
    } catch (error) {
      if (controller.signal.aborted) notify(`Stopped; the next pull of ${name} goes on from here.`);
      else notify(withHint(error), "error");
    }
    progress.node.remove();
  }
}

function withHint(error: unknown): string {
  const hint =
    error instanceof ApiError && error.code === "hub_access_denied"
      ? " Start the server with HF_TOKEN set."
      : "";
  return sentence(error) + hint;
}

class Progress {
  readonly node: HTMLElement;
  private readonly bar = el("progress", { max: 1, "aria-label": "Progress" });
  private readonly text = el("p", {}, "Asking the hub");
  private readonly files = new Map<string, number>();
  private present = 0;
  private total = 0;
  private readonly started = performance.now();

  constructor(name: string, onCancel: () => void) {
    this.node = el(
      "li",
      { class: "card" },
      el("h3", {}, name),
      this.bar,
      this.text,
      el(
        "div",
        { class: "buttons" },
        el("button", { type: "button", onclick: onCancel }, "Cancel"),
      ),
    );
    announce(`Downloading ${name}`);
  }

  update(line: Line): void {
    if (line.status === "starting") [this.present, this.total] = [line.completed, line.total];
    if (line.status === "waiting")
      this.text.textContent = `Waiting ${line.seconds} s: ${line.reason}`;
    if (line.status === "downloading") this.files.set(line.file, line.completed);
    if (line.status !== "waiting") this.draw();
  }

  private draw(): void {
    const received = [...this.files.values()].reduce((sum, one) => sum + one, 0);
    const done = Math.min(this.total, this.present + received);
    const elapsed = (performance.now() - this.started) / 1000;
    const left = received > 0 ? ((this.total - done) / received) * elapsed : 0;
    this.bar.value = this.total > 0 ? done / this.total : 0;
    this.text.textContent =
      `${bytes(done)} of ${bytes(this.total)}, ${share(done, this.total)}` +
      (left > 1 ? `, ${bytes(received / elapsed)}/s, ${seconds(left)} left` : "");
  }
}
