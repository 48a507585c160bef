#!/usr/bin/python3
"""`weir serve` ends when there is nothing to serve, and says why; one bad model among others stops nobody; a second SIGTERM ends all at once."""
import json, os, signal, subprocess, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from serve_rig import TINY, WEIR, Serve, main, wait_until


def broken_file(folder):
    """The head of a model, and nothing behind it."""
    path = os.path.join(folder, "broken.gguf")
    with open(TINY, "rb") as whole, open(path, "wb") as f:
        f.write(whole.read(5000))
    return path


def a_model_that_cannot_be_loaded_ends_it_with_the_reason():
    with tempfile.TemporaryDirectory() as folder:
        p = subprocess.run([WEIR, "serve", "--model", "bad=" + broken_file(folder), "--no-ssh", "--state-dir", folder + "/state", "--runtime-dir",
                            folder + "/run", "--host-store-bytes", "0", "--kv-bytes", "2M"], capture_output=True, text=True, timeout=60)
        assert p.returncode == 1, p
        assert "model bad cannot be loaded" in p.stderr and "broken.gguf" in p.stderr and "weir-broker ended with exit code 1" in p.stderr, p.stderr


def a_pool_with_another_model_goes_on():
    with tempfile.TemporaryDirectory() as folder:
        with Serve(workers=2, metrics=False, args=["--model", "bad=" + broken_file(folder), "--no-ssh"]) as pool:
            def bad():
                return next(w for w in json.loads(pool.weir("worker", "list", "--json").stdout) if w["model"] == "bad")
            wait_until(lambda: bad()["restarts"] >= 3, 60, "tried")
            assert json.loads(pool.weir("generate", "--model", "tiny", "a", "-m", "3", "--ignore-eos", "--json").stdout)["token_ids"]
            said = pool.weir("generate", "--model", "bad", "a", "-m", "3", code=4).stderr
            assert "no_worker" in said and "no worker of model bad can start" in said and bad()["error"], said
            assert pool.process.poll() is None


def a_second_sigterm_ends_it_at_once():
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/conf", "w") as f:
            f.write("[broker]\ndrain-seconds = 1h\n")
        pool = Serve(workers=1, metrics=False, args=["--no-ssh", "--config", folder + "/conf"])
        pids = [w["pid"] for w in json.loads(pool.weir("worker", "list", "--json").stdout)]
        running = subprocess.Popen([WEIR, "generate", "a", "-m", "100000", "--ignore-eos"], env=pool.env, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        wait_until(lambda: pool.status()["pool"]["running"] == 1 or running.poll() is not None, 60, "running")
        pool.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "event=drain" in pool.said() or pool.process.poll() is not None, 60, "draining")
        pool.process.send_signal(signal.SIGTERM)
        pool.process.wait(30)  # and not an hour
        running.wait(30)
        wait_until(lambda: not any(os.path.exists("/proc/%d" % p) for p in pids), 30, "no worker left")
        pool.stop()


def it_hears_its_childrens_ends_though_born_deaf_to_them():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # inherited, it makes the kernel reap in its place
    try:
        pool = Serve(workers=1, metrics=False, args=["--no-ssh"])
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    worker = json.loads(pool.weir("worker", "list", "--json").stdout)[0]["pid"]
    with open("/proc/%d/stat" % worker) as f:
        broker = int(f.read().rsplit(")", 1)[1].split()[1])
    os.kill(broker, signal.SIGKILL)
    wait_until(lambda: pool.process.poll() is not None, 60, "ended with its broker")
    assert "weir-broker was killed by signal 9" in pool.said(), pool.said()
    pool.stop()


def broker_and_workers_are_confined():
    with Serve(workers=1, metrics=False, args=["--no-ssh"]) as pool:
        worker = json.loads(pool.weir("worker", "list", "--json").stdout)[0]["pid"]
        with open("/proc/%d/stat" % worker) as f:
            broker = int(f.read().rsplit(")", 1)[1].split()[1])
        if "what=seccomp reason=not_for_this_build" in pool.said():
            return
        for pid in (broker, worker):
            with open("/proc/%d/status" % pid) as f:
                status = dict(line.split(":\t", 1) for line in f.read().splitlines() if ":\t" in line)
            assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", (pid, status)
            with open("/proc/%d/limits" % pid) as f:
                core = next(line for line in f if line.startswith("Max core file size")).split()
            assert core[4:6] == ["0", "0"], core


if __name__ == "__main__":
    main([a_model_that_cannot_be_loaded_ends_it_with_the_reason, a_pool_with_another_model_goes_on, a_second_sigterm_ends_it_at_once,
          it_hears_its_childrens_ends_though_born_deaf_to_them, broker_and_workers_are_confined], sys.argv[1:])
