// Asks a runtime for decisions as a client in another language does: stubs made at run time from protos/*.proto.
// Usage: node decide.mjs <repository root> <host:port> <token>. Prints one JSON object with what it saw; exits 1 on a fault.
import { createRequire } from "node:module";
import path from "node:path";

// Modules are looked up where they were installed, which is not beside this file.
const require = createRequire(path.join(process.cwd(), "package.json"));
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [root, target, token] = process.argv.slice(2);
const definition = loader.loadSync("protos/runtime.proto", { includeDirs: [root], enums: String, defaults: true });
const { Runs } = grpc.loadPackageDefinition(definition).luftpause.v1;
const client = new Runs(target, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${token}`);

const decide = (request) => new Promise((resolve) => {
  client.Decide(request, metadata, (error, response) => {
    resolve(error ? `${grpc.status[error.code]} ${error.details}` : response);
  });
});

console.log(JSON.stringify({
  classified: await decide({ input: "You have won a prize!" }),
  chosen: await decide({ input: "I was charged twice.", labels: ["billing", "bug", "other"], caller: "node" }),
  one: await decide({ input: "x", labels: ["a"] }),
}));
client.close();
