// pg-boss: insert() in bulk, workers that fetch and complete thousands of jobs a statement.
import { inLanes, load, serve, settings } from "./protocol.mjs";

const { PgBoss } = load("pg-boss");
const QUEUE = "noop";

async function start(connectionString, options = {}) {
  const boss = new PgBoss({
    connectionString, max: settings.poolSize, supervise: false, schedule: false, ...options,
  });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

await serve({
  async prepare(url) {
    const boss = await start(url);
    await boss.createQueue(QUEUE, { partition: settings.partition, notify: true });
    await boss.stop();
  },

  async producer(url) {
    const boss = await start(url);
    const send = (begin, end) => {
      const jobs = [];
      for (let i = begin; i < end; i++) jobs.push({ data: { n: i } });
      return boss.insert(QUEUE, jobs);
    };
    await boss.getQueue(QUEUE);
    return {
      bulk: (n) => inLanes(n, settings.chunk, settings.lanes, send),
      one: (now) => boss.send(QUEUE, { sent: now() }),
      close: () => boss.stop(),
    };
  },

  async work(url, onJobs, idle) {
    const boss = await start(url, { useListenNotify: idle });
    const handler = async (jobs) => {
      if (!idle) onJobs(jobs.length);
      else for (const job of jobs) onJobs(1, job.data.sent);
    };
    await boss.work(
      QUEUE,
      {
        // Not 1 when idle: two NOTIFYs during one fetch wake the worker once, and the second job would wait.
        batchSize: settings.batchSize,
        burstWhenBatchFull: !idle,
        localConcurrency: idle ? 1 : settings.localConcurrency,
        pollingIntervalSeconds: 0.5,
        notifyPollingIntervalSeconds: 0.5,
      },
      handler,
    );
    return () => boss.stop({ graceful: false });
  },
});
