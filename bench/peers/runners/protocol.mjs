// What every node runner shares: verbs come in as arguments, facts go out as JSON lines.
//
//   prepare <url>            create the peer's schema, then exit
//   enqueue <url> <n>        bulk-enqueue n jobs, report {"seconds"}
//   work <url>               report {"ready"}, wait for a line on stdin, work until stdin closes,
//                            report {"handled", "first"} as it goes
//   listen <url>             like work without the wait; also reports {"latency"} in ns per job
//   trickle <url> <n> <ms>   wait for a line, then enqueue n jobs one at a time, ms apart, the clock in each
//
// The clock is CLOCK_MONOTONIC in ns, which Python's time.monotonic_ns() reads too.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

/** Packages are looked up from the working directory, the cache folder the harness installed them in. */
export const load = createRequire(`${process.cwd()}/`);
export const settings = JSON.parse(process.env.PEER_SETTINGS ?? "{}");
export const clock = () => process.hrtime.bigint();
export const say = (fact) => process.stdout.write(JSON.stringify(fact) + "\n");

const pause = (ms) => new Promise((wake) => setTimeout(wake, ms));
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Counts handled jobs and reports them at most every 10 ms, so that reporting costs the peer nothing. */
export function makeTally() {
  let handled = 0, reported = 0, first = null;
  const report = () => {
    if (handled === reported) return;
    reported = handled;
    say({ handled, first: Number(first) });
  };
  setInterval(report, 10).unref();
  return (count) => {
    first ??= clock();
    handled += count;
  };
}

/** Splits n jobs into chunks and keeps `lanes` chunks in flight. */
export async function inLanes(n, chunk, lanes, send) {
  let next = 0;
  const lane = async () => {
    while (next < n) {
      const start = next;
      next = Math.min(n, next + chunk);
      await send(start, next);
    }
  };
  await Promise.all(Array.from({ length: lanes }, lane));
}

/** Serves one verb with the peer's own five functions. */
export async function serve(peer) {
  const [verb, url, n, ms] = process.argv.slice(2);
  if (verb === "prepare") {
    await peer.prepare(url);
  } else if (verb === "enqueue") {
    const producer = await peer.producer(url);
    const started = clock();
    await producer.bulk(Number(n));
    say({ seconds: Number(clock() - started) / 1e9 });
    await producer.close();
  } else if (verb === "work" || verb === "listen") {
    const tally = makeTally();
    const onJobs = verb === "work"
      ? tally
      : (_count, sent) => say({ latency: Number(clock() - BigInt(sent)) });
    if (verb === "work") {
      say({ ready: true });
      await lines.next();
    }
    const stop = await peer.work(url, onJobs, verb === "listen");
    if (verb === "listen") say({ ready: true });
    while (!(await lines.next()).done);
    await stop();
  } else if (verb === "trickle") {
    const producer = await peer.producer(url);
    say({ ready: true });
    await lines.next();
    for (let i = 0; i < Number(n); i++) {
      await producer.one(() => clock().toString());
      await pause(Number(ms));
    }
    await producer.close();
  }
  process.exit(0);
}
