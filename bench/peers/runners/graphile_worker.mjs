// graphile-worker: local queue, batched completion, bulk enqueue by addJobs.
import { inLanes, load, serve, settings } from "./protocol.mjs";

const { Logger, makeWorkerUtils, run, runMigrations } = load("graphile-worker");
const logger = new Logger(() => () => {});

const preset = (connectionString) => ({
  worker: {
    connectionString,
    logger,
    maxPoolSize: settings.maxPoolSize,
    concurrentJobs: settings.concurrentJobs,
    pollInterval: 2000,
    localQueue: { size: settings.localQueueSize },
    completeJobBatchDelay: settings.completeJobBatchDelay,
    failJobBatchDelay: settings.failJobBatchDelay,
  },
});

await serve({
  prepare: (url) => runMigrations({ preset: preset(url) }),

  async producer(url) {
    const utils = await makeWorkerUtils({ preset: preset(url) });
    const send = (start, end) => {
      const jobs = [];
      for (let i = start; i < end; i++) jobs.push({ identifier: "noop", payload: { n: i } });
      return utils.addJobs(jobs);
    };
    await utils.withPgClient((client) => client.query("select 1"));
    return {
      bulk: (n) => inLanes(n, settings.chunk, settings.lanes, send),
      one: (now) => utils.addJob("noop", { sent: now() }),
      close: () => utils.release(),
    };
  },

  async work(url, onJobs) {
    const noop = async (payload) => onJobs(1, payload.sent);
    const runner = await run({ preset: preset(url), noHandleSignals: true, taskList: { noop } });
    return () => runner.stop();
  },
});
