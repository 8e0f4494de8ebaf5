// Builds the page's files into the server's sources: `node build.mjs`. With `--check` it changes
// nothing and fails if the committed files differ from what would be built.
//
// `digest.txt` has the SHA-256 of the sources. A test of the server compares it, without Node.

import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gunzipSync, gzipSync } from "node:zlib";
import { build } from "esbuild";

const web = dirname(fileURLToPath(import.meta.url));
const out = join(web, "../crates/lanner/src/server/page/files");
const NOTICE = `/*! This file contains Temml, under this licence:\n${readFileSync(join(web, "node_modules/temml/LICENSE"), "utf8").trim()}\n*/`;

async function bundle(entry, options) {
  const built = await build({
    absWorkingDir: web,
    entryPoints: [entry],
    bundle: true,
    minify: true,
    write: false,
    charset: "utf8",
    target: "es2022",
    format: "esm",
    legalComments: "none",
    ...options,
  });
  return Buffer.from(built.outputFiles[0].contents);
}

async function files() {
  const read = name => readFileSync(join(web, "src", name));
  return {
    "index.html": read("index.html"),
    "app.js": await bundle("src/main.ts"),
    "math.js": await bundle("src/math-module.ts", { banner: { js: NOTICE } }),
    "style.css": await bundle("src/style.css"),
    "icon.svg": read("icon.svg"),
  };
}

/** What the files are built from, in a fixed order. */
function sources(folder = "") {
  const here = readdirSync(join(web, "src", folder), { withFileTypes: true });
  const below = here.flatMap(entry =>
    entry.isDirectory() ? sources(`${folder}${entry.name}/`) : [`src/${folder}${entry.name}`],
  );
  return folder ? below : [...below, "build.mjs", "package-lock.json"].sort();
}

function digest() {
  const hash = createHash("sha256");
  for (const path of sources())
    hash
      .update(path)
      .update("\0")
      .update(readFileSync(join(web, path)))
      .update("\0");
  return `${hash.digest("hex")}\n`;
}

const built = await files();
let sum = 0;
const stale = [];
mkdirSync(out, { recursive: true });
for (const [name, content] of Object.entries(built)) {
  const path = join(out, `${name}.gz`);
  // The bytes of gzip differ between versions of zlib, so the contents are compared.
  const isSame = existsSync(path) && gunzipSync(readFileSync(path)).equals(content);
  if (!isSame) stale.push(name);
  if (!isSame && !process.argv.includes("--check"))
    writeFileSync(path, gzipSync(content, { level: 9 }));
  const size = isSame ? readFileSync(path).length : gzipSync(content, { level: 9 }).length;
  sum += size;
  console.log(
    `${name.padEnd(12)} ${String(content.length).padStart(7)} bytes, ${String(size).padStart(6)} compressed`,
  );
}
const digestPath = join(out, "digest.txt");
const isRecorded = existsSync(digestPath) && readFileSync(digestPath, "utf8") === digest();
if (process.argv.includes("--check")) {
  if (!isRecorded) stale.push("digest.txt");
  if (stale.length) {
    console.error(`stale: ${stale.join(", ")}; run \`npm run build\` in web/`);
    process.exit(1);
  }
} else {
  writeFileSync(digestPath, digest());
}
console.log(`${"all".padEnd(12)} ${String(sum).padStart(31)} compressed`);
