"""The pages that Prometheus reads: every name by its rules (promtool, where it is there), numbers that are those of what was done,
health that follows the pool, and a process that shows the gateway's numbers and can do nothing else."""
import os, re, shutil, signal, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from serve_rig import ROOT, Serve, main, wait_until


NVML = os.path.join(os.environ.get("WEIR_BIN") or ROOT + "/build/bin", "../tests/nvml")


def series(page):
    """{name with labels: value}"""
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if not line.startswith("#")}


def check_page(page, prefix="weir_"):
    """What promtool checks and a little more, so that it holds without promtool too."""
    kinds = dict(line.split(" ")[2:4] for line in page.splitlines() if line.startswith("# TYPE"))
    helps = [line.split(" ")[2] for line in page.splitlines() if line.startswith("# HELP")]
    assert sorted(kinds) == sorted(helps) == sorted(set(helps)), helps
    for s in series(page):
        name = s.split("{")[0]
        base = re.sub("_(bucket|sum|count)$", "", name)
        kind = kinds.get(name) or kinds[base]
        assert name.startswith(prefix), name
        assert (kind == "counter") == name.endswith("_total"), (name, kind)
    if shutil.which("promtool"):
        r = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True)
        assert r.returncode == 0 and not r.stderr, r.stderr


def numbers_are_those_of_what_was_done():
    with Serve(workers=2) as pool:
        pool.add_user("ann")
        pool.ssh("ann", "submit", "--name", "j", input="".join('{"prompt": "one two three %d", "max_tokens": 5, "ignore_eos": true}\n' % i
                                                               for i in range(8)) + '{"prompt": 3}\n')
        pool.ssh("ann", "wait", "j", code=1)
        for _ in range(3):  # at least two meet on one of two workers
            pool.weir("generate", "--max-tokens", "4", "--ignore-eos", "the same long words, again and again, and then once more")
        pool.weir("generate", "--model", "nobody", "x", code=1)

        def all_told():
            code, page = pool.get("/metrics")
            s = series(page) if code == 200 else {}
            return page if s.get('weir_requests_total{result="done"}') == 11 and s["weir_tokens_generated_total"] == 52 and sum(
                v for k, v in s.items() if k.startswith("weir_worker_decode_tokens_total")) >= 52 else None

        page = wait_until(all_told, 10, "the workers' pages have come in")
        time.sleep(1.5)  # and rest
        page = all_told()
        check_page(page)
        s = series(page)
        assert s['weir_requests_total{result="done"}'] == 11 and s['weir_request_errors_total{code="model_not_found"}'] == 1, page
        assert s["weir_tokens_generated_total"] == 52
        assert s['weir_token_interval_seconds_count{class="batch"}'] == 32 and s['weir_token_interval_seconds_count{class="interactive"}'] == 9
        assert s['weir_first_token_seconds_count{class="batch"}'] == 8 and s['weir_queue_seconds_count{class="batch"}'] == 8
        assert 0 < s["weir_prompt_cached_tokens_total"] < s["weir_prompt_tokens_total"]
        assert s['weir_user_tokens_total{user="ann",kind="completion"}'] == 40
        assert sum(v for k, v in s.items() if k.startswith("weir_worker_decode_tokens_total")) >= 52
        assert sum(v for k, v in s.items() if k.startswith('weir_worker_blocks{slot="0"')) > 0
        for slot in (0, 1):  # both histograms count every step
            label = '{slot="%d",model="tiny"}' % slot
            steps = s["weir_worker_steps_total" + label]
            assert s["weir_worker_batch_sequences_count" + label] == s["weir_worker_step_duration_seconds_count" + label] == steps
            assert s["weir_worker_batch_sequences_sum" + label] >= steps
            assert s['weir_worker_batch_sequences_bucket{slot="%d",model="tiny",le="+Inf"}' % slot] == steps
        code, page = pool.get("/metrics", pool.gateway_metrics_port)
        assert code == 200
        check_page(page)
        s = series(page)
        assert s['weir_job_lines_total{result="answered"}'] == 8 and s['weir_job_lines_total{result="failed"}'] == 1
        assert s['weir_jobs{state="completed"}'] == 1 and s['weir_jobs{state="in_progress"}'] == 0
        assert s["weir_ssh_logins_total"] == 2 and s["weir_users"] == 1 and s["weir_gateway_broker_up"] == 1
        assert s["weir_ssh_connections_total"] == 2 and 0 < s["weir_state_free_bytes"] < s["weir_state_size_bytes"]


def every_number_is_in_the_manual_and_every_one_in_the_manual_is_there():
    with open(ROOT + "/docs/operations.md") as f:
        manual = f.read()
    with Serve(env={"LD_LIBRARY_PATH": NVML}) as pool:
        pages = pool.get("/metrics")[1] + wait_until(lambda: "weir_jobs{" in pool.get("/metrics", pool.gateway_metrics_port)[1] and
                                                     pool.get("/metrics", pool.gateway_metrics_port)[1], 10, "the gateway's page")
    names = {line.split(" ")[2] for line in pages.splitlines() if line.startswith("# TYPE")}
    for name in names:
        short = re.sub("^weir_(worker|broker|ssh_connections)", "", name)
        assert name in manual or short in manual or name.startswith("weir_jobs_process_"), (
            name, "is not in docs/operations.md")
    for name in re.findall(r"\bweir_[a-z_]+[a-z]\b", manual):
        assert name in names or name in ("weir_jobs_process", "weir_token"), name


def a_removed_worker_has_no_numbers():
    with Serve(workers=2, args=["--no-ssh"]) as pool:
        pool.weir("worker", "remove", "1", "--wait")
        wait_until(lambda: 'slot="1"' not in pool.get("/metrics")[1], 10, "gone from the page")
        assert 'weir_worker_blocks{slot="0",' in pool.get("/metrics")[1]


def refused_logins_are_counted_by_reason():
    with Serve() as pool:
        pool.add_user("ann")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", pool.path("bob")], check=True)
        pool.ssh("bob", "whoami", code=255)

        def counted():
            return 'weir_ssh_logins_refused_total{reason="no_known_key"} 1\n' in pool.get("/metrics", pool.gateway_metrics_port)[1]
        wait_until(counted, 10, "the refused login is counted")


def the_driver_tells_of_the_devices():
    with Serve(env={"LD_LIBRARY_PATH": NVML}) as pool:
        s = series(wait_until(lambda: "weir_devices" in pool.get("/metrics")[1] and pool.get("/metrics")[1], 10, "the broker's page"))
        first, second = '{device="0",name="Fake GPU 0"}', '{device="1",name="Fake GPU 1"}'
        assert s["weir_devices"] == 2
        assert s["weir_device_utilization_ratio" + first] == 0.37 and s["weir_device_utilization_ratio" + second] == 0.91
        assert s["weir_device_memory_used_bytes" + second] == 70e9 and s["weir_device_memory_size_bytes" + first] == 80e9
        assert s["weir_device_temperature_celsius" + first] == 55 and s["weir_device_power_watts" + first] == 123.5
        assert "weir_device_power_watts" + second not in s  # it does not tell
        told = pool.status()["devices"]
        assert told == [{"index": 0, "name": "Fake GPU 0", "utilization": 0.37, "memory_used": 1000000000, "memory_size": 80000000000},
                        {"index": 1, "name": "Fake GPU 1", "utilization": 0.91, "memory_used": 70000000000, "memory_size": 80000000000}]
        assert "37%" in pool.weir("top").stdout and "Fake GPU 1" in pool.weir("top").stdout


def health_follows_the_pool():
    with Serve() as pool:
        for port in (pool.metrics_port, pool.gateway_metrics_port):
            wait_until(lambda: pool.get("/healthz", port)[0] == 200 and pool.get("/readyz", port)[0] == 200, 10, "healthy")
        worker = pool.status()["workers"][0]["pid"]
        os.kill(worker, signal.SIGSTOP)
        assert pool.get("/readyz")[0] == 200  # nobody has noticed, and nobody has asked it anything
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: pool.get("/readyz")[0] == 200 and pool.status()["workers"][0].get("pid", worker) != worker, 20, "the next worker")
        assert pool.get("/")[0] == pool.get("/etc/passwd")[0] == 404


def a_stopped_loop_is_not_healthy():
    with Serve() as pool:
        wait_until(lambda: pool.get("/readyz")[0] == 200, 10, "ready")
        jobs = int(subprocess.run(["pgrep", "-f", "jobs-process.*" + pool.state], capture_output=True, text=True).stdout.split()[0])
        os.kill(jobs, signal.SIGSTOP)
        code, text = wait_until(lambda: pool.get("/healthz", pool.gateway_metrics_port)[0] == 503 and
                                pool.get("/healthz", pool.gateway_metrics_port), 20, "unhealthy")
        assert "no sign of life" in text
        os.kill(jobs, signal.SIGCONT)
        wait_until(lambda: pool.get("/healthz", pool.gateway_metrics_port)[0] == 200, 20, "healthy again")


def metrics_process_of(pool):
    gateway = subprocess.run(["pgrep", "-P", str(pool.process.pid), "weir-gateway"], capture_output=True, text=True).stdout.split()[0]
    return [int(p) for p in subprocess.run(["pgrep", "-P", gateway, "-f", "metrics"], capture_output=True, text=True).stdout.split()
            if b"metrics-process" in open("/proc/%s/cmdline" % p, "rb").read()][0]


def the_process_that_serves_numbers_has_nothing_else():
    with Serve() as pool:
        wait_until(lambda: pool.get("/healthz", pool.gateway_metrics_port)[0] == 200, 10, "healthy")
        pid = metrics_process_of(pool)
        with open("/proc/%d/status" % pid) as f:
            status = f.read()
        assert "NoNewPrivs:\t1" in status
        if os.geteuid() == 0:
            assert "Uid:\t65534" in status, status
            assert os.readlink("/proc/%d/root" % pid) != "/"
            files = [os.readlink("/proc/%d/fd/%s" % (pid, fd)) for fd in os.listdir("/proc/%d/fd" % pid)]
            assert not any(f.startswith(pool.dir + "/state") for f in files), files
        os.kill(pid, signal.SIGKILL)  # the gateway goes on, and starts another
        assert pool.weir("status").returncode == 0
        wait_until(lambda: alive_again(pool, pid), 20, "started again")


def alive_again(pool, old):
    try:
        return metrics_process_of(pool) != old and pool.get("/healthz", pool.gateway_metrics_port)[0] == 200
    except (IndexError, OSError):
        return False


def every_alert_fires_on_what_it_is_for_and_on_nothing_else():
    if not shutil.which("promtool"):
        print("  (no promtool: not tried)")
        return
    here = os.path.join(ROOT, "docker/prometheus")
    subprocess.run(["promtool", "check", "config", "prometheus.yml"], cwd=here, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["promtool", "test", "rules", "rules_test.yml"], cwd=here, check=True, stdout=subprocess.DEVNULL)
    with open(here + "/rules.yml") as rules, open(here + "/rules_test.yml") as tests:
        alerts, tested = re.findall(r"alert: (\w+)", rules.read()), tests.read()
    assert all('alertname="%s"' % a in tested for a in alerts), alerts


if __name__ == "__main__":
    main([every_number_is_in_the_manual_and_every_one_in_the_manual_is_there, numbers_are_those_of_what_was_done, a_removed_worker_has_no_numbers,
          the_driver_tells_of_the_devices, refused_logins_are_counted_by_reason, health_follows_the_pool, a_stopped_loop_is_not_healthy,
          the_process_that_serves_numbers_has_nothing_else,
          every_alert_fires_on_what_it_is_for_and_on_nothing_else], sys.argv[1:])
