/** The field in which a message is written, with the send or stop button. */

import { byId, icon, replace } from "../dom";
import { Pictures } from "./pictures";

const TALLEST = 260;

export class Composer {
  private readonly field = byId<HTMLTextAreaElement>("prompt");
  private readonly button = byId<HTMLButtonElement>("send");
  private readonly pictures = new Pictures();
  private isRunning = false;

  constructor(
    private readonly send: (text: string, images: string[]) => void,
    private readonly stop: () => void,
  ) {
    byId("composer").addEventListener("submit", event => {
      event.preventDefault();
      this.submit();
    });
    this.field.addEventListener("input", () => this.resize());
    this.field.addEventListener("keydown", event => {
      // During composition, Enter chooses a candidate.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.isRunning) this.submit();
    });
    this.setRunning(false);
  }

  focus(): void {
    this.field.focus();
  }

  setRunning(isRunning: boolean): void {
    this.isRunning = isRunning;
    const label = isRunning ? "Stop" : "Send";
    this.button.setAttribute("aria-label", label);
    this.button.title = isRunning ? "Stop (Escape)" : "Send (Enter)";
    this.button.classList.toggle("stop", isRunning);
    replace(this.button, icon(isRunning ? "stop" : "send"));
  }

  private submit(): void {
    if (this.isRunning) return this.stop();
    const text = this.field.value;
    if (!text.trim() && this.pictures.isEmpty()) return;
    this.field.value = "";
    this.resize();
    this.send(text.trim() ? text : "", this.pictures.take());
  }

  private resize(): void {
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, TALLEST)}px`;
  }
}
