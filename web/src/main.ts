/** Starts the page: views, keyboard, theme, and the parts that know each other. */

import { getJson } from "./api";
import { SettingsPanel } from "./chat/panel";
import { Sidebar } from "./chat/sidebar";
import { ChatView } from "./chat/view";
import { byId, el, replace } from "./dom";
import { EngineView } from "./engine/view";
import { ModelsView, type Model } from "./models/view";
import { openStore } from "./storage";

const VIEWS = ["chat", "engine", "models"] as const;
type ViewName = (typeof VIEWS)[number];
const THEMES = ["auto", "light", "dark"];
const THEME_KEY = "lanner-theme";

async function start(): Promise<void> {
  themeButton();
  const store = await openStore();
  const chat = new ChatView(
    store,
    () => void sidebar.refresh(),
    () => {
      panel.draw();
      drawModels(models.models);
      void sidebar.refresh();
      closeDrawer();
    },
  );
  const sidebar = new Sidebar(store, {
    open: id => {
      go("chat");
      void chat.open(id);
    },
    startNew: () => {
      go("chat");
      chat.startNew();
    },
    forget: id => chat.forget(id),
    current: () => chat.conversation,
  });
  const panel = new SettingsPanel(
    () => chat.conversation.settings,
    () => chat.settingsChanged(),
  );
  const engine = new EngineView(store);
  const select = byId<HTMLSelectElement>("model");
  const drawModels = (all: Model[]) => modelOptions(select, all, chat.conversation.settings.model);
  const models = new ModelsView(drawModels);
  select.addEventListener("change", () => {
    chat.conversation.settings.model = select.value;
    chat.settingsChanged();
  });
  views({ engine, models });
  panelButton();
  drawerButton();
  keyboard(chat, sidebar);
  panel.draw();
  await Promise.all([sidebar.refresh(), models.refresh(), mcpServers(panel)]);
}

async function mcpServers(panel: SettingsPanel): Promise<void> {
  try {
    const list = await getJson<{ data: { server_label: string }[] }>("v1/mcp");
    panel.setServers(list.data.map(server => server.server_label));
  } catch {
    // The chat works without them.
  }
}

function modelOptions(select: HTMLSelectElement, models: Model[], chosen: string): void {
  const main = models.find(model => model.default);
  const option = (model: Model) =>
    el(
      "option",
      { value: model.id },
      model.state === "loaded"
        ? model.id
        : `${model.id} (${model.state === "loading" ? "loading" : "on disk"})`,
    );
  const isGone = chosen !== "" && !models.some(model => model.id === chosen);
  replace(
    select,
    el("option", { value: "" }, main ? `Default: ${main.id}` : "Default model"),
    ...models.map(option),
    isGone && el("option", { value: chosen }, `${chosen} (not here)`),
  );
  select.value = chosen;
}

interface Polled {
  show(): void;
  hide(): void;
}

/** The address' fragment names the view, so that links and the back button work. */
function views(polled: Record<"engine" | "models", Polled>): void {
  let shown: ViewName | null = null;
  const draw = () => {
    const current = currentView();
    if (current === shown) return;
    shown = current;
    for (const name of VIEWS) {
      byId(`view-${name}`).hidden = name !== current;
      const link = byId(`nav-${name}`);
      if (name === current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.body.dataset.view = current;
    for (const name of ["engine", "models"] as const)
      polled[name][name === current ? "show" : "hide"]();
  };
  addEventListener("hashchange", draw);
  draw();
}

function currentView(): ViewName {
  return VIEWS.find(name => location.hash === `#${name}`) ?? "chat";
}

/** Shows a view at once: the event of the address comes later than the next key. */
function go(view: ViewName): void {
  if (currentView() === view) return;
  location.hash = view;
  dispatchEvent(new HashChangeEvent("hashchange"));
}

function themeButton(): void {
  const root = document.documentElement;
  const button = byId("theme");
  const show = (theme: string) => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    button.setAttribute("aria-label", `Theme: ${theme}`);
    button.title = `Theme: ${theme}`;
  };
  let theme = localStorage.getItem(THEME_KEY) ?? "auto";
  show(theme);
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]!;
    localStorage.setItem(THEME_KEY, theme);
    show(theme);
  });
}

function panelButton(): void {
  const [button, panel] = [byId("settings-button"), byId("settings")];
  const toggle = (open: boolean) => {
    panel.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    if (open) panel.querySelector<HTMLElement>("textarea, input")?.focus();
    else button.focus();
  };
  button.addEventListener("click", () => toggle(panel.hidden === true));
  byId("settings-close").addEventListener("click", () => toggle(false));
  panel.addEventListener("keydown", event => {
    if (event.key === "Escape") toggle(false);
  });
}

/** On a narrow screen the sidebar is a drawer. */
function drawerButton(): void {
  byId("menu").addEventListener("click", () => {
    const open = document.body.classList.toggle("drawer");
    byId("menu").setAttribute("aria-expanded", String(open));
    if (open) byId("search").focus();
  });
  byId("veil").addEventListener("click", closeDrawer);
}

function closeDrawer(): void {
  document.body.classList.remove("drawer");
  byId("menu").setAttribute("aria-expanded", "false");
}

function keyboard(chat: ChatView, sidebar: Sidebar): void {
  const shortcuts: Record<string, () => void> = {
    KeyK: () => {
      go("chat");
      sidebar.focusSearch();
    },
    KeyO: () => {
      go("chat");
      chat.startNew();
    },
    KeyS: () => byId("settings-button").click(),
    Digit1: () => go("chat"),
    Digit2: () => go("engine"),
    Digit3: () => go("models"),
  };
  addEventListener("keydown", event => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
      closeDrawer();
      chat.stop();
    }
    const shortcut =
      event.altKey && !event.ctrlKey && !event.metaKey ? shortcuts[event.code] : undefined;
    if (!shortcut) return;
    event.preventDefault();
    shortcut();
  });
}

void start();
