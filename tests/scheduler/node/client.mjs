// Drives a scheduler as a client in another language does: stubs made at run time from protos/*.proto.
// Usage: node client.mjs <repository root> <host:port> <token>. Prints one JSON object with what it saw; exits 1 on a fault.
import { createRequire } from "node:module";
import path from "node:path";

// Modules are looked up where they were installed, which is not beside this file.
const require = createRequire(path.join(process.cwd(), "package.json"));
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [root, target, token] = process.argv.slice(2);
const definition = loader.loadSync("protos/scheduler.proto", {
  includeDirs: [root], enums: String, longs: Number, defaults: true, oneofs: true,
});
const { Scheduler } = grpc.loadPackageDefinition(definition).luftpause.v1;
const client = new Scheduler(target, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${token}`);

const unary = (method, request, shown = metadata) => new Promise((resolve, reject) => {
  client[method](request, shown, (error, response) => (error ? reject(error) : resolve(response)));
});
const clientStream = (method, messages) => new Promise((resolve, reject) => {
  const call = client[method](metadata, (error, response) => (error ? reject(error) : resolve(response)));
  messages.forEach((message) => call.write(message));
  call.end();
});
const statusOf = (promise) => promise.then(() => "OK", (error) => `${grpc.status[error.code]} ${error.details}`);
const turn = (turnId, fields = {}) => ({ turnId, newRunId: `run-of-${turnId}`, model: "m", caller: "node", ...fields });
const traceparent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";

async function unaryTurn() {
  const admitted = await unary("Admit", { turn: turn("u1", { traceparent }) });
  const reports = ["STARTED", "ENDED"].map((kind) => ({
    report: { kind: `REPORT_KIND_${kind}`, turnId: "u1", finishReason: "stop", promptTokens: 9 },
  }));
  const reported = await clientStream("Report", reports);
  const unknown = await unary("Admit", { turn: turn("u2", { model: "none" }) });
  return { outcome: admitted.outcome, placement: admitted.placement, taken: reported.taken, refusal: unknown.refusal };
}

function watchOnce() {
  return new Promise((resolve, reject) => {
    const call = client.Watch({}, metadata);
    call.once("data", (status) => { call.cancel(); resolve(status.replicas); });
    call.on("error", (error) => { if (error.code !== grpc.status.CANCELLED) reject(error); });
  });
}

function dispatchTurn() {
  return new Promise((resolve, reject) => {
    const call = client.Dispatch(metadata);
    let sequence = 0;
    const send = (fields) => call.write({ sequence: ++sequence, ...fields });
    const seen = { placements: [], refusals: [], acknowledged: 0 };
    call.on("data", (answer) => {
      seen.placements.push(...answer.placements);
      seen.refusals.push(...answer.refusals);
      seen.acknowledged = answer.acknowledged;
      if (sequence === 3 && seen.placements.length && seen.refusals.length) {
        send({ acknowledged: answer.sequence, reports: [{ kind: "REPORT_KIND_ENDED", turnId: "d1", traceparent }] });
      }
      if (seen.acknowledged === 4) { call.end(); resolve(seen); }
    });
    call.on("error", reject);
    send({ hello: { dataplaneId: "node", epoch: 1 } });
    send({ resync: { complete: true } });
    send({ admits: [turn("d1", { traceparent }), turn("no id!")] });
  });
}

const seen = {
  unary: await unaryTurn(),
  invalid: await statusOf(unary("Admit", { turn: turn("") })),
  unauthenticated: await statusOf(unary("Admit", { turn: turn("u3") }, new grpc.Metadata())),
  resynced: await clientStream("Resync", [{
    dataplaneId: "node-client",
    runs: [{ runId: "r", caller: "node", phase: "RUN_PHASE_PAUSED", replica: "a", sequence: 5, ageMs: 10 }],
  }]),
  dispatch: await dispatchTurn(),
  replicas: await watchOnce(),
};
client.close();
console.log(JSON.stringify(seen));
