// Drives a runtime as a client in another language does: stubs made at run time from protos/*.proto.
// Usage: node client.mjs <repository root> <host:port> <token>. Prints one JSON object with what it saw; exits 1 on a fault.
import { createRequire } from "node:module";
import path from "node:path";

// Modules are looked up where they were installed, which is not beside this file.
const require = createRequire(path.join(process.cwd(), "package.json"));
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [root, target, token] = process.argv.slice(2);
const definition = loader.loadSync("protos/runtime.proto", {
  includeDirs: [root], enums: String, longs: Number, defaults: true, oneofs: true,
});
const { Runs } = grpc.loadPackageDefinition(definition).luftpause.v1;
const client = new Runs(target, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${token}`);

const unary = (method, request, shown = metadata) => new Promise((resolve, reject) => {
  client[method](request, shown, (error, response) => (error ? reject(error) : resolve(response)));
});
const watch = (handle, onStep = () => {}) => new Promise((resolve, reject) => {
  const kinds = [];
  const call = client.Watch({ handle }, metadata);
  call.on("data", (step) => { kinds.push(step.record); onStep(step); });
  call.on("error", reject);
  call.on("end", () => resolve(kinds));
});
const statusOf = (promise) => promise.then(() => "OK", (error) => `${grpc.status[error.code]} ${error.details}`);

const { handle } = await unary("Spawn", { task: 'CALL delete {"query": "x"}', caller: "node", budget: { tokens: 9000 } });
const asked = (await unary("Await", { handles: [handle] })).runs[0];
const approved = await unary("Approve", { handle, allow: true });
const steps = await watch(handle);
const got = await unary("Get", { handle });
const other = await unary("Spawn", { task: "CALL delete {}", parent: "" });
await unary("Await", { handles: [other.handle], mode: "AWAIT_MODE_ANY" });
const cancelled = await unary("Cancel", { handle: other.handle });
const listed = await unary("List", { states: ["RUN_STATE_CANCELLED"] });
const invalid = await statusOf(unary("Spawn", { task: "" }));
const unauthenticated = await statusOf(unary("List", {}, new grpc.Metadata()));
client.close();
console.log(JSON.stringify({
  handle, asked, approved, steps, run: got.run, messages: JSON.parse(got.messages),
  cancelled: cancelled.handles, listed: listed.runs.map((run) => run.handle), other: other.handle, invalid, unauthenticated,
}));
