"""A real Prometheus scrapes a running pool under load: our rules are evaluated without an error, every query of every panel of the dashboard
gives numbers, an alert that is due fires.  Needs Debian's prometheus; says so and ends with 77 where it is missing.  About a minute."""
import json, math, os, re, shutil, signal, subprocess, sys, threading, time, urllib.parse, urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from ports import free_port
from serve_rig import ROOT, Serve, wait_until

if not shutil.which("prometheus"):
    print("prometheus is not here")
    sys.exit(77)


NVML = os.path.join(os.environ.get("WEIR_BIN") or ROOT + "/build/bin", "../tests/nvml")


class Prometheus:
    def __init__(self, pool):
        self.port = free_port()
        self.dir = pool.path("prometheus")
        os.mkdir(self.dir)
        with open(ROOT + "/docker/prometheus/prometheus.yml") as f:
            config = f.read()
        config = config.replace("10s", "1s").replace("weir:9464", "127.0.0.1:%d" % pool.metrics_port)
        config = config.replace("weir:9465", "127.0.0.1:%d" % pool.gateway_metrics_port)
        with open(self.dir + "/prometheus.yml", "w") as f:
            f.write(config)
        with open(ROOT + "/docker/prometheus/rules.yml") as f:  # the same rules, with no patience
            rules = re.sub(r"for: \w+", "for: 2s", f.read())
        with open(self.dir + "/rules.yml", "w") as f:
            f.write(rules)
        self.log = open(self.dir + "/log", "wb")
        self.process = subprocess.Popen(
            ["prometheus", "--config.file=" + self.dir + "/prometheus.yml", "--storage.tsdb.path=" + self.dir + "/data",
             "--web.listen-address=127.0.0.1:%d" % self.port], stdout=self.log, stderr=self.log)
        wait_until(lambda: self.process.poll() is None and self.ready(), 30, "prometheus is ready")

    def ready(self):
        try:
            return bool(self.ask("query", query="up"))
        except OSError:
            return False

    def ask(self, what, **parameters):
        url = "http://127.0.0.1:%d/api/v1/%s?%s" % (self.port, what, urllib.parse.urlencode(parameters))
        with urllib.request.urlopen(url, timeout=10) as r:
            answer = json.load(r)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression):
        return self.ask("query", query=expression)["result"]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.log.close()


def queries():
    """(panel's title, expression) of every panel, with Grafana's variable filled in."""
    with open(ROOT + "/docker/grafana/dashboard.json") as f:
        panels = json.load(f)["panels"]
    return [(p["title"], t["expr"].replace("$__rate_interval", "30s")) for p in panels for t in p.get("targets", [])]


def load(pool, stop):
    """Batch lines, people, a stranger, a request that fails; round and round."""
    i = 0
    while not stop.is_set():
        i += 1
        lines = "".join(json.dumps({"prompt": "line %d of round %d, with some words that are always the same" % (k, i),
                                    "max_tokens": 30, "ignore_eos": True}) + "\n" for k in range(30))
        pool.ssh("ann", "run", input=lines, code=None)
        pool.weir("generate", "--max-tokens", "20", "--ignore-eos", "the same words again and again, with some words that are always the same")
        pool.weir("generate", "-", input="word " * 9000, code=1)
        pool.ssh("bob", "whoami", code=255)


def number(sample):
    return float(sample["value"][1])


def check(pool, prometheus):
    up = prometheus.query("up")
    assert len(up) == 2 and all(number(s) == 1 for s in up), up
    empty = []
    for title, expression in queries():
        result = prometheus.query(expression)
        if not any(math.isfinite(number(s)) for s in result):
            empty.append((title, expression, result))
    assert not empty, empty
    moving = ["weir_tokens_generated_total", "weir_job_lines_total", "weir_ssh_logins_refused_total", "weir_request_errors_total",
              "weir_token_interval_seconds_count"]
    for name in moving:
        assert sum(number(s) for s in prometheus.query("rate(%s[30s])" % name)) > 0, name
    rules = [r for g in prometheus.ask("rules")["groups"] for r in g["rules"]]
    assert len(rules) >= 11 and all(r["health"] == "ok" for r in rules), rules
    print("%d queries of panels, %d rules: all give numbers" % (len(queries()), len(rules)))


def check_alerts(pool, prometheus):
    """What is wrong is seen: the broker is stopped, and two rules fire."""
    pool.stop()
    def firing():
        return {a["labels"]["alertname"] for a in prometheus.ask("alerts")["alerts"] if a["state"] == "firing"} >= {"WeirBrokerDown",
                                                                                                                   "WeirGatewayDown"}
    wait_until(firing, 30, "the alerts of a pool that is down")


def main():
    # A host store small enough to be used, and a driver's library with two GPUs that are not there.
    with Serve(workers=2, args=["--host-store-bytes", "2M"], env={"LD_LIBRARY_PATH": NVML}) as pool:
        pool.add_user("ann")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", pool.path("bob")], check=True)
        prometheus = Prometheus(pool)
        stop = threading.Event()
        people = threading.Thread(target=load, args=(pool, stop))
        people.start()
        try:
            time.sleep(15)
            os.kill(max(pool.status()["workers"], key=lambda w: w.get("running", 0))["pid"], signal.SIGKILL)
            time.sleep(15)
            assert people.is_alive(), "the load ended early"
            check(pool, prometheus)
        finally:
            stop.set()
            people.join()
        check_alerts(pool, prometheus)
        prometheus.stop()


if __name__ == "__main__":
    main()
