// llama.cpp as a peer, through node-llama-cpp: for each line of its input, "decode 64" makes 64
// tokens from a BOS, "prefill 256" reads as many; prints seconds a token. What JavaScript adds to a
// token, some tens of microseconds, is in the figure.
//   node bench/llama_worker.mjs FOLDER_OF_NODE_MODULES MODEL.gguf THREADS
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";
import {resolve} from "node:path";

const [folder, modelPath, threads] = process.argv.slice(2);
const entry = resolve(folder, "node_modules/node-llama-cpp/dist/index.js");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(entry).href);
const llama = await getLlama({gpu: false, build: "never", progressLogs: false,
                              logLevel: LlamaLogLevel.error, maxThreads: Number(threads)});
const model = await llama.loadModel({modelPath, gpuLayers: 0});
const context = await model.createContext({contextSize: 320, batchSize: 320,
                                           threads: Number(threads)});
const sequence = context.getSequence();
console.log("llama.cpp through node-llama-cpp");
for await (const line of createInterface({input: process.stdin})) {
  const [word, count] = line.split(" ");
  const n = Number(count);
  await sequence.clearHistory();
  const start = process.hrtime.bigint();
  let last = 0;
  if (word === "decode") {
    let made = 0;
    for await (const token of sequence.evaluate([1], {temperature: 0})) {
      last = token;
      if (++made === n) {
        break;
      }
    }
  } else {
    const tokens = Array(n).fill(1);
    await sequence.evaluateWithoutGeneratingNewTokens(tokens);
  }
  const seconds = Number(process.hrtime.bigint() - start) * 1e-9 / n;
  console.log(`${seconds.toPrecision(9)} a token, last ${last}`);
}
